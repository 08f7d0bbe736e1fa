"""
The sum of both directions times SiLU of the gate on the CPU, by kernels that numba compiles on the user's machine.

One pass over memory in place of three, and for the backward one tensor less is kept.
"""

import torch

from .numba_threads import from_lanes, run_units, split_clips, to_rows
from .selective_scan_operators import needs_gradient, operator_namespace

NAMESPACE = operator_namespace(__name__)


def gated_sum_cpu(first: torch.Tensor, second: torch.Tensor | None, gate: torch.Tensor) -> torch.Tensor:
    """
    `(first + second) * silu(gate)`, computed in float32.

    Args:
        first, gate: `(batch_size, dim, length)`; quickest where channels are last in memory.
        second: of the same shape, or `None` for zero.

    Returns:
        `(batch_size, dim, length)`, channels last in memory, in the dtype of `first`.
    """
    tensors = [None if x is None else x.float().mT for x in (first, second, gate)]
    return gate_forward(*tensors, needs_gradient(tensors))[0].mT.to(first.dtype)


@torch.library.custom_op(f"{NAMESPACE}::forward", mutates_args=())
def gate_forward(
    first: torch.Tensor, second: torch.Tensor | None, gate: torch.Tensor, keeps_sum: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """From tensors `(batch, length, dim)`, float32, to the output and the sum, of no length unless it is kept."""
    from .gated_sum_cpu_kernels import LANES, gate_forward_unit

    rows = to_rows(first, LANES)
    other = rows if second is None else to_rows(second, LANES)
    y = rows.new_empty(rows.shape)
    total = rows.new_empty(rows.shape[0], rows.shape[1] if keeps_sum else 0, rows.shape[2])
    run_units(
        gate_forward_unit, (rows, other, to_rows(gate, LANES), y, total, second is not None), split_clips(y, LANES)
    )
    return from_lanes(y, 1, first.shape[-1]), from_lanes(total, 1, first.shape[-1])


@torch.library.custom_op(f"{NAMESPACE}::backward", mutates_args=())
def gate_backward(dy: torch.Tensor, total: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the sum and of the gate."""
    from .gated_sum_cpu_kernels import LANES, gate_backward_unit

    rows = to_rows(total, LANES)
    dtotal, dgate = rows.new_empty(rows.shape), rows.new_empty(rows.shape)
    arrays = to_rows(dy, LANES), rows, to_rows(gate, LANES), dtotal, dgate
    run_units(gate_backward_unit, arrays, split_clips(rows, LANES))
    return from_lanes(dtotal, 1, total.shape[-1]), from_lanes(dgate, 1, total.shape[-1])


@gate_forward.register_fake
def _(first, second, gate, keeps_sum):
    batch_size, length, dim = first.shape
    return first.new_empty(first.shape), first.new_empty(batch_size, length if keeps_sum else 0, dim)


@gate_backward.register_fake
def _(dy, total, gate):
    return total.new_empty(total.shape), total.new_empty(total.shape)


def _save_inputs(ctx, inputs, output):
    _, second, gate, _ = inputs
    ctx.has_second = second is not None
    ctx.save_for_backward(output[1], gate)


def _differentiate(ctx, dy, _):
    dtotal, dgate = gate_backward(dy, *ctx.saved_tensors)
    return dtotal, dtotal if ctx.has_second else None, dgate, None


gate_forward.register_autograd(_differentiate, setup_context=_save_inputs)
