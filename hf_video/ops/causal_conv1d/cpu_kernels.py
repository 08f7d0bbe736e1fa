"""
The loops of the convolution on the CPU, compiled by numba for the machine they run on.

`LANES` divides the number of channels. Arrays are float32, and contiguous but for x, whose tokens may be apart. A call
does one unit of work, the tokens from `start` up to `end` of one clip; units are independent and run on threads:

    x, y, and their gradients            (batch, length, dim)
    weight                               (taps, dim), the tap of the token itself last
    bias                                 (dim)
    gradients of weight and bias         (batch, parts, taps, dim) and (batch, parts, dim), to be summed
"""

import numpy as np

from hf_video.ops.numba_vectors import LANES, ZERO, compiled, load, silu, silu_slope, splat, store


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
def conv_forward_unit(x, weight, bias, y, reverse, batch, group, part, start, end):
    """Writes `y`."""
    for t in range(start, end):
        for lane in range(0, y.shape[2], LANES):
            result = convolve(x, weight, bias, reverse, batch, t, lane)
            store(y, (batch, t, lane), silu(result))


@compiled
def conv_backward_unit(x, weight, bias, dy, dx, dweight, dbias, reverse, batch, group, part, start, end):
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
            opening, rise = silu_slope(result)
            grad = load(dy, (batch, t, lane)) * opening * rise
            store(recent, (i % taps, lane), grad)
            if i < taps - 1:
                continue
            store(dbias, (batch, part, lane), load(dbias, (batch, part, lane)) + grad)
            dvalue = splat(ZERO)
            for tap in range(taps):
                distance = taps - 1 - tap
                source = t + distance if reverse else t - distance
                if 0 <= source < length:
                    dtap = load(dweight, (batch, part, tap, lane)) + grad * load(x, (batch, source, lane))
                    store(dweight, (batch, part, tap, lane), dtap)
                dvalue += load(recent, ((i - distance) % taps, lane)) * load(weight, (tap, lane))
            store(dx, (batch, t, lane), dvalue)
