"""What the operators of `selective_scan`, and of the convolution before it, have in common."""

import math
import re
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F

LOG2_E = 1.4426950408889634


def operator_namespace(module: str) -> str:
    """Operators are named after their module: a copy of it, from a repository on the Hub, may live in one process."""
    return re.sub(r"\W", "_", module)


def over_time(projection: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """B or C as `(batch, groups, state, length)`: if it is the same at all times, `(dim, state)`, a view of that."""
    if projection.ndim == 4:
        return projection
    return projection[None, :, :, None].expand(u.shape[0], -1, -1, u.shape[2])


def share_groups(B: torch.Tensor, C: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 `(batch, groups, state, length)` with as many groups in both, each served by one of its own."""
    B, C = over_time(B, u), over_time(C, u)
    groups = math.lcm(B.shape[1], C.shape[1])

    def share(x: torch.Tensor) -> torch.Tensor:
        return x.float() if x.shape[1] == groups else x.float().repeat_interleave(groups // x.shape[1], dim=1)

    return share(B), share(C)


def add_and_gate(outputs: torch.Tensor, addend: torch.Tensor | None, z: torch.Tensor | None) -> torch.Tensor:
    """What `selective_scan` does last, for kernels that do not; in the dtype of `outputs`."""
    if addend is not None:
        outputs = outputs + addend.to(outputs.dtype)
    return outputs if z is None else outputs * F.silu(z.to(outputs.dtype))


def reversed_copy(x: torch.Tensor) -> torch.Tensor:
    """
    The last dimension the other way round and next to each other in memory, by one copy: `flip` leaves dimensions in
    the order that they have in memory, for another copy to change.
    """
    return x.index_select(-1, torch.arange(x.shape[-1] - 1, -1, -1, device=x.device))


@torch.library.custom_op(f"{operator_namespace(__name__)}::turn", mutates_args=())
def turn(x: torch.Tensor) -> torch.Tensor:
    """`reversed_copy` whose backward is another one, rather than one that adds to an index."""
    return reversed_copy(x)


@turn.register_fake
def _(x):
    return x.new_empty(x.shape)


turn.register_autograd(lambda ctx, dy: turn(dy))


def needs_gradient(tensors: Iterable[torch.Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def register_gradients(
    forward: torch.library.CustomOpDef, backward: Callable[..., list[torch.Tensor]], num_forgotten: int = 1
) -> None:
    """
    Differentiate one operator by another.

    Args:
        forward: from tensors, u first, `delta_softplus`, `reverse` and `keeps_borders` to the output like u, the last
            state, and what is kept for the backward.
        backward: from the gradients of output and last state, what is kept, the tensors but for the last few,
            `delta_softplus` and `reverse` to the gradients of all tensors, of those that are not there, too.
        num_forgotten: how many tensors the backward does without: the initial state, and what comes behind it.
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


def register_convolution_gradients(
    forward: torch.library.CustomOpDef, backward: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
) -> None:
    """
    Differentiate one operator by another.

    Args:
        forward: from x, weight, bias or `None`, and options such as `reverse` to another x.
        backward: from the gradient of the output and all of these to those of x, weight and bias.
    """

    def save_inputs(ctx, inputs, output):
        x, weight, bias, *ctx.options = inputs
        ctx.save_for_backward(x, weight, bias)

    def differentiate(ctx, dy):
        x, weight, bias = ctx.saved_tensors
        dx, dweight, dbias = backward(dy, x, weight, bias, *ctx.options)
        return dx, dweight, None if bias is None else dbias, *(None for _ in ctx.options)

    forward.register_autograd(differentiate, setup_context=save_inputs)
