"""Functions that the operators of several backends of `selective_scan` share."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

LOG2_E = 1.4426950408889634


class Situation(NamedTuple):
    """The facts about a call that decide whether a backend can run it."""

    device_type: str
    dtype: torch.dtype
    state_size: int
    carries_state: bool


def over_time(projection: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """B or C as `(batch, groups, state, length)`: a view of `(dim, state)` if it is the same at all times."""
    if projection.ndim == 4:
        return projection
    return projection[None, :, :, None].expand(u.shape[0], -1, -1, u.shape[2])


def share_groups(B: torch.Tensor, C: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 `(batch, groups, state, length)` with the same number of groups in both."""
    B, C = over_time(B, u), over_time(C, u)
    groups = math.lcm(B.shape[1], C.shape[1])

    def share(x: torch.Tensor) -> torch.Tensor:
        return x.float() if x.shape[1] == groups else x.float().repeat_interleave(groups // x.shape[1], dim=1)

    return share(B), share(C)


def add_and_gate(outputs: torch.Tensor, addend: torch.Tensor | None, z: torch.Tensor | None) -> torch.Tensor:
    """The last steps of `selective_scan`, for kernels without them, in the dtype of `outputs`."""
    if addend is not None:
        outputs = outputs + addend.to(outputs.dtype)
    return outputs if z is None else outputs * F.silu(z.to(outputs.dtype))


def register_gradients(
    forward: torch.library.CustomOpDef, backward: Callable[..., list[torch.Tensor]], num_forgotten: int = 1
) -> None:
    """
    Make one operator the derivative of another.

    Args:
        forward: takes tensors, u first, then `delta_softplus`, `reverse` and `keeps_borders`. Returns the output like
            u, the last state, and the tensors that the backward needs.
        backward: takes the gradients of the output and of the last state, the tensors that `forward` returned for it,
            the tensors that `forward` took without the last `num_forgotten`, `delta_softplus` and `reverse`. Returns
            one gradient for each tensor that `forward` took, also for one that was `None`.
        num_forgotten: number of tensors at the end, from the initial state on, that the backward does not read.
    """

    def save_inputs(ctx, inputs, output):
        *tensors, delta_softplus, reverse, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.options = (delta_softplus, reverse)
        ctx.is_there = [x is not None for x in tensors]
        ctx.u_at = len(output) - 2
        ctx.save_for_backward(*output[2:], *tensors[:-num_forgotten])

    def differentiate(ctx, dy, dlast_state, *_):
        saved = ctx.saved_tensors
        dy = torch.zeros_like(saved[ctx.u_at]) if dy is None else dy
        gradients = backward(dy, dlast_state, *saved, *ctx.options)
        present = (gradient if there else None for there, gradient in zip(ctx.is_there, gradients, strict=True))
        return (*present, None, None, None)

    forward.register_autograd(differentiate, setup_context=save_inputs)
