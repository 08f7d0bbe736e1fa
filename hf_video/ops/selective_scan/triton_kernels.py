"""
The loops of the `triton` backend of `selective_scan`.

A program takes the channels of one block of one clip through time, in chunks of `SPANS * STEPS` steps. A thread owns
one channel of one span, which is `STEPS` steps in a row. It keeps the values of these steps in registers, and takes
the states of the channel one after the other. Each state first runs through the span from zero. Then a scan across
threads gives every span its first state, and the state runs through the span again from there. Decays, whose
exponentials cost the most, are computed only once. Small batches have more spans in a chunk, which needs no other pass
over time. Nothing is added atomically.

Tensors of a chunk are `(STEPS, THREADS)`, with thread `span * BLOCK + channel`. Triton spreads the axis along which
memory is contiguous over lanes and warps first. This axis is as long as there are threads, so that the steps stay in
the registers of each thread. Sizes of arrays are not specialised: otherwise Triton loads several channels at once, and
spreads the axes the other way. Values that channels share, `(STEPS, SPANS)`, are loaded one state ahead. Arrays,
contiguous:

    u, delta, z, addend, y               (batch, length, dim), of any floating dtype, as their gradients are; between
                                         the steps of z there may be something else
    mixed                                (batch, length, dim), the output before the gate, in the dtype of u
    B, C                                 (batch, groups, states, length), of any floating dtype
    gradients of B and C                 (blocks of a group, batch, groups, states, length), to be summed over blocks,
                                         float32 as all that follow
    rates = A * log2(e)                  (states, dim)
    D, delta_bias                        (dim)
    borders                              (batch, 1 + chunks, states, dim), the states before each chunk and the last,
                                         or (batch, 1, states, dim), the initial ones, over which the last are written
    dstate, gradients of the rates       (batch, states, dim)
    gradients of D and delta_bias        (batch, dim)

Within a clip, offsets have 32 bits. Those that grow with the number of states have 64 if `is_wide`, which takes up to
two more instructions a step.
"""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("The kernels for GPUs need Triton: `pip install triton`.") from error

SIZES = ["z_clip_stride", "z_stride", "length", "dim", "num_states", "num_groups"]


@triton.jit
def follow(decay, state, next_decay, next_state):
    """Joins one stretch of time and the next: the product of the decays, and the state from zero."""
    return decay * next_decay, state * next_decay + next_state


@triton.jit
def follow_entering(decay, state, passed, entering, next_decay, next_state, next_passed, next_entering):
    """`follow`, with the product of the decays before the last element, and the state that reaches it."""
    decay_of_both, state_of_both = follow(decay, state, next_decay, next_state)
    return decay_of_both, state_of_both, decay * next_passed, state * next_passed + next_entering


@triton.jit
def follow_back(passed, gradient, decay, next_passed, next_gradient, next_decay):
    """
    Joins one stretch of time and the one before it: the product of the decays of all steps but the earliest; the
    gradient of the state after the earliest step, if later stretches give none; and the decay of that step.
    """
    handed_on = decay * next_passed
    return passed * handed_on, gradient * handed_on + next_gradient, next_decay


@triton.jit
def enter_spans(decays, states, state, is_first, SPANS: tl.constexpr, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    """
    The states that spans begin with, and those that they end with, for each thread.

    Args:
        decays, states: product of the decays in the thread's span, and its last state if it begins from zero.
        state: state before the first span.
        is_first: whether the thread's span is the first one.
    """
    states = tl.where(is_first, states + decays * state, states)
    decays, states = tl.reshape(decays, (SPANS, BLOCK)), tl.reshape(states, (SPANS, BLOCK))
    ones, zeros = tl.full((SPANS, BLOCK), 1.0, tl.float32), tl.full((SPANS, BLOCK), 0.0, tl.float32)
    _, ends, _, entering = tl.associative_scan((decays, states, ones, zeros), 0, follow_entering, reverse=REVERSE)
    entering, ends = tl.reshape(entering, (SPANS * BLOCK,)), tl.reshape(ends, (SPANS * BLOCK,))
    return tl.where(is_first, state, entering), ends


@triton.jit
def load_gate(z, stride, position, channel, exists):
    return tl.load(z + position * stride + channel[None, :], mask=exists, other=0.0).to(tl.float32)


@triton.jit
def load_projections(B, C, position, within):
    """One state of B and C, both `(STEPS, SPANS)`."""
    into = tl.load(B + position, mask=within, other=0.0).to(tl.float32)
    return into, tl.load(C + position, mask=within, other=0.0).to(tl.float32)


@triton.jit
def share(tensor, STEPS: tl.constexpr, SPANS: tl.constexpr, BLOCK: tl.constexpr):
    """Values `(STEPS, SPANS)` for all threads."""
    for_all = tl.broadcast_to(tensor[:, :, None], (STEPS, SPANS, BLOCK))
    return tl.reshape(for_all, (STEPS, SPANS * BLOCK))


@triton.jit
def pick_step(tensor, step, STEP: tl.constexpr):
    """One step of a tensor of a chunk; the step is chosen at compile time."""
    return tl.sum(tl.where(step == STEP, tensor, 0.0), axis=0)


@triton.jit
def halve(tensor, lane, SIZE: tl.constexpr, THREADS: tl.constexpr, PARTNER: tl.constexpr):
    """Adds up pairs of channels. Of `2 * SIZE` steps, one channel of a pair has the first half, the other the rest."""
    first, second = tl.split(tl.permute(tl.reshape(tensor, (2, SIZE, THREADS)), (1, 2, 0)))
    is_second = (lane & PARTNER != 0)[None, :]
    given = tl.reshape(tl.where(is_second, first, second), (SIZE, THREADS // (2 * PARTNER), 2, PARTNER))
    return tl.where(is_second, second, first) + tl.reshape(tl.flip(given, 2), (SIZE, THREADS))


@triton.jit
def sum_channels(tensor, lane, STEPS: tl.constexpr, SPANS: tl.constexpr, BLOCK: tl.constexpr):
    """
    Sums over the channels of a chunk, `(STEPS / BLOCK, threads)`, for the steps that `summed_steps` names. `BLOCK`
    is at most `STEPS`. Each exchange between threads halves what they hold; a plain sum would exchange all of it every
    time.
    """
    for i in tl.static_range(5):
        if 1 << i < BLOCK:
            tensor = halve(tensor, lane, STEPS >> (i + 1), SPANS * BLOCK, 1 << i)
    return tensor


@triton.jit
def summed_steps(lane, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """The steps within their spans that each thread has the sums of, `(STEPS / BLOCK, threads)`."""
    steps = lane * 0
    for i in tl.static_range(5):
        if 1 << i < BLOCK:
            steps += ((lane >> i) & 1) * (STEPS >> (i + 1))
    return tl.arange(0, STEPS // BLOCK)[:, None] + steps[None, :]


@triton.jit
def sum_spans(tensor, SPANS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum over the spans of each channel, for each thread."""
    sums = tl.sum(tl.reshape(tensor, (SPANS, BLOCK)), axis=0)
    return tl.reshape(tl.broadcast_to(sums[None, :], (SPANS, BLOCK)), (SPANS * BLOCK,))


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def silu_slope(x):
    """Two factors whose product is the derivative of `silu`; the first is `sigmoid(x)`."""
    share = tl.sigmoid(x)
    return share, 1.0 + x * (1.0 - share)


@triton.jit
def softplus(x):
    """log(1 + e^x), exact to the last digits also if it is small: 2 artanh(s) = log((1 + s) / (1 - s)) as a series."""
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    square = s * s
    series = square * (square * (square * (square * (1 / 13 * square + 1 / 11) + 1 / 9) + 1 / 7) + 1 / 5) + 1 / 3
    return tl.maximum(x, 0.0) + 2.0 * s * (square * series + 1.0)


@triton.jit
def locate_channels(dim, num_groups, thread, BLOCK: tl.constexpr):
    """Group of this program, channels of its threads, and which of them exist."""
    per_group = dim // num_groups
    blocks = tl.cdiv(per_group, BLOCK)
    group = tl.program_id(0) // blocks
    channel = tl.program_id(0) % blocks * BLOCK + thread % BLOCK
    return group, group * per_group + channel, channel < per_group


@triton.jit
def locate_steps(start, span, length, reverse: tl.constexpr, STEPS: tl.constexpr):
    """Positions in memory of the steps of spans of a chunk, and which of them exist, both `(STEPS, spans)`."""
    step = start + tl.arange(0, STEPS)[:, None] + STEPS * span[None, :]
    return length - 1 - step if reverse else step, step < length


@triton.jit
def load_time_steps(delta, offsets, exists, bias, use_softplus: tl.constexpr):
    """The input of softplus, and the time steps. Beyond the end a time step is 0, which leaves a state as it is."""
    raw = tl.load(delta + offsets, mask=exists, other=0.0).to(tl.float32) + bias[None, :]
    return raw, tl.where(exists, softplus(raw) if use_softplus else raw, 0.0)


@triton.jit(do_not_specialize=SIZES)
def scan_forward_kernel(
    u, delta, z, z_clip_stride, z_stride, rates, B, C, D, delta_bias, addend, y, mixed, borders,
    length, dim, num_states, num_groups,
    use_softplus: tl.constexpr, reverse: tl.constexpr, is_wide: tl.constexpr,
    has_gate: tl.constexpr, has_addend: tl.constexpr, keeps_borders: tl.constexpr,
    STEPS: tl.constexpr, SPANS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `y`, and `borders` after the initial states. If borders are kept and there is a gate, also `mixed`."""
    thread = tl.arange(0, SPANS * BLOCK)
    span = thread // BLOCK
    step = tl.arange(0, STEPS)[:, None]
    batch = tl.program_id(1).to(tl.int64)
    group, channel, valid = locate_channels(dim, num_groups, thread, BLOCK)
    clip = batch * length * dim
    u, delta, addend, y, mixed = u + clip, delta + clip, addend + clip, y + clip, mixed + clip
    z += batch * z_clip_stride
    channels, steps = (dim.to(tl.int64), length.to(tl.int64)) if is_wide else (dim, length)
    projection = (batch * num_groups + group) * num_states * steps
    B, C = B + projection, C + projection
    slots = 1 + tl.cdiv(length, STEPS * SPANS) if keeps_borders else 1
    borders += batch * slots * num_states * channels
    next_border = num_states * channels if keeps_borders else channels * 0
    skip = tl.load(D + channel, mask=valid, other=0.0)
    bias = tl.load(delta_bias + channel, mask=valid, other=0.0)

    for start in range(0, length, STEPS * SPANS):
        position, within = locate_steps(start, tl.arange(0, SPANS), length, reverse, STEPS)
        own_position, own_within = locate_steps(start, span, length, reverse, STEPS)
        exists = own_within & valid[None, :]
        offsets = own_position * channels + channel[None, :]
        value = tl.load(u + offsets, mask=exists, other=0.0).to(tl.float32)
        _, time_step = load_time_steps(delta, offsets, exists, bias, use_softplus)
        scaled = time_step * value
        output = skip[None, :] * value
        duration = tl.sum(time_step, axis=0)
        next_into, next_out_of = load_projections(B, C, position, within)
        for n in range(num_states):
            rate = tl.load(rates + n * channels + channel, mask=valid, other=0.0)
            state = tl.load(borders + n * channels + channel, mask=valid, other=0.0)
            into, out_of = share(next_into, STEPS, SPANS, BLOCK), share(next_out_of, STEPS, SPANS, BLOCK)
            following = min(n + 1, num_states - 1) * steps
            next_into, next_out_of = load_projections(B + following, C + following, position, within)
            decay = tl.exp2(time_step * rate[None, :])
            update = scaled * into
            _, local = tl.associative_scan((decay, update), 0, follow)
            span_decay = tl.exp2(duration * rate)
            local = pick_step(local, step, STEPS - 1)
            entering, ends = enter_spans(span_decay, local, state, span == 0, SPANS, BLOCK, False)
            update = tl.where(step == 0, update + decay * entering[None, :], update)
            _, states = tl.associative_scan((decay, update), 0, follow)
            output += states * out_of
            tl.store(borders + next_border + n * channels + channel, ends, mask=(span == SPANS - 1) & valid)
        if has_addend:
            output += tl.load(addend + offsets, mask=exists, other=0.0).to(tl.float32)
        if has_gate:
            if keeps_borders:
                tl.store(mixed + offsets, output.to(mixed.dtype.element_ty), mask=exists)
            output *= silu(load_gate(z, z_stride, own_position, channel, exists))
        tl.store(y + offsets, output.to(y.dtype.element_ty), mask=exists)
        borders += next_border
        # The next chunk begins with states that other threads have written.
        tl.debug_barrier()


@triton.jit(do_not_specialize=SIZES)
def scan_backward_kernel(
    u, delta, z, z_clip_stride, z_stride, rates, B, C, D, delta_bias, mixed, borders, dy,
    du, ddelta, dz, dmixed, drates, dB, dC, dD, ddelta_bias, dstate,
    length, dim, num_states, num_groups,
    use_softplus: tl.constexpr, reverse: tl.constexpr, is_wide: tl.constexpr, has_gate: tl.constexpr,
    STEPS: tl.constexpr, SPANS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """
    Writes all gradients. It adds to `drates`, and replaces the gradient of the last state in `dstate` by that of the
    initial one.
    """
    THREADS: tl.constexpr = SPANS * BLOCK
    thread = tl.arange(0, THREADS)
    lane, span = thread % BLOCK, thread // BLOCK
    step = tl.arange(0, STEPS)[:, None]
    batch = tl.program_id(1).to(tl.int64)
    group, channel, valid = locate_channels(dim, num_groups, thread, BLOCK)
    clip = batch * length * dim
    u, delta, mixed, dy = u + clip, delta + clip, mixed + clip, dy + clip
    z += batch * z_clip_stride
    du, ddelta, dz, dmixed = du + clip, ddelta + clip, dz + clip, dmixed + clip
    channels, steps = (dim.to(tl.int64), length.to(tl.int64)) if is_wide else (dim, length)
    projection = (batch * num_groups + group) * num_states * steps
    B, C = B + projection, C + projection
    block = tl.program_id(0) % (tl.num_programs(0) // num_groups)
    part = (block * tl.num_programs(1) + batch) * num_groups + group
    dB, dC = dB + part * num_states * steps, dC + part * num_states * steps
    chunks = tl.cdiv(length, STEPS * SPANS)
    borders += batch * (1 + chunks) * num_states * channels
    drates, dstate = drates + batch * num_states * channels, dstate + batch * num_states * channels
    skip = tl.load(D + channel, mask=valid, other=0.0)
    bias = tl.load(delta_bias + channel, mask=valid, other=0.0)
    ones = tl.full((STEPS, THREADS), 1.0, tl.float32)
    dskip = tl.full((THREADS,), 0.0, tl.float32)
    dbias = tl.full((THREADS,), 0.0, tl.float32)

    for chunk in range(chunks - 1, -1, -1):
        start = chunk * STEPS * SPANS
        position, within = locate_steps(start, tl.arange(0, SPANS), length, reverse, STEPS)
        own_position, own_within = locate_steps(start, span, length, reverse, STEPS)
        exists = own_within & valid[None, :]
        offsets = own_position * channels + channel[None, :]
        value = tl.load(u + offsets, mask=exists, other=0.0).to(tl.float32)
        doutput = tl.load(dy + offsets, mask=exists, other=0.0).to(tl.float32)
        _, time_step = load_time_steps(delta, offsets, exists, bias, use_softplus)
        sum_step = start + (STEPS * span)[None, :] + summed_steps(lane, STEPS, BLOCK)
        sum_position = length - 1 - sum_step if reverse else sum_step
        sum_within = sum_step < length
        if has_gate:
            gate = load_gate(z, z_stride, own_position, channel, exists)
            opening, rise = silu_slope(gate)
            dgate = doutput * opening * rise
            dgate *= tl.load(mixed + offsets, mask=exists, other=0.0).to(tl.float32)
            tl.store(dz + offsets, dgate.to(dz.dtype.element_ty), mask=exists)
            doutput *= gate * opening
            tl.store(dmixed + offsets, doutput.to(dmixed.dtype.element_ty), mask=exists)
        scaled = time_step * value
        duration = tl.sum(time_step, axis=0)
        dscaled = tl.zeros_like(scaled)
        dexponents = tl.zeros_like(scaled)
        next_into, next_out_of = load_projections(B, C, position, within)
        for n in range(num_states):
            rate = tl.load(rates + n * channels + channel, mask=valid, other=0.0)
            state = tl.load(borders + (chunk * num_states + n) * channels + channel, mask=valid, other=0.0)
            dlater = tl.load(dstate + n * channels + channel, mask=valid, other=0.0)
            drate = tl.load(drates + n * channels + channel, mask=valid, other=0.0)
            into, out_of = share(next_into, STEPS, SPANS, BLOCK), share(next_out_of, STEPS, SPANS, BLOCK)
            following = min(n + 1, num_states - 1) * steps
            next_into, next_out_of = load_projections(B + following, C + following, position, within)
            decay = tl.exp2(time_step * rate[None, :])
            span_decay = tl.exp2(duration * rate)

            update = scaled * into
            _, local = tl.associative_scan((decay, update), 0, follow)
            local = pick_step(local, step, STEPS - 1)
            entering, _ = enter_spans(span_decay, local, state, span == 0, SPANS, BLOCK, False)
            entered = tl.where(step == 0, update + decay * entering[None, :], update)
            _, states = tl.associative_scan((decay, entered), 0, follow)

            # Back in time, what is handed on is the gradient of the state before a step: its decay times `grad`.
            back = tl.flip(decay, 0)
            grad = tl.flip(doutput * out_of, 0)
            _, local, _ = tl.associative_scan((ones, grad, back), 0, follow_back)
            local = pick_step(local * back, step, STEPS - 1)
            entering, ends = enter_spans(span_decay, local, dlater, span == SPANS - 1, SPANS, BLOCK, True)
            grad = tl.where(step == 0, grad + entering[None, :], grad)
            _, grad, _ = tl.associative_scan((ones, grad, back), 0, follow_back)
            grad = tl.flip(grad, 0)
            tl.store(dstate + n * channels + channel, ends, mask=(span == 0) & valid)

            into_sums = sum_channels(grad * scaled, lane, STEPS, SPANS, BLOCK)
            out_of_sums = sum_channels(doutput * states, lane, STEPS, SPANS, BLOCK)
            tl.store(dB + n * steps + sum_position, into_sums, mask=sum_within)
            tl.store(dC + n * steps + sum_position, out_of_sums, mask=sum_within)
            dscaled += grad * into
            dexponent = grad * (states - update)
            dexponents += dexponent * rate[None, :]
            drate += sum_spans(tl.sum(dexponent * time_step, axis=0), SPANS, BLOCK)
            tl.store(drates + n * channels + channel, drate, mask=(span == 0) & valid)
        # Values that the states do not need are read again, to leave the registers to the states.
        value = tl.load(u + offsets, mask=exists, other=0.0).to(tl.float32)
        raw, _ = load_time_steps(delta, offsets, exists, bias, use_softplus)
        # d 2^x = ln(2) 2^x dx
        dtime_step = 0.6931471805599453 * dexponents + dscaled * value
        if use_softplus:
            dtime_step *= tl.sigmoid(raw)
        dvalue = dscaled * time_step + skip[None, :] * doutput
        tl.store(du + offsets, dvalue.to(du.dtype.element_ty), mask=exists)
        tl.store(ddelta + offsets, dtime_step.to(ddelta.dtype.element_ty), mask=exists)
        dskip += tl.sum(doutput * value, axis=0)
        dbias += tl.sum(tl.where(exists, dtime_step, 0.0), axis=0)
        # The next chunk begins with gradients that other threads have written.
        tl.debug_barrier()
    tl.store(dD + batch * dim + channel, sum_spans(dskip, SPANS, BLOCK), mask=(span == 0) & valid)
    tl.store(ddelta_bias + batch * dim + channel, sum_spans(dbias, SPANS, BLOCK), mask=(span == 0) & valid)
