"""
`selective_scan` on GPUs, by kernels that Triton compiles, which comes with PyTorch.

The operators have channels last, as linear layers do. For the backward they keep the states at the borders of chunks
of time and, if there is a gate, the output before it. The other states are computed again, so that memory for states
grows with length / chunk. Every sum has a fixed order: two runs give the same bits. Neither operator waits for the
device, so that both can be captured in a CUDA graph.
"""

from typing import NamedTuple

import torch

from hf_video.ops.registration import needs_gradient, probing, register_gradients

from .reference import LOG2_E, ScanInputs, Situation, share_groups

LANES = 32
# Steps that a thread takes in a row: as many as its registers can hold in the backward. More steps mean that threads
# hand on states less often.
STEPS = 16
# Channels of a program: 16 of bfloat16 fill the 32 bytes that are read from memory at once. Small batches take fewer
# channels, to have more programs.
BLOCK, SMALL_BLOCK = 16, 8
# Numbers that keep a large GPU busy: about two programs for each multiprocessor, and their warps.
PROGRAMS, WARPS = 256, 1024
MAX_WARPS = 4
# Limit for a thread in the forward, with which 12 warps fit a multiprocessor. With bfloat16, sm_90 needs no more, and
# sm_80 keeps up to 64 bytes in memory instead.
FORWARD_REGISTERS = 168


class Plan(NamedTuple):
    """How one call is spread over the GPU. It follows from sizes alone, so that shapes are known without a device."""

    channels: int
    chunk_length: int

    def settings(self, backward: bool) -> dict[str, int]:
        """Constants and options of a kernel, which has one thread for each channel of each span."""
        spans = self.chunk_length // STEPS
        sizes = {"STEPS": STEPS, "SPANS": spans, "BLOCK": self.channels}
        options = {"num_warps": spans * self.channels // LANES, "enable_fp_fusion": True}
        # Triton for AMD has no such limit.
        limit = {} if backward or torch.version.hip else {"maxnreg": FORWARD_REGISTERS}
        return sizes | options | limit


def plan(batch_size: int, dim: int, groups: int) -> Plan:
    """Small batches get smaller blocks of channels and longer chunks, which means more threads along time."""

    def count_programs(channels: int) -> int:
        return batch_size * groups * -(-dim // (groups * channels))

    channels = BLOCK if count_programs(BLOCK) >= PROGRAMS else SMALL_BLOCK
    warps = 1
    while warps < MAX_WARPS and count_programs(channels) * warps < WARPS:
        warps *= 2
    return Plan(channels, warps * LANES // channels * STEPS)


def selective_scan_triton(inputs: ScanInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and last state as `selective_scan` describes them; `why_triton_cannot` must return `None`."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, initial_state, addend = inputs
    _, dim, length = u.shape
    if length * dim >= 2**31:
        raise ValueError(
            f"The backend 'triton' counts elements of a clip in 32 bits, got {length} steps of {dim} channels: scan "
            "them in parts with `initial_state`, or on another backend."
        )
    B, C = (x.to(torch.float32, memory_format=torch.contiguous_format) for x in (B, C))
    tensors = (
        u.mT,
        delta.mT,
        A.float(),
        *share_groups(B, C, u),
        None if D is None else D.float(),
        None if z is None else z.mT,
        None if delta_bias is None else delta_bias.float(),
    )
    forgotten = (
        None if initial_state is None else initial_state.float(),
        None if addend is None or z is None else addend.mT,
    )
    keeps_borders = needs_gradient(tensors + forgotten)
    y, last_state, _, _ = scan_forward(*tensors, delta_softplus, reverse, *forgotten, keeps_borders)
    outputs = y.mT
    if addend is not None and z is None:
        outputs = (outputs.float() + addend.float()).to(u.dtype)
    return outputs, last_state


def why_triton_cannot(situation: Situation) -> str | None:
    """The reason why the kernels cannot run in a situation (see `selective_scan`), or `None` if they can."""
    if situation.device_type != "cuda":
        return f"it runs on CUDA, not on {situation.device_type}"
    if situation.dtype == torch.float64:
        return "it computes in float32, not in float64"
    if torch.compiler.is_exporting():
        return "an exported program has to run without it"
    return probe()


@probing
def probe(device="cuda"):
    """Triton, or the C compiler that it needs, may be missing."""
    ones = torch.ones(1, 4, 1, device=device)
    arguments = (ones, ones, -ones[0, :1], ones[:, None].mT, ones[:, None].mT, None, None, None, False, False)
    y, last_state, *kept = scan_forward(*arguments, None, None, True)
    scan_backward(y, last_state, *kept, *arguments)
    return y


def _pack(u, delta, A, B, C, D, z, delta_bias) -> list[torch.Tensor | int]:
    """The first arguments of both kernels, as their module describes them. `u` stands in for a missing gate."""
    D, delta_bias = (A.new_zeros(A.shape[0]) if x is None else x for x in (D, delta_bias))
    z = u if z is None else z
    # Half of the output of a linear layer need not be copied.
    z = z if z.stride(2) == 1 and z.shape[1] * z.stride(1) < 2**31 else z.contiguous()
    rates = torch.mul(A.mT, LOG2_E, out=A.new_empty(A.shape[::-1]))
    gate = [z, z.stride(0), z.stride(1)]
    return [u.contiguous(), delta.contiguous(), *gate, rates, *(x.contiguous() for x in (B, C, D, delta_bias))]


def _grid(u: torch.Tensor, groups: int, channels: int) -> tuple[int, int]:
    batch_size, _, dim = u.shape
    return groups * -(-dim // (groups * channels)), batch_size


def _borders(u: torch.Tensor, A: torch.Tensor, groups: int, keeps_borders: bool) -> torch.Tensor:
    batch_size, length, dim = u.shape
    chunks = -(-length // plan(batch_size, dim, groups).chunk_length)
    return A.new_empty(batch_size, 1 + chunks if keeps_borders else 1, A.shape[1], dim)


def _keeps_mixed(z: torch.Tensor | None, keeps_borders: bool) -> bool:
    return z is not None and keeps_borders


@torch.library.custom_op(
    "hf_video::selective_scan_triton",
    mutates_args=(),
    schema="(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias,"
    " bool delta_softplus, bool reverse, Tensor? initial_state, Tensor? addend, bool keeps_borders)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def scan_forward(u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, initial_state, addend, keeps_borders):
    """
    Args:
        u, delta, z, addend: `(batch, length, dim)`, any dtypes; all others are float32. An addend needs a gate.
        A: `(dim, state)`.
        B, C: `(batch, groups, state, length)`.
        D, delta_bias: `(dim,)`.
        initial_state: `(batch, dim, state)`.
        keeps_borders: whether to return what the backward needs.

    Returns:
        The output like `u`, the last state, the states before each chunk and the last one, and the output before the
        gate in float32. The last two are empty unless they are kept and, for the output, there is a gate.
    """
    from .triton_kernels import scan_forward_kernel

    (batch_size, length, dim), groups, state_size = u.shape, B.shape[1], A.shape[1]
    spread = plan(batch_size, dim, groups)
    borders = _borders(u, A, groups, keeps_borders)
    borders[:, 0] = 0 if initial_state is None else initial_state.mT
    y = torch.empty_like(u, memory_format=torch.contiguous_format)
    mixed = A.new_empty(u.shape if _keeps_mixed(z, keeps_borders) else 0)
    added = y if addend is None else addend.contiguous()
    arrays = (*_pack(u, delta, A, B, C, D, z, delta_bias), added, y, mixed, borders)
    with torch.cuda.device_of(u):
        scan_forward_kernel[_grid(u, groups, spread.channels)](
            *arrays,
            *(length, dim, state_size, groups),
            use_softplus=delta_softplus,
            reverse=reverse,
            has_gate=z is not None,
            has_addend=addend is not None,
            keeps_borders=keeps_borders,
            **spread.settings(backward=False),
        )
    last_state = borders[:, -1].mT.clone(memory_format=torch.contiguous_format)
    return y, last_state, borders if keeps_borders else borders.new_empty(0), mixed


@torch.library.custom_op(
    "hf_video::selective_scan_triton_backward",
    mutates_args=(),
    schema="(Tensor dy, Tensor? dlast_state, Tensor borders, Tensor mixed, Tensor u, Tensor delta, Tensor A, Tensor B,"
    " Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, bool delta_softplus, bool reverse) -> Tensor[]",
)
def scan_backward(dy, dlast_state, borders, mixed, u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse):
    """
    The gradients of all tensors that the forward takes, also of those that are `None`. The gradient of an addend
    equals that of the output before the gate, and has the dtype of u.
    """
    from .triton_kernels import scan_backward_kernel

    (batch_size, length, dim), groups, state_size = u.shape, B.shape[1], A.shape[1]
    spread = plan(batch_size, dim, groups)
    grid = _grid(u, groups, spread.channels)
    arrays = _pack(u, delta, A, B, C, D, z, delta_bias)
    du, ddelta = (x.new_empty(x.shape) for x in (u, delta))
    dz, dmixed = (x.new_empty(0 if z is None else u.shape) for x in (u if z is None else z, u))
    drates, dstate = (A.new_zeros(batch_size, state_size, dim) for _ in range(2))
    if dlast_state is not None:
        dstate.copy_(dlast_state.mT)
    dB, dC = (B.new_empty(grid[0] // groups, *B.shape) for _ in range(2))
    dD, ddelta_bias = (A.new_empty(batch_size, dim) for _ in range(2))
    arrays += [mixed, borders, dy.contiguous(), du, ddelta, dz, dmixed, drates, dB, dC, dD, ddelta_bias, dstate]
    with torch.cuda.device_of(u):
        scan_backward_kernel[grid](
            *arrays,
            *(length, dim, state_size, groups),
            use_softplus=delta_softplus,
            reverse=reverse,
            has_gate=z is not None,
            **spread.settings(backward=True),
        )
    dA, dB, dC, dD, ddelta_bias = (x.sum(dim=0) for x in (drates, dB, dC, dD, ddelta_bias))
    return [du, ddelta, dA.mT.contiguous(), dB, dC, dD, dz, ddelta_bias, dstate.mT.contiguous(), dmixed]


@scan_forward.register_fake
def _(u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, initial_state, addend, keeps_borders):
    borders = _borders(u, A, B.shape[1], keeps_borders) if keeps_borders else A.new_empty(0)
    mixed = A.new_empty(u.shape if _keeps_mixed(z, keeps_borders) else 0)
    return u.new_empty(u.shape), A.new_empty(u.shape[0], *A.shape), borders, mixed


@scan_backward.register_fake
def _(dy, dlast_state, borders, mixed, u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse):
    weight, state = A.new_empty(A.shape[0]), A.new_empty(u.shape[0], *A.shape)
    dz, dmixed = (x.new_empty(0 if z is None else u.shape) for x in (u if z is None else z, u))
    gradients = [x.new_empty(x.shape) for x in (u, delta, A, B, C, weight, weight, state)]
    return [*gradients[:6], dz, *gradients[6:], dmixed]


register_gradients(scan_forward, scan_backward, num_outputs=2, num_forgotten=3)
