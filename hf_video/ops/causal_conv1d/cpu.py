"""
`causal_conv1d` on the CPU, by kernels that numba compiles on the user's machine.

They take channels last, as linear layers do. PyTorch's convolution takes channels first, and more time than the scan.
"""

import torch

from hf_video.ops.buffers import new_output
from hf_video.ops.numba_threads import from_lanes, run_units, split_tokens, to_lanes, to_rows
from hf_video.ops.operators import register_convolution


def causal_conv1d_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool) -> torch.Tensor:
    """Output as `causal_conv1d` describes it, computed in float32. It is quickest if channels are last in memory."""
    biases = None if bias is None else bias.float()
    convolved = conv_forward(x.float().mT, weight.float()[:, 0], biases, reverse)
    return convolved.mT.to(x.dtype)


def _pack(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor]:
    from hf_video.ops.numba_vectors import LANES

    bias = weight.new_zeros(x.shape[-1]) if bias is None else bias
    return [to_rows(x, LANES), *(to_lanes(tensor, 1, LANES).contiguous() for tensor in (weight.mT, bias))]


@torch.library.custom_op("hf_video::causal_conv1d_cpu", mutates_args=())
def conv_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool) -> torch.Tensor:
    """The output, like x, for x `(batch, length, dim)`, weight `(dim, taps)` and bias `(dim,)`, all float32."""
    return run_forward(x, weight, bias, reverse, x.dtype)


def run_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool, dtype: torch.dtype
) -> torch.Tensor:
    """As `conv_forward`, also for x in bfloat16; the output has the given dtype, float32 or bfloat16."""
    from .cpu_kernels import conv_forward_unit

    arrays = _pack(x, weight, bias)
    y = new_output(arrays[0].shape, dtype)
    run_units(conv_forward_unit, (*arrays, y, reverse), split_tokens(*y.shape[:2]))
    return from_lanes(y, 1, x.shape[-1])


@torch.library.custom_op("hf_video::causal_conv1d_cpu_backward", mutates_args=())
def conv_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of x, weight and bias, also of a bias that is missing, float32; x and dy may be bfloat16."""
    from hf_video.ops.numba_vectors import LANES

    from .cpu_kernels import conv_backward_unit

    arrays = _pack(x, weight, bias)
    dx = new_output(arrays[0].shape)
    units = [(*unit, part) for part, unit in enumerate(split_tokens(*dx.shape[:2]))]
    dweight, dbias = (tensor.new_zeros(len(units), *tensor.shape) for tensor in arrays[1:])
    run_units(conv_backward_unit, (*arrays, to_lanes(dy, 1, LANES).contiguous(), dx, dweight, dbias, reverse), units)
    dx, dweight, dbias = (from_lanes(grad, 1, x.shape[-1]) for grad in (dx, dweight.sum(dim=0), dbias.sum(dim=0)))
    return dx, dweight.mT.contiguous(), dbias


@conv_forward.register_fake
def _(x, weight, bias, reverse):
    return x.new_empty(x.shape)


@conv_backward.register_fake
def _(dy, x, weight, bias, reverse):
    return x.new_empty(x.shape), x.new_empty(weight.shape), x.new_empty(x.shape[-1])


register_convolution(conv_forward, conv_backward)
