"""
The selective scan of state space models (Mamba, https://arxiv.org/abs/2312.00752), one function over several backends.

The first of `BACKENDS` that can run a call is taken. The argument `backend` or the environment variable
`HF_VIDEO_SELECTIVE_SCAN` forces another.
"""

import functools
import os
from typing import cast

import torch

from hf_video.ops.dispatch import Backend, choose
from hf_video.ops.mamba_kernels import HUB_KERNELS

from . import cpu, mamba_ssm, triton
from .reference import ScanFacts, ScanInputs, selective_scan_reference

__all__ = ["selective_scan"]

BACKEND_VARIABLE = "HF_VIDEO_SELECTIVE_SCAN"
# In the order in which they are tried: there has been no GPU to measure `triton` and mamba-ssm's kernels on.
BACKENDS = {
    "mamba_ssm": Backend(
        functools.partial(mamba_ssm.selective_scan_mamba_ssm, source="mamba_ssm"),
        functools.partial(mamba_ssm.unsupported, source="mamba_ssm"),
    ),
    HUB_KERNELS: Backend(
        functools.partial(mamba_ssm.selective_scan_mamba_ssm, source=HUB_KERNELS),
        functools.partial(mamba_ssm.unsupported, source=HUB_KERNELS),
    ),
    "triton": Backend(triton.selective_scan_triton, triton.unsupported),
    "cpu": Backend(cpu.selective_scan_cpu, cpu.unsupported),
    "reference": Backend(selective_scan_reference, lambda facts: None),
}


def selective_scan(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    reverse: bool = False,
    initial_state: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
    backend: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    r"""
    Run the recurrence `h[t] = exp(delta[t] * A) * h[t - 1] + delta[t] * B[t] * u[t]`, `y[t] = <C[t], h[t]> + D * u[t]`
    along the length, add `addend` if it is given, and gate the result with `silu(z)`. All of it is differentiable.

    The signature is a superset of mamba-ssm's `selective_scan_fn` for real `A`; a complex one, with which `B` and `C`
    have the shape `(batch_size, state_size, 2 * length)`, is refused. The state is float32 whatever the dtypes
    (float64 for float64 inputs).

    On `cpu`, gradients and their parts end at zero where they are smaller than 2^-96 (1.3e-29), because processors are
    slow with the subnormal numbers that gradients which fade along a clip would become. A loss may thus be multiplied
    by 1e-20, but not by 1e-30.

    Args:
        u (`torch.Tensor` of shape `(batch_size, dim, length)`):
            Inputs, of any floating dtype.
        delta (`torch.Tensor` of shape `(batch_size, dim, length)`):
            Time steps.
        A (`torch.Tensor` of shape `(dim, state_size)`):
            Decay rates; negative for a state that fades.
        B, C (`torch.Tensor` of shape `(batch_size, state_size, length)`, `(batch_size, groups, state_size, length)` or
            `(dim, state_size)`):
            Projections into and out of the state; each group serves `dim / groups` channels in a row. The last form
            is for projections that are the same at all times, as in a state-space model without selection; `cpu` and
            `triton` expand them to `dim * state_size * length` numbers a clip. `B` and `C` may differ in form.
        D (`torch.Tensor` of shape `(dim,)`, *optional*):
            Weight of the skip connection.
        z (`torch.Tensor` of shape `(batch_size, dim, length)`, *optional*):
            Gate.
        delta_bias (`torch.Tensor` of shape `(dim,)`, *optional*):
            Added to `delta`, in float32.
        delta_softplus (`bool`, defaults to `False`):
            Whether the time steps are `softplus(delta + delta_bias)`.
        return_last_state (`bool`, defaults to `False`):
            Whether to return the state after the last step, too.
        reverse (`bool`, defaults to `False`):
            Whether to go from the last position to the first: `h[t]` is computed from `h[t + 1]`. Inputs and outputs
            keep their order, and the last state is that of position 0.
        initial_state (`torch.Tensor` of shape `(batch_size, dim, state_size)`, *optional*):
            State before the first step; zero by default.
        addend (`torch.Tensor` of shape `(batch_size, dim, length)`, *optional*):
            Added to the output before the gate, for example the output of the scan in the other direction. Any
            floating dtype.
        backend (`str`, *optional*):
            `"mamba_ssm"` (CUDA, with the package of that name, of the extra `mamba`), `"kernels-community/mamba-ssm"`
            (the same kernels from the Hub, with the package `kernels`, which downloads them when they are forced),
            `"triton"` (CUDA), `"cpu"` (with the package numba), or `"reference"`. By default the environment variable
            `HF_VIDEO_SELECTIVE_SCAN` decides. Without that, it is the first in this order that can run; the Hub's
            kernels only if they were downloaded before.

    Returns:
        The output, `(batch_size, dim, length)` in the dtype of `u`; with `return_last_state` also the last state,
        `(batch_size, dim, state_size)` in float32.

    Raises:
        ValueError: a shape, a dtype or a device does not fit, or a forced backend does not exist or cannot run the
            call.
    """
    B, C = (tensor[:, None] if tensor.ndim == 3 else tensor for tensor in (B, C))
    inputs = ScanInputs(u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, initial_state, addend)
    _check(inputs)
    carries_state = return_last_state or initial_state is not None
    name = choose_backend(u.device.type, u.dtype, A.shape[1], carries_state, backend)
    outputs, last_state = BACKENDS[name].run(inputs)
    return (outputs, cast(torch.Tensor, last_state)) if return_last_state else outputs


@torch.compiler.assume_constant_result
def choose_backend(
    device_type: str, dtype: torch.dtype, state_size: int, carries_state: bool, forced: str | None
) -> str:
    """Name of the backend for a call. A compiled graph keeps the one that was chosen when it was compiled."""
    forced = forced or os.environ.get(BACKEND_VARIABLE)
    facts = ScanFacts(device_type, dtype, state_size, carries_state, bool(forced))
    return choose("selective_scan", BACKENDS, facts, forced)


def _check(inputs: ScanInputs) -> None:
    u, A = inputs.u, inputs.A
    if u.ndim != 3 or u.shape[2] < 1:
        raise ValueError(f"`u` must be (batch_size, dim, length) with a length of at least 1, got {tuple(u.shape)}.")
    batch_size, dim, length = u.shape
    state_size = A.shape[-1]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("delta", "z", "addend"), (batch_size, dim, length))
    shapes |= dict.fromkeys(("D", "delta_bias"), (dim,))
    shapes |= {"A": (dim, state_size), "initial_state": (batch_size, dim, state_size)}
    for name, tensor in inputs._asdict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if not tensor.is_floating_point() or tensor.device != u.device:
            raise ValueError(
                f"`{name}` must be of real floating numbers on {u.device}, where `u` is, got {tensor.dtype} on "
                f"{tensor.device}. Only `selective_scan_fn` of the package mamba-ssm has complex states."
            )
        if name in shapes and tensor.shape != shapes[name]:
            raise ValueError(f"`{name}` must have the shape {shapes[name]}, got {tuple(tensor.shape)}.")
        # Its rank first: a comparison of the batch size with `dim` would stay in an exported program.
        if name not in ("B", "C") or (tensor.ndim == 2 and tensor.shape == (dim, state_size)):
            continue
        fits = tensor.ndim == 4 and (tensor.shape[0], *tensor.shape[2:]) == (batch_size, state_size, length)
        if not fits or not tensor.shape[1] or dim % tensor.shape[1]:
            raise ValueError(
                f"`{name}` must be (batch_size={batch_size}, state_size={state_size}, length={length}), or have "
                f"groups that divide {dim} channels as its second dimension, or be (dim={dim}, state_size="
                f"{state_size}) where it is the same at all times, got {tuple(tensor.shape)}."
            )
