"""Samples of a video at a steady rate, and windows that slide over them. Only one window is held in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from .frame_streaming import StreamedFrame, check_rate, stream_frames
from .sources import VideoReadError, describe
from .video import TIME_ROUNDING

LastWindow = Literal["pad", "drop", "shift"]

Value = TypeVar("Value")


class Sample(NamedTuple, Generic[Value]):
    """A value and the seconds between which it stands for the video, after the first frame of the source."""

    start: float
    end: float
    value: Value


class SampleGroup(NamedTuple):
    """The values of a window: a list of `num_frames`, of which the first `num_real` are not padding."""

    start: float
    end: float
    values: list[Any]
    num_real: int


def timed_samples(
    source: Any, *, fps: float | None = None, frame_sampling_rate: float = 1, source_fps: float | None = None
) -> Iterator[Sample[StreamedFrame]]:
    """
    Samples of a video at a steady rate, with their times.

    Args:
        source, source_fps:
            As for [`stream_frames`].
        fps (`float`, *optional*):
            Samples per second: sample j is the frame that is shown at j / `fps` seconds by the timestamps of the
            video, so that frames are repeated in gaps, and left out where there are more. Timestamps that differ by
            less than a millisecond count as equal. By default `frame_sampling_rate` decides.
        frame_sampling_rate (`float`, defaults to 1):
            Distance of samples in frames: sample j is frame floor(j * `frame_sampling_rate`). Excludes `fps`.

    Returns:
        `Iterator[Sample]`: samples whose `value` is the `StreamedFrame`; repeated samples share one. A sample is given
        as soon as the one after it is known.

    Raises:
        `VideoReadError`: if the source cannot be read, at the damage, or gives no frame.
        `ValueError`, `TypeError`: for a rate that is not positive, two rates, and as [`stream_frames`].
    """
    check_rate("fps", fps)
    check_rate("frame_sampling_rate", frame_sampling_rate)
    if fps is not None and frame_sampling_rate != 1:
        raise ValueError(
            f"fps={fps} and frame_sampling_rate={frame_sampling_rate} both set the rate of samples; give one."
        )
    frames = stream_frames(source, source_fps=source_fps)
    return _sample(frames, fps, frame_sampling_rate, describe(source))


def group_samples(
    samples: Iterable[Sample[Value]],
    num_frames: int,
    stride: int,
    last: LastWindow = "pad",
    transform: Callable[[list[Any]], Sequence[Any]] = list,
) -> Iterator[SampleGroup]:
    """
    Windows over samples of any kind, in their order. At most `num_frames` are held.

    Args:
        num_frames, stride (`int`):
            Samples in a window, and from the start of a window to the start of the next.
        last (`str`, defaults to `"pad"`):
            What becomes of samples at the end that fill no window: "pad" repeats the last sample, "drop" leaves them
            out, "shift" moves the window back, so that it ends with the video. A video that is shorter than a window
            gives one padded window, or none with "drop".
        transform (`Callable`):
            Called once for each window with the list of values that no window before held, gives a result for each. A
            value that several samples share, or no window holds, is not transformed again, or at all.

    Raises:
        `ValueError`: for a `num_frames` or `stride` below 1, or an unknown `last`.
    """
    if min(num_frames, stride) < 1:
        raise ValueError(f"num_frames={num_frames} and stride={stride} must be at least 1.")
    if last not in get_args(LastWindow):
        raise ValueError(f"last={last!r} is unknown; choose from {', '.join(get_args(LastWindow))}.")
    return _group(samples, num_frames, stride, last, transform)


def _sample(
    frames: Iterator[StreamedFrame], fps: float | None, frame_sampling_rate: float, name: str
) -> Iterator[Sample[StreamedFrame]]:
    errors: list[Exception] = []
    # The sample whose end is not known yet, and the number of the next.
    pending: Sample[StreamedFrame] | None = None
    taken, origin, end = 0, 0.0, 0.0
    for position, (frame, end) in enumerate(_with_ends(until_error(frames, errors))):  # noqa: B007
        origin = origin if position else frame.seconds
        while True:
            start = frame.seconds if fps is None else origin + taken / fps
            is_due = int(taken * frame_sampling_rate) <= position if fps is None else start < end - TIME_ROUNDING
            if not is_due and taken:
                break
            if pending is not None:
                yield Sample(pending.start, start, pending.value)
            pending = Sample(start, start, frame)
            taken += 1
    if pending is not None:
        yield Sample(pending.start, end, pending.value)
    if errors:
        raise errors[0]
    if pending is None:
        raise VideoReadError(f"{name} gave no frame.")


def until_error(items: Iterable[Value], errors: list[Exception]) -> Iterator[Value]:
    """The items up to an error, which is kept: what was read before is given first."""
    try:
        yield from items
    except Exception as error:
        errors.append(error)


def _with_ends(frames: Iterable[Any]) -> Iterator[tuple[StreamedFrame, float]]:
    """Frames with the time of the next; after the last one the duration that the video says, or the mean distance."""
    first: Any = None
    for count, (frame, after) in enumerate(pairwise(chain(frames, [None]))):
        first = frame if first is None else first
        if after is None:
            mean = (frame.seconds - first.seconds) / max(count, 1)
            yield frame, frame.seconds + (frame.duration or mean)
        elif after.seconds <= frame.seconds:
            raise ValueError(f"Frame {after.number} at {after.seconds} s comes after one at {frame.seconds} s.")
        else:
            yield frame, after.seconds


def _group(
    samples: Iterable[Sample[Value]],
    num_frames: int,
    stride: int,
    last: LastWindow,
    transform: Callable[[list[Any]], Sequence[Any]],
) -> Iterator[SampleGroup]:
    # Of each sample its times, the number of its value among the different ones, and the value.
    ring: deque[tuple[float, float, int, Any]] = deque(maxlen=int(num_frames))
    results: dict[int, Any] = {}

    def make(held: list[tuple[float, float, int, Any]]) -> SampleGroup:
        for old in [number for number in results if number < held[0][2]]:
            del results[old]
        fresh = {number: value for *_, number, value in held if number not in results}
        results.update(zip(fresh, transform([*fresh.values()]), strict=True))
        values = [results[number] for *_, number, _ in held]
        return SampleGroup(held[0][0], held[-1][1], values + values[-1:] * (num_frames - len(held)), len(held))

    taken = num_windows = 0
    for taken, sample in enumerate(samples, start=1):
        is_same = bool(ring) and ring[-1][3] is sample.value
        ring.append((sample.start, sample.end, ring[-1][2] if is_same else taken, sample.value))
        if taken == num_windows * stride + num_frames:
            num_windows += 1
            yield make(list(ring))
    covered = (num_windows - 1) * stride + num_frames if num_windows else 0
    rest = taken - num_windows * stride
    if last != "drop" and rest >= 1 and covered < taken:
        yield make(list(ring)[-rest:] if last == "pad" else list(ring))
