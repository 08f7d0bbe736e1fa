"""The packets of an MP4 or MOV file from the tables in its `moov` box, without reading the packets.

ISO/IEC 14496-12 describes the boxes. FFmpeg gives the decode time, place, size and key flag of every packet that it
will read (`index_entries`), with edit lists applied. What it does not give is read here: the offsets from decode times
to presentation times (8.6.1.3) and the durations (8.6.1.2). Where anything in these tables and in FFmpeg's index does
not fit together, nothing is certain, and only the packets themselves tell.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .range_file import RangeFile

# FFmpeg's name for the formats of this family.
_FORMAT = "mov,mp4,m4a,3gp,3g2,mj2"
# Codecs whose packets FFmpeg leaves as the tables describe them; of VP9 it changes durations.
_PLAIN_CODECS = ("h264", "hevc", "av1")
# Most boxes that are looked at to find `moov`, and its largest size in bytes. Three hours need about 10 MiB.
_MOST_BOXES = 100
_LARGEST_MOOV = 2**28
# A `moov` at the end of the file is no larger in most files, and fetched at once.
_TAIL = 2**20
# The first frame lies behind a `moov` at the start.
_BEHIND = 64 * 2**10
# FFmpeg leaves out tables with larger offsets.
_LARGEST_OFFSET = 2**28


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


class _Samples(NamedTuple):
    """Durations, offsets from decode to presentation time, and sizes in bytes: (num_samples,) int64 each."""

    durations: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray


def index_packets(file: RangeFile, container: Any, stream: Any) -> list[Packet] | None:
    """
    The packets of a stream in the order of the file, from its tables.

    Args:
        file (`RangeFile`):
            The file. Its `moov` box has been fetched by [`fetch_moov`].
        container (`av.container.InputContainer`):
            The container that PyAV has opened it as; no packet has been read.
        stream (`av.video.stream.VideoStream`):
            The stream.

    Returns:
        `list[Packet]`, *optional*: what a pass over all packets gives, up to a constant that is added to all
            presentation times ([`continue_packets`] finds it). None if the tables do not tell it for certain.
    """
    codec = stream.codec_context.codec
    if container.format.name != _FORMAT or not (codec.intra_only or codec.canonical_name in _PLAIN_CODECS):
        return None
    entries = list(stream.index_entries)
    try:
        moov = fetch_moov(file)
        samples = None if moov is None else _read_samples(moov, stream.id, len(entries))
    except ValueError:
        return None
    if samples is None or not entries:
        return None
    decode_times = np.array([entry.timestamp for entry in entries])
    sizes, places = np.array([entry.size for entry in entries]), np.array([entry.pos for entry in entries])
    if (samples.sizes != sizes).any() or (np.diff(decode_times) != samples.durations[:-1]).any():
        return None
    # FFmpeg guesses what has no duration. The end of a file that was cut off is missing.
    if min(samples.durations.min(), sizes.min()) <= 0 or places.min() < 0 or (places + sizes).max() > file.size:
        return None
    times = (decode_times + samples.offsets).tolist()
    return [
        Packet(time, duration, e.timestamp, e.is_keyframe, e.is_discard, False, e.pos, e.size)
        for time, duration, e in zip(times, samples.durations.tolist(), entries, strict=True)
    ]


def continue_packets(start: list[Packet], indexed: list[Packet]) -> list[Packet] | None:
    """All packets of a file, from the first ones that were read, and all of [`index_packets`]; None if they do not fit
    together."""
    if not start or start[0].time is None:
        return None
    # FFmpeg shifts presentation times if offsets are negative.
    shift = start[0].time - indexed[0].time
    packets = [packet._replace(time=packet.time + shift) for packet in indexed] if shift else indexed
    return packets if packets[: len(start)] == start else None


def fetch_moov(file: RangeFile) -> bytes | None:
    """
    The content of the `moov` box, which stays at hand with the packets behind it; None if there is none, or if the
    boxes before it are damaged.

    Raises:
        `VideoReadError`: if it cannot be fetched.
    """
    place = 0
    for _ in range(_MOST_BOXES):
        if not file.is_at_hand(place, place + 16):
            file.prefetch([(place, place + _TAIL)])
        try:
            size, kind, content = _read_header(memoryview(file.read_span(place, place + 16)), file.size - place)
        except ValueError:
            return None
        if kind == b"moov":
            if size > _LARGEST_MOOV:
                return None
            return file.read_span(place, place + size + _BEHIND)[content:size]
        place += size
    return None


def _read_header(data: memoryview, room: int) -> tuple[int, bytes, int]:
    """The size of a box in bytes, its kind, and where its content begins. Raises `ValueError` if it has no room."""
    size, kind, content = int.from_bytes(data[:4]), bytes(data[4:8]), 8
    if size == 1:
        size, content = int.from_bytes(data[8:16]), 16
    elif size == 0:
        # To the end.
        size = room
    if not content <= size <= room:
        raise ValueError(f"The box {kind!r} of {size} bytes has {room} bytes of room.")
    return size, kind, content


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """The kind and the content of each box in the content of another one."""
    while len(data) >= 8:
        size, kind, content = _read_header(data, len(data))
        yield kind, data[content:size]
        data = data[size:]


def _only(data: memoryview, *path: bytes) -> memoryview:
    """The content of the box that a path of kinds leads to. Raises `ValueError` if there is none, or more than one."""
    for kind in path:
        found = [content for other, content in _boxes(data) if other == kind]
        if len(found) != 1:
            raise ValueError(f"{len(found)} boxes {kind!r}.")
        data = found[0]
    return data


def _read_samples(moov: bytes, track: int, num_samples: int) -> _Samples | None:
    """The tables of a track that has `num_samples`; None if it has another number, or if more than one description."""
    kinds = [kind for kind, _ in _boxes(memoryview(moov))]
    if b"mvex" in kinds:
        # Most samples are in fragments.
        return None
    for kind, content in _boxes(memoryview(moov)):
        if kind == b"trak" and _track_number(_only(content, b"tkhd")) == track:
            table = _only(content, b"mdia", b"minf", b"stbl")
            break
    else:
        return None
    if _count(_only(table, b"stsd")) != 1:
        return None
    durations = _read_runs(_only(table, b"stts"), num_samples)
    offsets = np.zeros(num_samples, dtype=np.int64)
    if any(kind == b"ctts" for kind, _ in _boxes(table)):
        offsets = _read_runs(_only(table, b"ctts"), num_samples)
    if (np.abs(offsets) >= _LARGEST_OFFSET).any():
        return None
    return _Samples(durations, offsets, _read_sizes(_only(table, b"stsz"), num_samples))


def _track_number(header: memoryview) -> int:
    # The times before it have 64 bits in version 1.
    place = 20 if header[:1] == b"\1" else 12
    return int.from_bytes(header[place : place + 4])


def _count(table: memoryview, place: int = 4) -> int:
    """The number of entries, which follows version and flags."""
    if len(table) < place + 4:
        raise ValueError("The table has no number of entries.")
    return int.from_bytes(table[place : place + 4])


def _read_runs(table: memoryview, num_samples: int) -> np.ndarray:
    """(num_samples,) int64: the values of a table of runs (number of samples, value). FFmpeg reads all of them as
    signed, whatever the version of the table."""
    num_runs = _count(table)
    if num_runs > num_samples or len(table) < 8 + 8 * num_runs:
        raise ValueError(f"{num_runs} runs.")
    runs = np.frombuffer(table, dtype=[("count", ">u4"), ("value", ">i4")], count=num_runs, offset=8)
    if int(runs["count"].sum(dtype=np.uint64)) != num_samples:
        raise ValueError("The runs are not those of all samples.")
    return np.repeat(runs["value"].astype(np.int64), runs["count"].astype(np.int64))


def _read_sizes(table: memoryview, num_samples: int) -> np.ndarray:
    """(num_samples,) int64: the sizes of samples, of which all may have one."""
    if _count(table, 8) != num_samples:
        raise ValueError("The sizes are not those of all samples.")
    size = _count(table, 4)
    if size:
        return np.full(num_samples, size, dtype=np.int64)
    if len(table) < 12 + 4 * num_samples:
        raise ValueError("Sizes are missing.")
    return np.frombuffer(table, dtype=">u4", count=num_samples, offset=12).astype(np.int64)
