"""Opening the video stream of a file with PyAV, and the errors of files that cannot be read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from PIL import Image

try:
    import av
except ImportError:
    av = None  # type: ignore[assignment]


# The formats that FFmpeg takes any text for, and those of lists of other files.
_TEXT_FORMATS = ("tty", "hls", "concat")


class VideoReadError(OSError):
    """A video that cannot be read: missing, empty, damaged, or not a video. The message names the file and the cause.

    An `OSError`, like other errors of opening a file, because the file is the cause and not the call.
    """


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
    # A playlist with the name of a video must not make FFmpeg fetch files from the network.
    options = {"protocol_whitelist": "file"} | pixel_limit()
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
    if not isinstance(source, str):
        is_empty = source.seek(0, os.SEEK_END) == 0
    else:
        is_empty = os.path.isfile(source) and os.path.getsize(source) == 0
    if is_empty:
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
        except av.error.ArgumentError as error:
            if limit is None:
                raise VideoReadError(f"{name} cannot be read: {error.strerror}.") from error
            raise VideoReadError(
                f"{name} cannot be read: {error.strerror}. If frames are large: {tell_largest_frame()}"
            ) from error
        except av.FFmpegError as error:
            raise VideoReadError(f"{name} cannot be read: {error.strerror}.") from error


def pixel_limit() -> dict[str, str]:
    """The option that makes FFmpeg refuse frames of more pixels than `largest_frame`."""
    limit = largest_frame()
    return {} if limit is None else {"max_pixels": str(limit)}
