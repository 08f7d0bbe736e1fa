"""Finding and decoding single frames of a video file with PyAV, without decoding the whole file.

A pass over the packets, which decodes only the first frame, gives the presentation time of every frame and the places
where decoding can start. Each wanted frame is then decoded from the key frame before it. Frames are found by their
presentation time, never by counting the output of the decoder after a seek. So a seek that misses is noticed; then
decoding begins at the start.

The frames of a file are those that decoding it from start to end gives, in that order. Packet times can be wrong, as
in an AVI that became an MP4. So the output of the decoder must be the frames of all packets that it was given, rising
in time. If it is not, times are ignored and frames are counted from the start.

Broken files: a file that breaks off raises `VideoReadError`, if its container shows where it should end (a Matroska or
MPEG-TS file may end anywhere). A frame that depends on data that the decoder finds damaged raises it too; the other
frames stay readable. If the times of frames cannot be read from the packets, any damage makes the file unreadable. No
frame is ever replaced by another one.
"""

import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from itertools import dropwhile, islice, pairwise
from typing import Any, BinaryIO, NamedTuple

import av
import numpy as np

from .pyav_streams import RgbConverter, find_orientation, open_stream
from .remote import RemoteFile
from .sources import VideoReadError

# Containers that store presentation times, and codecs whose packets hold exactly one shown frame each. Only then the
# packets show the frames: AVI guesses times, MPEG-4 and VP8 have packets without a shown frame.
_TIMED_CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "mpegts", "flv")
_ONE_FRAME_PER_PACKET = ("h264", "hevc", "vp9", "av1")
# Codecs whose packets FFmpeg leaves as the tables of an MP4 describe them; of VP9 it changes durations.
_AS_IN_TABLES = ("h264", "hevc", "av1")
# Codecs that mark the frames that no other frame depends on. The decoder leaves those out that are not wanted: without
# it, 16 frames of a file as x264 makes it take 1.2 times as long (`benchmarks/reading.py`).
SKIPPING_CODECS = ("h264",)
# With more frames than this per seek, threads of the decoder gain more than they cost.
_FRAMES_WORTH_THREADS = 100
# Frames that a decoder may hold back before its first output: H.264 and HEVC allow 16, each thread holds one more.
_MOST_HELD_BACK = 64
# A gap between times of more than this many frames may come from wrong times.
_JUMP = 10
# Frames per second of a file that states none, as in FFmpeg.
_DEFAULT_RATE = Fraction(25)


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


class VideoFileReader:
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
        height (`int`): height of the upright frames in pixels.
        width (`int`): width of the upright frames in pixels.

    Raises:
        `VideoReadError`: if the file is not a video or holds no frame that can be decoded.
    """

    backend = "pyav"

    def __init__(self, source: str | BinaryIO, name: str, opened: tuple[Any, Any]):
        self.source = source
        self.name = name
        self._opened: tuple[Any, Any] | None = opened
        self._to_rgb = RgbConverter()
        container, stream = opened
        packets, first_frame = read_packets(source, name, container, stream)
        self.height, self.width = first_frame.height, first_frame.width
        if find_orientation(first_frame)[0]:
            self.height, self.width = self.width, self.height
        self._time_base = stream.time_base
        self._rate = stream.average_rate or _DEFAULT_RATE
        self._reorder_depth = stream.codec_context.reorder_depth
        self._skips = stream.codec_context.codec.canonical_name in SKIPPING_CODECS
        if not _packets_tell_frames(container, stream, packets):
            self._index_by_decoding()
            return
        self._index_packets(packets)

    def __len__(self) -> int:
        return len(self._times)

    def seconds(self, frame: int) -> float:
        """The time of a frame in seconds after the first one; for `len(self)`, the time when the last frame ends."""
        time = self._end_time if frame == len(self) else self._times[frame]
        return float((int(time) - int(self._times[0])) * self._time_base)

    def read(self, wanted: np.ndarray) -> np.ndarray:
        """
        Decode some frames.

        Args:
            wanted (`np.ndarray`):
                (num_wanted,) numbers of frames, integers, rising.

        Returns:
            `np.ndarray`: (num_wanted, height, width, 3) uint8 RGB, upright.

        Raises:
            `VideoReadError`: if a wanted frame depends on damaged data, or has another size than the first frame.
        """
        numbers = wanted.tolist()
        frames = self._decode_by_seeking(numbers) if self._decode_order else self._decode_by_counting(numbers)
        stacked = np.empty((len(numbers), self.height, self.width, 3), dtype=np.uint8)
        for row, i in enumerate(numbers):
            # Each frame is freed once it is copied, so that a whole video is not in memory twice.
            frame = frames.pop(i, None)
            if frame is None:
                raise VideoReadError(f"{self.name}: frame {i}, at {self.seconds(i):.3f} s, depends on damaged data.")
            if frame.shape != stacked.shape[1:]:
                size, expected = frame.shape[:2], (self.height, self.width)
                raise VideoReadError(f"{self.name}: frame {i} is {size} (height, width), the first is {expected}.")
            stacked[row] = frame
        return stacked

    def _open_anew(self, threaded: bool = False) -> AbstractContextManager[tuple[Any, Any]]:
        # A file object has one position, which the first container does not expect to move.
        self._opened = None
        return open_stream(self.source, self.name, threaded)

    def _index_packets(self, packets: list[Packet]) -> None:
        times = np.array([packet.time for packet in packets], dtype=np.int64)
        self._positions = [packet.position or 0 for packet in packets]
        self._ends = [(packet.position or 0) + packet.size for packet in packets]
        is_discarded = np.array([packet.is_discard for packet in packets])
        starts = np.flatnonzero([packet.is_keyframe for packet in packets])
        by_time = np.argsort(times)
        order = by_time[~is_discarded[by_time]]
        self._times = times[order]
        self._end_time = int(self._times[-1]) + (packets[order[-1]].duration or self._mean_duration())
        # Decoding can start from these, rising.
        self._key_times = np.sort(times[starts]).tolist()
        self._decode_order = {time: place for place, time in enumerate(times.tolist())}
        self._discarded = set(times[is_discarded].tolist())
        # Groups of pictures whose times may be wrong, if the decoder reorders: groups whose times rise in the order of
        # decoding, and those with a jump.
        self._in_doubt = np.zeros(len(packets), dtype=bool)
        if self._reorder_depth:
            falls = np.diff(times, prepend=times[0]) < 0
            falls[starts] = False
            sizes = np.diff(starts, append=len(packets))
            in_doubt = (np.add.reduceat(falls, starts) == 0) & (sizes > 1)
            gaps = np.diff(times[by_time])
            jumps = np.flatnonzero(gaps > _JUMP * np.median(gaps)) if len(gaps) else np.array([], dtype=int)
            around = by_time[np.concatenate([jumps, jumps + 1])]
            in_doubt[np.searchsorted(starts, around, side="right") - 1] = True
            self._in_doubt = np.repeat(in_doubt, sizes)

    def _index_by_decoding(self) -> None:
        with self._open_anew(threaded=True) as (container, stream):
            times = [frame.pts for frame in decode_in_order(container, stream, self.name)]
        if not times:
            raise VideoReadError(f"{self.name} holds no frame that can be decoded.")
        if None in times or any(later <= time for time, later in pairwise(times)):
            # Without usable times, frames count as evenly spaced.
            times, self._time_base = list(range(len(times))), 1 / self._rate
        self._times = np.array(times, dtype=np.int64)
        self._end_time = times[-1] + self._mean_duration()
        self._decode_order = {}

    def _mean_duration(self) -> int:
        """The mean duration of a frame in units of the time base; for a single frame, that of the header's rate."""
        if len(self) > 1:
            return max(round(int(self._times[-1] - self._times[0]) / (len(self) - 1)), 1)
        return max(round(1 / (self._rate * self._time_base)), 1)

    def _place(self, frame: int) -> int:
        """The place of the frame's packet in the file."""
        return self._decode_order[int(self._times[frame])]

    def _key_time(self, frame: int) -> int:
        """The presentation time of the last key frame that is shown with the frame or before it."""
        return self._key_times[bisect_right(self._key_times, int(self._times[frame])) - 1]

    def _key_place(self, frame: int) -> int:
        return self._decode_order[self._key_time(frame)]

    def _decode_by_counting(self, numbers: list[int]) -> dict[int, np.ndarray]:
        chosen, last = set(numbers), numbers[-1]
        if self._decode_order:
            # To compare the number of frames with that of packets, the whole file is decoded.
            last = len(self)
        frames: dict[int, np.ndarray] = {}
        count = 0
        with self._open_anew(threaded=True) as (container, stream):
            for frame in islice(decode_in_order(container, stream, self.name), last + 1):
                if count in chosen:
                    frames[count] = self._to_rgb(frame)
                count += 1
        if self._decode_order and count != len(self):
            raise VideoReadError(
                f"{self.name} is damaged: it has packets for {len(self)} frames, but gives {count}; "
                "copy or download it again."
            )
        return frames

    def _decode_by_seeking(self, numbers: list[int]) -> dict[int, np.ndarray]:
        runs: list[list[int]] = []
        for i in numbers:
            # To seek costs less than to decode a single frame that is not needed.
            if runs and self._key_place(i) <= self._place(runs[-1][-1]) + 1:
                runs[-1].append(i)
            else:
                runs.append([i])
        length = sum(self._place(run[-1]) - self._key_place(run[0]) for run in runs)
        frames: dict[int, np.ndarray] = {}
        threaded = length > _FRAMES_WORTH_THREADS * len(runs)
        opened = self._open_anew(threaded) if threaded or self._opened is None else nullcontext(self._opened)
        with opened as (container, stream):
            for run in runs:
                for skips in (True, False) if self._skips else (False,):
                    key_time = self._key_time(run[0])
                    if isinstance(self.source, RemoteFile):
                        end = self._ends[max(self._place(i) for i in run)]
                        self.source.ahead = max(end - self._positions[self._decode_order[key_time]], 0)
                    try:
                        container.seek(key_time, stream=stream)
                    except av.FFmpegError:
                        break
                    found, _ = self._decode_run(container, stream, key_time, run, skips)
                    frames |= found
                    if len(found) == len(run):
                        break
        missing = [i for i in numbers if i not in frames]
        if missing:
            # Damage, a seek that missed, or a key frame that decoding cannot start from: decode from the start.
            with self._open_anew() as (container, stream):
                found, is_damaged = self._decode_run(container, stream, None, missing, False)
            if not found and not is_damaged and self._in_doubt.any():
                return self._decode_by_counting(numbers)
            frames |= found
        return frames

    def _decode_run(
        self, container: Any, stream: Any, key_time: int | None, run: list[int], skips: bool
    ) -> tuple[dict[int, np.ndarray], bool]:
        """Decode the frames of `run`, from the packet that is shown at `key_time`, or without one from the position of
        the container. With `skips`, the decoder leaves out H.264 frames that no other frame depends on.

        Returns the undamaged frames by number, and whether there is damage."""
        wanted = {int(self._times[i]): i for i in run}
        first_place = 0 if key_time is None else self._decode_order[key_time]
        last_place = max(self._place(i) for i in run)
        in_doubt = self._in_doubt[first_place : last_place + 1].any()
        skips = skips and not in_doubt
        given: list[int] = []
        shown: list[int] = []
        frames: dict[int, np.ndarray] = {}
        damaged: list[int] = []
        entered = key_time is None

        def decode(packet: Any, place: int) -> None:
            nonlocal entered
            decoded = decode_packet(stream, packet)
            if decoded is None:
                damaged.append(place)
            for frame in decoded or ():
                entered = entered or frame.pts == key_time
                if entered:
                    shown.append(frame.pts)
                if frame.is_corrupt:
                    damaged.append(self._decode_order.get(frame.pts, place))
                elif frame.pts in wanted:
                    frames[wanted[frame.pts]] = self._to_rgb(frame)

        shown_packets = (packet for packet in container.demux(stream) if packet.pts in self._decode_order)
        for packet in dropwhile(lambda packet: key_time not in (None, packet.pts), shown_packets):
            place = self._decode_order[packet.pts]
            given.append(packet.pts)
            stream.codec_context.skip_frame = "NONREF" if skips and packet.pts not in wanted else "DEFAULT"
            decode(packet, place)
            # If times are in doubt, the decoder must return the wanted frames by itself, before it is drained.
            last_try = last_place + _MOST_HELD_BACK
            if place >= last_place and (not in_doubt or len(frames) == len(run) or place >= last_try):
                break
        # Draining also returns the frames that the wanted ones depend on, and so shows their damage.
        decode(None, last_place)
        stream.codec_context.skip_frame = "DEFAULT"

        if not entered:
            # The decoder did not return the key frame, as in a gradual refresh: decoding cannot start there.
            first, *others = self._key_times
            self._key_times = [first, *(time for time in others if time != key_time)]
            return {}, bool(damaged)
        if damaged and (skips or stream.thread_type & av.codec.context.ThreadType.FRAME):
            # Threads report damage late, when its place is not known any more.
            return {}, True
        expected = sorted(t for t in given if t not in self._discarded and (key_time is None or t >= key_time))
        if skips:
            chosen = set(shown) | wanted.keys()
            expected = [t for t in expected if t in chosen]
        if shown != expected:
            # Damage removes frames after its place. It does not change the order of the others.
            lost = set(expected).difference(shown)
            if not damaged or shown != [t for t in expected if t not in lost]:
                return {}, bool(damaged)
            if any(self._decode_order[t] < min(damaged) for t in lost):
                return {}, True

        def is_sound(i: int) -> bool:
            return not any(self._key_place(i) <= place <= self._place(i) for place in damaged)

        return {i: frame for i, frame in frames.items() if is_sound(i)}, bool(damaged)


def _packets_tell_frames(container: Any, stream: Any, packets: list[Packet]) -> bool:
    """Whether a full decode gives one frame for each packet, at the presentation time of the packet."""
    if not _has_one_frame_per_packet(container, stream):
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


def _has_one_frame_per_packet(container: Any, stream: Any) -> bool:
    codec = stream.codec_context.codec
    one_each = codec.intra_only or codec.canonical_name in _ONE_FRAME_PER_PACKET
    return one_each and container.format.name in _TIMED_CONTAINERS


def read_packets(source: str | BinaryIO, name: str, container: Any, stream: Any) -> tuple[list[Packet], Any]:
    """
    All packets of a file and its first frame, the only one that is decoded. A file behind an address is not read to
    its end if the tables of an MP4 tell its packets.

    Args:
        source, name: as in [`VideoFileReader`].
        container, stream: what `open_stream` gives for the file.

    Raises:
        `VideoReadError`: if the file is cut off, or holds no frame that can be decoded.
    """
    packets: list[Packet] = []
    first_frame = None
    indexed = _index_remote(source, container, stream) if isinstance(source, RemoteFile) else None
    try:
        for packet in container.demux(stream):
            if first_frame is None:
                first_frame = next(iter(decode_packet(stream, packet) or ()), None)
            if packet.size:
                packets.append(Packet.of(packet))
            if indexed and (first_frame is not None or len(packets) > _MOST_HELD_BACK):
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


def _index_remote(file: RemoteFile, container: Any, stream: Any) -> list[Packet] | None:
    """
    The packets of an MP4 or MOV file as a pass over all of them gives, without fetching them; None if that is not
    certain.

    FFmpeg knows from the tables in the `moov` box (ISO/IEC 14496-12) when every packet is decoded and shown, where it
    lies and which ones are key frames. It reads the data of packets, but does not look at them: so the packets of a
    file whose other bytes are zeros tell the same.
    """
    codec = stream.codec_context.codec
    is_plain = codec.intra_only or codec.canonical_name in _AS_IN_TABLES
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


def decode_in_order(container: Any, stream: Any, name: str) -> Iterator[Any]:
    """Every frame from the start to the end. Raises `VideoReadError` at the first damage, and after the last frame if
    the file breaks off or the decoder has dropped frames without an error."""
    breaks_off = is_interlaced = False
    first_time = None
    # Presentation times of packets whose frames the decoder has not returned.
    held_back: set[int] = set()
    for count, packet in enumerate(container.demux(stream)):
        breaks_off = packet.is_corrupt if packet.size else breaks_off
        if packet.size and packet.pts is not None and not packet.is_discard:
            held_back.add(packet.pts)
        decoded = decode_packet(stream, packet)
        if decoded is None or any(frame.is_corrupt for frame in decoded):
            raise VideoReadError(f"{name} is damaged in or before packet {count}; copy or download it again.")
        for frame in decoded:
            first_time = frame.pts if first_time is None else first_time
            # Fields may have a packet each.
            is_interlaced = is_interlaced or frame.interlaced_frame
            held_back.discard(frame.pts)
            yield frame
    if breaks_off:
        raise VideoReadError(f"{name} is cut off; copy or download it again.")
    # Frames that are shown before the first one may be missing: they can depend on frames before the file.
    lost = [time for time in held_back if first_time is not None and time > first_time]
    if lost and not is_interlaced and _has_one_frame_per_packet(container, stream):
        raise VideoReadError(
            f"{name} is damaged: {len(lost)} of its packets gave no frame; copy or download it again."
        )


def decode_packet(stream: Any, packet: Any) -> list[Any] | None:
    """The frames that the decoder returns for a packet, or `None` for damaged data. The packet `None` drains it."""
    try:
        return stream.decode(packet)
    except av.error.InvalidDataError:
        return None
