"""
`selective_scan` in plain PyTorch: the specification that every other backend is tested against.

It runs everywhere and follows the recurrence step by step, in two forms. In eager mode it loops over chunks of time,
which the backward computes again, so that memory grows with length / chunk. Under `torch.compile` and `torch.export`
it is PyTorch's `scan` operator, whose graph does not grow with the length. Steps that other backends leave to PyTorch
are here, too.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch._higher_order_ops.scan import scan
from torch.utils.checkpoint import checkpoint

CHUNK_LENGTH = 16
LOG2_E = 1.4426950408889634

# Time steps and `steps * u`, both `(time, batch, channels)`, B and C, both `(time, batch, groups, state)`.
Sequences = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class ScanInputs(NamedTuple):
    """What `selective_scan` passes to a backend. B and C are `(batch, groups, state, length)`, or `(dim, state)` if
    they are the same at all times."""

    u: torch.Tensor
    delta: torch.Tensor
    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    D: torch.Tensor | None = None
    z: torch.Tensor | None = None
    delta_bias: torch.Tensor | None = None
    delta_softplus: bool = False
    reverse: bool = False
    initial_state: torch.Tensor | None = None
    addend: torch.Tensor | None = None


class ScanFacts(NamedTuple):
    """What decides whether a backend can run a scan; `forced` if it was asked for by name."""

    device_type: str
    dtype: torch.dtype
    state_size: int
    carries_state: bool
    forced: bool = False


def over_time(projection: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """B or C as `(batch, groups, state, length)`: a view of `(dim, state)` if it is the same at all times."""
    if projection.ndim == 4:
        return projection
    return projection[None, :, :, None].expand(u.shape[0], -1, -1, u.shape[2])


def share_groups(B: torch.Tensor, C: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`(batch, groups, state, length)` with the same number of groups in both."""
    B, C = over_time(B, u), over_time(C, u)
    groups = math.lcm(B.shape[1], C.shape[1])

    def share(x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[1] == groups else x.repeat_interleave(groups // x.shape[1], dim=1)

    return share(B), share(C)


def add_and_gate(outputs: torch.Tensor, addend: torch.Tensor | None, z: torch.Tensor | None) -> torch.Tensor:
    """The last steps of `selective_scan`, for kernels without them, in the dtype of `outputs`."""
    # New memory takes longer than the steps.
    in_place = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    if addend is not None:
        addend = addend.to(outputs.dtype)
        outputs = outputs.add_(addend) if in_place else outputs + addend
    if z is not None:
        gate = F.silu(z.to(outputs.dtype))
        outputs = outputs.mul_(gate) if in_place else outputs * gate
    return outputs


def selective_scan_reference(inputs: ScanInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and last state as `selective_scan` describes them."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, initial_state, addend = inputs
    dtype = torch.promote_types(u.dtype, torch.float32)
    values, steps, A = u.to(dtype), delta.to(dtype), A.to(dtype)
    if delta_bias is not None:
        steps = steps + delta_bias.to(dtype)[:, None]
    if delta_softplus:
        steps = F.softplus(steps)
    if initial_state is None:
        initial_state = values.new_zeros(u.shape[0], *A.shape)

    # Time comes first from here on: every step is one slice.
    sequences: Sequences = (
        steps.movedim(-1, 0),
        (steps * values).movedim(-1, 0),
        over_time(B.to(dtype), u).movedim(-1, 0),
        over_time(C.to(dtype), u).movedim(-1, 0),
    )
    run = scan_operator if torch.compiler.is_compiling() else scan_in_chunks
    outputs, last_state = run(sequences, A, initial_state.to(dtype), reverse)

    outputs = outputs.movedim(0, -1)
    if D is not None:
        outputs = outputs + D.to(dtype)[:, None] * values
    return add_and_gate(outputs, addend, z).to(u.dtype), last_state


def expand_groups(per_group: torch.Tensor, num_channels: int) -> torch.Tensor:
    """Repeat each group of `(..., groups, state)` for its `num_channels / groups` channels in a row."""
    groups = per_group.shape[-2]
    return per_group if groups in (1, num_channels) else per_group.repeat_interleave(num_channels // groups, dim=-2)


def scan_chunk(
    sequences: Sequences, A: torch.Tensor, state: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs `(time, batch, channels)` of a few steps, and the state `(batch, channels, state)` after the last."""
    steps, scaled_inputs, B, C = sequences
    decays = torch.exp(steps[..., None] * A)
    updates = scaled_inputs[..., None] * expand_groups(B, A.shape[0])
    pairs = list(zip(decays.unbind(), updates.unbind(), strict=True))
    states = []
    for decay, update in reversed(pairs) if reverse else pairs:
        state = torch.addcmul(update, decay, state)
        states.append(state)
    all_states = torch.stack(states[::-1] if reverse else states)
    return (all_states * expand_groups(C, A.shape[0])).sum(dim=-1), state


def scan_in_chunks(
    sequences: Sequences, A: torch.Tensor, state: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    chunks = list(zip(*(sequence.split(CHUNK_LENGTH) for sequence in sequences), strict=True))
    outputs = []
    for chunk in reversed(chunks) if reverse else chunks:
        if torch.is_grad_enabled():
            output, state = checkpoint(scan_chunk, chunk, A, state, reverse, use_reentrant=False)
        else:
            output, state = scan_chunk(chunk, A, state, reverse)
        outputs.append(output)
    return torch.cat(outputs[::-1] if reverse else outputs), state


def scan_operator(
    sequences: Sequences, A: torch.Tensor, state: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    def step(state: torch.Tensor, slices: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
        steps, scaled_inputs, B, C = (sequence[None] for sequence in slices)
        output, state = scan_chunk((steps, scaled_inputs, B, C), A, state, False)
        # The operator needs a state that shares no memory with tensors that the backward keeps.
        return state.clone(), output[0].clone()

    last_state, outputs = scan(step, state, sequences, reverse=reverse)
    return outputs, last_state
