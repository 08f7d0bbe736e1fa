"""
`causal_conv1d` by the compiled kernels of the package causal-conv1d (https://github.com/Dao-AILab/causal-conv1d).

Releases differ in the arguments of the compiled functions, and in the order of arguments of `causal_conv1d_fn`. All
releases have the autograd function that it calls, `CausalConv1dFn`, with an argument `activation`: it is called here.
"""

import functools
import importlib
from typing import Any

import torch

from hf_video.ops.operators import RecordedContext, register_convolution, turn

INTERFACE = "causal_conv1d.causal_conv1d_interface"


def causal_conv1d_cuda(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool
) -> torch.Tensor:
    """
    Contiguous output as `causal_conv1d` describes it; `why_cuda_cannot` must return `None`. Inputs are float32,
    float16 or bfloat16. They are copied unless time is contiguous, as the scan of mamba-ssm needs it.
    """
    arguments = weight.float()[:, 0], None if bias is None else bias.float()
    return turn(conv_forward(turn(x), *arguments)) if reverse else conv_forward(x, *arguments)


def why_cuda_cannot(taps: int) -> str | None:
    """The reason why the kernels cannot convolve over so many tokens, or `None` if they can."""
    if not 2 <= taps <= 4:
        return f"it convolves over 2 to 4 tokens, not {taps}"
    return probe()


def load_function() -> Any:
    """`CausalConv1dFn` of the installed package; `ImportError` if there is none."""
    return importlib.import_module(INTERFACE).CausalConv1dFn


@functools.cache
def probe(device: str = "cuda") -> str | None:
    """Why a call of the compiled convolution fails, or `None` if it works. The import may work and a call fail."""
    x, weight = torch.ones(1, 8, 4, device=device), torch.ones(8, 4, device=device)
    try:
        output = conv_forward(x, weight, weight[:, 0].contiguous())
        conv_backward(x, x, weight, weight[:, 0].contiguous())
    # A foreign build may fail in any way, from a missing symbol to an assertion. Each means that it cannot be used.
    except Exception as error:
        return f"its compiled convolution does not answer ({type(error).__name__}: {error})"
    return None if output.isfinite().all() else "its compiled convolution answers with numbers that are not finite"


def _run(context: RecordedContext, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    # `contiguous` would leave the strides of a sequence of one step unchanged.
    x = x if x.stride(2) == 1 else x.clone(memory_format=torch.contiguous_format)
    return load_function().forward(context, x, weight.contiguous(), bias, activation="silu").contiguous()


@torch.library.custom_op("hf_video::causal_conv1d_cuda", mutates_args=())
def conv_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The output, like x, for x `(batch, dim, length)`, and float32 weight `(dim, taps)` and bias `(dim,)`."""
    return _run(RecordedContext(), x, weight, bias)


@torch.library.custom_op("hf_video::causal_conv1d_cuda_backward", mutates_args=())
def conv_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of x, weight and bias, also of a bias that is missing. The forward runs again, so that nothing is
    kept."""
    context = RecordedContext()
    _run(context, x, weight, bias)
    dx, dweight, dbias = load_function().backward(context, dy.contiguous())[:3]
    return dx.contiguous(), dweight.to(weight.dtype), weight.new_zeros(len(weight)) if dbias is None else dbias


@conv_forward.register_fake
def _(x, weight, bias):
    return x.new_empty(x.shape)


@conv_backward.register_fake
def _(dy, x, weight, bias):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(len(weight))


register_convolution(conv_forward, conv_backward)
