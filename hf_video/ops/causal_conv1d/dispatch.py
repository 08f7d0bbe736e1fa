"""
The depthwise causal convolution with SiLU of Mamba, one function over several backends.

The scan that reads the output decides on the backend: each leaves the output in the memory layout of one scan.
"""

import functools
from collections.abc import Callable

import torch
from transformers.utils import logging

from hf_video.ops.selective_scan.dispatch import choose_backend as choose_scan
from hf_video.ops.selective_scan.mamba_ssm import KERNELS_REPOSITORY

from .cpu import causal_conv1d_cpu
from .cuda import causal_conv1d_cuda, why_cuda_cannot
from .reference import causal_conv1d_reference
from .triton import causal_conv1d_triton, why_triton_cannot

logger = logging.get_logger(__name__)

BACKENDS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, bool], torch.Tensor]] = {
    "causal_conv1d": causal_conv1d_cuda,
    "triton": causal_conv1d_triton,
    "cpu": causal_conv1d_cpu,
    "reference": causal_conv1d_reference,
}


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    reverse: bool = False,
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
        backend (`str`, *optional*):
            `"reference"`, `"cpu"`, `"triton"` (CUDA) or `"causal_conv1d"` (CUDA, with the package of that name). By
            default [`choose_backend`] decides, for the scan that would be chosen for `x`.

    Returns:
        `(batch_size, dim, length)` in the dtype of `x`. Time is contiguous in memory with `"causal_conv1d"`, and
        channels are with `"triton"` and `"cpu"`.

    Raises:
        ValueError: if `backend` does not exist.
    """
    if backend is None:
        backend = choose_backend(choose_scan(x.device.type, x.dtype, 1, False, None), weight.shape[-1])
    if backend not in BACKENDS:
        raise ValueError(f"There is no backend {backend!r} of causal_conv1d; choose one of {', '.join(BACKENDS)}.")
    return BACKENDS[backend](x, weight, bias, reverse)


@torch.compiler.assume_constant_result
def choose_backend(scan_backend: str, taps: int) -> str:
    """
    Name of the backend beside a backend of `selective_scan`. Beside mamba-ssm's scan it is the package causal-conv1d,
    or else Triton.
    """
    if scan_backend in ("mamba_ssm", KERNELS_REPOSITORY):
        return _choose_for_mamba_ssm(taps)
    return scan_backend if scan_backend in BACKENDS else "reference"


@functools.cache
def _choose_for_mamba_ssm(taps: int) -> str:
    reasons = {"causal_conv1d": why_cuda_cannot(taps)}
    if reasons["causal_conv1d"] is not None:
        reasons["triton"] = why_triton_cannot()
    name = next((name for name, reason in reasons.items() if reason is None), None)
    rejected = "; ".join(f"not {name!r}: {reason}" for name, reason in reasons.items() if reason is not None)
    log = logger.warning if name is None else logger.info
    why = rejected or "the first choice"
    log(f"Beside mamba-ssm's scan runs the convolution of {name or 'PyTorch, which is slow'} ({why}).")
    return name or "reference"
