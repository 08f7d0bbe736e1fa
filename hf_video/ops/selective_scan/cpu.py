"""
`selective_scan` on the CPU, by kernels that numba compiles on the user's machine.

The operators have channels last, as linear layers do, and take float32: u, delta `(batch, length, dim)`, A `(state,
dim)`, B, C `(batch, length, groups, state)`, D, delta_bias `(dim,)` and the initial state `(batch, state, dim)`. For
the backward they keep the states at the borders of chunks of time, and compute the other states again, so that memory
grows with length / chunk.
"""

import torch

from hf_video.ops.numba_threads import LANES, cut_lanes, pad_lanes, run_units, split_work
from hf_video.ops.registration import register_gradients

from .reference import LOG2_E, ScanFacts, ScanInputs, add_and_gate, share_groups


def selective_scan_cpu(inputs: ScanInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and last state as `selective_scan` describes them; `unsupported` must return `None`."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, state, addend = inputs
    D, delta_bias = (u.new_zeros(u.shape[1]) if x is None else x for x in (D, delta_bias))
    state = u.new_zeros(u.shape[0], *A.shape) if state is None else state
    B, C = (x.float().movedim(-1, 1) for x in share_groups(B, C, u))
    (_, dim, _), groups = u.shape, B.shape[2]
    by_channel = (pad_lanes(x.float(), groups) for x in (u.mT, delta.mT, A.mT, D, delta_bias, state.mT))
    u_, delta_, A_, D_, delta_bias_, state_ = by_channel
    y, last_state, _ = scan_forward(u_, delta_, A_, B, C, D_, delta_bias_, state_, delta_softplus, reverse)
    y, last_state = (cut_lanes(x, groups, dim).mT for x in (y, last_state))
    return add_and_gate(y, addend, z).to(u.dtype), last_state.contiguous()


def unsupported(facts: ScanFacts) -> str | None:
    """The reason why the kernels cannot run a scan, or `None` if they can."""
    if facts.device_type != "cpu":
        return f"it runs on the CPU, not on {facts.device_type}"
    if facts.dtype == torch.float64:
        return "it computes in float32, not in float64"
    if torch.autograd.forward_ad._current_level >= 0:
        return "it has no forward-mode derivative"
    if torch.compiler.is_exporting():
        return "an exported program has to run without it"
    try:
        from hf_video.ops import numba_vectors  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error})"
    return None


def _pack(u, delta, A, B, C, D, delta_bias) -> list[torch.Tensor]:
    """The arrays that both kernels take, as their module describes them."""
    return [x.contiguous() for x in (u, delta, A * LOG2_E, B, C, D, delta_bias)]


def _units(u, B) -> list[tuple[int, int, int, int, int]]:
    return split_work(u.shape[0], B.shape[2], u.shape[2] // B.shape[2] // LANES)


TENSORS = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor D, Tensor delta_bias, Tensor initial_state"
OPTIONS = "bool delta_softplus, bool reverse"


@torch.library.custom_op(
    "hf_video::selective_scan_cpu", mutates_args=(), schema=f"({TENSORS}, {OPTIONS}) -> (Tensor, Tensor, Tensor)"
)
def scan_forward(u, delta, A, B, C, D, delta_bias, initial_state, delta_softplus, reverse):
    """The output, the last state, and the states before each chunk."""
    from .cpu_kernels import scan_forward_unit

    y, _, borders = allocate(u, delta, A, B, C, D, delta_bias, initial_state, delta_softplus, reverse)
    state = initial_state.clone(memory_format=torch.contiguous_format)
    arrays = _pack(u, delta, A, B, C, D, delta_bias)
    run_units(scan_forward_unit, (*arrays, state, y, borders, delta_softplus, reverse), _units(u, B))
    return y, state, borders


@torch.library.custom_op(
    "hf_video::selective_scan_cpu_backward",
    mutates_args=(),
    schema=f"(Tensor dy, Tensor? dlast_state, Tensor borders, {TENSORS}, {OPTIONS}) -> Tensor[]",
)
def scan_backward(dy, dlast_state, borders, u, delta, A, B, C, D, delta_bias, initial_state, delta_softplus, reverse):
    """The gradients of all tensors that the forward takes."""
    from .cpu_kernels import scan_backward_unit

    units = _units(u, B)
    parts = 1 + max((unit[2] for unit in units), default=0)
    du, ddelta, drates, dstate = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (u, delta, initial_state, initial_state)
    )
    dB, dC = (B.new_empty(parts, *B.shape) for _ in range(2))
    dD, ddelta_bias = (D.new_empty(len(u), *D.shape) for _ in range(2))
    dstate.zero_() if dlast_state is None else dstate.copy_(dlast_state)
    arrays = (*_pack(u, delta, A, B, C, D, delta_bias), borders, dy.contiguous())
    gradients = (du, ddelta, drates, dB, dC, dD, ddelta_bias, dstate)
    run_units(scan_backward_unit, (*arrays, *gradients, delta_softplus, reverse), units)
    return [du, ddelta, *(x.sum(dim=0) for x in gradients[2:7]), dstate]


@scan_forward.register_fake
def allocate(u, delta, A, B, C, D, delta_bias, initial_state, delta_softplus, reverse):
    from .cpu_kernels import CHUNK_LENGTH

    chunks = -(-u.shape[1] // CHUNK_LENGTH)
    return (
        u.new_empty(u.shape),
        A.new_empty(initial_state.shape),
        A.new_empty(u.shape[0], chunks, *A.shape),
    )


@scan_backward.register_fake
def _(dy, dlast_state, borders, *arguments):
    return [x.new_empty(x.shape) for x in arguments[:8]]


register_gradients(scan_forward, scan_backward, num_outputs=2)
