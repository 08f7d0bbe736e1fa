"""The order of pictures from the headers of H.264 slices, without decoding (ITU-T H.264, 7.3 and 8.2.1).

Frames that no other frame depends on may be left out only if the headers are consistent: a damaged header changes how
the frames after it are decoded, even if its own frame is not wanted.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

# Profiles whose parameter sets also have parameters of colour (7.3.2.1.1).
_HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
_SLICE, _IDR_SLICE, _SEQUENCE, _PICTURE = 1, 5, 7, 8
# Units between slices that change nothing: SEI, delimiter, filler.
_WITHOUT_EFFECT = (6, 9, 12)
# Bytes at the start of a slice that hold everything that is read from it.
_HEADER_SIZE = 20


class SequenceParameters(NamedTuple):
    """The values of a sequence parameter set that are needed to read slices.

    Attributes:
        length_size: bytes of the length before every unit of a packet; 0 if start codes separate the units.
        frame_number_bits: number of bits of `frame_num`.
        order_bits: number of bits of `pic_order_cnt_lsb`; 0 if pictures are shown in the order of decoding.
        data: the parameter set itself.
    """

    length_size: int
    frame_number_bits: int
    order_bits: int
    data: bytes


class SliceHeader(NamedTuple):
    """The header of the first slice of a picture.

    Attributes:
        is_idr: whether decoding can start with the picture, and no later picture depends on earlier ones.
        is_reference: whether other pictures may depend on the picture.
        frame_number: `frame_num`, a count of reference frames.
        order: `pic_order_cnt_lsb`, the place of the picture in the order of presentation.
    """

    is_idr: bool
    is_reference: bool
    frame_number: int
    order: int


class _Bits:
    def __init__(self, data: bytes):
        self._bits = _to_text(data)
        self._place = 0

    def read(self, count: int) -> int:
        start = self._place
        self._place += count
        return int(self._bits[start : self._place], 2)

    def read_golomb(self) -> int:
        """Unsigned Exp-Golomb code (9.1)."""
        start = self._place
        self._place = 2 * self._bits.index("1", start) - start + 1
        return int(self._bits[start : self._place], 2) - 1


def read_sequence_parameters(extradata: bytes | None) -> SequenceParameters | None:
    """The parameters in a stream's `extradata`. `None` for streams that this file does not read: those with fields,
    separately coded colour planes, scaling lists, or the second type of picture order."""
    if not extradata or len(extradata) < 8:
        return None
    if extradata[0] == 1:
        # `avcC` of MP4 and Matroska (ISO/IEC 14496-15, 5.3.3.1)
        length_size = (extradata[4] & 3) + 1
        size = int.from_bytes(extradata[6:8])
        data = bytes(extradata[8 : 8 + size]) if extradata[5] & 31 == 1 else b""
    else:
        length_size = 0
        data = next((bytes(unit) for unit in _split(extradata, 0) if unit[0] & 31 == _SEQUENCE), b"")
    try:
        bits = _Bits(data[1:])
        profile = bits.read(8)
        bits.read(16)
        bits.read_golomb()
        if profile in _HIGH_PROFILES:
            colour_format = bits.read_golomb()
            separate_planes = colour_format == 3 and bits.read(1)
            bits.read_golomb()
            bits.read_golomb()
            bits.read(1)
            if separate_planes or bits.read(1):
                return None
        frame_number_bits = bits.read_golomb() + 4
        order_type = bits.read_golomb()
        order_bits = bits.read_golomb() + 4 if order_type == 0 else 0
        bits.read_golomb()
        gaps_allowed = bits.read(1)
        bits.read_golomb()
        bits.read_golomb()
        only_frames = bits.read(1)
    except ValueError:
        return None
    if order_type == 1 or gaps_allowed or not only_frames:
        return None
    return SequenceParameters(length_size, frame_number_bits, order_bits, data.rstrip(b"\0"))


def read_slice_header(packet: bytes | memoryview, sequence: SequenceParameters) -> SliceHeader | None:
    """The header of the picture in a packet; `None` if there is not exactly one picture, or its slices disagree."""
    header = None
    for unit in _split(packet, sequence.length_size):
        first = unit[0] if unit else 255
        kind = first & 31
        if kind == _SLICE or kind == _IDR_SLICE:
            found = _read_slice(unit, first, sequence, is_first=header is None)
            if found is None or (header is not None and found != header):
                return None
            header = found
        elif kind not in _WITHOUT_EFFECT:
            # Parameter sets come before a picture. That of the sequence must be the one that slices are read with.
            if header is not None or kind not in (_SEQUENCE, _PICTURE):
                return None
            if kind == _SEQUENCE and bytes(unit).rstrip(b"\0") != sequence.data:
                return None
    return header


def _read_slice(
    unit: bytes | memoryview, first: int, sequence: SequenceParameters, is_first: bool
) -> SliceHeader | None:
    # Without `_Bits`, which takes twice as long: this runs for every frame that is decoded.
    bits = _to_text(bytes(unit[1:_HEADER_SIZE]))
    is_idr = first & 31 == _IDR_SLICE
    try:
        # Codes have as many zeros before their first one as bits after it. Those of the first macroblock, the kind of
        # slice and the number of the picture parameters come before the frame number.
        place = 2 * bits.index("1") + 1
        if (place == 1) != is_first:
            return None
        place = 2 * bits.index("1", place) - place + 1
        start = 2 * bits.index("1", place) - place + 1
        place = start + sequence.frame_number_bits
        frame_number = int(bits[start:place], 2)
        if is_idr:
            place = 2 * bits.index("1", place) - place + 1
        order = int(bits[place : place + sequence.order_bits] or "0", 2)
    except ValueError:
        return None
    return SliceHeader(is_idr, first & 96 != 0, frame_number, order)


def _to_text(data: bytes) -> str:
    """The bits of data as a text of zeros and ones."""
    # Three after two zeros keeps start codes out of the data (7.4.1).
    return bin(int.from_bytes(b"\1" + data.replace(b"\0\0\3", b"\0\0")))[3:]


def leave_out_groups(
    packets: Iterable[Any], is_near: Callable[[Any], bool], sequence: SequenceParameters | None
) -> Iterator[tuple[Any, SliceHeader | None]]:
    """Packets and their headers. Packets that are not near are left out where the next one that is near begins with an
    IDR picture: only that makes a decoder forget what came before. Without `sequence` there are no headers."""
    held: list[Any] = []
    for packet in packets:
        if not is_near(packet):
            held.append(packet)
            continue
        header = read_slice_header(memoryview(packet), sequence) if sequence else None
        if held and not (header and header.is_idr):
            yield from ((left, read_slice_header(memoryview(left), sequence) if sequence else None) for left in held)
        held.clear()
        yield packet, header


def find_gaps(headers: list[SliceHeader | None], starts: list[bool], sequence: SequenceParameters) -> list[int]:
    """The places of pictures before which a reference frame is lost (8.2.5.2). The pictures follow each other in a
    file. The count of reference frames may begin again where decoding `starts`, and after an unknown header."""
    gaps, expected = [], None
    for place, (header, is_start) in enumerate(zip(headers, starts, strict=True)):
        if header is None:
            expected = None
            continue
        if header.is_idr:
            expected = 0
        elif is_start:
            expected = None
        if expected not in (None, header.frame_number):
            gaps.append(place)
        expected = (header.frame_number + header.is_reference) % (1 << sequence.frame_number_bits)
    return gaps


def are_shown_in_order(headers: list[SliceHeader], times: list[int], sequence: SequenceParameters) -> bool:
    """Whether pictures that follow each other in a file are shown in the order of their `times`."""
    orders: list[tuple[int, int]] = []
    epoch = last_reference = 0
    for header in headers:
        if header.is_idr:
            epoch, last_reference = epoch + 1, 0
        # The header has the low bits. The full order is the nearest to that of the last reference frame (8.2.1.1).
        order = (
            _nearest(header.order, last_reference, 1 << sequence.order_bits) if sequence.order_bits else len(orders)
        )
        last_reference = order if header.is_reference else last_reference
        orders.append((epoch, order))
    shown = [order for _, order in sorted(zip(times, orders, strict=True))]
    return all(earlier < later for earlier, later in pairwise(shown))


def _nearest(low: int, to: int, period: int) -> int:
    half = period // 2
    return to + (low - to + half) % period - half


def _split(packet: bytes | memoryview, length_size: int) -> list[bytes | memoryview]:
    """The units of a packet; the last one is empty if the lengths do not fit."""
    if not length_size:
        return [unit for unit in bytes(packet).split(b"\0\0\1")[1:] if unit]
    units: list[bytes | memoryview] = []
    place, size = 0, len(packet)
    while place < size:
        start = place + length_size
        place = start + int.from_bytes(packet[place:start])
        units.append(packet[start:place] if start < place <= size else b"")
    return units
