"""
The loops of the convolution and the selective scan on the CPU, compiled by numba for the machine they run on.

Channels lie in blocks of `LANES`. Arrays are float32, and contiguous but for the tokens that a convolution reads,
whose rows may be apart. A call does one unit of work; units are independent and run on threads. A unit of the
convolution is the tokens from `start` up to `end` of one clip:

    x, y, and their gradients            (batch, length, blocks * LANES)
    weight                               (taps, blocks * LANES), the tap of the token itself last
    bias                                 (blocks * LANES)
    gradients of weight and bias         (parts, taps, blocks * LANES), (parts, blocks * LANES)

A unit of the scan is the blocks from `first_block` up to `end_block`, all of one group, of one clip. Its time goes in
chunks of `CHUNK_LENGTH` steps, and each chunk through all blocks, so that what a chunk needs stays in the nearest
caches:

    u, delta, y, and their gradients     (batch, length, blocks * LANES)
    B, C                                 (batch, length, groups, states)
    gradients of B and C                 (parts, batch, length, groups, states), to be summed over parts
    rates = A * log2(e)                  (blocks, states, LANES)
    D, delta_bias                        (blocks * LANES)
    borders                              (batch, chunks, blocks, states, LANES), the states before each chunk
    state, gradients of it and of A      (batch, blocks, states, LANES)
    gradients of D and delta_bias        (batch, blocks * LANES)
"""

import numpy as np

from .numba_vectors import (
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
    silu,
    silu_slope,
    softplus,
    splat,
    store,
    total,
)

CHUNK_LENGTH = 64


@compiled
def convolve(x, weight, bias, reverse, batch, t, lane):
    """The output for one token, before the activation. Tokens beyond the ends count as zeros."""
    taps, length = weight.shape[0], x.shape[1]
    result = load(bias, (lane,))
    for tap in range(taps):
        distance = taps - 1 - tap
        source = t + distance if reverse else t - distance
        if 0 <= source < length:
            result += load(x, (batch, source, lane)) * load(weight, (tap, lane))
    return result


@compiled
def conv_forward_unit(x, weight, bias, y, reverse, batch, start, end):
    """Writes `y`."""
    for t in range(start, end):
        for lane in range(0, y.shape[2], LANES):
            result = convolve(x, weight, bias, reverse, batch, t, lane)
            store(y, (batch, t, lane), silu(result))


@compiled
def conv_backward_unit(x, weight, bias, dy, dx, dweight, dbias, reverse, batch, start, end, part):
    """Writes `dx`, and adds to its part of the gradients of the weights."""
    taps, length = weight.shape[0], x.shape[1]
    # Gradients before the activation, of this token and those that the convolution visits next.
    recent = np.zeros((taps, dx.shape[2]), np.float32)
    for i in range(taps - 1 + end - start):
        t = start - taps + 1 + i if reverse else end + taps - 2 - i
        if not 0 <= t < length:
            continue
        for lane in range(0, dx.shape[2], LANES):
            result = convolve(x, weight, bias, reverse, batch, t, lane)
            share, rise = silu_slope(result)
            grad = load(dy, (batch, t, lane)) * share * rise
            store(recent, (i % taps, lane), grad)
            if i < taps - 1:
                continue
            store(dbias, (part, lane), load(dbias, (part, lane)) + grad)
            dvalue = splat(ZERO)
            for tap in range(taps):
                distance = taps - 1 - tap
                source = t + distance if reverse else t - distance
                if 0 <= source < length:
                    dtap = load(dweight, (part, tap, lane)) + grad * load(x, (batch, source, lane))
                    store(dweight, (part, tap, lane), dtap)
                dvalue += load(recent, ((i - distance) % taps, lane)) * load(weight, (tap, lane))
            store(dx, (batch, t, lane), dvalue)


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
def have_small_exponents(steps, rates, block, size):
    """Whether all exponents of one block and chunk are surely between -125 and 125."""
    step, rate = splat(ZERO), splat(ZERO)
    for i in range(size):
        step = maximum(step, load(steps, (i, 0)) * load(steps, (i, 0)))
    for n in range(rates.shape[1]):
        rate = maximum(rate, load(rates, (block, n, 0)) * load(rates, (block, n, 0)))
    return total(step * rate) < 125**2


@compiled
def compute_decay(step, rate, is_small):
    """2^(step * rate), with bounds only where they may be needed: they take a tenth of the time of a scan."""
    return exp2_of_product(step, rate) if is_small else exp2(step * rate)


@compiled
def scan_forward_unit(
    u,
    delta,
    rates,
    B,
    C,
    D,
    delta_bias,
    state,
    y,
    borders,
    use_softplus,
    reverse,
    batch,
    group,
    first_block,
    end_block,
):
    """Writes `y` and, if it has chunks, `borders`, and replaces the initial `state` by the last one."""
    length, num_states = u.shape[1], rates.shape[1]
    steps = np.empty((CHUNK_LENGTH, LANES), np.float32)
    for start in range(0, length, CHUNK_LENGTH):
        size = min(CHUNK_LENGTH, length - start)
        for block in range(first_block, end_block):
            lane = block * LANES
            if borders.shape[1]:
                borders[batch, start // CHUNK_LENGTH, block] = state[batch, block]
            compute_steps(delta, delta_bias, steps, use_softplus, reverse, batch, lane, start, size)
            is_small = have_small_exponents(steps, rates, block, size)
            for i in range(size):
                t = length - 1 - start - i if reverse else start + i
                value, step = load(u, (batch, t, lane)), load(steps, (i, 0))
                scaled = step * value
                output = load(D, (lane,)) * value
                for n in range(num_states):
                    decay = compute_decay(step, load(rates, (block, n, 0)), is_small)
                    h = decay * load(state, (batch, block, n, 0)) + scaled * B[batch, t, group, n]
                    store(state, (batch, block, n, 0), h)
                    output += h * C[batch, t, group, n]
                store(y, (batch, t, lane), output)


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
    length, num_states = u.shape[1], rates.shape[1]
    steps = np.empty((CHUNK_LENGTH, LANES), np.float32)
    decays = np.empty((CHUNK_LENGTH, num_states, LANES), np.float32)
    states = np.empty((CHUNK_LENGTH + 1, num_states, LANES), np.float32)
    # Gradients of B and C before their sum over lanes.
    lane_dB = np.empty((CHUNK_LENGTH, num_states, LANES), np.float32)
    lane_dC = np.empty((CHUNK_LENGTH, num_states, LANES), np.float32)
    drates[batch, first_block:end_block] = 0
    dD[batch, first_block * LANES : end_block * LANES] = 0
    ddelta_bias[batch, first_block * LANES : end_block * LANES] = 0

    for chunk in range((length - 1) // CHUNK_LENGTH, -1, -1):
        start = chunk * CHUNK_LENGTH
        size = min(CHUNK_LENGTH, length - start)
        lane_dB[:size] = 0
        lane_dC[:size] = 0
        for block in range(first_block, end_block):
            lane = block * LANES
            states[0] = borders[batch, chunk, block]
            compute_steps(delta, delta_bias, steps, use_softplus, reverse, batch, lane, start, size)
            is_small = have_small_exponents(steps, rates, block, size)
            for i in range(size):
                t = length - 1 - start - i if reverse else start + i
                value, step = load(u, (batch, t, lane)), load(steps, (i, 0))
                scaled = step * value
                for n in range(num_states):
                    decay = compute_decay(step, load(rates, (block, n, 0)), is_small)
                    store(decays, (i, n, 0), decay)
                    h = decay * load(states, (i, n, 0)) + scaled * B[batch, t, group, n]
                    store(states, (i + 1, n, 0), h)

            for i in range(size - 1, -1, -1):
                t = length - 1 - start - i if reverse else start + i
                value, output_grad, step = load(u, (batch, t, lane)), load(dy, (batch, t, lane)), load(steps, (i, 0))
                scaled = step * value
                dscaled, dexponents = splat(ZERO), splat(ZERO)
                for n in range(num_states):
                    grad = load(dstate, (batch, block, n, 0)) + output_grad * C[batch, t, group, n]
                    store(lane_dC, (i, n, 0), load(lane_dC, (i, n, 0)) + output_grad * load(states, (i + 1, n, 0)))
                    store(lane_dB, (i, n, 0), load(lane_dB, (i, n, 0)) + grad * scaled)
                    dscaled += grad * B[batch, t, group, n]
                    faded = flush(grad * load(decays, (i, n, 0)), NEGLIGIBLE)
                    store(dstate, (batch, block, n, 0), faded)
                    dexponent = faded * load(states, (i, n, 0))
                    dexponents += dexponent * load(rates, (block, n, 0))
                    store(drates, (batch, block, n, 0), load(drates, (batch, block, n, 0)) + dexponent * step)
                dstep = dexponents * LN_2 + dscaled * value
                if use_softplus:
                    dstep *= sigmoid(load(delta, (batch, t, lane)) + load(delta_bias, (lane,)))
                store(ddelta, (batch, t, lane), flush(dstep, NEGLIGIBLE))
                dvalue = dscaled * step + load(D, (lane,)) * output_grad
                store(du, (batch, t, lane), flush(dvalue, NEGLIGIBLE))
                store(ddelta_bias, (batch, lane), load(ddelta_bias, (batch, lane)) + dstep)
                store(dD, (batch, lane), load(dD, (batch, lane)) + output_grad * value)
        for i in range(size):
            t = length - 1 - start - i if reverse else start + i
            for n in range(num_states):
                dB[part, batch, t, group, n] = total(flush(load(lane_dB, (i, n, 0)), NEGLIGIBLE))
                dC[part, batch, t, group, n] = total(flush(load(lane_dC, (i, n, 0)), NEGLIGIBLE))
