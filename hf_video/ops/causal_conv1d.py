"""
The depthwise causal convolution with SiLU that comes before Mamba's selective scan, one function over several
backends.

The scan that reads the output decides on the backend: each leaves the output in the memory layout of one scan. The
kernels for the CPU and of Triton take channels last, as linear layers do. PyTorch's convolution takes channels first,
and on the CPU more time than the scan.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers.utils import logging

from .numba_threads import from_lanes, run_units, split_tokens, to_lanes
from .registration import RecordedContext, probing, register_gradients, turn
from .selective_scan.dispatch import choose_backend as choose_scan
from .selective_scan.mamba_ssm import KERNELS_REPOSITORY

__all__ = ["causal_conv1d"]

logger = logging.get_logger(__name__)

# Releases of the package differ in the arguments of the compiled functions, and in the order of arguments of
# `causal_conv1d_fn`. All have the autograd function that it calls, `CausalConv1dFn`, with an argument `activation`.
PACKAGE_INTERFACE = "causal_conv1d.causal_conv1d_interface"
# Sizes of a tile of Triton's kernels. It also reads the steps before its own. Its channels fill 128 bytes of bfloat16.
STEPS, BLOCK = 32, 64


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
            `"reference"`, `"cpu"`, `"triton"` (CUDA) or `"causal_conv1d"` (CUDA, with the package of that name,
            https://github.com/Dao-AILab/causal-conv1d). By default [`choose_backend`] decides, for the scan that would
            be chosen for `x`.

    Returns:
        `(batch_size, dim, length)` in the dtype of `x`. Time is contiguous in memory with `"causal_conv1d"`, and
        channels are with `"triton"` and `"cpu"`.

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
    if initial_state is None:
        return BACKENDS[backend](x, weight, bias, reverse)
    parts = (x, initial_state.to(x.dtype)) if reverse else (initial_state.to(x.dtype), x)
    convolved = BACKENDS[backend](torch.cat(parts, dim=-1), weight, bias, reverse)
    return convolved.narrow(-1, 0 if reverse else initial_state.shape[-1], x.shape[-1])


@torch.compiler.assume_constant_result
def choose_backend(scan_backend: str, taps: int) -> str:
    """
    Name of the backend beside a backend of `selective_scan`. Beside mamba-ssm's scan it is the package causal-conv1d,
    or else Triton.
    """
    if scan_backend not in ("mamba_ssm", KERNELS_REPOSITORY):
        return scan_backend if scan_backend in BACKENDS else "reference"
    reasons = {"causal_conv1d": why_package_cannot(taps)}
    if reasons["causal_conv1d"] is not None:
        reasons["triton"] = why_triton_cannot()
    name = next((name for name, reason in reasons.items() if reason is None), None)
    rejected = "; ".join(f"not {name!r}: {reason}" for name, reason in reasons.items() if reason is not None)
    log = logger.warning_once if name is None else logger.info_once
    why = rejected or "the first choice"
    log(f"Beside mamba-ssm's scan runs the convolution of {name or 'PyTorch, which is slow'} ({why}).")
    return name or "reference"


def causal_conv1d_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool
) -> torch.Tensor:
    """The specification that every other backend is tested against, computed in float32 at least."""
    dtype, taps = torch.promote_types(x.dtype, torch.float32), weight.shape[-1]
    kernel = (weight.flip(-1) if reverse else weight).to(dtype)
    biases = None if bias is None else bias.to(dtype)
    convolved = F.conv1d(x.to(dtype), kernel, biases, padding=taps - 1, groups=x.shape[1])
    return F.silu(convolved.narrow(-1, taps - 1 if reverse else 0, x.shape[-1])).to(x.dtype)


def causal_conv1d_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool) -> torch.Tensor:
    """Computed in float32 by kernels that numba compiles. It is quickest if channels are last in memory."""
    convolved = cpu_forward(x.float().mT, *_in_float32(weight, bias), reverse)
    return convolved.mT.to(x.dtype)


def causal_conv1d_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool
) -> torch.Tensor:
    """Computed in float32 by kernels that Triton compiles. It is quickest if channels are last in memory."""
    return triton_forward(x.mT, *_in_float32(weight, bias), reverse).mT


def causal_conv1d_package(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reverse: bool
) -> torch.Tensor:
    """
    Contiguous output; `why_package_cannot` must return `None`. Inputs are float32, float16 or bfloat16. They are
    copied unless time is contiguous, as the scan of mamba-ssm needs it.
    """
    weights = _in_float32(weight, bias)
    return turn(package_forward(turn(x), *weights)) if reverse else package_forward(x, *weights)


BACKENDS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, bool], torch.Tensor]] = {
    "causal_conv1d": causal_conv1d_package,
    "triton": causal_conv1d_triton,
    "cpu": causal_conv1d_cpu,
    "reference": causal_conv1d_reference,
}


def _in_float32(weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    return weight.float()[:, 0], None if bias is None else bias.float()


def _pack_for_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor]:
    x = x if x.stride(-1) == 1 else x.contiguous()
    bias = weight.new_zeros(x.shape[-1]) if bias is None else bias
    return [to_lanes(x), *(to_lanes(tensor).contiguous() for tensor in (weight.mT, bias))]


# The operators of the CPU and of Triton take x `(batch, length, dim)`, those of the package `(batch, dim, length)`;
# all take float32 weight `(dim, taps)` and bias `(dim,)`. Backwards give the gradient of a missing bias, too.
FORWARD = "(Tensor x, Tensor weight, Tensor? bias, bool reverse) -> Tensor"
BACKWARD = "(Tensor dy, Tensor x, Tensor weight, Tensor? bias, bool reverse) -> (Tensor, Tensor, Tensor)"


@torch.library.custom_op("hf_video::causal_conv1d_cpu", mutates_args=(), schema=FORWARD)
def cpu_forward(x, weight, bias, reverse):
    from .cpu_kernels import conv_forward_unit

    arrays = _pack_for_cpu(x, weight, bias)
    y = torch.empty(arrays[0].shape)
    run_units(conv_forward_unit, (*arrays, y, reverse), split_tokens(*y.shape[:2]))
    return from_lanes(y, 1, x.shape[-1])


@torch.library.custom_op("hf_video::causal_conv1d_cpu_backward", mutates_args=(), schema=BACKWARD)
def cpu_backward(dy, x, weight, bias, reverse):
    from .cpu_kernels import conv_backward_unit

    arrays = _pack_for_cpu(x, weight, bias)
    dx = torch.empty(arrays[0].shape)
    units = [(*unit, part) for part, unit in enumerate(split_tokens(*dx.shape[:2]))]
    dweight, dbias = (tensor.new_zeros(len(units), *tensor.shape) for tensor in arrays[1:])
    run_units(conv_backward_unit, (*arrays, to_lanes(dy).contiguous(), dx, dweight, dbias, reverse), units)
    dx, dweight, dbias = (from_lanes(grad, 1, x.shape[-1]) for grad in (dx, dweight.sum(dim=0), dbias.sum(dim=0)))
    return dx, dweight.mT.contiguous(), dbias


@probing
def why_triton_cannot(device="cuda"):
    """Triton, or the C compiler that it needs, may be missing."""
    x, weight = torch.ones(1, 4, 1, device=device), torch.ones(1, 4, device=device)
    triton_backward(x, x, weight, None, False)
    return triton_forward(x, weight, None, False)


def _pack_for_triton(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor | int]:
    """The first arguments of both kernels, as their module describes them."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    bias = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return [x, x.stride(0), x.stride(1), weight.mT.contiguous(), bias.contiguous()]


def _grid(x: torch.Tensor) -> tuple[int, int, int]:
    batch_size, length, dim = x.shape
    return -(-dim // BLOCK), -(-length // STEPS), batch_size


def triton_settings(taps: int) -> dict[str, int]:
    """Constants and options of both kernels."""
    return {"TAPS": taps, "STEPS": STEPS, "BLOCK": BLOCK, "num_warps": 4, "enable_fp_fusion": True}


@torch.library.custom_op("hf_video::causal_conv1d_triton", mutates_args=(), schema=FORWARD)
def triton_forward(x, weight, bias, reverse):
    from .causal_conv1d_triton_kernels import conv_forward_kernel

    y = x.new_empty(x.shape)
    arguments = (*_pack_for_triton(x, weight, bias), y, *x.shape[1:])
    with torch.cuda.device_of(x):
        conv_forward_kernel[_grid(x)](*arguments, reverse=reverse, **triton_settings(weight.shape[1]))
    return y


@torch.library.custom_op("hf_video::causal_conv1d_triton_backward", mutates_args=(), schema=BACKWARD)
def triton_backward(dy, x, weight, bias, reverse):
    from .causal_conv1d_triton_kernels import conv_backward_kernel

    batch_size, length, dim = x.shape
    grid = _grid(x)
    dx = x.new_empty(x.shape)
    dweight = weight.new_empty(batch_size, grid[1], weight.shape[1], dim)
    dbias = weight.new_empty(batch_size, grid[1], dim)
    arguments = (*_pack_for_triton(x, weight, bias), dy.contiguous(), dx, dweight, dbias, length, dim)
    with torch.cuda.device_of(x):
        conv_backward_kernel[grid](*arguments, reverse=reverse, **triton_settings(weight.shape[1]))
    return dx, dweight.sum(dim=(0, 1)).mT.contiguous(), dbias.sum(dim=(0, 1))


def why_package_cannot(taps: int) -> str | None:
    """The reason why the kernels of the package cannot convolve over so many tokens, or `None` if they can."""
    if not 2 <= taps <= 4:
        return f"it convolves over 2 to 4 tokens, not {taps}"
    return probe_package()


@probing
def probe_package(device="cuda"):
    """The import may work and a call fail."""
    x, weight = torch.ones(1, 8, 4, device=device), torch.ones(8, 4, device=device)
    package_backward(x, x, weight, weight[:, 0].contiguous())
    return package_forward(x, weight, weight[:, 0].contiguous())


def load_function() -> Any:
    """`CausalConv1dFn` of the installed package; `ImportError` if there is none."""
    return importlib.import_module(PACKAGE_INTERFACE).CausalConv1dFn


def _run_package(context: RecordedContext, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    # `contiguous` would leave the strides of a sequence of one step unchanged.
    x = x if x.stride(2) == 1 else x.clone(memory_format=torch.contiguous_format)
    return load_function().forward(context, x, weight.contiguous(), bias, activation="silu").contiguous()


@torch.library.custom_op("hf_video::causal_conv1d_cuda", mutates_args=())
def package_forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return _run_package(RecordedContext(), x, weight, bias)


@torch.library.custom_op("hf_video::causal_conv1d_cuda_backward", mutates_args=())
def package_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The forward runs again, so that nothing is kept."""
    context = RecordedContext()
    _run_package(context, x, weight, bias)
    dx, dweight, dbias = load_function().backward(context, dy.contiguous())[:3]
    return dx.contiguous(), dweight.to(weight.dtype), weight.new_zeros(len(weight)) if dbias is None else dbias


def _shapes_of_gradients(dy, x, weight, bias, reverse=False):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(len(weight))


for _forward, _backward in (
    (cpu_forward, cpu_backward),
    (triton_forward, triton_backward),
    (package_forward, package_backward),
):
    _forward.register_fake(lambda x, weight, bias, reverse=False: x.new_empty(x.shape))
    _backward.register_fake(_shapes_of_gradients)
    register_gradients(_forward, _backward)
