"""
The depthwise causal convolution with SiLU that comes before Mamba's selective scan, one function over several
backends.

The scan that reads the output decides on the backend: each leaves the output in the memory layout of one scan. The
kernels for the CPU and of Triton take channels last, as linear layers do. PyTorch's convolution takes channels first,
and on the CPU more time than the scan.
"""

from functools import partial

import torch

from hf_video.ops import mamba_kernels
from hf_video.ops.dispatch import Backend, choose
from hf_video.ops.mamba_kernels import HUB_KERNELS
from hf_video.ops.selective_scan import choose_backend as choose_scan

from . import cpu, triton
from .reference import causal_conv1d_reference

__all__ = ["causal_conv1d"]


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    reverse: bool = False,
    initial_state: torch.Tensor | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    """
    Depthwise convolution over each step and the steps before it, then SiLU.

    Args:
        x (`torch.Tensor` of shape `(batch_size, dim, length)`):
            Inputs, of any floating dtype.
        weight (`torch.Tensor` of shape `(dim, 1, taps)`):
            Weight as `torch.nn.Conv1d` has it: the tap of the step itself is the last.
        bias (`torch.Tensor` of shape `(dim,)`, *optional*):
            Added before SiLU.
        reverse (`bool`, defaults to `False`):
            Whether to convolve over each step and those after it.
        initial_state (`torch.Tensor` of shape `(batch_size, dim, taps - 1)`, *optional*):
            The steps before the first one, or with `reverse` after the last one; zero by default.
        backend (`str`, *optional*):
            `"causal_conv1d"` (CUDA, with the package of that name), `"kernels-community/mamba-ssm"` (CUDA, from the
            Hub), `"triton"` (CUDA), `"cpu"` or `"reference"`. By default [`choose_backend`] decides, for the scan that
            would be chosen for `x`.

    Returns:
        `(batch_size, dim, length)` in the dtype of `x`. Channels are contiguous in memory with `"triton"` and
        `"cpu"`, and time is with compiled kernels.

    Raises:
        ValueError: if `backend` does not exist, or `weight` has another number of axes.
    """
    if weight.ndim != 3:
        raise ValueError(
            f"weight has the shape {tuple(weight.shape)}; (dim, 1, taps) is expected, as torch.nn.Conv1d has it. "
            "weight[:, None] makes it of (dim, taps)."
        )
    if backend is None:
        backend = choose_backend(choose_scan(x.device.type, x.dtype, 1, False, None), weight.shape[-1])
    if backend not in BACKENDS:
        raise ValueError(f"There is no backend {backend!r} of causal_conv1d; choose one of {', '.join(BACKENDS)}.")
    run = BACKENDS[backend].run
    if initial_state is None:
        return run(x, weight, bias, reverse)
    parts = (x, initial_state.to(x.dtype)) if reverse else (initial_state.to(x.dtype), x)
    convolved = run(torch.cat(parts, dim=-1), weight, bias, reverse)
    return convolved.narrow(-1, 0 if reverse else initial_state.shape[-1], x.shape[-1])


@torch.compiler.assume_constant_result
def choose_backend(scan_backend: str, taps: int) -> str:
    """Name of the backend beside one of `selective_scan`: beside mamba-ssm's, compiled kernels or else Triton's."""
    if scan_backend in ("mamba_ssm", HUB_KERNELS):
        return choose("causal_conv1d", BACKENDS, taps)
    return scan_backend if scan_backend in BACKENDS else "reference"


def run_compiled(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool, source: str
) -> torch.Tensor:
    """Contiguous output, by the compiled kernels of `source`; `compiled_unsupported` must return `None`."""
    tensors = [x, weight.float()[:, 0], None if bias is None else bias.float()]
    return mamba_kernels.run(source, "CausalConv1dFn", tensors, reverse)


def compiled_unsupported(taps: int, source: str) -> str | None:
    """The reason why compiled kernels cannot convolve over so many tokens, or `None` if they can."""
    if not 2 <= taps <= 4:
        return f"it convolves over 2 to 4 tokens, not {taps}"
    return mamba_kernels.probe(source, "CausalConv1dFn")


# In the order in which they are tried beside mamba-ssm's scan.
BACKENDS = {
    **{
        source: Backend(partial(run_compiled, source=source), partial(compiled_unsupported, source=source))
        for source in ("causal_conv1d", HUB_KERNELS)
    },
    "triton": Backend(triton.causal_conv1d_triton, lambda taps: triton.probe()),
    "cpu": Backend(cpu.causal_conv1d_cpu, lambda taps: "it runs on the CPU"),
    "reference": Backend(causal_conv1d_reference, lambda taps: None),
}
