"""
The loops of the depthwise convolution with SiLU on the CPU, compiled by numba for the machine they run on.

A call does one unit of work: the blocks of `LANES` channels from `first_block` up to `end_block` of one clip. Arrays,
all float32 and contiguous but for x, whose rows may be apart:

    x, y, and their gradients        (batch, length, blocks * LANES)
    weight                           (taps, blocks * LANES), the tap of the token itself last
    bias                             (blocks * LANES)
    gradients of weight and bias     (batch, taps, blocks * LANES), (batch, blocks * LANES)
"""

import numpy as np

from .numba_vectors import LANES, ONE, ZERO, compiled, load, sigmoid, splat, store


@compiled
def convolve(x, weight, bias, reverse, batch, t, lane):
    """One token before the activation, zeros standing for tokens beyond the ends."""
    taps, length = weight.shape[0], x.shape[1]
    result = load(bias, (lane,))
    for tap in range(taps):
        distance = taps - 1 - tap
        source = t + distance if reverse else t - distance
        if 0 <= source < length:
            result += load(x, (batch, source, lane)) * load(weight, (tap, lane))
    return result


@compiled
def conv_forward_unit(x, weight, bias, y, reverse, batch, first_block, end_block):
    """Writes `y`."""
    for t in range(x.shape[1]):
        for lane in range(first_block * LANES, end_block * LANES, LANES):
            result = convolve(x, weight, bias, reverse, batch, t, lane)
            store(y, (batch, t, lane), result * sigmoid(result))


@compiled
def conv_backward_unit(x, weight, bias, dy, dx, dweight, dbias, reverse, batch, first_block, end_block):
    """Writes all gradients."""
    taps, length = weight.shape[0], x.shape[1]
    first, end = first_block * LANES, end_block * LANES
    # Gradients before the activation, of this token and those that the scan visits next.
    recent = np.zeros((taps, end - first), np.float32)
    dweight[batch, :, first:end] = 0
    dbias[batch, first:end] = 0
    for i in range(length - 1, -1, -1):
        t = length - 1 - i if reverse else i
        for lane in range(first, end, LANES):
            result = convolve(x, weight, bias, reverse, batch, t, lane)
            gate = sigmoid(result)
            grad = load(dy, (batch, t, lane)) * gate * (ONE + result * (ONE - gate))
            store(recent, (i % taps, lane - first), grad)
            store(dbias, (batch, lane), load(dbias, (batch, lane)) + grad)
            dvalue = splat(ZERO)
            for tap in range(taps):
                distance = taps - 1 - tap
                source = t + distance if reverse else t - distance
                if 0 <= source < length:
                    dtap = load(dweight, (batch, tap, lane)) + grad * load(x, (batch, source, lane))
                    store(dweight, (batch, tap, lane), dtap)
                dvalue += load(recent, ((i + distance) % taps, lane - first)) * load(weight, (tap, lane))
            store(dx, (batch, t, lane), dvalue)
