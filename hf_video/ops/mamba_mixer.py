"""
A Mamba mixer (https://arxiv.org/abs/2312.00752): `convolve_and_scan` is one direction, on backends that suit each
other, and `mamba_mixer` a whole residual branch on the CPU.

`mamba_mixer` is RMS norm, input projection, both directions of convolution, projections and selective scan, their sum,
gate and output projection in one operator. On GPUs, `BiMambaInnerFn` of Vision Mamba's mamba-ssm does the same.

The steps run on one tile of tokens after the other, so that what lies between them stays in the caches. For the
backward the operator keeps the input, the output of `in_proj`, and for each direction the output of `x_proj` and the
states at the borders of chunks. Everything else is computed again: norm, convolution, time steps, scans and gate.
Without this operator, a training step of VideoMamba-M on 64 frames takes 2.3 times as much memory (`python
benchmarks/videomamba_cpu.py --parts`).

In bfloat16, what is kept is bfloat16, and norm, convolution, scans, states, gate and sums of gradients are float32, as
are the matrix products where `cpu_choices` finds these quicker. Kernels convert where they read and write.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .causal_conv1d import causal_conv1d, convolve_on_cpu
from .causal_conv1d import choose_backend as choose_convolution
from .causal_conv1d import cpu_backward as conv_backward
from .numba_threads import run_units, split_tokens
from .registration import needs_gradient, turn
from .selective_scan import selective_scan
from .selective_scan.cpu import count_chunks, run_backward, run_forward, shape_of_borders
from .selective_scan.dispatch import choose_backend as choose_scan
from .selective_scan.reference import add_and_gate

# Tokens of a tile, over all its clips. With 1,152 channels a tensor of a tile has 9 MiB.
TILE_SIZE = 2048


class Direction(NamedTuple):
    """
    Weights of one direction, float32 or bfloat16.

    Attributes:
        conv_weight: `(dim, taps)`, the tap of the token itself last.
        conv_bias, dt_bias, D: `(dim,)`.
        x_proj: `(rank + 2 * state_size, dim)`.
        dt_proj: `(dim, rank)`.
        A: `(dim, state_size)`.
    """

    conv_weight: torch.Tensor
    conv_bias: torch.Tensor
    x_proj: torch.Tensor
    dt_proj: torch.Tensor
    dt_bias: torch.Tensor
    A: torch.Tensor
    D: torch.Tensor


def convolve_and_scan(
    x: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    project: Callable[[torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    A: torch.Tensor,
    D: torch.Tensor,
    z: torch.Tensor | None,
    delta_bias: torch.Tensor,
    *,
    reverse: bool,
    addend: torch.Tensor | None,
    is_padding: torch.Tensor | None = None,
    state: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """
    `selective_scan` of `causal_conv1d`, with softplus of the time steps.

    Args:
        x: `(batch_size, dim, length)`.
        conv_weight, conv_bias: as `causal_conv1d` takes them.
        project: gives `delta`, `B` and `C` of `selective_scan` for the output of the convolution and the padding.
        A, D, z, delta_bias, reverse, addend: as `selective_scan` takes them.
        is_padding: `(batch_size, 1, length)`, bool; only `project` reads it.
        state: `initial_state` of the scan and of the convolution, in which `reverse` is false.

    Returns:
        `(batch_size, dim, length)`; with a state also the last state of the scan.
    """
    scan_backend = choose_scan(x.device.type, x.dtype, A.shape[1], state is not None, None)
    scan_state, conv_state = state or (None, None)
    conv_backend = choose_convolution(scan_backend, conv_weight.shape[-1])

    def run(x, z, addend, reverse, is_padding) -> Any:
        u = causal_conv1d(x, conv_weight, conv_bias, reverse=reverse, initial_state=conv_state, backend=conv_backend)
        delta, B, C = project(u, is_padding)
        options: dict[str, Any] = {"initial_state": scan_state, "return_last_state": state is not None}
        return selective_scan(u, delta, A, B, C, D, z, delta_bias, True, reverse=reverse, addend=addend, **options)

    if reverse and conv_backend == "causal_conv1d":
        # Both kernels only go forward. To turn what enters and leaves costs less than to turn all that lies between.
        is_padding = None if is_padding is None else is_padding.flip(-1)
        return add_and_gate(turn(run(turn(x), None, None, False, is_padding)), addend, z)
    return run(x, z, addend, reverse, is_padding)


class Tile(NamedTuple):
    """
    A part of the work on one direction.

    Attributes:
        clips: the clips of the tile.
        tokens: the tokens that it computes.
        seen: these tokens and those that the convolution reads for them.
        own: the place of `tokens` in `seen`.
        chunks: the chunks of which the states are kept.
        is_first, is_last: whether the tile is the first or last in the order of the scan.
    """

    clips: slice
    tokens: slice
    seen: slice
    own: slice
    chunks: slice
    is_first: bool
    is_last: bool

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor `(batch, length, channels)` that belongs to the tile."""
        return tensor[self.clips, self.tokens]


def can_fuse_mixer(hidden_states: torch.Tensor, dim: int, state_size: int, dtype: torch.dtype) -> bool:
    """
    Whether `mamba_mixer` can run in a dtype: scans run on the `cpu` backend, both dtypes are float32 or bfloat16, and
    channels fill vectors.
    """
    return (
        choose_scan(hidden_states.device.type, hidden_states.dtype, state_size, False, None) == "cpu"
        and {hidden_states.dtype, dtype} <= {torch.float32, torch.bfloat16}
        and has_whole_vectors(dim)
    )


@torch.compiler.assume_constant_result
def has_whole_vectors(dim: int) -> bool:
    from .numba_vectors import LANES

    return dim % LANES == 0


def mamba_mixer(
    hidden_states: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    in_proj: torch.Tensor,
    out_proj: torch.Tensor,
    directions: list[Direction],
    dtype: torch.dtype,
    product_dtype: torch.dtype,
    state: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """
    Args:
        hidden_states: `(batch_size, length, hidden_size)`, float32 or bfloat16 like everything.
        norm: `(hidden_size,)`, the weight of the RMS norm.
        eps: the epsilon of the norm.
        in_proj: `(2 * dim, hidden_size)`, gives the inputs of the scans and the gate.
        out_proj: `(hidden_size, dim)`.
        directions: the weights of the scan from the first token on and, if there are two, of the one from the last.
        dtype: in which what the backward needs is kept, whatever the dtypes of the weights.
        product_dtype: in which matrix products compute.
        state: state of the first direction before the first token, `(batch_size, dim, state_size)`, and the last
            inputs of its convolution, `(batch_size, dim, taps - 1)`, both float32. There are no gradients then.

    Returns:
        `(batch_size, length, hidden_size)`, in the dtype of the hidden states; with a state, also the next one's two
        tensors.
    """
    tensors = [hidden_states, norm, in_proj, out_proj, *(weight for direction in directions for weight in direction)]
    keeps_states = state is None and needs_gradient(tensors)
    outputs = mixer_forward(tensors, eps, keeps_states, dtype, product_dtype, *(state or ()))
    return outputs[:1] if state is None else outputs


def tiles(batch_size: int, length: int, taps: int, reverse: bool) -> Iterator[Tile]:
    """Tiles of several whole clips, or of a part of one clip, in the order of the scan; each contiguous in memory."""
    from .cpu_kernels import CHUNK_LENGTH

    clips_each, chunks = max(1, TILE_SIZE // length), count_chunks(length)
    chunks_each = -(-chunks // -(-length // TILE_SIZE))
    for clip in range(0, batch_size, clips_each):
        for chunk in range(0, chunks, chunks_each):
            start, end = chunk * CHUNK_LENGTH, min((chunk + chunks_each) * CHUNK_LENGTH, length)
            before = max(0, start - taps + 1)
            yield Tile(
                clips=slice(clip, clip + clips_each),
                tokens=slice(length - end, length - start) if reverse else slice(start, end),
                seen=slice(length - end, length - before) if reverse else slice(before, end),
                own=slice(0, end - start) if reverse else slice(start - before, end - before),
                chunks=slice(chunk, chunk + chunks_each),
                is_first=start == 0,
                is_last=end == length,
            )


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add a product to a sum in float32."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def write_product(result: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Write a product, which may be of another dtype than the result."""
    if left.dtype == result.dtype:
        torch.mm(left, right, out=result)
    else:
        result.copy_(left @ right)


def unpack(
    tensors: list[torch.Tensor], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, list[Direction]]:
    """The tensors by their names. Projections get the given dtype, other weights float32."""
    hidden_states, norm, in_proj, out_proj, *weights = tensors
    size = len(Direction._fields)
    directions = []
    for i in range(0, len(weights), size):
        direction = Direction(*(weight.float() for weight in weights[i : i + size]))
        x_proj, dt_proj = (weight.to(dtype) for weight in (direction.x_proj, direction.dt_proj))
        directions.append(direction._replace(x_proj=x_proj, dt_proj=dt_proj))
    return hidden_states.contiguous(), norm.float(), in_proj.to(dtype), out_proj.to(dtype), directions


def prepare(
    x: torch.Tensor, projected: torch.Tensor | None, direction: Direction, tile: Tile, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output of `x_proj` for a tile, `projected` if it is given, and the inputs of its scan: u, delta, B and C."""
    dtype = direction.x_proj.dtype
    seen = x[tile.clips, tile.seen]
    u = convolve_on_cpu(seen, direction.conv_weight, direction.conv_bias, reverse, dtype)[:, tile.own]
    projected = F.linear(u, direction.x_proj) if projected is None else projected.to(dtype)
    state_size = direction.A.shape[1]
    time_steps, B, C = projected.split([direction.dt_proj.shape[1], state_size, state_size], dim=-1)
    delta = torch.empty(u.shape, dtype=dtype)
    torch.mm(time_steps.flatten(0, 1), direction.dt_proj.T, out=delta.flatten(0, 1))
    return projected, u, delta, B[:, :, None].float(), C[:, :, None].float()


@torch.library.custom_op("hf_video::mamba_mixer", mutates_args=())
@torch.autocast("cpu", enabled=False)
def mixer_forward(
    tensors: list[torch.Tensor],
    eps: float,
    keeps_states: bool,
    dtype: torch.dtype,
    product_dtype: torch.dtype,
    scan_state: torch.Tensor | None = None,
    conv_state: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """
    Args:
        tensors: the hidden states, `norm`, `in_proj`, `out_proj` and the weights of all directions.
        eps: the epsilon of the norm.
        keeps_states: whether to return what the backward needs.
        dtype: dtype of what is kept, except for the states, which are float32.
        product_dtype: in which matrix products compute.
        scan_state, conv_state: the two tensors of `state`.

    Returns:
        The output. If states are kept, also the output of `in_proj` and, for each direction, the output of `x_proj`
        and the states before each chunk. With a state, also the next one's two tensors.
    """
    from .cpu_kernels import gate_forward_unit

    is_rough = dtype == torch.bfloat16
    hidden_states, norm, in_proj, out_proj, directions = unpack(tensors, product_dtype)
    batch_size, length, _ = hidden_states.shape
    projected_input = torch.empty(batch_size, length, in_proj.shape[0], dtype=dtype)
    parts = (tensor.flatten(0, 1).split(TILE_SIZE) for tensor in (hidden_states, projected_input))
    for rows, results in zip(*parts, strict=True):
        normalized = F.rms_norm(rows.float(), norm.shape, norm, eps)
        write_product(results, normalized.to(product_dtype), in_proj.T)
    x, gate = projected_input.chunk(2, dim=-1)
    outputs, total = torch.empty_like(hidden_states), torch.empty(x.shape, dtype=torch.float32)
    kept, kept_length = [], length if keeps_states else 0
    next_state = [] if scan_state is None else [torch.empty_like(scan_state)]
    if conv_state is not None:
        extended = torch.cat([conv_state.mT.to(x.dtype), x], dim=1)
        next_state.append(extended[:, length:].mT.to(conv_state.dtype, copy=True))
    for number, direction in enumerate(directions):
        state, reverse = None, number == 1
        all_projected = x.new_empty(batch_size, kept_length, direction.x_proj.shape[0])
        borders = direction.A.new_empty(shape_of_borders(batch_size, kept_length, direction.A, 1))
        kept += [all_projected, borders]
        earlier, num_old = None if reverse else scan_state, direction.conv_weight.shape[1] - 1
        for tile in tiles(batch_size, length, num_old + 1, reverse):
            first_state = None
            if earlier is not None:
                start, end, _ = tile.tokens.indices(length)
                tile = tile._replace(seen=slice(start, end + num_old), own=slice(num_old, num_old + end - start))
                first_state = earlier[tile.clips]
            inputs = x if earlier is None else extended
            projected, u, delta, B, C = prepare(inputs, None, direction, tile, reverse)
            y = tile.of(total) if number == 0 else torch.empty_like(u, dtype=torch.float32)
            state = run_forward(
                *(y, borders[tile.clips, tile.chunks], u, delta, direction.A, B, C, direction.D, direction.dt_bias),
                *(True, reverse, first_state if tile.is_first else state, is_rough),
            )
            if earlier is not None and tile.is_last:
                next_state[0][tile.clips] = state
            if keeps_states:
                tile.of(all_projected).copy_(projected)
            if number == len(directions) - 1:
                # The scan has read its input, so it may be overwritten.
                gated = u
                arrays = (tile.of(total), y, tile.of(gate), gated, number > 0)
                run_units(gate_forward_unit, arrays, split_tokens(*gated.shape[:2]))
                write_product(tile.of(outputs).flatten(0, 1), gated.flatten(0, 1), out_proj.T)
    return [outputs, projected_input, *kept] if keeps_states else [outputs, *next_state]


@torch.library.custom_op("hf_video::mamba_mixer_backward", mutates_args=())
@torch.autocast("cpu", enabled=False)
def mixer_backward(
    doutputs: torch.Tensor,
    kept: list[torch.Tensor],
    tensors: list[torch.Tensor],
    eps: float,
    product_dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Gradients of the tensors that `mixer_forward` takes, from the gradient of its output and what it kept."""
    from .cpu_kernels import gate_backward_unit, gate_total_backward_unit

    projected_input, *kept = kept
    dtype = product_dtype
    hidden_states, norm, in_proj, out_proj, directions = unpack(tensors, dtype)
    batch_size, length, _ = hidden_states.shape
    doutputs = doutputs.contiguous()
    dprojected_input = torch.empty_like(projected_input, dtype=dtype)
    dhidden_states = torch.empty_like(hidden_states)
    x, gate = projected_input.chunk(2, dim=-1)
    dx, dgate = dprojected_input.chunk(2, dim=-1)
    dx.zero_()
    dgated, total = (torch.empty(x.shape, dtype=kind) for kind in (dtype, torch.float32))
    dnorm, din_proj, dout_proj = (zero_sum(weight) for weight in (norm, in_proj, out_proj))
    sums = [Direction(*(zero_sum(weight) for weight in direction)) for direction in directions]
    for number, direction in reversed(list(enumerate(directions))):
        dstate, reverse = None, number == 1
        for tile in reversed(list(tiles(batch_size, length, direction.conv_weight.shape[1], reverse))):
            units = list(split_tokens(*tile.of(gate).shape[:2]))
            drows, in_first_pass = tile.of(doutputs).flatten(0, 1).to(dtype), number == len(directions) - 1
            if in_first_pass:
                torch.mm(drows, out_proj, out=tile.of(dgated).flatten(0, 1))
            dtotal = torch.empty(tile.of(dgated).shape, dtype=dtype)
            run_units(gate_total_backward_unit, (tile.of(dgated), tile.of(gate), dtotal), units)
            y = tile.of(total) if in_first_pass else torch.empty_like(dtotal, dtype=torch.float32)
            projected, borders = kept[2 * number : 2 * number + 2]
            dstate = add_gradients(
                *(sums[number], dx, y, dtotal, None if tile.is_last else dstate, x),
                *(tile.of(projected), borders[tile.clips, tile.chunks], direction, tile, reverse),
            )
            if number == 0:
                gated = dtotal
                arrays = (tile.of(dgated), tile.of(total), y, tile.of(gate), gated, tile.of(dgate), not in_first_pass)
                run_units(gate_backward_unit, arrays, units)
                add_product(dout_proj, drows.T, gated.flatten(0, 1))
                # Later tiles have added their part to the gradient of this one.
                dprojected = tile.of(dprojected_input).flatten(0, 1)
                rows = tile.of(hidden_states).flatten(0, 1).float()
                scale = (rows.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
                normalized = rows * scale
                add_product(din_proj, dprojected.T, (normalized * norm).to(dtype))
                dnormalized = (dprojected @ in_proj).float()
                dnorm += (dnormalized * normalized).sum(dim=0)
                dnormalized *= norm
                shares = (dnormalized * normalized).mean(dim=-1, keepdim=True)
                torch.mul(dnormalized - normalized * shares, scale, out=tile.of(dhidden_states).flatten(0, 1))
    gradients = [dhidden_states, dnorm, din_proj, dout_proj, *(gradient for weights in sums for gradient in weights)]
    return [gradient.to(tensor.dtype) for gradient, tensor in zip(gradients, tensors, strict=True)]


def zero_sum(weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(weight, dtype=torch.float32)


def add_gradients(
    sums: Direction, dx, y, dy, dstate, x, projected, borders, direction: Direction, tile: Tile, reverse: bool
) -> torch.Tensor:
    """
    Add to `sums` and `dx` the gradients of one direction of a tile, and write its output to `y`. `y`, `dy`,
    `projected` and `borders` are the tile's.

    Returns:
        The gradient of the state before the tile.
    """
    is_rough = projected.dtype == torch.bfloat16
    projected, u, delta, B, C = prepare(x, projected, direction, tile, reverse)
    du, ddelta, dA, dB, dC, dD, ddt_bias, dstate = run_backward(
        *(y, dy, dstate, borders, u, delta, direction.A, B, C, direction.D, direction.dt_bias, True, reverse, is_rough)
    )
    ddelta, du_rows = ddelta.flatten(0, 1), du.flatten(0, 1)
    add_product(sums.dt_proj, ddelta.T, projected.flatten(0, 1)[:, : direction.dt_proj.shape[1]])
    dB_rows, dC_rows = (gradient.flatten(0, 2).to(u.dtype) for gradient in (dB, dC))
    dprojected = torch.cat([ddelta @ direction.dt_proj, dB_rows, dC_rows], dim=-1)
    add_product(sums.x_proj, dprojected.T, u.flatten(0, 1))
    du_rows.addmm_(dprojected, direction.x_proj)
    seen = x[tile.clips, tile.seen]
    others = (tile.own.start, seen.shape[1] - tile.own.stop)
    dconvolved = F.pad(du, (0, 0, *others)) if any(others) else du
    dseen, dconv_weight, dconv_bias = conv_backward(
        dconvolved, seen, direction.conv_weight, direction.conv_bias, reverse
    )
    dx[tile.clips, tile.seen] += dseen
    for weight, part in zip(
        (sums.conv_weight, sums.conv_bias, sums.dt_bias, sums.A, sums.D),
        (dconv_weight, dconv_bias, ddt_bias, dA, dD),
        strict=True,
    ):
        weight += part
    return dstate


@mixer_forward.register_fake
def _(tensors, eps, keeps_states, dtype, product_dtype, scan_state=None, conv_state=None):
    hidden_states, _, in_proj, _, directions = unpack(tensors, dtype)
    outputs = [torch.empty_like(hidden_states)]
    if not keeps_states:
        next_state = (scan_state, conv_state) if scan_state is not None else ()
        return outputs + [torch.empty_like(states, memory_format=torch.contiguous_format) for states in next_state]
    batch_size, length, _ = hidden_states.shape
    outputs.append(in_proj.new_empty(batch_size, length, in_proj.shape[0]))
    for direction in directions:
        outputs.append(in_proj.new_empty(batch_size, length, direction.x_proj.shape[0]))
        outputs.append(direction.A.new_empty(shape_of_borders(batch_size, length, direction.A, 1)))
    return outputs


@mixer_backward.register_fake
def _(doutputs, kept, tensors, eps, product_dtype):
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]


def _save(ctx, inputs, output):
    ctx.num_kept, ctx.options = len(output) - 1, (inputs[1], inputs[4])
    ctx.save_for_backward(*output[1:], *inputs[0])


def _differentiate(ctx, gradients):
    saved = list(ctx.saved_tensors)
    kept, tensors = saved[: ctx.num_kept], saved[ctx.num_kept :]
    return mixer_backward(gradients[0], kept, tensors, *ctx.options), *[None] * 6


mixer_forward.register_autograd(_differentiate, setup_context=_save)
