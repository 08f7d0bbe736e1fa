"""Frames of a video file in their order, one at a time, so that memory does not hold the whole video."""

import os
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .frame_orientation import RgbConverter
from .video_decoding import decode_in_order
from .video_opening import VideoReadError, open_stream


class StreamedFrame(NamedTuple):
    """
    A frame of a video.

    Attributes:
        number: number of the frame in the file, from 0, as [`read_video`] counts.
        seconds: time of the frame in seconds after the first one.
        image: (height, width, 3) uint8 RGB, upright.
    """

    number: int
    seconds: float
    image: np.ndarray


def stream_frames(path: str | os.PathLike, fps: float | None = None) -> Iterator[StreamedFrame]:
    """
    Decode a video file from its start to its end. Memory does not grow with its length.

    Args:
        path (`str` or `os.PathLike`):
            The path of the file.
        fps (`float`, *optional*):
            Frames to take per second: the first frame at or after each multiple of 1 / `fps` seconds. By default all
            frames.

    Raises:
        `ValueError`: if `fps` is not positive.
        `VideoReadError`: if there is no such file, or it is no video; for a damaged file as soon as the damage is
            reached.
    """
    if fps is not None and not fps > 0:
        raise ValueError(f"fps={fps} must be positive.")
    if not os.path.isfile(path):
        raise VideoReadError(f"{os.fspath(path)} does not exist.")
    return _stream(os.fspath(path), fps)


def _stream(path: str, fps: float | None) -> Iterator[StreamedFrame]:
    taken, first_time = 0, None
    to_rgb = RgbConverter()
    with open_stream(path, path, threaded=True) as (container, stream):
        rate = stream.average_rate or Fraction(25)
        for number, frame in enumerate(decode_in_order(container, stream, path)):
            if first_time is None:
                first_time = frame.time
            timed = frame.time is not None and first_time is not None
            seconds = frame.time - first_time if timed else float(number / rate)
            # Times are rounded to the time base of the file.
            if fps is not None and seconds * fps < taken - 1e-3:
                continue
            taken += 1 if fps is None else max(int(seconds * fps + 1e-3) + 1 - taken, 1)
            yield StreamedFrame(number, seconds, to_rgb(frame))
