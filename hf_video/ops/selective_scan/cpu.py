"""
`selective_scan` on the CPU, by kernels that numba compiles on the user's machine.

The operators have channels last, as linear layers do. For the backward they keep the states at the borders of chunks
of time, and compute the other states again, so that memory grows with length / chunk.
"""

import torch

from hf_video.ops.numba_threads import from_lanes, run_units, split_work, to_lanes, why_numba_cannot
from hf_video.ops.registration import needs_gradient, register_gradients

from .reference import LOG2_E, ScanInputs, Situation, add_and_gate, share_groups


def selective_scan_cpu(inputs: ScanInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and last state as `selective_scan` describes them; `why_cpu_cannot` must return `None`."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, initial_state, addend = inputs
    tensors = (
        u.float().mT,
        delta.float().mT,
        A.float(),
        *(x.movedim(-1, 1) for x in share_groups(B, C, u)),
        *(None if x is None else x.float() for x in (D, delta_bias)),
    )
    state = None if initial_state is None else initial_state.float()
    keeps_borders = needs_gradient((*tensors, state))
    y, last_state, _ = scan_forward(*tensors, delta_softplus, reverse, state, keeps_borders)
    return add_and_gate(y.mT, addend, z).to(u.dtype), last_state


def why_cpu_cannot(situation: Situation) -> str | None:
    """The reason why the kernels cannot run in a situation (see `selective_scan`), or `None` if they can."""
    if situation.device_type != "cpu":
        return f"it runs on the CPU, not on {situation.device_type}"
    if situation.dtype == torch.float64:
        return "it computes in float32, not in float64"
    if torch.autograd.forward_ad._current_level >= 0:
        return "it has no forward-mode derivative"
    if torch.compiler.is_exporting():
        return "an exported program has to run without it"
    return why_numba_cannot()


def count_chunks(length: int) -> int:
    """Number of chunks that the backward divides a length into."""
    from hf_video.ops.cpu_kernels import CHUNK_LENGTH

    return -(-length // CHUNK_LENGTH)


def to_blocks(states: torch.Tensor, groups: int) -> torch.Tensor:
    """A copy of `(batch, dim, state)` in the layout of the kernels, `(batch, blocks, state, lanes)`."""
    from hf_video.ops.numba_vectors import LANES

    return (
        to_lanes(states.mT, groups)
        .unflatten(-1, (-1, LANES))
        .transpose(1, 2)
        .clone(memory_format=torch.contiguous_format)
    )


def from_blocks(states: torch.Tensor, groups: int, channels: int) -> torch.Tensor:
    """The inverse of `to_blocks`; `channels` is the number of channels in one group."""
    return from_lanes(states.transpose(1, 2).flatten(-2), groups, channels).mT.contiguous()


def _pack(u, delta, A, B, C, D, delta_bias) -> list[torch.Tensor]:
    """The arrays that both kernels take, as their module describes them."""
    groups = B.shape[2]
    D, delta_bias = (A.new_zeros(u.shape[-1]) if x is None else x for x in (D, delta_bias))
    u, delta, D, delta_bias = (to_lanes(x, groups).contiguous() for x in (u, delta, D, delta_bias))
    return [u, delta, to_blocks(A[None] * LOG2_E, groups)[0], B.contiguous(), C.contiguous(), D, delta_bias]


@torch.library.custom_op(
    "hf_video::selective_scan_cpu",
    mutates_args=(),
    schema="(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? delta_bias, bool delta_softplus,"
    " bool reverse, Tensor? initial_state, bool keeps_borders) -> (Tensor, Tensor, Tensor)",
)
def scan_forward(u, delta, A, B, C, D, delta_bias, delta_softplus, reverse, initial_state, keeps_borders):
    """
    Args:
        u, delta: `(batch, length, dim)`, float32 like all others.
        A: `(dim, state)`.
        B, C: `(batch, length, groups, state)`.
        D, delta_bias: `(dim,)`.
        initial_state: `(batch, dim, state)`.
        keeps_borders: whether to return what the backward needs.

    Returns:
        The output, like `u`; the last state; and the states before each chunk, or of no chunk unless they are kept.
    """
    from hf_video.ops.cpu_kernels import scan_forward_unit

    groups = B.shape[2]
    borders = A.new_empty(shape_of_borders(u.shape[0], u.shape[1] if keeps_borders else 0, A, groups))
    arrays = _pack(u, delta, A, B, C, D, delta_bias)
    y = torch.empty_like(arrays[0])
    state = to_blocks(A.new_zeros(u.shape[0], *A.shape) if initial_state is None else initial_state, groups)
    units = [
        (batch, group, first, end)
        for batch, group, _, first, end in split_work(u.shape[0], groups, state.shape[1] // groups)
    ]
    run_units(scan_forward_unit, (*arrays, state, y, borders, delta_softplus, reverse), units)
    channels = u.shape[-1] // groups
    return from_lanes(y, groups, channels), from_blocks(state, groups, channels), borders


def shape_of_borders(batch_size: int, length: int, A: torch.Tensor, groups: int) -> tuple[int, int, int, int, int]:
    """Shape `(batch, chunks, blocks, state, lanes)` of the states before each chunk."""
    from hf_video.ops.numba_vectors import LANES

    blocks = groups * -(-(A.shape[0] // groups) // LANES)
    return batch_size, count_chunks(length), blocks, A.shape[1], LANES


@torch.library.custom_op(
    "hf_video::selective_scan_cpu_backward",
    mutates_args=(),
    schema="(Tensor dy, Tensor? dlast_state, Tensor borders, Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C,"
    " Tensor? D, Tensor? delta_bias, bool delta_softplus, bool reverse) -> Tensor[]",
)
def scan_backward(dy, dlast_state, borders, u, delta, A, B, C, D, delta_bias, delta_softplus, reverse):
    """The gradients of u, delta, A, B, C, D, delta_bias and the initial state, also of those that are `None`."""
    from hf_video.ops.cpu_kernels import scan_backward_unit

    (batch_size, _, dim), groups = u.shape, B.shape[2]
    arrays = _pack(u, delta, A, B, C, D, delta_bias)
    dstate = to_blocks(A.new_zeros(batch_size, *A.shape) if dlast_state is None else dlast_state, groups)
    du, ddelta = (torch.empty_like(arrays[0]) for _ in range(2))
    drates = torch.empty_like(dstate)
    units = list(split_work(batch_size, groups, dstate.shape[1] // groups))
    parts = 1 + max((part for _, _, part, _, _ in units), default=0)
    dB, dC = (B.new_empty(parts, *B.shape) for _ in range(2))
    dD, ddelta_bias = (A.new_empty(batch_size, du.shape[-1]) for _ in range(2))
    run_units(
        scan_backward_unit,
        (
            *(*arrays, borders, to_lanes(dy, groups).contiguous()),
            *(du, ddelta, drates, dB, dC, dD, ddelta_bias, dstate, delta_softplus, reverse),
        ),
        units,
    )
    channels = dim // groups
    du, ddelta, dD, ddelta_bias = (
        from_lanes(x, groups, channels) for x in (du, ddelta, dD.sum(dim=0), ddelta_bias.sum(dim=0))
    )
    dA, dstate = (from_blocks(x, groups, channels) for x in (drates.sum(dim=0, keepdim=True), dstate))
    return [du, ddelta, dA[0], dB.sum(dim=0), dC.sum(dim=0), dD, ddelta_bias, dstate]


@scan_forward.register_fake
def _(u, delta, A, B, C, D, delta_bias, delta_softplus, reverse, initial_state, keeps_borders):
    batch_size, length, _ = u.shape
    borders = shape_of_borders(batch_size, length if keeps_borders else 0, A, B.shape[2])
    return u.new_empty(u.shape), u.new_empty(batch_size, *A.shape), u.new_empty(borders)


@scan_backward.register_fake
def _(dy, dlast_state, borders, u, delta, A, B, C, D, delta_bias, delta_softplus, reverse):
    batch_size, _, dim = u.shape
    weight = u.new_empty(dim)
    state = u.new_empty(batch_size, *A.shape)
    return [x.new_empty(x.shape) for x in (u, delta, A, B, C, weight, weight, state)]


register_gradients(scan_forward, scan_backward, num_outputs=2, num_forgotten=2)
