"""The packets of an MP4 or MOV file far away from its `moov` box alone, without fetching the packets.

FFmpeg knows from the tables in this box (ISO/IEC 14496-12) when every packet is decoded and shown, where it lies and
which ones are key frames. It reads the data of packets, but does not look at them: so the packets of a file whose
other bytes are zeros tell the same. A pass over all packets of a file behind an address would fetch the whole of it,
whatever cache is used.
"""

from typing import Any, NamedTuple

from .pyav_streams import open_stream
from .ranges import RangeFile
from .sources import VideoReadError

# FFmpeg's name for the formats of this family.
_FORMAT = "mov,mp4,m4a,3gp,3g2,mj2"
# Codecs whose packets FFmpeg leaves as the tables describe them; of VP9 it changes durations.
_PLAIN_CODECS = ("h264", "hevc", "av1")
# In most files a `moov` at the end is not larger than this. It is fetched at once.
_TAIL = 2**20
# The first frame lies behind a `moov` at the start.
_BEHIND = 64 * 2**10


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


def index_packets(file: RangeFile, container: Any, stream: Any) -> list[Packet] | None:
    """
    The packets of a stream in the order of the file, as a pass over all of them gives, from what has been fetched.

    Args:
        file (`RangeFile`):
            The file. Its `moov` box has been fetched by [`fetch_moov`].
        container (`av.container.InputContainer`), stream (`av.video.stream.VideoStream`):
            What PyAV has opened it as.

    Returns:
        `list[Packet]`, *optional*: None if the tables do not tell them for certain.
    """
    codec = stream.codec_context.codec
    if container.format.name != _FORMAT or not (codec.intra_only or codec.canonical_name in _PLAIN_CODECS):
        return None
    moov = fetch_moov(file)
    # With this box, most packets are in fragments.
    if moov is None or b"mvex" in moov:
        return None
    try:
        hollow_file: Any = _Hollow(file)
        with open_stream(hollow_file, file.label) as (hollow, same):
            packets = [Packet.of(packet) for packet in hollow.demux(same) if packet.size]
            # Those flags the parser takes from zeros.
            keys = {entry.pos: entry.is_keyframe for entry in same.index_entries}
    except VideoReadError:
        return None
    packets = [packet._replace(is_keyframe=bool(keys.get(packet.position))) for packet in packets]
    is_whole = packets and not any(p.is_corrupt or p.position is None or p.duration <= 0 for p in packets)
    return packets if is_whole else None


class _Hollow(RangeFile):
    """A file with zeros in place of all bytes that have not been fetched ahead."""

    def __init__(self, file: RangeFile):
        super().__init__(file.label, file.size)
        self._blocks = file._blocks

    def fetch_range(self, start: int, end: int) -> bytes:
        return bytes(end - start)


def fetch_moov(file: RangeFile) -> bytes | None:
    """
    The content of the `moov` box, which stays at hand with the packets behind it; None if there is none, or if the
    boxes before it are damaged.

    Raises:
        `VideoReadError`: if it cannot be fetched.
    """
    place = 0
    while place < file.size:
        if not file.is_at_hand(place, place + 16):
            file.prefetch([(place, place + _TAIL)])
        head = file.read_span(place, place + 16)
        size, kind, content = int.from_bytes(head[:4]), head[4:8], 8
        if size == 1:
            size, content = int.from_bytes(head[8:16]), 16
        elif size == 0:
            # To the end.
            size = file.size - place
        if not content <= size <= file.size - place:
            return None
        if kind == b"moov":
            return file.read_span(place, place + size + _BEHIND)[content:size]
        place += size
    return None
