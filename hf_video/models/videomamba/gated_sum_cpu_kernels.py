"""
The loops of the gated sum on the CPU, compiled by numba for the machine they run on.

A call does one unit of work: the blocks of `LANES` channels from `first_block` up to `end_block` of one clip. All
arrays are float32, `(batch, length, blocks * LANES)`, with channels next to each other; the rows of those that are
read may be apart.
"""

from .numba_vectors import LANES, ONE, compiled, load, sigmoid, store


@compiled
def gate_forward_unit(first, second, gate, y, total, has_second, batch, first_block, end_block):
    """Writes `y`, and `total` unless it has no length."""
    for t in range(y.shape[1]):
        for lane in range(first_block * LANES, end_block * LANES, LANES):
            value = load(first, (batch, t, lane))
            if has_second:
                value += load(second, (batch, t, lane))
            if total.shape[1]:
                store(total, (batch, t, lane), value)
            gating = load(gate, (batch, t, lane))
            store(y, (batch, t, lane), value * (gating * sigmoid(gating)))


@compiled
def gate_backward_unit(dy, total, gate, dtotal, dgate, batch, first_block, end_block):
    """Writes `dtotal` and `dgate`."""
    for t in range(dy.shape[1]):
        for lane in range(first_block * LANES, end_block * LANES, LANES):
            gating, grad = load(gate, (batch, t, lane)), load(dy, (batch, t, lane))
            share = sigmoid(gating)
            store(dtotal, (batch, t, lane), grad * (gating * share))
            slope = share * (ONE + gating * (ONE - share))
            store(dgate, (batch, t, lane), grad * load(total, (batch, t, lane)) * slope)
