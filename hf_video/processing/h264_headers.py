"""What the headers of H.264 slices tell of the order of pictures, without decoding them (ITU-T H.264, 7.3 and 8.2.1).

Frames that no other frame depends on may be left out only where the headers add up: a damaged header changes what the
decoder makes of the frames after it, although nobody wants to see its own.
"""

from itertools import pairwise
from typing import NamedTuple

# Profiles whose parameters go on with those of colour (7.3.2.1.1).
_HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
_SLICE, _IDR_SLICE, _SEQUENCE = 1, 5, 7
# What may stand between slices and changes nothing: SEI, delimiter, filler.
_WITHOUT_EFFECT = (6, 9, 12)
# Bytes of a slice that hold everything read from it.
_HEADER_SIZE = 32


class SequenceParameters(NamedTuple):
    """What is needed of a sequence parameter set to read slices.

    Attributes:
        length_size: bytes of the length before every unit of a packet; 0 where start codes separate them.
        frame_number_bits: of `frame_num`.
        order_bits: of `pic_order_cnt_lsb`; 0 where pictures are shown in the order of decoding.
        data: the parameter set itself.
    """

    length_size: int
    frame_number_bits: int
    order_bits: int
    data: bytes


class SliceHeader(NamedTuple):
    """The header of the first slice of a picture.

    Attributes:
        is_idr: decoding starts over with the picture.
        is_reference: other pictures may depend on it.
        frame_number: `frame_num`, counts reference frames.
        order: `pic_order_cnt_lsb`, where the picture is shown.
    """

    is_idr: bool
    is_reference: bool
    frame_number: int
    order: int


class _Bits:
    def __init__(self, data: bytes):
        # Three after two zeros keeps start codes out of the data (7.4.1).
        data = data.replace(b"\0\0\3", b"\0\0")
        self._bits = f"{int.from_bytes(data):0{8 * len(data)}b}"
        self._place = 0

    def read(self, count: int) -> int:
        start = self._place
        self._place += count
        return int(self._bits[start : self._place] or "0", 2)

    def read_golomb(self) -> int:
        """Unsigned Exp-Golomb code (9.1)."""
        first_one = self._bits.index("1", self._place)
        start, self._place = first_one, 2 * first_one - self._place + 1
        return int(self._bits[start : self._place], 2) - 1


def read_sequence_parameters(extradata: bytes | None) -> SequenceParameters | None:
    """Of a stream's `extradata`; `None` for what this file does not read: fields, colour planes that are coded apart,
    scaling lists, and the second type of picture order."""
    if not extradata or len(extradata) < 8:
        return None
    if extradata[0] == 1:
        # `avcC` of MP4 and Matroska (ISO/IEC 14496-15, 5.3.3.1)
        length_size = (extradata[4] & 3) + 1
        size = int.from_bytes(extradata[6:8])
        data = bytes(extradata[8 : 8 + size]) if extradata[5] & 31 == 1 else b""
    else:
        length_size = 0
        data = next((unit for unit in _split(extradata, 0) if unit[0] & 31 == _SEQUENCE), b"")
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
    return SequenceParameters(length_size, frame_number_bits, order_bits, data)


def read_slice_header(packet: bytes | memoryview, sequence: SequenceParameters) -> SliceHeader | None:
    """Of the one picture in a packet; `None` where the packet holds anything else or its slices disagree."""
    header = None
    for unit in _split(packet, sequence.length_size):
        kind = unit[0] & 31 if len(unit) else None
        if kind in _WITHOUT_EFFECT:
            continue
        if kind == _SEQUENCE and bytes(unit).rstrip(b"\0") != sequence.data.rstrip(b"\0"):
            return None
        if kind not in (_SLICE, _IDR_SLICE):
            # A picture parameter set comes with a key frame, and is a new one at most there.
            if kind in (_SEQUENCE, _SEQUENCE + 1) and header is None:
                continue
            return None
        found = _read_unit(unit, sequence)
        if found is None:
            return None
        first_block, found_header = found
        if (first_block == 0) != (header is None) or (header is not None and found_header != header):
            return None
        header = found_header
    return header


def _read_unit(unit: bytes | memoryview, sequence: SequenceParameters) -> tuple[int, SliceHeader] | None:
    """First macroblock and header of a slice."""
    if unit[0] & 128:
        return None
    is_idr, is_reference = unit[0] & 31 == _IDR_SLICE, bool(unit[0] & 96)
    try:
        bits = _Bits(bytes(unit[1:_HEADER_SIZE]))
        first_block = bits.read_golomb()
        bits.read_golomb()
        bits.read_golomb()
        frame_number = bits.read(sequence.frame_number_bits)
        if is_idr:
            bits.read_golomb()
        order = bits.read(sequence.order_bits) if sequence.order_bits else 0
    except ValueError:
        return None
    return first_block, SliceHeader(is_idr, is_reference, frame_number, order)


def find_gaps(headers: list[SliceHeader | None], starts: list[bool], sequence: SequenceParameters) -> list[int]:
    """Which of the pictures that follow each other in a file come after a lost reference frame (8.2.5.2). The count
    may begin anew where decoding `starts`, and where a header is not known."""
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
    """Whether pictures that follow each other in a file are shown in the order of `times`, one for each."""
    orders: list[tuple[int, int]] = []
    epoch = last_reference = 0
    for header in headers:
        if header.is_idr:
            epoch, last_reference = epoch + 1, 0
        # The full count is the nearest one to that of the reference frame before (8.2.1.1).
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
    """The units of a packet; an empty one last where its lengths do not fit."""
    units: list[bytes | memoryview] = []
    if length_size:
        place = 0
        while place < len(packet):
            start = place + length_size
            place = start + int.from_bytes(packet[place:start])
            units.append(packet[start:place] if start < place <= len(packet) else b"")
        return units
    return [unit for unit in bytes(packet).split(b"\0\0\1")[1:] if unit]
