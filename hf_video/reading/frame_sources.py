"""Everything that gives frames one after another: files, addresses, cameras, folders of pictures, and iterables."""

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .frame_streaming import StreamedFrame, check_rate, stream_frames
from .live_streams import is_live, is_stream_response, stream_live, stream_response
from .video_downloading import open_response, public_url, read_max_size, receive_video
from .video_reading import FrameFolder


def open_frames(source: Any, source_fps: float | None = None) -> Iterator[StreamedFrame]:
    """
    The frames of a source in their order, each decoded once.

    Args:
        source:
            Path of a video file, bytes of one, open binary file, `http(s)` URL (a file is downloaded within the limits
            of [`download_video`], a stream is not), URL of another protocol of fsspec, a live stream or camera as for
            [`stream_live`], path of a folder of JPEG / PNG frames, or an iterable of frames: (height, width, 3) uint8
            RGB arrays, which are not changed afterwards, or `StreamedFrame`s whose times rise.
        source_fps (`float`, *optional*):
            Rate in frames per second at which the pictures of a folder, or the arrays of an iterable, were taken. They
            have no times of their own, and must have it. Other sources have times of their own, and must not.

    Raises:
        `VideoReadError`: if the source cannot be read; for a damaged file as soon as the damage is reached.
        `ValueError`: if `source_fps` is missing, not positive, or given for a source with times; for a frame of an
            iterable that is no (height, width, 3) uint8 array.
        `TypeError`: if `source` is none of the above.
    """
    check_rate("source_fps", source_fps)
    is_folder = isinstance(source, (str, os.PathLike)) and os.path.isdir(source)
    if is_folder:
        return _stream_folder(
            FrameFolder(Path(source)), _required(source_fps, f"{source} is a folder of frames, which")
        )
    if isinstance(source, (str, os.PathLike, bytes)) or hasattr(source, "read"):
        if source_fps is not None:
            raise ValueError(
                f"source_fps={source_fps} is the rate of a folder or iterable of frames; {describe(source)} has times "
                "of its own. fps=... sets how many frames are taken in a second."
            )
        if isinstance(source, bytes):
            return stream_frames(io.BytesIO(source), name=f"The video of {len(source)} bytes")
        if is_live(source):
            return stream_live(source)
        if isinstance(source, str) and source.startswith(("http://", "https://")):
            return _stream_url(source)
        return stream_frames(source)
    if not isinstance(source, Iterable):
        raise TypeError(
            "A source of frames is a path, a URL, bytes, an open file, a folder of frames or an iterable of frames, "
            f"not {type(source).__name__}."
        )
    return _stream_iterable(source, source_fps)


def describe(source: Any) -> str:
    """A short name of a source for messages."""
    if isinstance(source, (str, os.PathLike)):
        return public_url(os.fspath(source))
    return str(getattr(source, "name", f"The {type(source).__name__}"))


def _required(source_fps: float | None, subject: str) -> float:
    if source_fps is None:
        raise ValueError(f"{subject} has no times: give source_fps=..., the rate at which its frames were taken.")
    return source_fps


def _stream_url(url: str) -> Iterator[StreamedFrame]:
    name, max_size = public_url(url), read_max_size()
    with open_response(url) as response:
        if is_stream_response(response, name):
            yield from stream_response(response, name)
            return
        video = receive_video(response, name, max_size)
    yield from stream_frames(video, name=name)


def _stream_folder(folder: Any, source_fps: float) -> Iterator[StreamedFrame]:
    for number in range(len(folder)):
        image = folder.read(np.array([number]))[0]
        yield StreamedFrame(number, number / source_fps, image, 1 / source_fps)


def _stream_iterable(frames: Iterable[Any], source_fps: float | None) -> Iterator[StreamedFrame]:
    for number, frame in enumerate(frames):
        if isinstance(frame, StreamedFrame):
            yield frame
            continue
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
            kind = f"{frame.dtype} {frame.shape}" if hasattr(frame, "shape") else type(frame).__name__
            raise ValueError(f"Frame {number} of the iterable is {kind}; expected a (height, width, 3) uint8 array.")
        rate = _required(source_fps, "An iterable of arrays")
        yield StreamedFrame(number, number / rate, frame, 1 / rate)
