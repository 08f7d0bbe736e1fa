"""The video stream of a file, opened with PyAV within limits, and its decoded frames as upright RGB pictures."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer
from PIL import Image

from .sources import VideoReadError

# The formats that FFmpeg takes any text for, and those of lists of other files.
_TEXT_FORMATS = ("tty", "hls", "concat")


def largest_frame() -> int | None:
    """Largest number of pixels of a frame: twice `PIL.Image.MAX_IMAGE_PIXELS`, as in PIL; `None` for no limit."""
    return None if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


def tell_largest_frame() -> str:
    """The end of a message for a frame that is too large."""
    return (
        f"at most {largest_frame():,} pixels are read, to not run out of memory: "
        "twice PIL.Image.MAX_IMAGE_PIXELS, which you can set higher for a file that you trust."
    )


@contextmanager
def open_stream(source: str | BinaryIO, name: str, threaded: bool = False) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream, the only one that is read."""
    if not isinstance(source, str):
        source.seek(0)
    # A playlist with the name of a video must not make FFmpeg fetch files from the network, and one behind an address
    # none from this machine.
    options = {"protocol_whitelist": "file" if isinstance(source, str) else ""} | pixel_limit()
    try:
        container = av.open(
            f"file:{source}" if isinstance(source, str) else source, options=options, metadata_errors="replace"
        )
    except (av.FFmpegError, OSError) as error:
        raise VideoReadError(f"{name} cannot be opened as a video: {_reason(error, source)}.") from error
    # Without threads for short runs: filling and draining them after every seek costs more than they gain.
    with choose_stream(container, name, "AUTO" if threaded else "NONE") as stream:
        yield container, stream


def _reason(error: Any, source: str | BinaryIO) -> str:
    if (os.path.getsize(source) if isinstance(source, str) else source.seek(0, os.SEEK_END)) == 0:
        return "it is empty"
    # A recording that was stopped at once.
    return "it ends before its first frame" if isinstance(error, EOFError) else error.strerror


@contextmanager
def choose_stream(container: Any, name: str, thread_type: str) -> Iterator[Any]:
    """
    The first video stream of an open container, which is closed at the end. FFmpeg's errors in the block become
    `VideoReadError`.

    Args:
        container (`av.container.InputContainer`):
            The container.
        name (`str`):
            Name of the video in messages.
        thread_type (`str`):
            What threads of the decoder share: "AUTO", "SLICE" (the parts of a frame, so that no frame waits for the
            next), or "NONE".
    """
    limit = largest_frame()
    with container:
        if container.format.name in _TEXT_FORMATS:
            raise VideoReadError(f"{name} cannot be opened as a video: it is a text or a playlist.")
        # The cover picture of a sound file is a video stream too.
        videos = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
        if not videos:
            kinds = sorted({str(s.type) for s in container.streams}) or ["nothing"]
            raise VideoReadError(f"{name} holds no video stream, only {', '.join(kinds)}.")
        stream = videos[0]
        if stream.codec_context is None:
            raise VideoReadError(f"{name}: this build of FFmpeg has no decoder for its video.")
        width, height = stream.codec_context.width, stream.codec_context.height
        if limit is not None and width * height > limit:
            raise VideoReadError(f"{name} has frames of {width} x {height} pixels; {tell_largest_frame()}")
        stream.codec_context.options = pixel_limit()
        for other in container.streams:
            if other is not stream:
                other.discard = av.stream.Discard.all
        stream.thread_type = thread_type
        stream.thread_count = 1 if thread_type == "NONE" else 0
        try:
            yield stream
        except av.FFmpegError as error:
            may_be_large = isinstance(error, av.error.ArgumentError) and limit is not None
            hint = f" If frames are large: {tell_largest_frame()}" if may_be_large else ""
            raise VideoReadError(f"{name} cannot be read: {error.strerror}.{hint}") from error


def pixel_limit() -> dict[str, str]:
    """The option that makes FFmpeg refuse frames of more pixels than `largest_frame`."""
    limit = largest_frame()
    return {} if limit is None else {"max_pixels": str(limit)}


class RgbConverter:
    """Makes (height, width, 3) uint8, turned upright, of frames. The frames of a video share a converter: its tables
    take longer to make than a small frame to convert."""

    def __init__(self) -> None:
        self._reformatter = av.video.reformatter.VideoReformatter()

    def __call__(self, frame: Any) -> np.ndarray:
        # One thread: for small frames, starting the default number of threads takes longer than the work.
        return _turn_upright(self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray(), frame)


def find_orientation(frame: Any) -> tuple[bool, bool, bool]:
    """How the display matrix of a frame turns it (ISO/IEC 14496-12, 6.2.2): whether rows and columns change places,
    whether the result is then mirrored left to right, and whether it is mirrored top to bottom. Of these eight ways
    the nearest to the matrix is taken."""
    # `frame.side_data` would keep the frame in a reference cycle, and so in memory until the garbage collector runs.
    side_data = SideDataContainer(frame)  # type: ignore[call-arg]
    if not len(side_data):
        return False, False, False
    try:
        matrix = side_data.get("DISPLAYMATRIX")
    except ValueError:
        # The frame has side data that PyAV does not know. The rotation can still be read.
        turns = round(frame.rotation / 90) % 4
        return turns % 2 == 1, turns in (2, 3), turns in (1, 2)
    if matrix is None:
        return False, False, False
    # x' = a x + c y and y' = b x + d y
    a, b, _, c, d = np.frombuffer(bytes(matrix), dtype=np.int32)[:5].tolist()
    if abs(b) + abs(c) > abs(a) + abs(d):
        return True, c < 0, b < 0
    return False, a < 0, d < 0


def _turn_upright(picture: np.ndarray, frame: Any) -> np.ndarray:
    swapped, left_to_right, top_to_bottom = find_orientation(frame)
    picture = picture.swapaxes(0, 1) if swapped else picture
    return picture[:: -1 if top_to_bottom else 1, :: -1 if left_to_right else 1]
