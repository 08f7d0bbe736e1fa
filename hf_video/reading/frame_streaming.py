"""Frames of a video file in their order, one at a time, so that memory does not hold the whole video."""

import math
import os
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, BinaryIO

import numpy as np

from .pyav_streams import RgbConverter, open_stream
from .ranges import RangeFile, open_ranges
from .sources import VideoReadError, is_url, public_url
from .video_decoding import decode_in_order

_DEFAULT_RATE = Fraction(25)


class StreamedFrame:
    """
    A frame of a video. A decoded frame is converted to RGB whenever its image is asked for, so that a frame that waits
    takes less memory.

    Args:
        number: number of the frame in the video, from 0, as [`read_video`] counts.
        seconds: time of the frame in seconds after the first one.
        image: (height, width, 3) uint8 RGB, upright.
        duration: seconds for which the frame is shown, as far as the video says it.
    """

    __slots__ = ("_image", "duration", "number", "seconds")

    def __init__(self, number: int, seconds: float, image: np.ndarray, duration: float | None = None):
        self.number = number
        self.seconds = seconds
        self.duration = duration
        self._image = image

    @property
    def image(self) -> np.ndarray:
        """(height, width, 3) uint8 RGB, upright."""
        return self._image

    def view_image(self) -> np.ndarray:
        """The image for who copies it at once: it may be in memory of the decoder. Not to be written to."""
        return self._image


class _DecodedFrame(StreamedFrame):
    """A frame of PyAV, with the converter that makes its image."""

    __slots__ = ("_decoded", "_to_rgb")

    def __init__(self, number: int, seconds: float, decoded: Any, to_rgb: RgbConverter):
        self.number = number
        self.seconds = seconds
        has_duration = decoded.duration and decoded.time_base
        self.duration = float(decoded.duration * decoded.time_base) if has_duration else None
        self._decoded = decoded
        self._to_rgb = to_rgb

    @property
    def image(self) -> np.ndarray:
        return self._to_rgb(self._decoded)

    def view_image(self) -> np.ndarray:
        return self._to_rgb.view(self._decoded)


class StreamClock:
    """
    Seconds after the first frame, by the timestamps of a stream, always rising.

    A frame without a timestamp comes one mean distance after the frame before. A single frame whose timestamp lies
    before that of the frame before, or more than `longest_gap` after it, has come late or damaged: it is put half a
    mean distance after the frame before. A second one in succession means that the sender has started anew: it comes
    one mean distance after the frame before, and the timestamps that follow count from there.

    Args:
        rate: frames per second, as far as the stream says it: the mean distance until there are two frames.
        longest_gap: most seconds between two frames.
    """

    def __init__(self, rate: Fraction | None, longest_gap: float = math.inf):
        self._interval = float(1 / (rate or _DEFAULT_RATE))
        self._longest_gap = longest_gap
        self._seconds: float | None = None
        # The timestamp at zero seconds.
        self._origin: float | None = None
        self._is_in_doubt = False
        self._num_steps, self._sum_of_steps = 0, 0.0

    def read(self, timestamp: float | None) -> float:
        """The seconds of the next frame, whose timestamp in seconds is given."""
        if self._seconds is None:
            self._seconds, self._origin = 0.0, timestamp
            return self._seconds
        mean = self._sum_of_steps / self._num_steps if self._num_steps else self._interval
        if timestamp is None:
            self._seconds += mean
        elif self._origin is not None and 0 < (timestamp - self._origin) - self._seconds <= self._longest_gap:
            self._sum_of_steps += (timestamp - self._origin) - self._seconds
            self._num_steps += 1
            self._seconds = timestamp - self._origin
            self._is_in_doubt = False
        elif self._origin is not None and not self._is_in_doubt:
            self._seconds += mean / 2
            self._is_in_doubt = True
        else:
            self._seconds += mean
            self._origin = timestamp - self._seconds
            self._is_in_doubt = False
        return self._seconds


def stream_frames(
    source: str | os.PathLike | BinaryIO, fps: float | None = None, name: str | None = None
) -> Iterator[StreamedFrame]:
    """
    Decode a video file from its start to its end. Memory does not grow with its length.

    Args:
        source (`str`, `os.PathLike` or binary file object):
            The path of the file, a URL of a protocol that [`read_video`] takes, or the open file.
        fps (`float`, *optional*):
            Frames to take per second: the first frame at or after each multiple of 1 / `fps` seconds. By default all
            frames.
        name (`str`, *optional*):
            Name of an open file in messages.

    Raises:
        `ValueError`: if `fps` is not positive.
        `VideoReadError`: if there is no such file, or it is no video; for a damaged file as soon as the damage is
            reached.
    """
    check_rate("fps", fps)
    if not isinstance(source, (str, os.PathLike)):
        return first_at_rate(_stream(source, name or str(getattr(source, "name", source))), fps)
    path = os.fspath(source)
    if is_url(path):
        return first_at_rate(_stream_url(path), fps)
    if not os.path.isfile(path):
        raise VideoReadError(f"{path} does not exist.")
    return first_at_rate(_stream(path, path), fps)


def check_rate(name: str, rate: float | None) -> None:
    """Raises `ValueError` for a rate that is neither `None` nor positive and finite."""
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"{name}={rate} must be positive and finite.")


def first_at_rate(frames: Iterable[StreamedFrame], fps: float | None) -> Iterator[StreamedFrame]:
    """The first frame at or after each multiple of 1 / `fps` seconds; all frames for `None`. None is given twice."""
    taken = 0
    for frame in frames:
        # Times are rounded to the time base of the file.
        if fps is not None and frame.seconds * fps < taken - 1e-3:
            continue
        taken += 1 if fps is None else max(int(frame.seconds * fps + 1e-3) + 1 - taken, 1)
        yield frame


def _stream(source: str | BinaryIO, name: str) -> Iterator[StreamedFrame]:
    with open_stream(source, name, threaded=True) as (container, stream):
        yield from time_frames(decode_in_order(container, stream, name), StreamClock(stream.average_rate))


def _stream_url(url: str) -> Iterator[StreamedFrame]:
    with open_ranges(url) as file:
        if isinstance(file, RangeFile):
            file.stream()
        yield from _stream(file, public_url(url))


def time_frames(decoded: Iterable[Any], clock: StreamClock) -> Iterator[StreamedFrame]:
    """Decoded frames of PyAV with their numbers and times."""
    to_rgb = RgbConverter()
    for number, frame in enumerate(decoded):
        yield _DecodedFrame(number, clock.read(frame.time), frame, to_rgb)
