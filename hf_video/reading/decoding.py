"""The video stream of a file, opened with PyAV within limits, and its frames by number.

A pass over the packets, which decodes only the first frame, gives the presentation time of every frame and the places
where decoding can start. Each wanted frame is then decoded from the key frame before it, and found by its time. The
frames of a file are those that decoding it from start to end gives, in that order. So where anything is in doubt (the
packets do not tell the frames, a seek misses, the decoder returns other frames than it was given, or damaged ones),
frames are decoded from the start and counted.

A file that breaks off raises `VideoReadError`, if its container shows where it should end (a Matroska or MPEG-TS file
may end anywhere). So does a frame that depends on damage that the decoder finds; the other frames stay readable, if
packets tell the frames. No frame is ever replaced by another one.
"""

import heapq
import os
import tempfile
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from itertools import dropwhile, islice, pairwise
from typing import Any, BinaryIO, NamedTuple

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer
from PIL import Image

from .remote import RemoteFile
from .sources import VideoReadError

# The formats that FFmpeg takes any text for, and those of lists of other files.
_TEXT_FORMATS = ("tty", "hls", "concat")
# Containers that store presentation times, and codecs whose packets hold exactly one shown frame each. Only then the
# packets show the frames: AVI guesses times, MPEG-4 and VP8 have packets without a shown frame.
_TIMED_CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "mpegts", "flv")
_ONE_FRAME_PER_PACKET = ("h264", "hevc", "vp9", "av1")
# Codecs that mark the frames that no other frame depends on. The decoder leaves those out that are not wanted: without
# it, 16 frames of a file as x264 makes it take 1.2 times as long (`benchmarks/reading.py`).
SKIPPING_CODECS = ("h264",)
# With more frames than this per seek, threads of the decoder gain more than they cost.
_FRAMES_WORTH_THREADS = 100
# Frames that a decoder may hold back before its first output: H.264 and HEVC allow 16, each thread holds one more.
MOST_HELD_BACK = 64
# A gap between times of more than this many frames may come from wrong times.
_JUMP = 10
# Frames per second of a file that tells none, as in FFmpeg.
_DEFAULT_RATE = Fraction(25)
# Bounds of what is kept of files that were read: number of files, and of their packets, at about 40 bytes each.
MOST_FILES, MOST_PACKETS = 4096, 2**20


def largest_frame() -> int | None:
    """Largest number of pixels of a frame: twice `PIL.Image.MAX_IMAGE_PIXELS`, as in PIL; `None` for no limit."""
    return None if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


def tell_largest_frame() -> str:
    """The end of a message for a frame that is too large."""
    return (
        f"at most {largest_frame():,} pixels are read, to not run out of memory: "
        "twice PIL.Image.MAX_IMAGE_PIXELS, which you can set higher for a file that you trust."
    )


def pixel_limit() -> dict[str, str]:
    """The option that makes FFmpeg refuse frames of more pixels than `largest_frame`."""
    limit = largest_frame()
    return {} if limit is None else {"max_pixels": str(limit)}


@contextmanager
def open_stream(source: str | BinaryIO, name: str, threaded: bool = False) -> Iterator[tuple[Any, Any]]:
    """The container of a file and its best video stream, the only one that is read."""
    # A playlist with the name of a video must not make FFmpeg fetch files from the network, and one behind an address
    # none from this machine.
    options = {"protocol_whitelist": "file" if isinstance(source, str) else ""} | pixel_limit()
    opened: Any = f"file:{source}" if isinstance(source, str) else source
    try:
        size = os.path.getsize(source) if isinstance(source, str) else source.seek(0, os.SEEK_END)
        if not isinstance(source, str):
            source.seek(0)
        # The mode of a file object need not be "r".
        container = av.open(opened, "r", options=options, metadata_errors="replace")
    except VideoReadError:
        raise
    except av.FFmpegError as error:
        # A recording that was stopped at once ends so.
        reason = "it ends before its first frame" if isinstance(error, EOFError) else error.strerror
        reason = reason if size else "it is empty"
        raise VideoReadError(f"{name} cannot be opened as a video: {reason}.") from error
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise VideoReadError(
            f"{name} cannot be read: {error}. A path, bytes, or a file of bytes that can seek is expected."
        ) from error
    # Without threads for short runs: filling and draining them after every seek costs more than they gain.
    with choose_stream(container, name, "AUTO" if threaded else "NONE") as stream:
        yield container, stream


@contextmanager
def choose_stream(container: Any, name: str, thread_type: str) -> Iterator[Any]:
    """
    The best video stream of an open container, which is closed at the end. FFmpeg's errors in the block become
    `VideoReadError`. By `thread_type`, threads of the decoder share frames ("AUTO"), the parts of a frame ("SLICE": no
    frame waits for the next), or nothing ("NONE").
    """
    limit = largest_frame()
    with container:
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


class RgbConverter:
    """Makes (height, width, 3) uint8, turned upright, of frames. The frames of a video share a converter: its tables
    take longer to make than a small frame to convert."""

    def __init__(self) -> None:
        self._reformatter = av.video.reformatter.VideoReformatter()

    def __call__(self, frame: Any) -> np.ndarray:
        # One thread: for small frames, starting the default number of threads takes longer than the work.
        picture = self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
        swapped, left_to_right, top_to_bottom = _find_orientation(frame)
        picture = picture.swapaxes(0, 1) if swapped else picture
        return picture[:: -1 if top_to_bottom else 1, :: -1 if left_to_right else 1]


def _find_orientation(frame: Any) -> tuple[bool, bool, bool]:
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
    """Every frame from the start to the end. Raises `VideoReadError` at the first damage, and after the last frame if
    the file breaks off or the decoder has dropped frames without an error."""
    breaks_off = is_interlaced = False
    first_time = None
    has_one_each = _has_one_frame_per_packet(stream)
    is_numbered = has_one_each and container.format.name == "avi"
    # Presentation times of packets whose frames the decoder has not returned.
    held_back: set[int] = set()
    # AVI tells when packets are decoded: the frame that is shown next has the smallest time of those.
    numbers: list[int] = []
    for count, packet in enumerate(demux(container, stream)):
        breaks_off = packet.is_corrupt if packet.size else breaks_off
        if packet.size and packet.pts is not None and not packet.is_discard:
            held_back.add(packet.pts)
            heapq.heappush(numbers, packet.pts)
        decoded = decode_packet(stream, packet)
        if decoded is None or any(frame.is_corrupt for frame in decoded):
            raise VideoReadError(f"{name} is damaged in or before packet {count}; copy or download it again.")
        for frame in decoded:
            first_time = frame.pts if first_time is None else first_time
            # Fields may have a packet each.
            is_interlaced = is_interlaced or frame.interlaced_frame
            held_back.discard(frame.pts)
            if is_numbered and numbers:
                frame.pts = heapq.heappop(numbers)
            yield frame
    if breaks_off:
        raise VideoReadError(f"{name} is cut off; copy or download it again.")
    # Frames that are shown before the first one may be missing: they can depend on frames before the file.
    lost = [time for time in held_back if first_time is not None and time > first_time]
    if lost and not is_interlaced and has_one_each and container.format.name in _TIMED_CONTAINERS:
        raise VideoReadError(
            f"{name} is damaged: {len(lost)} of its packets gave no frame; copy or download it again."
        )


def _has_one_frame_per_packet(stream: Any) -> bool:
    codec = stream.codec_context.codec
    return codec.intra_only or codec.canonical_name in _ONE_FRAME_PER_PACKET


class Packet(NamedTuple):
    """The values of a packet that are kept; its data would fill the memory.

    Attributes:
        time: presentation time in units of the stream's time base, or None.
        duration: in the same units; 0 if it is unknown.
        decode_time: decode time in the same units, or None.
        is_keyframe: whether decoding can start with it.
        is_discard: whether an edit list hides its frame.
        is_corrupt: whether it breaks off.
        position: place of its first byte in the file, or None.
        size: its size in bytes.
    """

    time: int
    duration: int
    decode_time: int | None
    is_keyframe: bool
    is_discard: bool
    is_corrupt: bool
    position: int | None
    size: int

    @classmethod
    def of(cls, packet: Any) -> "Packet":
        """The values of a packet of PyAV."""
        flags = (packet.is_keyframe, packet.is_discard, packet.is_corrupt)
        return cls(packet.pts, packet.duration or 0, packet.dts, *flags, packet.pos, packet.size)


def read_packets(source: str | BinaryIO, name: str, container: Any, stream: Any) -> tuple[list[Packet], Any]:
    """
    All packets of a file and its first frame, the only one that is decoded. A file behind an address is not read to
    its end if the tables of an MP4 tell its packets. Raises `VideoReadError` if the file is cut off, or holds no frame
    that can be decoded.
    """
    packets: list[Packet] = []
    first_frame = None
    indexed = _index_remote(source, container, stream) if isinstance(source, RemoteFile) else None
    try:
        for packet in demux(container, stream):
            if first_frame is None:
                first_frame = next(iter(decode_packet(stream, packet) or ()), None)
            if packet.size:
                packets.append(Packet.of(packet))
            if indexed and (first_frame is not None or len(packets) > MOST_HELD_BACK):
                is_sure = first_frame is not None and indexed[: len(packets)] == packets
                if is_sure and _packets_tell_frames(container, stream, indexed):
                    return indexed, first_frame
                indexed = None
        breaks_off = bool(packets) and packets[-1].is_corrupt
    except av.error.InvalidDataError:
        breaks_off = True
    if breaks_off:
        raise VideoReadError(f"{name} is cut off after {len(packets)} frames; copy or download it again.")
    if first_frame is None or not packets:
        raise VideoReadError(f"{name} holds no frame that can be decoded.")
    return packets, first_frame


def _packets_tell_frames(container: Any, stream: Any, packets: list[Packet]) -> bool:
    """Whether a full decode gives one frame for each packet, at the presentation time of the packet."""
    if container.format.name not in _TIMED_CONTAINERS or not _has_one_frame_per_packet(stream):
        return False
    times = [packet.time for packet in packets]
    if None in times or len(set(times)) < len(times):
        return False
    # Packets are in the order of decoding. A frame is shown after it is decoded, and the decoder can hold back only a
    # limited number of frames.
    stamped = [packet for packet in packets if packet.decode_time is not None]
    decode_times = np.array([packet.decode_time for packet in stamped])
    if (np.diff(decode_times) <= 0).any() or (decode_times > [packet.time for packet in stamped]).any():
        return False
    if (np.argsort(times) > np.arange(len(times)) + stream.codec_context.reorder_depth).any():
        return False
    # Packets before a key frame are shown before it.
    starts = np.flatnonzero([packet.is_keyframe for packet in packets])[1:]
    if (np.maximum.accumulate(times)[starts - 1] > np.array(times)[starts]).any():
        return False
    # Frames shown before the first key frame may or may not be decodable.
    return packets[0].is_keyframe and all(packet.time >= times[0] or packet.is_discard for packet in packets)


def _index_remote(file: RemoteFile, container: Any, stream: Any) -> list[Packet] | None:
    """
    The packets of an MP4 or MOV file as a pass over all of them gives, without fetching them; None if that is not
    certain.

    FFmpeg knows from the tables in the `moov` box (ISO/IEC 14496-12) when every packet is decoded and shown, where it
    lies and which ones are key frames. It reads the data of packets, but does not look at them: so the packets of a
    file whose other bytes are zeros tell the same.
    """
    # Of VP9, FFmpeg changes durations.
    is_plain = _has_one_frame_per_packet(stream) and stream.codec_context.codec.canonical_name != "vp9"
    tables = _find_tables(file) if container.format.name == _TIMED_CONTAINERS[0] and is_plain else None
    # With this box, most packets are in fragments.
    if tables is None or any(b"mvex" in table for table in tables.values()):
        return None
    with tempfile.TemporaryFile() as hollow:
        hollow.truncate(file.size)
        for place, table in tables.items():
            hollow.seek(place)
            hollow.write(table)
        try:
            with open_stream(hollow, file.label) as (zeros, same):
                packets = [Packet.of(packet) for packet in zeros.demux(same) if packet.size]
                # Those flags the parser takes from zeros.
                keys = {entry.pos: entry.is_keyframe for entry in same.index_entries}
        except VideoReadError:
            return None
    packets = [packet._replace(is_keyframe=bool(keys.get(packet.position))) for packet in packets]
    is_whole = packets and not any(p.is_corrupt or p.position is None or p.duration <= 0 for p in packets)
    return packets if is_whole else None


def _find_tables(file: RemoteFile) -> dict[int, bytes] | None:
    """The heads of all boxes up to the `moov` box, and the whole of that, by their places."""
    tables, place = {}, 0
    while place < file.size:
        tables[place] = head = file.read_at(place, 32)
        size, kind, content = int.from_bytes(head[:4]), head[4:8], 8
        if size == 1:
            size, content = int.from_bytes(head[8:16]), 16
        elif size == 0:
            # To the end.
            size = file.size - place
        if not content <= size <= file.size - place:
            return None
        if kind == b"moov":
            tables[place] = file.read_at(place, size)
            return tables
        place += size
    return None


_NONE = np.empty(0, dtype=np.int64)


class FrameIndex(NamedTuple):
    """What a pass over a file tells of its frames. Times are in units of the time base.

    Attributes:
        size: height and width of the upright frames in pixels.
        times: (num_frames,) int64, rising.
        end: time when the last frame ends.
        places: (num_frames,) the places of their packets in the file; `None` if packets do not tell the frames.
        packet_times: (num_packets,) int64, in the order of the file.
        key_times: times of the packets that decoding can start from, rising.
        is_hidden: (num_packets,) whether an edit list hides the frame.
        is_in_doubt: (num_packets,) whether times may be wrong.
        bounds: (num_packets, 2) where the data of a packet begins and ends in the file.
    """

    size: tuple[int, int]
    time_base: Fraction
    times: np.ndarray
    end: int
    places: np.ndarray | None = None
    packet_times: np.ndarray = _NONE
    key_times: Sequence[int] = ()
    is_hidden: np.ndarray = _NONE
    is_in_doubt: np.ndarray = _NONE
    bounds: np.ndarray = _NONE

    @property
    def num_packets(self) -> int:
        return max(len(self.packet_times), len(self.times))


def make_index(source: str | BinaryIO, name: str, container: Any, stream: Any) -> FrameIndex:
    """The index of a file that `open_stream` has opened. Raises `VideoReadError` for one that holds no video."""
    packets, first_frame = read_packets(source, name, container, stream)
    size = first_frame.height, first_frame.width
    size = size[::-1] if _find_orientation(first_frame)[0] else size
    rate = stream.average_rate or _DEFAULT_RATE
    if not _packets_tell_frames(container, stream, packets):
        return _index_by_decoding(source, name, size, stream.time_base, rate)
    times = np.array([packet.time for packet in packets], dtype=np.int64)
    starts = np.flatnonzero([packet.is_keyframe for packet in packets])
    is_hidden = np.array([packet.is_discard for packet in packets])
    by_time = np.argsort(times)
    places = by_time[~is_hidden[by_time]]
    shown = times[places]
    last = packets[places[-1]].duration or _mean_duration(shown, rate, stream.time_base)
    # Groups of pictures whose times may be wrong, if the decoder reorders: groups whose times rise in the order of
    # decoding, and those with a jump.
    is_in_doubt = np.zeros(len(packets), dtype=bool)
    if stream.codec_context.reorder_depth:
        falls = np.diff(times, prepend=times[0]) < 0
        falls[starts] = False
        sizes = np.diff(starts, append=len(packets))
        in_doubt = (np.add.reduceat(falls, starts) == 0) & (sizes > 1)
        gaps = np.diff(times[by_time])
        jumps = np.flatnonzero(gaps > _JUMP * np.median(gaps)) if len(gaps) else np.array([], dtype=int)
        around = by_time[np.concatenate([jumps, jumps + 1])]
        in_doubt[np.searchsorted(starts, around, side="right") - 1] = True
        is_in_doubt = np.repeat(in_doubt, sizes)
    bounds = np.array([(packet.position or 0, (packet.position or 0) + packet.size) for packet in packets])
    key_times = np.sort(times[starts]).tolist()
    found = places, times, key_times, is_hidden, is_in_doubt, bounds
    return FrameIndex(size, stream.time_base, shown, int(shown[-1]) + last, *found)


def _index_by_decoding(
    source: str | BinaryIO, name: str, size: tuple[int, int], time_base: Fraction, rate: Fraction
) -> FrameIndex:
    with open_stream(source, name, threaded=True) as (container, stream):
        times = [frame.pts for frame in decode_in_order(container, stream, name)]
    if not times:
        raise VideoReadError(f"{name} holds no frame that can be decoded.")
    if None in times or any(later <= time for time, later in pairwise(times)):
        # Without usable times, frames count as evenly spaced.
        times, time_base = list(range(len(times))), 1 / rate
    rising = np.array(times, dtype=np.int64)
    return FrameIndex(size, time_base, rising, times[-1] + _mean_duration(rising, rate, time_base))


def _mean_duration(times: np.ndarray, rate: Fraction, time_base: Fraction) -> int:
    """The mean duration of a frame in units of the time base; for a single frame, that of the header's rate."""
    if len(times) > 1:
        return max(round(int(times[-1] - times[0]) / (len(times) - 1)), 1)
    return max(round(1 / (rate * time_base)), 1)


class KeptIndexes:
    """The indexes of the files that were read last, in memory."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[tuple[str, int, int], FrameIndex] = OrderedDict()
        self._num_packets = 0
        self.renew_lock()
        if hasattr(os, "register_at_fork"):
            # Another thread may hold the lock at the moment of a fork.
            os.register_at_fork(after_in_child=self.renew_lock)

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def find(self, source: str | BinaryIO, name: str, opened: tuple[Any, Any]) -> FrameIndex:
        """The index of an opened file; that of a path is kept as long as size and time of the file stay the same."""
        if not isinstance(source, str):
            return make_index(source, name, *opened)
        found = os.stat(source)
        key = os.path.abspath(source), found.st_size, found.st_mtime_ns
        with self._lock:
            index = self._indexes.get(key)
            if index is not None:
                self._indexes.move_to_end(key)
                return index
        index = make_index(source, name, *opened)
        with self._lock:
            before = self._indexes.pop(key, None)
            self._indexes[key] = index
            self._num_packets += index.num_packets - (0 if before is None else before.num_packets)
            while len(self._indexes) > 1 and (len(self._indexes) > MOST_FILES or self._num_packets > MOST_PACKETS):
                self._num_packets -= self._indexes.popitem(last=False)[1].num_packets
        return index


_INDEXES = KeptIndexes()


class _DoubtError(Exception):
    """A run of frames shows damage, or other frames than its packets tell."""


class VideoFile:
    """
    The frames of a video file, by number in the order of presentation.

    Args:
        source (`str` or binary file object):
            Path of the file, or the open file.
        name (`str`):
            Name of the file in messages.
        opened (`tuple`):
            What `open_stream` gives for the file, without threads; it must stay open as long as frames are read.

    Attributes:
        times (`np.ndarray`): (num_frames,) float64, seconds after the first frame.
        end (`float`): seconds when the last frame ends.
        height (`int`): height of the upright frames in pixels.
        width (`int`): width of the upright frames in pixels.

    Raises:
        `VideoReadError`: if the file is not a video or holds no frame that can be decoded.
    """

    backend = "pyav"

    def __init__(self, source: str | BinaryIO, name: str, opened: tuple[Any, Any]):
        self.source, self.name = source, name
        self._opened: tuple[Any, Any] | None = opened
        self._to_rgb = RgbConverter()
        self._skips = opened[1].codec_context.codec.canonical_name in SKIPPING_CODECS
        self._index = index = _INDEXES.find(source, name, opened)
        self.height, self.width = index.size
        ticks = np.append(index.times, index.end) - index.times[0]
        seconds = ticks * index.time_base.numerator / index.time_base.denominator
        self.times, self.end = seconds[:-1], float(seconds[-1])
        # Without places, there are no times of key frames.
        self.key_frames = np.unique(np.append(np.searchsorted(index.times, index.key_times), 0))

    def read(self, wanted: np.ndarray) -> np.ndarray:
        """
        Decode the frames of the numbers `wanted`, (num_wanted,) integers, rising.

        Returns:
            `np.ndarray`: (num_wanted, height, width, 3) uint8 RGB, upright.

        Raises:
            `VideoReadError`: if a wanted frame depends on damaged data, or has another size than the first frame.
        """
        numbers = wanted.tolist()
        frames = {} if self._index.places is None else self._decode_by_seeking(numbers)
        missing = [i for i in numbers if i not in frames]
        if missing:
            frames |= self._decode_by_counting(missing)
        stacked = np.empty((len(numbers), self.height, self.width, 3), dtype=np.uint8)
        for row, i in enumerate(numbers):
            # Each frame is freed once it is copied, so that a whole video is not in memory twice.
            frame = frames.pop(i)
            if frame.shape != stacked.shape[1:]:
                size, expected = frame.shape[:2], (self.height, self.width)
                raise VideoReadError(f"{self.name}: frame {i} is {size} (height, width), the first is {expected}.")
            stacked[row] = frame
        return stacked

    def _open_anew(self, threaded: bool) -> Any:
        if not isinstance(self.source, str):
            # A file object has one position, which the first container does not expect to move.
            self._opened = None
        return open_stream(self.source, self.name, threaded)

    def _decode_by_counting(self, numbers: list[int]) -> dict[int, np.ndarray]:
        index, chosen = self._index, set(numbers)
        frames: dict[int, np.ndarray] = {}
        # To compare the number of frames with that of packets, the file is decoded to its end; not if times agree.
        agrees, count = True, 0
        with self._open_anew(threaded=numbers[-1] > _FRAMES_WORTH_THREADS) as (container, stream):
            for frame in decode_in_order(container, stream, self.name):
                agrees = agrees and (
                    index.places is None or frame.pts == index.times[min(count, len(index.times) - 1)]
                )
                if count in chosen:
                    frames[count] = self._to_rgb(frame)
                count += 1
                # A frame that damage took away may be shown after frames that depend on it.
                if agrees and count > numbers[-1] + MOST_HELD_BACK:
                    break
        if not agrees and count != len(index.times) or len(frames) < len(chosen):
            raise VideoReadError(
                f"{self.name} is damaged: it should give {len(index.times)} frames, but gives {count}; "
                "copy or download it again."
            )
        return frames

    def _decode_by_seeking(self, numbers: list[int]) -> dict[int, np.ndarray]:
        index = self._index
        places = dict(zip(numbers, index.places[numbers].tolist(), strict=True))  # type: ignore[index]
        keys = {i: bisect_right(index.key_times, index.times[i]) - 1 for i in numbers}
        place_of_key = {key: self._place(index.key_times[key]) for key in set(keys.values())}
        runs: list[list[int]] = []
        for i in numbers:
            # To seek costs less than to decode a single frame that is not needed.
            if runs and place_of_key[keys[i]] <= places[runs[-1][-1]] + 1:
                runs[-1].append(i)
            else:
                runs.append([i])
        length = sum(places[run[-1]] - place_of_key[keys[run[0]]] for run in runs)
        frames: dict[int, np.ndarray] = {}
        threaded = length > _FRAMES_WORTH_THREADS * len(runs)
        opened = self._open_anew(threaded) if threaded or self._opened is None else nullcontext(self._opened)
        with opened as (container, stream):
            for run in runs:
                first, last = place_of_key[keys[run[0]]], max(places[i] for i in run)
                for skips in (True, False) if self._skips else (False,):
                    try:
                        frames |= self._decode_run(container, stream, run, first, last, skips)
                        break
                    except (_DoubtError, av.FFmpegError):
                        stream.codec_context.skip_frame = "DEFAULT"
        return frames

    def _place(self, time: int) -> int:
        """The place of the packet that is shown at a time."""
        return int(np.flatnonzero(self._index.packet_times == time)[0])

    def _decode_run(
        self, container: Any, stream: Any, run: list[int], first: int, last: int, skips: bool
    ) -> dict[int, np.ndarray]:
        """The frames of `run`, decoded from the packet at place `first` to that at place `last`. With `skips`, the
        decoder leaves out H.264 frames that no other frame depends on. Raises `_DoubtError` for surprises."""
        index = self._index
        wanted = {int(index.times[i]): i for i in run}
        key_time, in_doubt = int(index.packet_times[first]), index.is_in_doubt[first : last + 1].any()
        skips = skips and not in_doubt
        # If times are in doubt, the decoder must return the wanted frames by itself, before it is drained.
        stop = last + 1 + (MOST_HELD_BACK if in_doubt else 0)
        if isinstance(self.source, RemoteFile):
            self.source.ahead = max(int(index.bounds[last, 1] - index.bounds[first, 0]), 0)
        container.seek(int(index.packet_times[first]), stream=stream)
        all_packets = (packet for packet in demux(container, stream) if packet.size)
        packets = islice(dropwhile(lambda packet: packet.pts != key_time, all_packets), stop - first)
        expected: list[int] = []
        shown: list[int] = []
        frames: dict[int, np.ndarray] = {}

        def show(packet: Any) -> None:
            decoded = decode_packet(stream, packet)
            if decoded is None:
                raise _DoubtError
            for frame in decoded:
                # Before the key frame come those that are shown before it.
                if shown or frame.pts == key_time:
                    if frame.is_corrupt:
                        raise _DoubtError
                    shown.append(frame.pts)
                    if frame.pts in wanted:
                        frames[wanted[frame.pts]] = self._to_rgb(frame)

        for place, packet in enumerate(packets, start=first):
            if packet.pts != index.packet_times[place]:
                raise _DoubtError
            if not index.is_hidden[place] and packet.pts >= key_time:
                expected.append(packet.pts)
            stream.codec_context.skip_frame = "NONREF" if skips and packet.pts not in wanted else "DEFAULT"
            show(packet)
            if place >= last and len(frames) == len(run):
                break
        # Draining also returns the frames that the wanted ones depend on, and so shows their damage.
        show(None)
        stream.codec_context.skip_frame = "DEFAULT"
        if skips:
            given = wanted.keys() | set(shown)
            expected = [time for time in expected if time in given]
        if shown != sorted(expected):
            raise _DoubtError
        return frames
