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

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from .frame_orientation import find_orientation, to_rgb
from .h264_headers import SliceHeader, are_shown_in_order, find_gaps, read_sequence_parameters, read_slice_header

try:
    import av
except ImportError:
    av = None  # type: ignore[assignment]


# Containers that store presentation times, and codecs whose packets hold exactly one shown frame each. Only then the
# packets show the frames: AVI guesses times, MPEG-4 and VP8 have packets without a shown frame.
_TIMED_CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "mpegts", "flv")
_ONE_FRAME_PER_PACKET = ("h264", "hevc", "vp9", "av1")
# The formats that FFmpeg takes any text for, and those of lists of other files.
_TEXT_FORMATS = ("tty", "hls", "concat")
# To decode this many frames costs less than to seek past them.
_FRAMES_WORTH_A_SEEK = 8
# With more frames than this per seek, threads of the decoder gain more than they cost.
_FRAMES_WORTH_THREADS = 100
# Frames that a decoder may hold back before its first output: H.264 and HEVC allow 16, each thread holds one more.
_MOST_HELD_BACK = 64
# A gap between times of more than this many frames may come from wrong times.
_JUMP = 10
# Frames per second of a file that states none, as in FFmpeg.
_DEFAULT_RATE = Fraction(25)


class VideoReadError(OSError):
    """A video that cannot be read: missing, empty, damaged, or not a video. The message names the file and the cause.

    An `OSError`, like other errors of opening a file, because the file is the cause and not the call.
    """


class _Packet(NamedTuple):
    """The values of a packet that are kept; its data would fill the memory."""

    time: int
    duration: int
    decode_time: int | None
    is_keyframe: bool
    is_discard: bool
    is_corrupt: bool


class VideoFileReader:
    """
    The frames of a video file, by number in the order of presentation. Nothing stays open between calls.

    Args:
        source (`str` or binary file object):
            Path of the file, or the open file.
        name (`str`):
            Name of the file in messages.

    Attributes:
        height (`int`): height of the upright frames in pixels.
        width (`int`): width of the upright frames in pixels.
        is_mirrored (`bool`): whether the stored frames are mirrored, so that turning does not make them upright.

    Raises:
        `VideoReadError`: if the file is no video or holds no frame that can be decoded.
    """

    backend = "pyav"

    def __init__(self, source: str | BinaryIO, name: str):
        self.source = source
        self.name = name
        with open_stream(source, name) as (container, stream):
            packets, first_frame = self._read_packets(container, stream)
            self.height, self.width = first_frame.height, first_frame.width
            swapped, left_to_right, top_to_bottom = find_orientation(first_frame)
            if swapped:
                self.height, self.width = self.width, self.height
            self.is_mirrored = (swapped + left_to_right + top_to_bottom) % 2 == 1
            self._time_base = stream.time_base
            self._rate = stream.average_rate or _DEFAULT_RATE
            self._reorder_depth = stream.codec_context.reorder_depth
            # H.264 marks the frames that no other frame depends on. They are decoded only if they are wanted.
            skips = stream.codec_context.codec.canonical_name == "h264"
            self._sequence = read_sequence_parameters(stream.codec_context.extradata) if skips else None
            seekable = _packets_tell_frames(container, stream, packets)
        if not seekable:
            self._index_by_decoding()
            return
        self._index_packets(packets)

    def __len__(self) -> int:
        return len(self._times)

    @property
    def may_be_misordered(self) -> bool:
        """Whether the times of packets may have another order than the decoded frames."""
        return bool(self._decode_order) and bool(self._in_doubt.any())

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

    def _read_packets(self, container: Any, stream: Any) -> tuple[list[_Packet], Any]:
        """All packets and the first frame."""
        packets: list[_Packet] = []
        first_frame = None
        try:
            for packet in container.demux(stream):
                if first_frame is None:
                    first_frame = next(iter(_decode(stream, packet) or ()), None)
                if packet.size:
                    flags = (packet.is_keyframe, packet.is_discard, packet.is_corrupt)
                    packets.append(_Packet(packet.pts, packet.duration or 0, packet.dts, *flags))
            breaks_off = bool(packets) and packets[-1].is_corrupt
        except av.error.InvalidDataError:
            breaks_off = True
        if breaks_off:
            raise VideoReadError(f"{self.name} is cut off after {len(packets)} frames; copy or download it again.")
        if first_frame is None or not packets:
            raise VideoReadError(f"{self.name} holds no frame that can be decoded.")
        return packets, first_frame

    def _index_packets(self, packets: list[_Packet]) -> None:
        times = np.array([packet.time for packet in packets], dtype=np.int64)
        is_discarded = np.array([packet.is_discard for packet in packets])
        starts = np.flatnonzero([packet.is_keyframe for packet in packets])
        by_time = np.argsort(times)
        order = by_time[~is_discarded[by_time]]
        self._times = times[order]
        self._end_time = int(self._times[-1]) + (packets[order[-1]].duration or self._mean_duration())
        # Decoding can start from these, rising.
        self._key_times = np.sort(times[starts])
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
        with open_stream(self.source, self.name, threaded=True) as (container, stream):
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
        return int(self._key_times[np.searchsorted(self._key_times, self._times[frame], side="right") - 1])

    def _key_place(self, frame: int) -> int:
        return self._decode_order[self._key_time(frame)]

    def _decode_by_counting(self, numbers: list[int]) -> dict[int, np.ndarray]:
        chosen, last = set(numbers), numbers[-1]
        if self._decode_order:
            # To compare the number of frames with that of packets, the whole file is decoded.
            last = len(self)
        frames: dict[int, np.ndarray] = {}
        count = 0
        with open_stream(self.source, self.name, threaded=True) as (container, stream):
            for frame in islice(decode_in_order(container, stream, self.name), last + 1):
                if count in chosen:
                    frames[count] = to_rgb(frame)
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
            if runs and self._key_place(i) - self._place(runs[-1][-1]) <= _FRAMES_WORTH_A_SEEK:
                runs[-1].append(i)
            else:
                runs.append([i])
        length = sum(self._place(run[-1]) - self._key_place(run[0]) for run in runs)
        frames: dict[int, np.ndarray] = {}
        with open_stream(self.source, self.name, length > _FRAMES_WORTH_THREADS * len(runs)) as (container, stream):
            for run in runs:
                for skips in (True, False) if self._sequence else (False,):
                    key_time = self._key_time(run[0])
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
            with open_stream(self.source, self.name) as (container, stream):
                found, is_damaged = self._decode_run(container, stream, None, missing, False)
            if not found and not is_damaged and self._in_doubt.any():
                return self._decode_by_counting(numbers)
            frames |= found
        return frames

    def _decode_run(
        self, container: Any, stream: Any, key_time: int | None, run: list[int], skips: bool
    ) -> tuple[dict[int, np.ndarray], bool]:
        """Decode the frames of `run`, from the packet that is shown at `key_time`, or without one from the position of
        the container. With `skips`, H.264 frames that are not needed are left out.

        Returns the undamaged frames by number, and whether there is damage."""
        wanted = {int(self._times[i]): i for i in run}
        first_place = 0 if key_time is None else self._decode_order[key_time]
        last_place = max(self._place(i) for i in run)
        in_doubt = self._in_doubt[first_place : last_place + 1].any()
        skips = skips and not in_doubt
        needed = {*wanted, key_time}
        headers: list[SliceHeader | None] = []
        starts: list[bool] = []
        times: list[int] = []
        given: list[int] = []
        shown: list[int] = []
        frames: dict[int, np.ndarray] = {}
        damaged: list[int] = []
        started = key_time is None
        entered = key_time is None

        def decode(packet: Any, place: int) -> None:
            nonlocal entered
            decoded = _decode(stream, packet)
            if decoded is None:
                damaged.append(place)
            for frame in decoded or ():
                entered = entered or frame.pts == key_time
                if entered:
                    shown.append(frame.pts)
                if frame.is_corrupt:
                    damaged.append(self._decode_order.get(frame.pts, place))
                elif frame.pts in wanted:
                    frames[wanted[frame.pts]] = to_rgb(frame)

        for packet in container.demux(stream):
            place = self._decode_order.get(packet.pts, -1)
            started = started or packet.pts == key_time
            if started and place >= 0:
                times.append(packet.pts)
                if self._sequence:
                    headers.append(read_slice_header(memoryview(packet), self._sequence))
                    starts.append(packet.is_keyframe)
                is_given = True
                if skips:
                    header = headers[-1]
                    if header is None:
                        return {}, False
                    is_given = header.is_reference or packet.pts in needed
                if is_given:
                    given.append(packet.pts)
                    decode(packet, place)
            # If times are in doubt, the decoder must return the wanted frames by itself, before it is drained.
            last_try = last_place + _MOST_HELD_BACK
            if place >= last_place and (not in_doubt or len(frames) == len(run) or place >= last_try):
                break
        # Draining also returns the frames that the wanted ones depend on, and so shows their damage.
        decode(None, last_place)

        if not entered:
            # The decoder did not return the key frame, as in a gradual refresh: decoding cannot start there.
            is_key = self._key_times != key_time
            is_key[0] = True
            self._key_times = self._key_times[is_key]
            return {}, bool(damaged)
        if damaged and stream.thread_type & av.codec.context.ThreadType.FRAME:
            # Threads report damage late, when its place is not known any more.
            return {}, True
        if self._sequence:
            # The decoder invents the frames of a gap without an error.
            damaged += [self._decode_order[times[i]] for i in find_gaps(headers, starts, self._sequence)]
            if skips:
                known = [header for header in headers if header is not None]
                if not are_shown_in_order(known, times, self._sequence):
                    return {}, bool(damaged)
        expected = sorted(t for t in given if t not in self._discarded and (key_time is None or t >= key_time))
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
    limit = largest_frame()
    codec_options = {} if limit is None else {"max_pixels": str(limit)}
    try:
        container = av.open(
            f"file:{source}" if isinstance(source, str) else source,
            # A playlist with the name of a video must not make FFmpeg fetch files from the network.
            options={"protocol_whitelist": "file"} | codec_options,
            metadata_errors="replace",
        )
    except (av.FFmpegError, OSError) as error:
        raise VideoReadError(f"{name} cannot be opened as a video: {error.strerror}.") from error
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
        stream.codec_context.options = codec_options
        for other in container.streams:
            if other is not stream:
                other.discard = av.stream.Discard.all
        # Without threads for short runs: filling and draining them after every seek costs more than they gain.
        stream.thread_type = "AUTO" if threaded else "NONE"
        stream.thread_count = 0 if threaded else 1
        try:
            yield container, stream
        except av.error.ArgumentError as error:
            if limit is None:
                raise VideoReadError(f"{name} cannot be read: {error.strerror}.") from error
            raise VideoReadError(
                f"{name} cannot be read: {error.strerror}. If frames are large: {tell_largest_frame()}"
            ) from error
        except av.FFmpegError as error:
            raise VideoReadError(f"{name} cannot be read: {error.strerror}.") from error


def _packets_tell_frames(container: Any, stream: Any, packets: list[_Packet]) -> bool:
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
        decoded = _decode(stream, packet)
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


def _decode(stream: Any, packet: Any) -> list[Any] | None:
    """The frames that the decoder returns for a packet, or `None` for damaged data. The packet `None` drains it."""
    try:
        return stream.decode(packet)
    except av.error.InvalidDataError:
        return None
