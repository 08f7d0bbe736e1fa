"""
`selective_scan` on GPUs, by kernels that Triton compiles, which comes with PyTorch.

The operators take u, delta, z and addend `(batch, length, dim)`, channels last as linear layers have them, and B and C
`(batch, groups, state, length)`, of any floating dtypes; in float32, A `(state, dim)`, D and delta_bias `(dim,)` and
the initial state `(batch, state, dim)`. For the backward they keep the states at the borders of chunks of time and, if
there is a gate, the output before it. The other states are computed again, so that memory for states grows with
length / chunk. Every sum has a fixed order: two runs give the same bits. Neither operator waits for the device, so
that both can be captured in a CUDA graph.
"""

import torch

from hf_video.ops.dispatch import probing
from hf_video.ops.registration import needs_gradient, register_gradients

from .reference import LOG2_E, ScanFacts, ScanInputs, share_groups

LANES = 32
# Steps that a thread takes in a row: as many as its registers can hold in the backward. More steps mean that threads
# hand on states less often.
STEPS = 16
# Channels of a block: 16 of bfloat16 fill the 32 bytes that are read from memory at once. Small batches take fewer
# channels, to have more programs. 32 channels would halve the partial sums of the gradients of B and C in memory, a
# fifth of all bytes, but take 1.4 times the instructions, which bound the kernels.
BLOCK, SMALL_BLOCK = 16, 8
# Numbers that keep a large GPU busy: about two programs for each multiprocessor, and their warps.
PROGRAMS, WARPS = 256, 1024
MAX_WARPS = 4
# From so many elements on, offsets do not fit 32 bits.
WIDE = 2**31
# Limit for a thread in the forward, with which 12 warps fit a multiprocessor. With bfloat16, sm_90 needs no more, and
# sm_80 keeps up to 64 bytes in memory instead.
FORWARD_REGISTERS = 168


def plan(batch_size: int, dim: int, groups: int) -> dict[str, int]:
    """Constants of both kernels, which have one thread for each channel of each span of steps. Small batches get more
    spans, which are threads along time. It follows from sizes alone, so that shapes are known without a device."""

    def count_programs(channels: int) -> int:
        return batch_size * groups * -(-dim // (groups * channels))

    block = BLOCK if count_programs(BLOCK) >= PROGRAMS else SMALL_BLOCK
    warps = 1
    while warps < MAX_WARPS and count_programs(block) * warps < WARPS:
        warps *= 2
    return {"STEPS": STEPS, "SPANS": warps * LANES // block, "BLOCK": block}


def options(sizes: dict[str, int], backward: bool) -> dict[str, int]:
    """Of a launch, for the constants of `plan`."""
    # Triton for AMD has no limit of registers.
    limit = {} if backward or torch.version.hip else {"maxnreg": FORWARD_REGISTERS}
    return {"num_warps": sizes["SPANS"] * sizes["BLOCK"] // LANES, "enable_fp_fusion": True} | limit


def selective_scan_triton(inputs: ScanInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and last state as `selective_scan` describes them; `unsupported` must return `None`."""
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, reverse, state, addend = inputs
    batch_size, dim, length = u.shape
    if length * dim >= WIDE:
        raise ValueError(
            f"The backend 'triton' counts elements of a clip in 32 bits, got {length} steps of {dim} channels: scan "
            "them in parts with `initial_state`, or on another backend."
        )
    B, C = (x.contiguous() for x in share_groups(B, C, u))
    D, delta_bias = (u.new_zeros(dim) if x is None else x for x in (D, delta_bias))
    state = A.new_zeros(batch_size, *A.shape) if state is None else state
    tensors = (u.mT, delta.mT, A.mT.float(), B, C, D.float(), delta_bias.float(), None if z is None else z.mT)
    unread = (state.mT.float(), None if addend is None or z is None else addend.mT)
    keeps_borders = needs_gradient(tensors + unread)
    y, last_state, _, _ = scan_forward(*tensors, *unread, delta_softplus, reverse, keeps_borders)
    outputs = y.mT
    if addend is not None and z is None:
        outputs = (outputs.float() + addend.float()).to(u.dtype)
    return outputs, last_state.mT


def unsupported(facts: ScanFacts) -> str | None:
    """The reason why the kernels cannot run a scan, or `None` if they can."""
    if facts.device_type != "cuda":
        return f"it runs on CUDA, not on {facts.device_type}"
    if facts.dtype == torch.float64:
        return "it computes in float32, not in float64"
    if torch.compiler.is_exporting():
        return "an exported program has to run without it"
    return probe()


@probing
def probe(device="cuda"):
    """Triton, or the C compiler that it needs, may be missing."""
    ones = torch.ones(1, 4, 1, device=device)
    tensors = (ones, ones, -ones[0, :1], ones[:, None].mT, ones[:, None].mT, ones[0, 0], ones[0, 0], None)
    y, last_state, *kept = scan_forward(*tensors, ones[:, :1], None, False, False, True)
    scan_backward(y, last_state, *kept, *tensors, False, False, True)
    return y


def _pack(u, delta, A, B, C, D, delta_bias, z) -> list[torch.Tensor | int]:
    """The first arguments of both kernels, as their module describes them. `u` stands in for a missing gate."""
    z = u if z is None else z
    # Half of the output of a linear layer need not be copied.
    z = z if z.stride(2) == 1 and z.shape[1] * z.stride(1) < 2**31 else z.contiguous()
    others = (x.contiguous() for x in (A * LOG2_E, B, C, D, delta_bias))
    return [u.contiguous(), delta.contiguous(), z, z.stride(0), z.stride(1), *others]


def _launch(kernel, arrays, u, A, B, backward, **constants) -> None:
    (batch_size, length, dim), groups = u.shape, B.shape[1]
    sizes = plan(batch_size, dim, groups)
    grid = (groups * -(-dim // (groups * sizes["BLOCK"])), batch_size)
    is_wide = len(A) * max(length, dim * (1 + length // (sizes["STEPS"] * sizes["SPANS"]))) >= WIDE
    constants |= sizes | options(sizes, backward)
    with torch.cuda.device_of(u):
        kernel[grid](*arrays, length, dim, len(A), groups, is_wide=is_wide, **constants)


TENSORS = "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor D, Tensor delta_bias, Tensor? z"
OPTIONS = "bool delta_softplus, bool reverse, bool keeps_borders"


@torch.library.custom_op(
    "hf_video::selective_scan_triton",
    mutates_args=(),
    schema=f"({TENSORS}, Tensor initial_state, Tensor? addend, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def scan_forward(u, delta, A, B, C, D, delta_bias, z, initial_state, addend, delta_softplus, reverse, keeps_borders):
    """The output, the last state, the states before each chunk and the last one, and the output before the gate. The
    last two are empty unless they are kept and, for the output, there is a gate. An addend needs a gate."""
    from .triton_kernels import scan_forward_kernel

    y, _, borders, mixed = allocate(
        u, delta, A, B, C, D, delta_bias, z, initial_state, addend, None, None, keeps_borders
    )
    states = borders if keeps_borders else A.new_empty(len(u), 1, *A.shape)
    states[:, 0] = initial_state
    added = y if addend is None else addend.contiguous()
    arrays = (*_pack(u, delta, A, B, C, D, delta_bias, z), added, y, mixed, states)
    flags = {"has_gate": z is not None, "has_addend": addend is not None, "keeps_borders": keeps_borders}
    _launch(scan_forward_kernel, arrays, u, A, B, False, use_softplus=delta_softplus, reverse=reverse, **flags)
    return y, states[:, -1].clone(memory_format=torch.contiguous_format), borders, mixed


@torch.library.custom_op(
    "hf_video::selective_scan_triton_backward",
    mutates_args=(),
    schema=f"(Tensor dy, Tensor? dlast_state, Tensor borders, Tensor mixed, {TENSORS}, {OPTIONS}) -> Tensor[]",
)
def scan_backward(dy, dlast_state, borders, mixed, u, delta, A, B, C, D, delta_bias, z, delta_softplus, reverse, _):
    """The gradients of all tensors that the forward takes, also of those that are `None`. That of an addend equals
    that of the output before the gate, and has the dtype of u."""
    from .triton_kernels import scan_backward_kernel

    batch_size, _, dim = u.shape
    blocks = -(-dim // (B.shape[1] * plan(batch_size, dim, B.shape[1])["BLOCK"]))
    du, ddelta, _, _, _, _, _, dz, dstate, dmixed = allocate_gradients(
        dy, dlast_state, borders, mixed, u, delta, A, B, C, D, delta_bias, z
    )
    dstate.zero_() if dlast_state is None else dstate.copy_(dlast_state)
    drates = torch.zeros_like(dstate)
    dB, dC = (A.new_empty(blocks, *B.shape) for _ in range(2))
    dD, ddelta_bias = (A.new_empty(batch_size, dim) for _ in range(2))
    arrays = (
        *(*_pack(u, delta, A, B, C, D, delta_bias, z), mixed, borders, dy.contiguous()),
        *(du, ddelta, dz, dmixed, drates, dB, dC, dD, ddelta_bias, dstate),
    )
    flags = {"use_softplus": delta_softplus, "reverse": reverse, "has_gate": z is not None}
    _launch(scan_backward_kernel, arrays, u, A, B, True, **flags)
    dA, dB, dC, dD, ddelta_bias = (x.sum(dim=0) for x in (drates, dB, dC, dD, ddelta_bias))
    return [du, ddelta, dA, dB.to(B.dtype), dC.to(C.dtype), dD, ddelta_bias, dz, dstate, dmixed]


@scan_forward.register_fake
def allocate(u, delta, A, B, C, D, delta_bias, z, initial_state, addend, delta_softplus, reverse, keeps_borders):
    (batch_size, length, dim), groups = u.shape, B.shape[1]
    sizes = plan(batch_size, dim, groups)
    slots = 1 - (-length // (sizes["STEPS"] * sizes["SPANS"]))
    borders = A.new_empty(batch_size, slots, *A.shape) if keeps_borders else A.new_empty(0)
    mixed = u.new_empty(u.shape if z is not None and keeps_borders else 0)
    return u.new_empty(u.shape), A.new_empty(batch_size, *A.shape), borders, mixed


@scan_backward.register_fake
def allocate_gradients(dy, dlast_state, borders, mixed, u, delta, A, B, C, D, delta_bias, z, *options):
    gradients = [x.new_empty(x.shape) for x in (u, delta, A, B, C, D, delta_bias)]
    dz, dmixed = (x.new_empty(0 if z is None else u.shape) for x in (u if z is None else z, u))
    return [*gradients, dz, A.new_empty(len(u), *A.shape), dmixed]


register_gradients(scan_forward, scan_backward, num_outputs=2, num_unread=2)
