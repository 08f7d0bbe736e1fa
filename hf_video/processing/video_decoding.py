"""Finding and decoding single frames of a video file with PyAV, without decoding the whole file.

A pass over the packets, which decodes nothing but the first frame, tells the presentation time of every frame and
where decoding can start. Each wanted frame is then decoded from the key frame before it. Frames are found by their
presentation time, never by counting what the decoder puts out after a seek, so a seek that misses is noticed, and
answered by decoding from the start.

What happens to broken files: one that breaks off raises `VideoReadError`, as far as its container lets that be seen
(a Matroska or MPEG-TS file may end anywhere); a frame that depends on data that the decoder finds damaged raises it,
too, and the others stay readable. Files whose packets do not tell the frames are refused for any damage. No frame is
ever replaced by another one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any, BinaryIO, NamedTuple

import numpy as np

try:
    import av
except ImportError:
    av = None  # type: ignore[assignment]


# Containers that store presentation times, and codecs whose packets hold exactly one shown frame each. Only for these
# the packets tell the frames: AVI guesses times, MPEG-4 and VP8 have packets that show nothing.
_TIMED_CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "mpegts", "flv")
_ONE_FRAME_PER_PACKET = ("h264", "hevc", "vp9", "av1")
# What FFmpeg takes any text for, and lists of other files.
_TEXT_FORMATS = ("tty", "hls", "concat")
# Decoding on over this many frames costs less than seeking past them.
_FRAMES_WORTH_A_SEEK = 8
# From this many frames per seek on, decoder threads gain more than they cost.
_FRAMES_WORTH_THREADS = 100
# Frames per second where a file states none, as in FFmpeg.
_DEFAULT_RATE = Fraction(25)


class VideoReadError(OSError):
    """A video that cannot be read: missing, empty, damaged, or not a video. The message names the file and the cause.

    An `OSError`, like the errors of opening any other file, because the cause lies with the file and not the call.
    """


class _Packet(NamedTuple):
    """What is kept of a packet; its data would fill the memory."""

    time: int
    duration: int
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
            What to call the file in messages.

    Attributes:
        height (`int`): of the upright frames, in pixels.
        width (`int`): of the upright frames, in pixels.

    Raises:
        `VideoReadError`: when the file is no video or holds no frame that can be decoded.
    """

    backend = "pyav"

    def __init__(self, source: str | BinaryIO, name: str):
        self.source = source
        self.name = name
        with open_stream(source, name) as (container, stream):
            packets, first_frame = self._read_packets(container, stream)
            self.height, self.width = first_frame.height, first_frame.width
            if round(first_frame.rotation / 90) % 2:
                self.height, self.width = self.width, self.height
            self._time_base = stream.time_base
            self._rate = stream.average_rate or _DEFAULT_RATE
            seekable = _packets_tell_frames(container, stream, packets)
        if not seekable:
            self._index_by_decoding()
            return
        self._index_packets(packets)

    def __len__(self) -> int:
        return len(self._times)

    def seconds(self, frame: int) -> float:
        """When the frame is shown, in seconds after the first one; for `len(self)`, when the last one ends."""
        time = self._end_time if frame == len(self) else self._times[frame]
        return float((int(time) - int(self._times[0])) * self._time_base)

    def read(self, wanted: np.ndarray) -> np.ndarray:
        """
        Decode some frames.

        Args:
            wanted (`np.ndarray`):
                (num_wanted,) integers, numbers of the frames, rising.

        Returns:
            `np.ndarray`: (num_wanted, height, width, 3) uint8 RGB, upright.

        Raises:
            `VideoReadError`: when a wanted frame depends on damaged data.
        """
        numbers = wanted.tolist()
        frames = self._decode_by_seeking(numbers) if self._decode_order else self._decode_by_counting(numbers)
        stacked = np.empty((len(numbers), self.height, self.width, 3), dtype=np.uint8)
        for row, i in enumerate(numbers):
            # Frames are let go one by one, so that a whole video is not in memory twice.
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
                    packets.append(_Packet(packet.pts, packet.duration or 0, *flags))
            breaks_off = bool(packets) and packets[-1].is_corrupt
        except av.error.InvalidDataError:
            breaks_off = True
        if breaks_off:
            raise VideoReadError(f"{self.name} is cut off after {len(packets)} frames; copy or download it again.")
        if first_frame is None or not packets:
            raise VideoReadError(f"{self.name} holds no frame that can be decoded.")
        return packets, first_frame

    def _index_packets(self, packets: list[_Packet]) -> None:
        shown = sorted(packet for packet in packets if not packet.is_discard)
        self._times = np.array([packet.time for packet in shown], dtype=np.int64)
        self._end_time = int(self._times[-1]) + (shown[-1].duration or self._mean_duration())
        # Decoding can start from these, rising.
        self._key_times = np.sort([packet.time for packet in packets if packet.is_keyframe])
        self._decode_order = {packet.time: place for place, packet in enumerate(packets)}

    def _index_by_decoding(self) -> None:
        with open_stream(self.source, self.name, threaded=True) as (container, stream):
            times = [frame.pts for frame in decode_in_order(container, stream, self.name)]
        if not times:
            raise VideoReadError(f"{self.name} holds no frame that can be decoded.")
        if None in times or any(later <= time for time, later in pairwise(times)):
            # Without usable times, the frames are taken to be evenly spaced.
            times, self._time_base = list(range(len(times))), 1 / self._rate
        self._times = np.array(times, dtype=np.int64)
        self._end_time = times[-1] + self._mean_duration()
        self._decode_order = {}

    def _mean_duration(self) -> int:
        """Of a frame, in units of the time base; the rate that the header claims decides for a single frame."""
        if len(self) > 1:
            return max(round(int(self._times[-1] - self._times[0]) / (len(self) - 1)), 1)
        return max(round(1 / (self._rate * self._time_base)), 1)

    def _place(self, frame: int) -> int:
        """Where the packet of the frame stands in the file."""
        return self._decode_order[int(self._times[frame])]

    def _key_time(self, frame: int) -> int:
        """Presentation time of the last key frame that is not shown after the frame."""
        return int(self._key_times[np.searchsorted(self._key_times, self._times[frame], side="right") - 1])

    def _key_place(self, frame: int) -> int:
        return self._decode_order[self._key_time(frame)]

    def _decode_by_counting(self, numbers: list[int]) -> dict[int, np.ndarray]:
        chosen = set(numbers)
        with open_stream(self.source, self.name, threaded=True) as (container, stream):
            in_order = enumerate(islice(decode_in_order(container, stream, self.name), numbers[-1] + 1))
            return {i: to_rgb(frame) for i, frame in in_order if i in chosen}

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
                key_time = self._key_time(run[0])
                try:
                    container.seek(key_time, stream=stream)
                except av.FFmpegError:
                    break
                frames |= self._decode_run(container, stream, key_time, run)
        missing = [i for i in numbers if i not in frames]
        if missing:
            # Damage, a seek that missed, or a key frame that decoding cannot start from: starting over settles it.
            with open_stream(self.source, self.name) as (container, stream):
                frames |= self._decode_run(container, stream, None, missing)
        return frames

    def _decode_run(self, container: Any, stream: Any, key_time: int | None, run: list[int]) -> dict[int, np.ndarray]:
        """Those frames of `run` that can be decoded undamaged from the packet shown at `key_time` on, or from where
        the container stands."""
        wanted = {int(self._times[i]): i for i in run}
        last_place = max(self._place(i) for i in run)
        # H.264 marks the frames that no other frame depends on; they are decoded only where they are needed.
        skips = stream.codec_context.codec.canonical_name == "h264"
        needed = {*wanted, key_time}
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
                if frame.is_corrupt:
                    damaged.append(self._decode_order.get(frame.pts, place))
                elif frame.pts in wanted:
                    frames[wanted[frame.pts]] = to_rgb(frame)

        for packet in container.demux(stream):
            place = self._decode_order.get(packet.pts, -1)
            started = started or packet.pts == key_time
            if started and place >= 0:
                if skips:
                    stream.codec_context.skip_frame = "DEFAULT" if packet.pts in needed else "NONREF"
                decode(packet, place)
            if place >= last_place:
                break
        # Draining also brings out the frames that the wanted ones depend on, and with them their damage.
        decode(None, last_place)

        if not entered:
            # The decoder held back the key frame itself, as in a gradual refresh: that is no place to start from.
            is_key = self._key_times != key_time
            is_key[0] = True
            self._key_times = self._key_times[is_key]
            return {}
        if damaged and stream.thread_type & av.codec.context.ThreadType.FRAME:
            # Threads report damage late, when its place is no longer known.
            return {}

        def is_sound(i: int) -> bool:
            return not any(self._key_place(i) <= place <= self._place(i) for place in damaged)

        return {i: frame for i, frame in frames.items() if is_sound(i)}


@contextmanager
def open_stream(source: str | BinaryIO, name: str, threaded: bool = False) -> Iterator[tuple[Any, Any]]:
    """The container and its first video stream, the only one that is read."""
    if not isinstance(source, str):
        source.seek(0)
    try:
        container = av.open(
            f"file:{source}" if isinstance(source, str) else source,
            # A playlist that poses as a video must not make FFmpeg fetch what it lists from the network.
            options={"protocol_whitelist": "file"},
            metadata_errors="replace",
        )
    except (av.FFmpegError, OSError) as error:
        raise VideoReadError(f"{name} cannot be opened as a video: {error.strerror}.") from error
    with container:
        if container.format.name in _TEXT_FORMATS:
            raise VideoReadError(f"{name} cannot be opened as a video: it is a text or a playlist.")
        # Cover art of a sound file is a video stream too.
        videos = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
        if not videos:
            kinds = sorted({str(s.type) for s in container.streams}) or ["nothing"]
            raise VideoReadError(f"{name} holds no video stream, only {', '.join(kinds)}.")
        stream = videos[0]
        if stream.codec_context is None:
            raise VideoReadError(f"{name}: this build of FFmpeg has no decoder for its video.")
        for other in container.streams:
            if other is not stream:
                other.discard = av.stream.Discard.all
        # Without threads for short runs: filling and draining them after every seek costs more than they gain.
        stream.thread_type = "AUTO" if threaded else "NONE"
        stream.thread_count = 0 if threaded else 1
        try:
            yield container, stream
        except av.FFmpegError as error:
            raise VideoReadError(f"{name} cannot be read: {error.strerror}.") from error


def _packets_tell_frames(container: Any, stream: Any, packets: list[_Packet]) -> bool:
    """Whether a full decode gives the frames of the packets, each at the presentation time of its packet."""
    codec = stream.codec_context.codec
    if container.format.name not in _TIMED_CONTAINERS:
        return False
    if not codec.intra_only and codec.canonical_name not in _ONE_FRAME_PER_PACKET:
        return False
    times = [packet.time for packet in packets]
    if None in times or len(set(times)) < len(times):
        return False
    # Frames shown before the first key frame may or may not be decodable.
    return packets[0].is_keyframe and all(packet.time >= times[0] or packet.is_discard for packet in packets)


def decode_in_order(container: Any, stream: Any, name: str) -> Iterator[Any]:
    """Every frame from the start to the end; raises `VideoReadError` at the first damage, or where the file ends too
    early."""
    breaks_off = False
    for count, packet in enumerate(container.demux(stream)):
        breaks_off = packet.is_corrupt if packet.size else breaks_off
        decoded = _decode(stream, packet)
        if decoded is None or any(frame.is_corrupt for frame in decoded):
            raise VideoReadError(f"{name} is damaged in or before packet {count}; copy or download it again.")
        yield from decoded
    if breaks_off:
        raise VideoReadError(f"{name} is cut off; copy or download it again.")


def _decode(stream: Any, packet: Any) -> list[Any] | None:
    """Frames that come out of the decoder for a packet (`None` drains it), or `None` for damaged data."""
    try:
        return stream.decode(packet)
    except av.error.InvalidDataError:
        return None


def to_rgb(frame: Any) -> np.ndarray:
    """(height, width, 3) uint8, turned upright."""
    # On small frames, starting the threads that are the default takes longer than the work.
    rgb = frame.reformat(format="rgb24", threads=1).to_ndarray()
    return np.rot90(rgb, k=round(frame.rotation / 90))
