"""
Mamba's depthwise causal convolution with SiLU for GPUs.

A program has a tile of some steps and some channels of one clip. Arrays, with channels last and without gaps:

    x, dx, y, dy     (batch, length, dim), of any floating dtype; between the steps of x there may be something else
    weight           (taps, dim), the tap of the step itself last, float32 as all that follow
    bias             (dim)
    dweight, dbias   (batch, tiles, taps, dim) and (batch, tiles, dim), to be summed over clips and tiles
"""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("The kernels for GPUs need Triton: `pip install triton`.") from error

from hf_video.ops.selective_scan.triton_kernels import silu, silu_slope


@triton.jit
def load_tile(array, stride, step, length, channel, valid):
    """The steps of a tile. Steps before the first and after the last are zero."""
    exists = (step >= 0) & (step < length)
    offsets = step.to(tl.int64)[:, None] * stride + channel[None, :]
    return tl.load(array + offsets, mask=exists[:, None] & valid[None, :], other=0.0).to(tl.float32)


@triton.jit
def reach(step, tap, reverse: tl.constexpr, TAPS: tl.constexpr):
    """The step that a tap looks at."""
    return step + (TAPS - 1 - tap) if reverse else step - (TAPS - 1 - tap)


@triton.jit
def convolve(x, x_stride, weight, bias, step, length, dim, channel, valid, reverse: tl.constexpr, TAPS: tl.constexpr):
    """The output before SiLU."""
    convolved = tl.zeros((step.shape[0], channel.shape[0]), tl.float32)
    convolved += tl.load(bias + channel, mask=valid, other=0.0)[None, :]
    for tap in tl.static_range(TAPS):
        factor = tl.load(weight + tap * dim + channel, mask=valid, other=0.0)
        convolved += factor * load_tile(x, x_stride, reach(step, tap, reverse, TAPS), length, channel, valid)
    return convolved


@triton.jit
def conv_forward_kernel(
    x, x_clip_stride, x_stride, weight, bias, y, length, dim,
    reverse: tl.constexpr, TAPS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    clip = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    step = tl.program_id(1) * STEPS + tl.arange(0, STEPS)
    valid = channel < dim
    x += clip * x_clip_stride
    convolved = convolve(x, x_stride, weight, bias, step, length, dim, channel, valid, reverse, TAPS)
    result = silu(convolved)
    offsets = (clip * length + step)[:, None] * dim + channel[None, :]
    tl.store(y + offsets, result.to(y.dtype.element_ty), mask=(step < length)[:, None] & valid[None, :])


@triton.jit
def conv_backward_kernel(
    x, x_clip_stride, x_stride, weight, bias, dy, dx, dweight, dbias, length, dim,
    reverse: tl.constexpr, TAPS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes all gradients. It convolves again at each step that a step reached, so that nothing is kept."""
    clip = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    step = tl.program_id(1) * STEPS + tl.arange(0, STEPS)
    valid = channel < dim
    x += clip * x_clip_stride
    dy += clip * length * dim
    gradient = tl.zeros((STEPS, BLOCK), tl.float32)
    dconvolved = tl.zeros((STEPS, BLOCK), tl.float32)
    # The last tap looks at the step itself. So `dconvolved` ends as the gradient at the tile's own steps.
    for tap in tl.static_range(TAPS):
        seen_by = reach(step, tap, not reverse, TAPS)
        convolved = convolve(x, x_stride, weight, bias, seen_by, length, dim, channel, valid, reverse, TAPS)
        opening, rise = silu_slope(convolved)
        doutput = load_tile(dy, dim, seen_by, length, channel, valid)
        dconvolved = doutput * opening * rise
        gradient += tl.load(weight + tap * dim + channel, mask=valid, other=0.0)[None, :] * dconvolved
    offsets = (clip * length + step)[:, None] * dim + channel[None, :]
    tl.store(dx + offsets, gradient.to(dx.dtype.element_ty), mask=(step < length)[:, None] & valid[None, :])

    part = clip * tl.num_programs(1) + tl.program_id(1)
    tl.store(dbias + part * dim + channel, tl.sum(dconvolved, axis=0), mask=valid)
    for tap in tl.static_range(TAPS):
        seen = load_tile(x, x_stride, reach(step, tap, reverse, TAPS), length, channel, valid)
        tl.store(dweight + (part * TAPS + tap) * dim + channel, tl.sum(dconvolved * seen, axis=0), mask=valid)
