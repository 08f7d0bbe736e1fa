"""The video stream of a file, opened with PyAV within limits, and its frames from start to end.

A file that breaks off raises `VideoReadError`, if its container shows where it should end (a Matroska or MPEG-TS file
may end anywhere). So does damage that the decoder finds.
"""

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
# Containers that store presentation times, and codecs whose packets hold exactly one shown frame each. Only then the
# packets show the frames: AVI guesses times, MPEG-4 and VP8 have packets without a shown frame.
TIMED_CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "mpegts", "flv")
_ONE_FRAME_PER_PACKET = ("h264", "hevc", "vp9", "av1")


def _largest_frame() -> int:
    """Most pixels of a frame: twice `PIL.Image.MAX_IMAGE_PIXELS`, as in PIL; for `None` that of FFmpeg."""
    return 2**31 - 1 if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


def tell_largest_frame() -> str:
    """The end of a message for a frame that is too large."""
    return f"at most {_largest_frame():,} pixels are read: twice PIL.Image.MAX_IMAGE_PIXELS, which you can set higher."


def pixel_limit() -> dict[str, str]:
    """The option that makes FFmpeg refuse frames of more pixels."""
    return {"max_pixels": str(_largest_frame())}


@contextmanager
def open_stream(source: str | BinaryIO, name: str, threaded: bool = False) -> Iterator[tuple[Any, Any]]:
    """The container of a file and its video stream. FFmpeg's errors, in the block too, become `VideoReadError`."""
    # A playlist with the name of a video must not make FFmpeg fetch files from the network, and one behind an address
    # none from this machine.
    options = {"protocol_whitelist": "file" if isinstance(source, str) else ""} | pixel_limit()
    opened: Any = source
    try:
        if isinstance(source, str):
            size, opened = os.path.getsize(source), f"file:{source}"
        else:
            size = source.seek(0, os.SEEK_END)
            source.seek(0)
        # The mode of a file object need not be "r".
        container = av.open(opened, "r", options=options, metadata_errors="replace")
    except VideoReadError:
        raise
    except av.FFmpegError as error:
        # A recording that was stopped at once ends so.
        reason = "it ends before its first frame" if isinstance(error, EOFError) else error.strerror
        if isinstance(error, av.InvalidDataError):
            reason = "it is cut off, or no video; copy or download it again"
        raise VideoReadError(f"{name} cannot be opened as a video: {reason if size else 'it is empty'}.") from error
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise VideoReadError(f"{name} cannot be read: {error}. A file of bytes that can seek is expected.") from error
    with container:
        # Without threads for short runs: filling and draining them after every seek costs more than they gain.
        stream = choose_stream(container, name, "AUTO" if threaded else "NONE")
        try:
            yield container, stream
        except av.FFmpegError as error:
            may_be_large = isinstance(error, av.error.ArgumentError)
            hint = f" If frames are large: {tell_largest_frame()}" if may_be_large else ""
            raise VideoReadError(f"{name} cannot be read: {error.strerror}.{hint}") from error


def choose_stream(container: Any, name: str, thread_type: str) -> Any:
    """The best video stream of an open container, the only one that is read. By `thread_type`, threads of the decoder
    share frames ("AUTO"), the parts of a frame ("SLICE": no frame waits for the next), or nothing ("NONE")."""
    if container.format.name in _TEXT_FORMATS:
        raise VideoReadError(f"{name} cannot be opened as a video: it is a text or a playlist.")
    # The cover picture of a sound file is a video stream too.
    covers = [s for s in container.streams.video if s.disposition & av.stream.Disposition.attached_pic]
    videos = [s for s in container.streams.video if s not in covers]
    if not videos:
        kinds = {"a cover picture" if s in covers else str(s.type) for s in container.streams} or {"nothing"}
        raise VideoReadError(f"{name} holds no video stream, only {', '.join(sorted(kinds))}.")
    best = container.streams.best("video")
    stream = best if best in videos else videos[0]
    if stream.codec_context is None:
        raise VideoReadError(f"{name}: this build of FFmpeg has no decoder for its video.")
    width, height = stream.codec_context.width, stream.codec_context.height
    if width * height > _largest_frame():
        raise VideoReadError(f"{name} has frames of {width} x {height} pixels; {tell_largest_frame()}")
    stream.codec_context.options = pixel_limit()
    for other in container.streams:
        if other is not stream:
            other.discard = av.stream.Discard.all
    stream.thread_type = thread_type
    stream.thread_count = 1 if thread_type == "NONE" else 0
    return stream


class RgbConverter:
    """Makes (height, width, 3) uint8, turned upright, of frames. The frames of a video share a converter: its tables
    take longer to make than a small frame to convert. With a `size` (height, width), frames are resized on the way, by
    the bilinear filter of swscale."""

    size: tuple[int, int] | None = None

    def __init__(self) -> None:
        self._reformatter = av.video.reformatter.VideoReformatter()

    def __call__(self, frame: Any) -> np.ndarray:
        swapped, left_to_right, top_to_bottom = _find_orientation(frame)
        options: dict[str, Any] = {}
        if self.size is not None:
            width, height = self.size if swapped else self.size[::-1]
            options = {"width": width, "height": height, "interpolation": "BILINEAR"}
        # One thread: for small frames, starting the default number of threads takes longer than the work.
        picture = self._reformatter.reformat(frame, format="rgb24", threads=1, **options).to_ndarray()
        picture = picture.swapaxes(0, 1) if swapped else picture
        return picture[:: -1 if top_to_bottom else 1, :: -1 if left_to_right else 1]


def _find_orientation(frame: Any) -> tuple[bool, bool, bool]:
    """Whether the display matrix of a frame (ISO/IEC 14496-12, 6.2.2) swaps rows and columns, then mirrors left to
    right, and top to bottom; of these eight ways the nearest to the matrix."""
    try:
        # `frame.side_data` would keep the frame in a reference cycle, and so in memory until the garbage collector
        # runs.
        matrix = SideDataContainer(frame).get("DISPLAYMATRIX")  # type: ignore[call-arg]
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


def demux(container: Any, stream: Any) -> Iterator[Any]:
    """The packets that hold data, and at the end the empty one that drains the decoder. Another empty packet, as of
    Theora, shows the frame before it once more: it would end the decoding."""
    last = None
    for packet in container.demux(stream):
        if packet.size:
            yield packet
        last = packet
    if last is not None and not last.size:
        yield last


def decode_packet(stream: Any, packet: Any) -> list[Any] | None:
    """The frames that the decoder returns for a packet, or `None` for damaged data. The packet `None` drains it."""
    try:
        return stream.decode(packet)
    except av.error.InvalidDataError:
        return None


def decode_in_order(container: Any, stream: Any, name: str) -> Iterator[Any]:
    """Every frame from the start to the end. Raises `VideoReadError` at the first damage, and after the last frame
    if the file breaks off or frames are missing."""
    has_one_each, kind = has_one_frame_per_packet(stream), container.format.name
    breaks_off = is_interlaced = False
    first_time = None
    # Presentation times of packets whose frames the decoder has not returned.
    held_back: set[int] = set()
    for count, packet in enumerate(demux(container, stream)):
        breaks_off = packet.is_corrupt if packet.size else breaks_off
        if packet.size and packet.pts is not None and not packet.is_discard:
            held_back.add(packet.pts)
        decoded = decode_packet(stream, packet)
        if decoded is None or any(frame.is_corrupt for frame in decoded):
            raise VideoReadError(f"{name} is damaged in or before packet {count}; copy or download it again.")
        for frame in decoded:
            if has_one_each and kind == "avi" and held_back:
                # AVI tells when packets are decoded: the frame that is shown next has the smallest time of those.
                frame.pts = min(held_back)
            held_back.discard(frame.pts)
            first_time = frame.pts if first_time is None else first_time
            # Fields may have a packet each.
            is_interlaced = is_interlaced or frame.interlaced_frame
            yield frame
    if breaks_off:
        raise VideoReadError(f"{name} is cut off; copy or download it again.")
    # Frames that are shown before the first one may be missing: they can depend on frames before the file.
    lost = [time for time in held_back if first_time is not None and time > first_time]
    if lost and not is_interlaced and has_one_each and kind in TIMED_CONTAINERS:
        raise VideoReadError(f"{name} is damaged: {len(lost)} of its packets gave no frame.")


def has_one_frame_per_packet(stream: Any) -> bool:
    """Whether every packet of the stream's codec holds exactly one shown frame."""
    codec = stream.codec_context.codec
    return codec.intra_only or codec.canonical_name in _ONE_FRAME_PER_PACKET
