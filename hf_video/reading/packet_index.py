"""The times of all frames of a file, and where each one lies, by a pass over its packets that decodes only the first.

The frames of a file are those that decoding it from start to end gives, in that order. Where packets do not tell them,
the index is made by decoding the file in full, and has no places.
"""

import os
from fractions import Fraction
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import av
import numpy as np

from .decoding import (
    TIMED_CONTAINERS,
    RgbConverter,
    decode_in_order,
    decode_packet,
    demux,
    has_one_frame_per_packet,
    open_stream,
)
from .remote import RemoteFile
from .sources import VideoReadError

# A gap between times of more than this many frames may come from wrong times.
_JUMP = 10
# Frames per second of a file that tells none, as in FFmpeg.
DEFAULT_RATE = Fraction(25)
# What is kept of files that were read: so many packets, at about 50 bytes each, of which a file counts for some.
MOST_PACKETS, _FEWEST_PACKETS = 2**20, 2**8


class Packet(NamedTuple):
    """The values of a packet that are kept, times in units of the time base; its data would fill the memory."""

    time: int
    duration: int
    decode_time: int | None
    is_key: bool
    # An edit list hides its frame.
    is_hidden: bool
    breaks_off: bool
    position: int | None
    size: int

    @classmethod
    def of(cls, packet: Any) -> "Packet":
        flags = (packet.is_keyframe, packet.is_discard, packet.is_corrupt)
        return cls(packet.pts, packet.duration or 0, packet.dts, *flags, packet.pos, packet.size)


class FrameIndex(NamedTuple):
    """What a pass over a file tells of its frames. Times are in units of the time base.

    Attributes:
        size: height and width of the upright frames in pixels.
        times: (num_frames,) int64, rising.
        end: time when the last frame ends.
        places: (num_frames,) the places of their packets in the file; `None` if packets do not tell the frames.
        keys: (num_frames,) the places of the packets that decoding them starts from.
        packets: (num_packets,) in the order of the file, of `_KEPT_FIELDS`.
    """

    size: tuple[int, int]
    time_base: Fraction
    times: np.ndarray
    end: int
    places: Any = None
    keys: Any = None
    packets: Any = ()

    @property
    def num_packets(self) -> int:
        """What the index takes in memory; of a file with few packets, as much as of this many."""
        return max(len(self.packets), len(self.times), _FEWEST_PACKETS)


# Of a packet: its time, whether an edit list hides its frame, whether times may be wrong, and the bytes of its data.
_KEPT_FIELDS = [("time", "i8"), ("is_hidden", "?"), ("is_in_doubt", "?"), ("start", "i8"), ("stop", "i8")]
# The latest stand at the end. Threads share it, and no lock could be held at the moment of a fork: each step by itself
# leaves it whole.
_INDEXES: dict[tuple[str, int, int], FrameIndex] = {}


def find_index(source: str | BinaryIO, name: str, opened: tuple[Any, Any]) -> FrameIndex:
    """The index of an opened file; that of a path is kept as long as size and time of the file stay the same. Raises
    `VideoReadError` for a file that holds no video."""
    if not isinstance(source, str):
        return make_index(source, name, *opened)
    found = os.stat(source)
    key = os.path.abspath(source), found.st_size, found.st_mtime_ns
    index = _INDEXES.pop(key, None)
    if index is None:
        index = make_index(source, name, *opened)
        room = MOST_PACKETS - index.num_packets
        for old, each in reversed(list(_INDEXES.items())):
            room -= each.num_packets
            if room < 0:
                _INDEXES.pop(old, None)
    _INDEXES[key] = index
    return index


def make_index(source: str | BinaryIO, name: str, container: Any, stream: Any) -> FrameIndex:
    packets, first_frame = read_packets(source, name, container, stream)
    size = RgbConverter()(first_frame).shape[:2]
    rate = stream.average_rate or DEFAULT_RATE
    if not _packets_tell_frames(container, stream, packets):
        return _index_by_decoding(source, name, size, stream.time_base, rate)
    times = np.array([packet.time for packet in packets], dtype=np.int64)
    starts = np.flatnonzero([packet.is_key for packet in packets])
    by_time = np.argsort(times)
    places = by_time[[not packets[place].is_hidden for place in by_time]]
    shown, starts_by_time = times[places], starts[np.argsort(times[starts])]
    keys = starts_by_time[np.searchsorted(times[starts_by_time], shown, side="right") - 1]
    is_in_doubt = _find_doubt(times, starts, by_time) if stream.codec_context.reorder_depth else [False] * len(times)
    kept = [
        (packet.time, packet.is_hidden, doubt, packet.position or 0, (packet.position or 0) + packet.size)
        for packet, doubt in zip(packets, is_in_doubt, strict=True)
    ]
    end = int(shown[-1]) + (packets[places[-1]].duration or _mean_duration(shown, rate, stream.time_base))
    return FrameIndex(size, stream.time_base, shown, end, places, keys, np.array(kept, dtype=_KEPT_FIELDS))


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
            if indexed and first_frame is not None:
                if indexed[: len(packets)] == packets and _packets_tell_frames(container, stream, indexed):
                    return indexed, first_frame
                indexed = None
        breaks_off = bool(packets) and packets[-1].breaks_off
    except av.error.InvalidDataError:
        breaks_off = True
    if breaks_off:
        raise VideoReadError(f"{name} is cut off after {len(packets)} frames; copy or download it again.")
    if first_frame is None or not packets:
        raise VideoReadError(f"{name} holds no frame that can be decoded.")
    return packets, first_frame


def _packets_tell_frames(container: Any, stream: Any, packets: list[Packet]) -> bool:
    """Whether a full decode gives one frame for each packet, at the presentation time of the packet."""
    if container.format.name not in TIMED_CONTAINERS or not has_one_frame_per_packet(stream):
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
    starts = np.flatnonzero([packet.is_key for packet in packets])[1:]
    if (np.maximum.accumulate(times)[starts - 1] > np.array(times)[starts]).any():
        return False
    # Frames shown before the first key frame may or may not be decodable.
    return packets[0].is_key and all(packet.time >= times[0] or packet.is_hidden for packet in packets)


def _find_doubt(times: np.ndarray, starts: np.ndarray, by_time: np.ndarray) -> np.ndarray:
    """Which packets are in a group of pictures whose times may be wrong, if the decoder reorders: groups whose times
    rise in the order of decoding, and those with a jump."""
    group = np.searchsorted(starts, np.arange(len(times)), side="right") - 1
    falls = np.diff(times, prepend=times[0]) < 0
    falls[starts] = False
    in_doubt = (np.bincount(group, falls) == 0) & (np.bincount(group) > 1)
    gaps = np.diff(times[by_time])
    jumps = np.flatnonzero(gaps > _JUMP * np.median(gaps)) if len(gaps) else gaps
    in_doubt[group[by_time[jumps]]] = in_doubt[group[by_time[jumps + 1]]] = True
    return in_doubt[group]


def _index_remote(file: RemoteFile, container: Any, stream: Any) -> list[Packet] | None:
    """
    The packets of an MP4 or MOV file as a pass over all of them gives, without fetching them; None if that is not
    certain.

    FFmpeg has read the tables of the file (ISO/IEC 14496-12) when it is open, and knows from them when every packet is
    decoded and shown, where it lies and which ones are key frames. It reads the data of packets, but does not look at
    them: so the packets of a file whose other bytes are zeros tell the same.
    """
    is_mp4 = container.format.name == TIMED_CONTAINERS[0] and has_one_frame_per_packet(stream)
    hollow = file.hollow()
    # Of VP9, FFmpeg changes durations. With the box "mvex", most packets are in fragments.
    if not is_mp4 or stream.codec_context.codec.canonical_name == "vp9" or hollow is None or hollow.holds(b"mvex"):
        return None
    try:
        with open_stream(hollow, file.name) as (zeros, same):
            packets = [Packet.of(packet) for packet in zeros.demux(same) if packet.size]
            # Those flags the parser takes from zeros.
            keys = {entry.pos: entry.is_keyframe for entry in same.index_entries}
    except VideoReadError:
        return None
    packets = [packet._replace(is_key=bool(keys.get(packet.position))) for packet in packets]
    is_whole = packets and not any(p.breaks_off or p.position is None or p.duration <= 0 for p in packets)
    return packets if is_whole else None


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
