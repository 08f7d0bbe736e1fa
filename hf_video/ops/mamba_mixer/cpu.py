"""
A residual branch on the CPU in one operator: RMS norm, input projection, both directions of convolution, projections
and selective scan, their sum, gate and output projection. On GPUs, `BiMambaInnerFn` of Vision Mamba's mamba-ssm does
the same.

The steps run on one tile of tokens after the other, so that what lies between them stays in the caches. For the
backward the operator keeps the input, the output of `in_proj`, and for each direction the output of `x_proj` and the
states at the borders of chunks. Everything else is computed again: norm, convolution, time steps, scans and gate.
Without this operator, a training step of VideoMamba-M on 64 frames takes 2.3 times as much memory (`python
benchmarks/videomamba_cpu.py --parts`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F

from hf_video.ops.buffers import new_output
from hf_video.ops.causal_conv1d.cpu import conv_backward, conv_forward
from hf_video.ops.numba_threads import run_units, split_tokens
from hf_video.ops.operators import needs_gradient
from hf_video.ops.selective_scan.cpu import count_chunks, run_backward, run_forward, shape_of_borders
from hf_video.ops.selective_scan.dispatch import choose_backend

# Tokens of a tile, over all its clips. With 1,152 channels a tensor of a tile has 9 MiB.
TILE_SIZE = 2048


class Direction(NamedTuple):
    """
    Weights of one direction, float32.

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


def can_fuse_mixer(hidden_states: torch.Tensor, dim: int, state_size: int) -> bool:
    """Whether `mamba_mixer` can run: scans run on the `cpu` backend in float32, and channels fill vectors."""
    return (
        choose_backend(hidden_states.device.type, hidden_states.dtype, state_size, False, None) == "cpu"
        and hidden_states.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and has_whole_vectors(dim)
    )


@torch.compiler.assume_constant_result
def has_whole_vectors(dim: int) -> bool:
    from hf_video.ops.numba_vectors import LANES

    return dim % LANES == 0


def mamba_mixer(
    hidden_states: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    in_proj: torch.Tensor,
    out_proj: torch.Tensor,
    directions: list[Direction],
) -> torch.Tensor:
    """
    Args:
        hidden_states: `(batch_size, length, hidden_size)`, float32 like everything.
        norm: `(hidden_size,)`, the weight of the RMS norm.
        eps: the epsilon of the norm.
        in_proj: `(2 * dim, hidden_size)`, gives the inputs of the scans and the gate.
        out_proj: `(hidden_size, dim)`.
        directions: the weights of the scan from the first token on and, if there are two, of the one from the last.

    Returns:
        `(batch_size, length, hidden_size)`.
    """
    tensors = [hidden_states, norm, in_proj, out_proj, *(weight for direction in directions for weight in direction)]
    return mixer_forward(tensors, eps, needs_gradient(tensors))[0]


def tiles(batch_size: int, length: int, taps: int, reverse: bool) -> Iterator[Tile]:
    """Tiles of several whole clips, or of a part of one clip, in the order of the scan; each contiguous in memory."""
    from hf_video.ops.selective_scan.cpu_kernels import CHUNK_LENGTH

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


def unpack(
    tensors: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, list[Direction]]:
    hidden_states, norm, in_proj, out_proj, *weights = tensors
    size = len(Direction._fields)
    directions = [Direction(*weights[i : i + size]) for i in range(0, len(weights), size)]
    return hidden_states.contiguous(), norm, in_proj, out_proj, directions


def prepare(
    x: torch.Tensor, projected: torch.Tensor | None, direction: Direction, tile: Tile, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output of `x_proj` for a tile, `projected` if it is given, and the inputs of its scan: u, delta, B and C."""
    u = conv_forward(x[tile.clips, tile.seen], direction.conv_weight, direction.conv_bias, reverse)[:, tile.own]
    projected = F.linear(u, direction.x_proj) if projected is None else projected
    state_size = direction.A.shape[1]
    time_steps, B, C = projected.split([direction.dt_proj.shape[1], state_size, state_size], dim=-1)
    delta = new_output(u.shape)
    torch.mm(time_steps.flatten(0, 1), direction.dt_proj.T, out=delta.flatten(0, 1))
    return projected, u, delta, B[:, :, None], C[:, :, None]


@torch.library.custom_op("hf_video::mamba_mixer", mutates_args=())
def mixer_forward(tensors: list[torch.Tensor], eps: float, keeps_states: bool) -> list[torch.Tensor]:
    """
    Args:
        tensors: the hidden states, `norm`, `in_proj`, `out_proj` and the weights of all directions.
        eps: the epsilon of the norm.
        keeps_states: whether to return what the backward needs.

    Returns:
        The output. If states are kept, also the output of `in_proj` and, for each direction, the output of `x_proj`
        and the states before each chunk.
    """
    from .cpu_kernels import gate_forward_unit

    hidden_states, norm, in_proj, out_proj, directions = unpack(tensors)
    batch_size, length, _ = hidden_states.shape
    projected_input = new_output((batch_size, length, in_proj.shape[0]))
    parts = (tensor.flatten(0, 1).split(TILE_SIZE) for tensor in (hidden_states, projected_input))
    for rows, results in zip(*parts, strict=True):
        torch.mm(F.rms_norm(rows, norm.shape, norm, eps), in_proj.T, out=results)
    x, gate = projected_input.chunk(2, dim=-1)
    outputs, total = new_output(hidden_states.shape), new_output(x.shape)
    kept, kept_length = [], length if keeps_states else 0
    for number, direction in enumerate(directions):
        state, reverse = None, number == 1
        all_projected = x.new_empty(batch_size, kept_length, direction.x_proj.shape[0])
        borders = new_output(shape_of_borders(batch_size, kept_length, direction.A, 1))
        kept += [all_projected, borders]
        for tile in tiles(batch_size, length, direction.conv_weight.shape[1], reverse):
            projected, u, delta, B, C = prepare(x, None, direction, tile, reverse)
            y = tile.of(total) if number == 0 else new_output(u.shape)
            state = run_forward(
                *(y, borders[tile.clips, tile.chunks], u, delta, direction.A, B, C, direction.D, direction.dt_bias),
                *(None if tile.is_first else state, True, reverse),
            )
            if keeps_states:
                tile.of(all_projected).copy_(projected)
            if number == len(directions) - 1:
                # The scan has read its input, so it may be overwritten.
                gated = u
                arrays = (tile.of(total), y, tile.of(gate), gated, number > 0)
                run_units(gate_forward_unit, arrays, split_tokens(*gated.shape[:2]))
                torch.mm(gated.flatten(0, 1), out_proj.T, out=tile.of(outputs).flatten(0, 1))
    return [outputs, projected_input, *kept] if keeps_states else [outputs]


@torch.library.custom_op("hf_video::mamba_mixer_backward", mutates_args=())
def mixer_backward(
    doutputs: torch.Tensor, kept: list[torch.Tensor], tensors: list[torch.Tensor], eps: float
) -> list[torch.Tensor]:
    """Gradients of the tensors that `mixer_forward` takes, from the gradient of its output and what it kept."""
    from .cpu_kernels import gate_backward_unit, gate_total_backward_unit

    hidden_states, norm, in_proj, out_proj, directions = unpack(tensors)
    batch_size, length, _ = hidden_states.shape
    projected_input, *kept = kept
    doutputs = doutputs.contiguous()
    dprojected_input, dhidden_states = new_output(projected_input.shape), new_output(hidden_states.shape)
    x, gate = projected_input.chunk(2, dim=-1)
    dx, dgate = dprojected_input.chunk(2, dim=-1)
    dx.zero_()
    dgated, total = new_output(x.shape), new_output(x.shape)
    dnorm, din_proj, dout_proj = (torch.zeros_like(weight) for weight in (norm, in_proj, out_proj))
    sums = [Direction(*(torch.zeros_like(weight) for weight in direction)) for direction in directions]
    for number, direction in reversed(list(enumerate(directions))):
        dstate, reverse = None, number == 1
        for tile in reversed(list(tiles(batch_size, length, direction.conv_weight.shape[1], reverse))):
            units = list(split_tokens(*tile.of(gate).shape[:2]))
            drows, in_first_pass = tile.of(doutputs).flatten(0, 1), number == len(directions) - 1
            if in_first_pass:
                torch.mm(drows, out_proj, out=tile.of(dgated).flatten(0, 1))
            dtotal = new_output(tile.of(dgated).shape)
            run_units(gate_total_backward_unit, (tile.of(dgated), tile.of(gate), dtotal), units)
            y = tile.of(total) if in_first_pass else new_output(dtotal.shape)
            projected, borders = kept[2 * number : 2 * number + 2]
            dstate = add_gradients(
                *(sums[number], dx, y, dtotal, None if tile.is_last else dstate, x),
                *(tile.of(projected), borders[tile.clips, tile.chunks], direction, tile, reverse),
            )
            if number == 0:
                gated = dtotal
                arrays = (tile.of(dgated), tile.of(total), y, tile.of(gate), gated, tile.of(dgate), not in_first_pass)
                run_units(gate_backward_unit, arrays, units)
                dout_proj.addmm_(drows.T, gated.flatten(0, 1))
                # Later tiles have added their part to the gradient of this one.
                dprojected = tile.of(dprojected_input).flatten(0, 1)
                rows = tile.of(hidden_states).flatten(0, 1)
                scale = (rows.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
                normalized = rows * scale
                din_proj.addmm_(dprojected.T, normalized * norm)
                dnormalized = dprojected @ in_proj
                dnorm += (dnormalized * normalized).sum(dim=0)
                dnormalized *= norm
                shares = (dnormalized * normalized).mean(dim=-1, keepdim=True)
                torch.mul(dnormalized - normalized * shares, scale, out=tile.of(dhidden_states).flatten(0, 1))
    return [dhidden_states, dnorm, din_proj, dout_proj, *(gradient for weights in sums for gradient in weights)]


def add_gradients(
    sums: Direction,
    dx: torch.Tensor,
    y: torch.Tensor,
    dy: torch.Tensor,
    dstate: torch.Tensor | None,
    x: torch.Tensor,
    projected: torch.Tensor,
    borders: torch.Tensor,
    direction: Direction,
    tile: Tile,
    reverse: bool,
) -> torch.Tensor:
    """
    Add to `sums` and `dx` the gradients of one direction of a tile, and write its output to `y`. `y`, `dy`,
    `projected` and `borders` are the tile's.

    Returns:
        The gradient of the state before the tile.
    """
    _, u, delta, B, C = prepare(x, projected, direction, tile, reverse)
    du, ddelta, dA, dB, dC, dD, ddt_bias, dstate = run_backward(
        *(y, dy, dstate), borders, u, delta, direction.A, B, C, direction.D, direction.dt_bias, True, reverse
    )
    ddelta, du_rows = ddelta.flatten(0, 1), du.flatten(0, 1)
    sums.dt_proj.addmm_(ddelta.T, projected.flatten(0, 1)[:, : direction.dt_proj.shape[1]])
    dprojected = torch.cat([ddelta @ direction.dt_proj, dB.flatten(0, 2), dC.flatten(0, 2)], dim=-1)
    sums.x_proj.addmm_(dprojected.T, u.flatten(0, 1))
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
def _(tensors, eps, keeps_states):
    hidden_states, _, in_proj, _, directions = unpack(tensors)
    outputs = [torch.empty_like(hidden_states)]
    if not keeps_states:
        return outputs
    batch_size, length, _ = hidden_states.shape
    outputs.append(hidden_states.new_empty(batch_size, length, in_proj.shape[0]))
    for direction in directions:
        outputs.append(hidden_states.new_empty(batch_size, length, direction.x_proj.shape[0]))
        outputs.append(hidden_states.new_empty(shape_of_borders(batch_size, length, direction.A, 1)))
    return outputs


@mixer_backward.register_fake
def _(doutputs, kept, tensors, eps):
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]


def _save(ctx, inputs, output):
    ctx.num_kept, ctx.eps = len(output) - 1, inputs[1]
    ctx.save_for_backward(*output[1:], *inputs[0])


def _differentiate(ctx, gradients):
    tensors = list(ctx.saved_tensors)
    return mixer_backward(gradients[0], tensors[: ctx.num_kept], tensors[ctx.num_kept :], ctx.eps), None, None


mixer_forward.register_autograd(_differentiate, setup_context=_save)
