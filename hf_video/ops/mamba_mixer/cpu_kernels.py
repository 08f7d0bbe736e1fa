"""
The loops of the gate of a mixer on the CPU, compiled by numba for the machine they run on.

A call does one unit of work: the tokens from `start` up to `end` of one clip. All arrays are float32 or bfloat16,
`(batch, length, channels)`, with channels next to each other, in a multiple of `LANES`; rows may be apart.
"""

from hf_video.ops.numba_vectors import LANES, NEGLIGIBLE, compiled, flush, load, silu, silu_slope, store


@compiled
def gate_forward_unit(total, other, gate, gated, has_other, batch, start, end):
    """Writes `gated`, the gated sum of `total` and `other`."""
    for t in range(start, end):
        for lane in range(0, gated.shape[2], LANES):
            value, gating = load(total, (batch, t, lane)), load(gate, (batch, t, lane))
            if has_other:
                value += load(other, (batch, t, lane))
            store(gated, (batch, t, lane), value * silu(gating))


@compiled
def gate_total_backward_unit(dgated, gate, dtotal, batch, start, end):
    """Writes `dtotal`."""
    for t in range(start, end):
        for lane in range(0, dgated.shape[2], LANES):
            grad = load(dgated, (batch, t, lane)) * silu(load(gate, (batch, t, lane)))
            store(dtotal, (batch, t, lane), flush(grad, NEGLIGIBLE))


@compiled
def gate_backward_unit(dgated, total, other, gate, gated, dgate, has_other, batch, start, end):
    """Writes `dgate`, and once more `gated`."""
    for t in range(start, end):
        for lane in range(0, dgated.shape[2], LANES):
            value, gating = load(total, (batch, t, lane)), load(gate, (batch, t, lane))
            if has_other:
                value += load(other, (batch, t, lane))
            share, rise = silu_slope(gating)
            store(gated, (batch, t, lane), value * (gating * share))
            dvalue = load(dgated, (batch, t, lane)) * value * (share * rise)
            store(dgate, (batch, t, lane), flush(dvalue, NEGLIGIBLE))
