"""The frames of a file by number: each is decoded from the key frame before it, and found by its time.

Where anything is in doubt (the packets do not tell the frames, a seek misses, the decoder returns other frames than it
was given, or damaged ones), frames are decoded from the start and counted. A frame that depends on damage raises
`VideoReadError`; the other frames stay readable, if packets tell the frames. No frame is ever replaced by another one.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import dropwhile, islice
from typing import Any, BinaryIO

import av
import numpy as np

from .decoding import RgbConverter, decode_in_order, decode_packet, demux, open_stream
from .packet_index import find_index
from .remote import RemoteFile
from .sources import VideoReadError

# Codecs that mark the frames that no other frame depends on: the decoder leaves out those that are not wanted.
SKIPPING_CODECS = ("h264",)
# With more frames than this per seek, threads of the decoder gain more than they cost.
_FRAMES_WORTH_THREADS = 100
# Frames that a decoder may hold back before its first output: H.264 and HEVC allow 16, each thread holds one more.
MOST_HELD_BACK = 64


class _DoubtError(Exception):
    """A run of frames shows damage, or other frames than its packets tell."""


class VideoFile:
    """The frames of a video file, by number in the order of presentation. `source` is its path, or the open file, and
    `opened` what `open_stream` gives for it, without threads, open as long as frames are read."""

    backend = "pyav"

    def __init__(self, source: str | BinaryIO, name: str, opened: tuple[Any, Any]):
        self.source, self.name = source, name
        self._opened: tuple[Any, Any] | None = opened
        self._to_rgb = RgbConverter()
        self._index = index = find_index(source, name, opened)
        self.height, self.width = index.size
        ticks = np.append(index.times, index.end) - index.times[0]
        seconds = ticks * index.time_base.numerator / index.time_base.denominator
        self.times, self.end = seconds[:-1], float(seconds[-1])
        is_key = [] if index.places is None else index.places == index.keys
        self.key_frames = np.unique(np.append(np.flatnonzero(is_key), 0))

    def resize(self, size: tuple[int, int]) -> None:
        self._to_rgb.size = self.height, self.width = size

    def read(self, numbers: list[int]) -> Iterator[np.ndarray]:
        """The frames of rising `numbers`. Raises `VideoReadError` if one depends on damaged data."""
        frames = {} if self._index.places is None else self._decode_by_seeking(numbers)
        missing = [i for i in numbers if i not in frames]
        if missing:
            frames |= self._decode_by_counting(missing)
        # Each frame is freed once it is copied, so that a whole video is not in memory twice.
        yield from (frames.pop(i) for i in numbers)

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
                if index.places is not None:
                    agrees = agrees and frame.pts == index.times[min(count, len(index.times) - 1)]
                if count in chosen:
                    frames[count] = self._to_rgb(frame)
                count += 1
                # A frame that damage took away may be shown after frames that depend on it.
                if agrees and count > numbers[-1] + MOST_HELD_BACK:
                    break
        if not agrees and count != len(index.times) or len(frames) < len(chosen):
            raise VideoReadError(f"{self.name} is damaged: it gives {count} frames in place of {len(index.times)}.")
        return frames

    def _decode_by_seeking(self, numbers: list[int]) -> dict[int, np.ndarray]:
        """The frames that can be found so; the others are in doubt."""
        keys, places = self._index.keys, self._index.places
        runs: list[list[int]] = []
        for i in numbers:
            # To seek costs less than to decode a single frame that is not needed.
            if runs and keys[i] <= places[runs[-1][-1]] + 1:
                runs[-1].append(i)
            else:
                runs.append([i])
        frames: dict[int, np.ndarray] = {}
        threaded = sum(places[run[-1]] - keys[run[0]] for run in runs) > _FRAMES_WORTH_THREADS * len(runs)
        opened = self._open_anew(threaded) if threaded or self._opened is None else nullcontext(self._opened)
        with opened as (container, stream):
            for run in runs:
                try:
                    frames |= self._decode_run(container, stream, run)
                except (_DoubtError, av.FFmpegError):
                    continue
                finally:
                    stream.codec_context.skip_frame = "DEFAULT"
        return frames

    def _decode_run(self, container: Any, stream: Any, run: list[int]) -> dict[int, np.ndarray]:
        """The frames of `run`, decoded from the key frame before the first. Raises `_DoubtError` for surprises."""
        index, first, last = self._index, int(self._index.keys[run[0]]), int(self._index.places[run].max())
        packets, wanted = index.packets, {int(index.times[i]): i for i in run}
        key_time, in_doubt = int(packets["time"][first]), index.is_in_doubt[first : last + 1].any()
        # The decoder leaves out frames that no other frame depends on.
        skips = stream.codec_context.codec.canonical_name in SKIPPING_CODECS and not in_doubt
        # If times are in doubt, the decoder must return the wanted frames by itself, before it is drained.
        most = last + 1 - first + (MOST_HELD_BACK if in_doubt else 0)
        frames: dict[int, np.ndarray] = {}
        expected: list[int] = []
        shown: list[int] = []

        def feed() -> Iterator[Any]:
            if isinstance(self.source, RemoteFile):
                stop = packets["start"][last] + packets["size"][last]
                self.source.ahead = max(int(stop - packets["start"][first]), 0)
            container.seek(key_time, stream=stream)
            from_key = dropwhile(
                lambda packet: packet.pts != key_time, (p for p in demux(container, stream) if p.size)
            )
            for place, packet in enumerate(islice(from_key, most), start=first):
                if packet.pts != packets["time"][place]:
                    raise _DoubtError
                if not packets["is_hidden"][place] and packet.pts >= key_time:
                    expected.append(packet.pts)
                stream.codec_context.skip_frame = "NONREF" if skips and packet.pts not in wanted else "DEFAULT"
                yield packet
                if place >= last and len(frames) == len(run):
                    break
            # Draining also returns the frames that the wanted ones depend on, and so shows their damage.
            yield None

        for packet in feed():
            decoded = decode_packet(stream, packet)
            if decoded is None:
                raise _DoubtError
            for frame in decoded:
                # Before the key frame come those that are shown before it.
                if not shown and frame.pts != key_time:
                    continue
                if frame.is_corrupt:
                    raise _DoubtError
                shown.append(frame.pts)
                if frame.pts in wanted:
                    frames[wanted[frame.pts]] = self._to_rgb(frame)
        if skips:
            given = wanted.keys() | set(shown)
            expected = [time for time in expected if time in given]
        if shown != sorted(expected):
            raise _DoubtError
        return frames
