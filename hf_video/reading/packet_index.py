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
# What is kept of files that were read: so many packets, at about 70 bytes each, of which a file counts for some.
MOST_PACKETS, _FEWEST_PACKETS = 2**20, 2**8
# What is kept of a packet, times in units of the time base, `_NONE` for no value; its data would fill the memory.
PACKET = np.dtype(
    [(name, "i8") for name in ("time", "duration", "decode_time", "start", "size")]
    # An edit list may hide its frame.
    + [(name, "?") for name in ("is_key", "is_hidden", "breaks_off")]
)
_NONE = np.iinfo(np.int64).min


class FrameIndex(NamedTuple):
    """What a pass over a file tells of its frames. Times are in units of the time base.

    Attributes:
        size: height and width of the upright frames in pixels.
        times: (num_frames,) int64, rising.
        end: time when the last frame ends.
        places: (num_frames,) the places of their packets in the file; `None` if packets do not tell the frames.
        keys: (num_frames,) the places of the packets that decoding them starts from.
        packets: (num_packets,) of `PACKET`, in the order of the file.
        is_in_doubt: (num_packets,) whether times may be wrong.
    """

    size: tuple[int, int]
    time_base: Fraction
    times: np.ndarray
    end: int
    places: Any = None
    keys: Any = None
    packets: Any = ()
    is_in_doubt: Any = ()

    @property
    def num_packets(self) -> int:
        """What the index takes in memory; of a file with few packets, as much as of this many."""
        return max(len(self.packets), len(self.times), _FEWEST_PACKETS)


# The latest stand at the end. Threads share it, and no lock could be held at the moment of a fork: each step by itself
# leaves it whole.
_INDEXES: dict[tuple[str, int, int], FrameIndex] = {}


def find_index(source: str | BinaryIO, name: str, opened: tuple[Any, Any]) -> FrameIndex:
    """The index of an opened file; that of a path is kept as long as size and time of the file stay the same."""
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
    size, time_base = RgbConverter()(first_frame).shape[:2], stream.time_base
    rate = stream.average_rate or DEFAULT_RATE
    if not _packets_tell_frames(container, stream, packets):
        with open_stream(source, name, threaded=True) as opened:
            stamps = [frame.pts for frame in decode_in_order(*opened, name)]
        if not stamps:
            raise VideoReadError(f"{name} holds no frame that can be decoded.")
        if None in stamps or any(later <= time for time, later in pairwise(stamps)):
            # Without usable times, frames count as evenly spaced.
            stamps, time_base = list(range(len(stamps))), 1 / rate
        times = np.array(stamps, dtype=np.int64)
        return FrameIndex(size, time_base, times, stamps[-1] + _mean_duration(times, rate, time_base))
    times, starts = packets["time"], np.flatnonzero(packets["is_key"])
    by_time = np.argsort(times)
    places = by_time[~packets["is_hidden"][by_time]]
    shown, starts_by_time = times[places], starts[np.argsort(times[starts])]
    keys = starts_by_time[np.searchsorted(times[starts_by_time], shown, side="right") - 1]
    end = int(shown[-1] + packets["duration"][places[-1]])
    if end == shown[-1]:
        end += _mean_duration(shown, rate, time_base)
    reorders = stream.codec_context.reorder_depth and len(times) > 1
    is_in_doubt = _find_doubt(times, starts, by_time) if reorders else np.zeros(len(times), dtype=bool)
    return FrameIndex(size, time_base, shown, end, places, keys, packets, is_in_doubt)


def read_packets(source: str | BinaryIO, name: str, container: Any, stream: Any) -> tuple[np.ndarray, Any]:
    """All packets of a file, (num_packets,) of `PACKET`, and its first frame, the only one that is decoded."""
    packets: list[tuple[int, ...]] = []
    first_frame = None
    indexed = _index_remote(source, container, stream) if isinstance(source, RemoteFile) else None
    breaks_off = False
    try:
        for packet in demux(container, stream):
            if first_frame is None:
                first_frame = next(iter(decode_packet(stream, packet) or ()), None)
            if packet.size:
                packets.append(_values(packet))
                breaks_off = packet.is_corrupt
            if indexed is not None and first_frame is not None:
                is_same = np.array_equal(indexed[: len(packets)], np.array(packets, dtype=PACKET))
                if is_same and _packets_tell_frames(container, stream, indexed):
                    return indexed, first_frame
                indexed = None
    except av.error.InvalidDataError:
        breaks_off = True
    if breaks_off:
        raise VideoReadError(f"{name} is cut off after {len(packets)} frames; copy or download it again.")
    if first_frame is None or not packets:
        raise VideoReadError(f"{name} holds no frame that can be decoded.")
    return np.array(packets, dtype=PACKET), first_frame


def _values(packet: Any) -> tuple[int, ...]:
    """The values of a packet of PyAV, of `PACKET`."""
    time, decode_time, start = (_NONE if value is None else value for value in (packet.pts, packet.dts, packet.pos))
    flags = (packet.is_keyframe, packet.is_discard, packet.is_corrupt)
    return time, packet.duration or 0, decode_time, start, packet.size, *flags


def _packets_tell_frames(container: Any, stream: Any, packets: np.ndarray) -> bool:
    """Whether a full decode gives one frame for each packet, at the presentation time of the packet."""
    times, is_key = packets["time"], packets["is_key"]
    if container.format.name not in TIMED_CONTAINERS or not has_one_frame_per_packet(stream):
        return False
    if _NONE in times or len(np.unique(times)) < len(times):
        return False
    # Packets are in the order of decoding. A frame is shown after it is decoded, and the decoder can hold back only a
    # limited number of frames.
    stamped = packets[packets["decode_time"] != _NONE]
    if (np.diff(stamped["decode_time"]) <= 0).any() or (stamped["decode_time"] > stamped["time"]).any():
        return False
    if (np.argsort(times) > np.arange(len(times)) + stream.codec_context.reorder_depth).any():
        return False
    # Packets before a key frame are shown before it.
    starts = np.flatnonzero(is_key)[1:]
    if (np.maximum.accumulate(times)[starts - 1] > times[starts]).any():
        return False
    # Frames shown before the first key frame may or may not be decodable.
    return bool(is_key[0] and (packets["is_hidden"] | (times >= times[0])).all())


def _find_doubt(times: np.ndarray, starts: np.ndarray, by_time: np.ndarray) -> np.ndarray:
    """Which packets are in a group of pictures whose times may be wrong: they rise as decoded, or have a jump."""
    group = np.searchsorted(starts, np.arange(len(times)), side="right") - 1
    falls = np.diff(times, prepend=times[0]) < 0
    falls[starts] = False
    in_doubt = (np.bincount(group, falls) == 0) & (np.bincount(group) > 1)
    gaps = np.diff(times[by_time])
    jumps = np.flatnonzero(gaps > _JUMP * np.median(gaps))
    in_doubt[group[by_time[jumps]]] = in_doubt[group[by_time[jumps + 1]]] = True
    return in_doubt[group]


def _index_remote(file: RemoteFile, container: Any, stream: Any) -> np.ndarray | None:
    """The packets of an MP4 or MOV file as a pass over all of them gives, without fetching them, if that is certain.

    FFmpeg knows from the tables of the file (ISO/IEC 14496-12) where every packet lies, when it is decoded and shown,
    and which ones are key frames, and does not look at their data: with zeros for these, the packets tell the same.
    """
    is_mp4 = container.format.name == TIMED_CONTAINERS[0] and has_one_frame_per_packet(stream)
    hollow: Any = file.hollow()
    # Of VP9, FFmpeg changes durations. With the box "mvex", most packets are in fragments.
    if not is_mp4 or stream.codec_context.codec.canonical_name == "vp9" or hollow is None or hollow.holds(b"mvex"):
        return None
    try:
        with open_stream(hollow, file.name) as (zeros, same):
            found = [_values(packet) for packet in zeros.demux(same) if packet.size]
            keys = {entry.pos for entry in same.index_entries if entry.is_keyframe}
    except VideoReadError:
        return None
    packets = np.array(found, dtype=PACKET)
    # The parser takes those flags from zeros.
    packets["is_key"] = [start in keys for start in packets["start"].tolist()]
    is_whole = not (packets["breaks_off"] | (packets["start"] == _NONE) | (packets["duration"] <= 0)).any()
    return packets if len(packets) and is_whole else None


def _mean_duration(times: np.ndarray, rate: Fraction, time_base: Fraction) -> int:
    """The mean duration of a frame in units of the time base; for a single frame, that of the header's rate."""
    if len(times) > 1:
        return max(round(int(times[-1] - times[0]) / (len(times) - 1)), 1)
    return max(round(1 / (rate * time_base)), 1)
