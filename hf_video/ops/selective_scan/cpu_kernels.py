"""
The loops of the selective scan on the CPU, compiled by numba for the machine they run on.

`LANES` divides the number of channels of a group. Arrays are float32 and contiguous. A call does one unit of work,
which is the blocks of `LANES` channels from `first_block` up to `end_block`, all of one group, of one clip; units are
independent and run on threads. Time goes in chunks of `CHUNK_LENGTH` steps, and each chunk through all blocks, so that
what a chunk needs stays in the nearest caches:

    u, delta, y, and their gradients     (batch, length, dim)
    B, C                                 (batch, length, groups, states)
    gradients of B and C                 (parts, batch, length, groups, states), to be summed over parts
    rates = A * log2(e)                  (states, dim)
    D, delta_bias                        (dim)
    borders                              (batch, chunks, states, dim), the states before each chunk
    state, gradients of it and of A      (batch, states, dim)
    gradients of D and delta_bias        (batch, dim)
"""

import numpy as np

from hf_video.ops.numba_vectors import (
    LANES,
    LN_2,
    NEGLIGIBLE,
    ZERO,
    compiled,
    exp2,
    exp2_of_product,
    flush,
    load,
    maximum,
    sigmoid,
    softplus,
    splat,
    store,
    total,
)

CHUNK_LENGTH = 64


@compiled
def compute_steps(delta, delta_bias, steps, use_softplus, reverse, batch, lane, start, size):
    """The time steps of one block and chunk, in the order of the scan."""
    length, bias = delta.shape[1], load(delta_bias, (lane,))
    for i in range(size):
        t = length - 1 - start - i if reverse else start + i
        step = load(delta, (batch, t, lane)) + bias
        if use_softplus:
            step = softplus(step)
        store(steps, (i, 0), step)


@compiled
def have_small_exponents(steps, rates, size):
    """Whether all exponents of one block and chunk are surely between -125 and 125."""
    step, rate = splat(ZERO), splat(ZERO)
    for i in range(size):
        step = maximum(step, load(steps, (i, 0)) * load(steps, (i, 0)))
    for n in range(rates.shape[0]):
        rate = maximum(rate, load(rates, (n, 0)) * load(rates, (n, 0)))
    return total(step * rate) < 125**2


@compiled
def compute_decay(step, rate, is_small):
    """2^(step * rate), with bounds only where they may be needed: they take a tenth of the time of a scan."""
    return exp2_of_product(step, rate) if is_small else exp2(step * rate)


@compiled
def gather(source, first, lane, target):
    """Copies one block of `(..., states, dim)`, of which `first` are the leading indices, so that it lies together."""
    for n in range(target.shape[0]):
        store(target, (n, 0), load(source, (*first, n, lane)))


@compiled
def scatter(source, target, first, lane):
    """The inverse of `gather`."""
    for n in range(source.shape[0]):
        store(target, (*first, n, lane), load(source, (n, 0)))


@compiled
def scan_forward_unit(
    u, delta, rates, B, C, D, delta_bias, state, y, borders,
    use_softplus, reverse, batch, group, part, first_block, end_block,
):  # fmt: skip
    """Writes `y` and `borders`, and replaces the initial `state` by the last one."""
    length, num_states = u.shape[1], rates.shape[0]
    steps = np.empty((CHUNK_LENGTH, LANES), np.float32)
    states, own_rates = np.empty((num_states, LANES), np.float32), np.empty((num_states, LANES), np.float32)
    for start in range(0, length, CHUNK_LENGTH):
        size = min(CHUNK_LENGTH, length - start)
        for lane in range(first_block * LANES, end_block * LANES, LANES):
            gather(rates, (), lane, own_rates)
            gather(state, (batch,), lane, states)
            scatter(states, borders, (batch, start // CHUNK_LENGTH), lane)
            compute_steps(delta, delta_bias, steps, use_softplus, reverse, batch, lane, start, size)
            is_small = have_small_exponents(steps, own_rates, size)
            for i in range(size):
                t = length - 1 - start - i if reverse else start + i
                value, step = load(u, (batch, t, lane)), load(steps, (i, 0))
                scaled = step * value
                output = load(D, (lane,)) * value
                for n in range(num_states):
                    decay = compute_decay(step, load(own_rates, (n, 0)), is_small)
                    h = decay * load(states, (n, 0)) + scaled * B[batch, t, group, n]
                    store(states, (n, 0), h)
                    output += h * C[batch, t, group, n]
                store(y, (batch, t, lane), output)
            scatter(states, state, (batch,), lane)


@compiled
def scan_backward_unit(
    u, delta, rates, B, C, D, delta_bias, borders, dy,
    du, ddelta, drates, dB, dC, dD, ddelta_bias, dstate,
    use_softplus, reverse, batch, group, part, first_block, end_block,
):  # fmt: skip
    """
    Writes all gradients. In `dstate`, the gradient of the initial state replaces that of the last one. States are
    computed again from the border of each chunk on.
    """
    length, num_states = u.shape[1], rates.shape[0]
    steps = np.empty((CHUNK_LENGTH, LANES), np.float32)
    own_rates, dlater = np.empty((num_states, LANES), np.float32), np.empty((num_states, LANES), np.float32)
    own_drates = np.empty((num_states, LANES), np.float32)
    decays = np.empty((CHUNK_LENGTH, num_states, LANES), np.float32)
    states = np.empty((CHUNK_LENGTH + 1, num_states, LANES), np.float32)
    # Gradients of B and C before their sum over lanes.
    lane_dB = np.empty((CHUNK_LENGTH, num_states, LANES), np.float32)
    lane_dC = np.empty((CHUNK_LENGTH, num_states, LANES), np.float32)
    drates[batch, :, first_block * LANES : end_block * LANES] = 0
    dD[batch, first_block * LANES : end_block * LANES] = 0
    ddelta_bias[batch, first_block * LANES : end_block * LANES] = 0

    for chunk in range((length - 1) // CHUNK_LENGTH, -1, -1):
        start = chunk * CHUNK_LENGTH
        size = min(CHUNK_LENGTH, length - start)
        lane_dB[:size] = 0
        lane_dC[:size] = 0
        for lane in range(first_block * LANES, end_block * LANES, LANES):
            gather(rates, (), lane, own_rates)
            gather(borders, (batch, chunk), lane, states[0])
            gather(dstate, (batch,), lane, dlater)
            gather(drates, (batch,), lane, own_drates)
            compute_steps(delta, delta_bias, steps, use_softplus, reverse, batch, lane, start, size)
            is_small = have_small_exponents(steps, own_rates, size)
            for i in range(size):
                t = length - 1 - start - i if reverse else start + i
                value, step = load(u, (batch, t, lane)), load(steps, (i, 0))
                scaled = step * value
                for n in range(num_states):
                    decay = compute_decay(step, load(own_rates, (n, 0)), is_small)
                    store(decays, (i, n, 0), decay)
                    h = decay * load(states, (i, n, 0)) + scaled * B[batch, t, group, n]
                    store(states, (i + 1, n, 0), h)

            for i in range(size - 1, -1, -1):
                t = length - 1 - start - i if reverse else start + i
                value, output_grad, step = load(u, (batch, t, lane)), load(dy, (batch, t, lane)), load(steps, (i, 0))
                scaled = step * value
                dscaled, dexponents = splat(ZERO), splat(ZERO)
                for n in range(num_states):
                    grad = load(dlater, (n, 0)) + output_grad * C[batch, t, group, n]
                    store(lane_dC, (i, n, 0), load(lane_dC, (i, n, 0)) + output_grad * load(states, (i + 1, n, 0)))
                    store(lane_dB, (i, n, 0), load(lane_dB, (i, n, 0)) + grad * scaled)
                    dscaled += grad * B[batch, t, group, n]
                    faded = flush(grad * load(decays, (i, n, 0)), NEGLIGIBLE)
                    store(dlater, (n, 0), faded)
                    dexponent = faded * load(states, (i, n, 0))
                    dexponents += dexponent * load(own_rates, (n, 0))
                    store(own_drates, (n, 0), load(own_drates, (n, 0)) + dexponent * step)
                dstep = dexponents * LN_2 + dscaled * value
                if use_softplus:
                    dstep *= sigmoid(load(delta, (batch, t, lane)) + load(delta_bias, (lane,)))
                store(ddelta, (batch, t, lane), flush(dstep, NEGLIGIBLE))
                dvalue = dscaled * step + load(D, (lane,)) * output_grad
                store(du, (batch, t, lane), flush(dvalue, NEGLIGIBLE))
                store(ddelta_bias, (batch, lane), load(ddelta_bias, (batch, lane)) + dstep)
                store(dD, (batch, lane), load(dD, (batch, lane)) + output_grad * value)
            scatter(dlater, dstate, (batch,), lane)
            scatter(own_drates, drates, (batch,), lane)
        for i in range(size):
            t = length - 1 - start - i if reverse else start + i
            for n in range(num_states):
                dB[part, batch, t, group, n] = total(flush(load(lane_dB, (i, n, 0)), NEGLIGIBLE))
                dC[part, batch, t, group, n] = total(flush(load(lane_dC, (i, n, 0)), NEGLIGIBLE))
