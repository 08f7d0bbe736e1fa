"""Encodes images with times as a video."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import av
import numpy as np

# Ticks per second: MPEG-4 allows no more than 65535.
_TICKS = 60_000
# Rows that a player shows without blur, and that letters need.
_LEAST_HEIGHT = 240


class VideoEncoder:
    """Adds images to a video, in the order of their times. Its size is that of the first image.

    Args:
        container: an open container of PyAV.
    """

    def __init__(self, container: Any):
        self._container = container
        self._stream: Any = None
        self._ticks = -1

    def add(self, image: np.ndarray, seconds: float) -> None:
        """Adds an image (height, width, 3) uint8, which is shown from `seconds` on."""
        if self._stream is None:
            self._stream = _add_stream(self._container, *image.shape[:2])
        # Two images must not share a tick.
        self._ticks = max(round(seconds * _TICKS), self._ticks + 1)
        frame = av.VideoFrame.from_ndarray(_make_even(image), "rgb24")
        frame.pts, frame.time_base = self._ticks, Fraction(1, _TICKS)
        self._container.mux(self._stream.encode(frame))

    def finish(self, end: float | None = None) -> None:
        """Writes what the encoder holds back. The last image is shown until `end`, in seconds; by default as long as
        the one before it."""
        if self._stream is None:
            return
        packets = self._stream.encode(None)
        if end is not None and packets:
            packets[-1].duration = max(round(end * _TICKS) - self._ticks, 1)
        self._container.mux(packets)


@contextmanager
def encode_video(path: str | os.PathLike, container_format: str = "mp4") -> Iterator[VideoEncoder]:
    """
    Gives a [`VideoEncoder`] for a file. The codec is H.264 if this build of FFmpeg can encode it, else MPEG-4. The
    index of an MP4 comes first, so that a browser plays it while it loads.

    Args:
        path: the file to write.
        container_format: FFmpeg's name of the container.

    Raises:
        OSError: the file cannot be written.
    """
    options = {"movflags": "faststart"} if container_format == "mp4" else {}
    with av.open(os.fspath(path), "w", format=container_format, options=options) as container:
        yield VideoEncoder(container)


def enlarge(image: np.ndarray) -> np.ndarray:
    """The image (height, width, ...), each pixel of it repeated if it has less than 240 rows."""
    factor = -(-_LEAST_HEIGHT // image.shape[0])
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def _add_stream(container: Any, height: int, width: int) -> Any:
    has_h264 = "libx264" in av.codecs_available
    # The rate is a hint for the encoder: the frames bring their own times.
    stream = container.add_stream("libx264" if has_h264 else "mpeg4", rate=30)
    stream.height, stream.width = height + height % 2, width + width % 2
    stream.pix_fmt = "yuv420p"
    stream.time_base = stream.codec_context.time_base = Fraction(1, _TICKS)
    # Without frames out of order ("bf"), whose stored durations would give the video a wrong end.
    stream.options = {"crf": "20", "preset": "veryfast", "bf": "0"} if has_h264 else {"qscale": "3"}
    return stream


def _make_even(image: np.ndarray) -> np.ndarray:
    """The image with an even height and width, as encoders demand."""
    height, width = image.shape[:2]
    return np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
