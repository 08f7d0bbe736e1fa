"""
The selective scan of state space models (Mamba, https://arxiv.org/abs/2312.00752), one function over several backends.

Each row of `BACKENDS` is a backend: a function that runs it, and one that says why it cannot run a call. The first
backend that can run a call is taken. The argument `backend` or the environment variable `HF_VIDEO_SELECTIVE_SCAN`
forces another. The choice is logged once. On CUDA, mamba-ssm's kernels come before `triton`, because there has been no
GPU to measure the two on.
"""

import functools
import os
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from transformers.utils import logging

from .cpu import selective_scan_cpu, why_cpu_cannot
from .mamba_ssm import KERNELS_REPOSITORY, selective_scan_mamba_ssm, why_mamba_ssm_cannot
from .reference import ScanInputs, Situation, selective_scan_reference
from .triton import selective_scan_triton, why_triton_cannot

logger = logging.get_logger(__name__)

BACKEND_VARIABLE = "HF_VIDEO_SELECTIVE_SCAN"


class Backend(NamedTuple):
    """
    One implementation.

    Attributes:
        run: function of [`ScanInputs`]. It returns the output and the last state, or `None` in place of a state that
            it cannot give.
        why_not: returns the reason why the backend cannot run a call, or `None` if it can.
        automatic: whether the backend may be taken if none is forced.
    """

    run: Callable[[ScanInputs], tuple[torch.Tensor, torch.Tensor | None]]
    why_not: Callable[[Situation], str | None]
    automatic: bool = True


# In the order in which they are tried.
BACKENDS = {
    "mamba_ssm": Backend(
        functools.partial(selective_scan_mamba_ssm, source="mamba_ssm"),
        functools.partial(why_mamba_ssm_cannot, source="mamba_ssm"),
    ),
    KERNELS_REPOSITORY: Backend(
        functools.partial(selective_scan_mamba_ssm, source=KERNELS_REPOSITORY),
        functools.partial(why_mamba_ssm_cannot, source=KERNELS_REPOSITORY),
        automatic=False,
    ),
    "triton": Backend(selective_scan_triton, why_triton_cannot),
    "cpu": Backend(selective_scan_cpu, why_cpu_cannot),
    "reference": Backend(selective_scan_reference, lambda situation: None),
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
            `"reference"`, `"cpu"` (with the package numba), `"triton"` (CUDA), `"mamba_ssm"` (CUDA, with the package
            of that name, of the extra `mamba`), or `"kernels-community/mamba-ssm"` (the same kernels, built, which the
            package `kernels` downloads from the Hub). By default the environment variable `HF_VIDEO_SELECTIVE_SCAN`
            decides. Without that, it is the first of `mamba_ssm`, `triton`, `cpu` and `reference` that can run.

    Returns:
        The output, `(batch_size, dim, length)` in the dtype of `u`; with `return_last_state` also the last state,
        `(batch_size, dim, state_size)` in float32.

    Raises:
        ValueError: shapes do not fit each other, a tensor is complex or of integers, the length is 0, or a forced
            backend does not exist or cannot run the call; the message gives the reason.
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
    """
    Name of the backend for a call. A compiled graph keeps the backend that was chosen when it was compiled.

    Raises:
        ValueError: `forced` or the environment variable names a backend that does not exist or cannot run the call.
    """
    forced = forced or os.environ.get(BACKEND_VARIABLE)
    situation = Situation(device_type, dtype, state_size, carries_state)
    if forced:
        if forced not in BACKENDS:
            raise ValueError(f"There is no selective-scan backend {forced!r}; choose one of {', '.join(BACKENDS)}.")
        if reason := BACKENDS[forced].why_not(situation):
            raise ValueError(f"The selective-scan backend {forced!r} was asked for, but {reason}.")
        _announce(forced, "as asked for")
        return forced
    reasons = []
    for name, candidate in BACKENDS.items():
        if not candidate.automatic:
            continue
        reason = candidate.why_not(situation)
        if reason is None:
            break
        reasons.append(f"not {name!r}: {reason}")
    _announce(name, "; ".join(reasons) or "the first choice")
    return name


def _announce(name: str, reason: str) -> None:
    log = logger.warning_once if name == "reference" and reason != "as asked for" else logger.info_once
    log(f"selective_scan runs on the backend {name!r} ({reason}).")


def _check(inputs: ScanInputs) -> None:
    u, delta, A, B, C, D, z, delta_bias, _, _, initial_state, addend = inputs
    if u.ndim != 3 or u.shape[2] < 1:
        raise ValueError(f"`u` must be (batch_size, dim, length) with a length of at least 1, got {tuple(u.shape)}.")
    batch_size, dim, length = u.shape
    for name, tensor in inputs._asdict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.is_complex():
            raise ValueError(
                f"`{name}` must be real, got {tensor.dtype}: complex states are not supported. Take the real part "
                "if the imaginary one is zero, or call `selective_scan_fn` of the package mamba-ssm, which has them."
            )
        if not tensor.is_floating_point():
            raise ValueError(f"`{name}` must have a floating dtype, got {tensor.dtype}: convert it with `.float()`.")
        if tensor.device != u.device:
            raise ValueError(f"`{name}` is on {tensor.device}, but `u` on {u.device}: all must be on one device.")
    if A.ndim != 2 or A.shape[0] != dim:
        raise ValueError(f"`A` must be of shape (dim={dim}, state_size), got {tuple(A.shape)}.")
    state_size = A.shape[1]
    shapes = {
        "delta": (delta, (batch_size, dim, length)),
        "z": (z, (batch_size, dim, length)),
        "addend": (addend, (batch_size, dim, length)),
        "D": (D, (dim,)),
        "delta_bias": (delta_bias, (dim,)),
        "initial_state": (initial_state, (batch_size, dim, state_size)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"`{name}` must have the shape {shape}, got {tuple(tensor.shape)}.")
    for name, tensor in {"B": B, "C": C}.items():
        # Its rank first: a comparison of the batch size with `dim` would stay in an exported program.
        if tensor.ndim == 2 and tensor.shape == (dim, state_size):
            continue
        fits = tensor.ndim == 4 and (tensor.shape[0], *tensor.shape[2:]) == (batch_size, state_size, length)
        if not fits or not tensor.shape[1] or dim % tensor.shape[1]:
            raise ValueError(
                f"`{name}` must be (batch_size={batch_size}, state_size={state_size}, length={length}), or have "
                f"groups that divide {dim} channels as its second dimension, or be (dim={dim}, state_size="
                f"{state_size}) where it is the same at all times, got {tuple(tensor.shape)}."
            )
