"""Cuts video files at key frames without encoding them again.

A piece is a run of packets. It begins with a key frame before which, in the order of decoding and in that of showing,
no later packet comes, and it ends before another one: the closed groups of pictures of a stream. The first, the last
and a frame between them are decoded from piece and source, all frames where their order is in doubt, and the times of
all frames are compared. A video of which any piece fails is not cut. Sound and other streams are left out.
"""

import hashlib
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import av
import numpy as np

from hf_video.io import FULL_DISK, write_error_number
from hf_video.reading import VideoReadError
from hf_video.reading.pyav_streams import open_stream
from hf_video.reading.video_decoding import VideoFileReader

Segment = tuple[float | None, float | None]
_WHOLE: Segment = (None, None)
# The first frame, and the one after the last.
_Span = tuple[int, int]

# For each format that FFmpeg reads, those that it writes, by suffix; the first is for all other suffixes.
_FORMATS = {
    "mov,mp4,m4a,3gp,3g2,mj2": {"": "mp4", ".mov": "mov"},
    "matroska,webm": {"": "matroska", ".webm": "webm"},
    "mpegts": {"": "mpegts"},
    "flv": {"": "flv"},
}
# Times are compared up to this many seconds, far less than a tick of any of the formats.
_TOLERANCE = 1e-6
# Frames that are decoded at once to be compared.
_AT_A_TIME = 32


class Piece(NamedTuple):
    """A part of a video in a file of its own; `start` and `end` are seconds in the source after its first frame."""

    path: Path
    start: float
    end: float
    num_frames: int
    duration: float


class PieceOfClip(NamedTuple):
    """The piece in which a clip lies, and where: start and end in seconds; None for the beginning and end of the
    piece."""

    piece: Piece
    start: float | None
    end: float | None


class _Uncuttable(Exception):
    """The video is not cut."""


@contextmanager
def cut_video(
    file: BinaryIO, suffix: str, clips: Sequence[Segment], max_duration: float
) -> Iterator[list[list[PieceOfClip]] | None]:
    """Cuts a video into temporary files, which are there in the block.

    Args:
        file: the video.
        suffix: of its name, with the dot.
        clips: start and end of each clip in seconds; `(None, None)` for the whole video.
        max_duration: how long pieces of the whole video may be, in seconds. One is longer where key frames are
            further apart.

    Returns:
        For each clip its pieces: of the whole video those that it is made of, of a segment the smallest one in which
        reading its start to its end gives the same frames with the same times. None if the video cannot be cut.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = _cut(file, suffix, clips, max_duration, Path(folder))
        except (_Uncuttable, VideoReadError, av.FFmpegError) as error:
            if write_error_number(error) in FULL_DISK:
                raise
            found = None
        yield found


class _Packet(NamedTuple):
    """What is kept of a packet."""

    time: int
    decode_time: int | None
    is_keyframe: bool
    is_discard: bool


def _cut(
    file: BinaryIO, suffix: str, clips: Sequence[Segment], max_duration: float, folder: Path
) -> list[list[PieceOfClip]]:
    name = str(getattr(file, "name", "the video"))
    packets, format_name = _read_packets(file, name)
    cuts, hidden = _find_cuts(packets)
    with open_stream(file, name) as opened:
        source = VideoFileReader(file, name, opened)
        if not source.is_told_by_packets or len(packets) - hidden != len(source):
            raise _Uncuttable
        is_in_doubt = source.may_be_misordered
        seconds = [source.seconds(frame) for frame in range(len(source) + 1)]
        whole = _partition(cuts, seconds, max_duration)
        spans = [
            whole if clip == _WHOLE else [_cover(cuts, _frames_of(seconds, *clip), len(source))] for clip in clips
        ]
        to_the_end = {
            of_clip[0]
            for clip, of_clip in zip(clips, spans, strict=True)
            if clip != _WHOLE and _frames_of(seconds, *clip)[1] == len(source)
        }
        wanted = sorted({span for of_clip in spans for span in of_clip})
        if wanted == [(0, len(source))]:
            raise _Uncuttable
        keys = [place - hidden for place, packet in enumerate(packets) if packet.is_keyframe]
        watched = {span: range(*span) if is_in_doubt else _choose_watched(span, keys) for span in wanted}
        # Only digests are kept: pieces may be many, and frames large.
        shown = {span: _digest(source, watched[span]) for span in wanted}
    paths = {span: folder / f"{number}{suffix}" for number, span in enumerate(wanted)}
    with open_stream(file, name) as (container, stream):
        last = round((seconds[-1] - seconds[-2]) / stream.time_base)
        _write_pieces(container, stream, packets, hidden, last, paths, _FORMATS[format_name])
    pieces = {}
    for span, path in paths.items():
        times = [seconds[frame] - seconds[span[0]] for frame in range(*span)]
        with open_stream(str(path), name) as opened:
            reader = VideoFileReader(str(path), name, opened)
            if not reader.is_told_by_packets or len(reader) != len(times):
                raise _Uncuttable
            if reader.may_be_misordered and not is_in_doubt:
                raise _Uncuttable
            if any(abs(reader.seconds(frame) - time) > _TOLERANCE for frame, time in enumerate(times)):
                raise _Uncuttable
            if _digest(reader, [frame - span[0] for frame in watched[span]]) != shown[span]:
                raise _Uncuttable
            duration = reader.seconds(len(reader))
            # Some formats do not say how long the last frame is shown. Then the mean of all frames counts.
            if span in to_the_end and abs(duration - seconds[span[1]] + seconds[span[0]]) > _TOLERANCE:
                raise _Uncuttable
        pieces[span] = Piece(path, seconds[span[0]], seconds[span[1]], len(times), duration)
    return [
        [PieceOfClip(pieces[span], *_place(clip, span, seconds)) for span in of_clip]
        for of_clip, clip in zip(spans, clips, strict=True)
    ]


def _read_packets(file: BinaryIO, name: str) -> tuple[list[_Packet], str]:
    """All packets, and the format of the file."""
    packets = []
    with open_stream(file, name) as (container, stream):
        format_name = container.format.name
        if format_name not in _FORMATS:
            raise _Uncuttable
        for packet in container.demux(stream):
            if packet.size:
                # Other parameters from here on: a piece would need them at its start.
                if packet.is_corrupt or packet.has_sidedata("new_extradata") or packet.pts is None:
                    raise _Uncuttable
                packets.append(_Packet(packet.pts, packet.dts, packet.is_keyframe, packet.is_discard))
    return packets, format_name


def _find_cuts(packets: Sequence[_Packet]) -> tuple[list[int], int]:
    """The frames at which pieces can begin, and the number of packets before the first frame, which are not shown.
    The first frame must be among them."""
    times = np.array([packet.time for packet in packets])
    latest_before = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], times[:-1]]))
    is_first = (latest_before < times) & (np.minimum.accumulate(times[::-1])[::-1] == times)
    places = [
        place
        for place in np.flatnonzero(is_first).tolist()
        if packets[place].is_keyframe and not packets[place].is_discard
    ]
    hidden = sum(packet.is_discard for packet in packets)
    if not places or places[0] != hidden or any(packet.is_discard for packet in packets[hidden:]):
        raise _Uncuttable
    return [place - hidden for place in places], hidden


def _partition(cuts: Sequence[int], seconds: Sequence[float], max_duration: float) -> list[_Span]:
    """Runs of frames that make up the video, each as long as may be."""
    bounds = [*cuts, len(seconds) - 1]
    starts = [0]
    for last, bound in pairwise(bounds):
        if last > starts[-1] and seconds[bound] - seconds[starts[-1]] > max_duration + _TOLERANCE:
            starts.append(last)
    return [*pairwise([*starts, bounds[-1]])]


def _frames_of(seconds: Sequence[float], start: float | None, end: float | None) -> _Span:
    """The first frame of a segment, and the one after the last."""
    times = seconds[:-1]
    first = 0 if start is None else bisect_left(times, start)
    stop = len(times) if end is None else bisect_left(times, end)
    if first >= stop:
        raise _Uncuttable
    return first, stop


def _cover(cuts: Sequence[int], frames: _Span, num_frames: int) -> _Span:
    """The smallest run between two cuts with the frames of a segment and the one after them, at whose time it ends."""
    following = bisect_right(cuts, frames[1])
    first = cuts[bisect_right(cuts, frames[0]) - 1]
    return first, cuts[following] if following < len(cuts) else num_frames


def _place(clip: Segment, span: _Span, seconds: Sequence[float]) -> Segment:
    """Start and end of a clip in its piece: between two frames, so that rounding cannot move them to another frame."""
    if clip == _WHOLE:
        return clip

    def before(frame: int) -> float:
        return (seconds[frame - 1] + seconds[frame]) / 2 - seconds[span[0]]

    first, stop = _frames_of(seconds, *clip)
    return None if first == span[0] else before(first), None if stop == span[1] else before(stop)


def _choose_watched(span: _Span, keys: Sequence[int]) -> list[int]:
    """The frames to compare: the first and the last of the first group of pictures, and the last."""
    following = bisect_right(keys, span[0])
    group = keys[following] if following < len(keys) else span[1]
    return sorted({span[0], min(group, span[1]) - 1, span[1] - 1})


def _digest(reader: VideoFileReader, frames: Sequence[int]) -> bytes:
    digest = hashlib.sha256()
    for first in range(0, len(frames), _AT_A_TIME):
        digest.update(reader.read(np.array(frames[first : first + _AT_A_TIME])).tobytes())
    return digest.digest()


def _write_pieces(
    container: Any,
    stream: Any,
    packets: Sequence[_Packet],
    hidden: int,
    last_duration: int,
    paths: Mapping[_Span, Path],
    formats: Mapping[str, str],
) -> None:
    """Writes all pieces in one pass over the source. The frame that is shown last has the duration that reading the
    source gives it."""
    decode_times = _complete_decode_times(packets)
    end = max(packet.time for packet in packets)
    upcoming = sorted(paths, reverse=True)
    open_pieces: dict[_Span, tuple[Any, Any]] = {}
    with ExitStack() as stack:
        for place, packet in enumerate(packet for packet in container.demux(stream) if packet.size):
            frame = place - hidden
            while upcoming and upcoming[-1][0] == frame:
                span = upcoming.pop()
                format_name = formats.get(paths[span].suffix.lower(), formats[""])
                options = {"fflags": "bitexact"} | ({"movflags": "faststart"} if format_name in ("mp4", "mov") else {})
                output: Any = stack.enter_context(av.open(str(paths[span]), "w", format=format_name, options=options))
                copied = output.add_stream_from_template(stream)
                copied.time_base = stream.time_base
                open_pieces[span] = output, copied
            for span, (output, copied) in [*open_pieces.items()]:
                first = packets[span[0] + hidden].time
                copy = av.Packet(bytes(packet))
                copy.pts, copy.dts = packet.pts - first, decode_times[place] - first
                copy.duration = last_duration if packet.pts == end else packet.duration
                copy.time_base = packet.time_base
                copy.is_keyframe, copy.stream = packet.is_keyframe, copied
                output.mux(copy)
                if span[1] == frame + 1:
                    output.close()
                    del open_pieces[span]


def _complete_decode_times(packets: Sequence[_Packet]) -> list[int]:
    """The decoding times. Containers may leave out the first ones, which then come one tick after the other."""
    known = next((place for place, packet in enumerate(packets) if packet.decode_time is not None), None)
    times = [packet.decode_time for packet in packets]
    if known is not None:
        times[:known] = [times[known] - known + place for place in range(known)]  # type: ignore[operator]
    if known is None or None in times or any(later <= time for time, later in pairwise(times)):  # type: ignore[operator]
        raise _Uncuttable
    return times  # type: ignore[return-value]
