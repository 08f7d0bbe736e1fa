"""Frames one after another, from everything that gives them: files, addresses, folders, iterables, live streams.

A live stream is never downloaded, and cannot be read again. What it holds before the first key frame, and frames that
the network damaged, are left out: the frame before them is shown on. It ends when the sender closes it. A sender that
is silent for `HF_HUB_DOWNLOAD_TIMEOUT` seconds raises `VideoReadError`. So the timestamps of two frames never lie
further apart than that: where they do, or fall back, as when a camera starts anew, time goes on as `StreamClock` says.

FFmpeg may use only the protocols of the address, and only formats that hold a stream: a playlist, such as HLS, could
name any other address, and is refused.
"""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, BinaryIO

import av
import numpy as np
from huggingface_hub import constants

from .decoding import RgbConverter, choose_stream, decode_in_order, decode_packet, demux, open_stream, pixel_limit
from .packet_index import DEFAULT_RATE
from .remote import open_address, open_response
from .sources import LIVE_PROTOCOLS, Source, VideoReadError
from .video import VideoReader, find_file

_OPTIONS = {
    # Firewalls let TCP pass, and it loses nothing.
    "rtsp": {"rtsp_flags": "prefer_tcp"},
    "rtsps": {"rtsp_flags": "prefer_tcp"},
    # A reader that is slower than the sender loses frames, not the stream.
    "udp": {"overrun_nonfatal": "1"},
}
_FORMATS = "mpegts,mpegtsraw,flv,live_flv,matroska,webm,mpeg,h264,hevc,mjpeg,mpjpeg,mpeg,nut,ogg,ivf,rtsp,rtp"
# The format in which FFmpeg reads a camera.
CAMERA_FORMAT = "v4l2"
# Types of http bodies that hold a stream, if the server does not say where they end.
_STREAM_TYPES = ("video/mp2t", "video/x-flv", "video/mpeg", "video/h264", "video/x-motion-jpeg", "video/webm")
# Headers of a body that is a file.
_OF_FILES = ("Content-Length", "Content-Disposition", "Accept-Ranges", "ETag", "Last-Modified")
_PICTURES = "multipart/x-mixed-replace"
_PLAYLIST_TYPES = ("application/vnd.apple.mpegurl", "application/x-mpegurl", "audio/mpegurl", "application/dash+xml")


@dataclass(slots=True, eq=False)
class StreamedFrame:
    """
    A frame of a video: its number, from 0; its time in seconds after the first one; the seconds for which it is shown,
    as far as the video says it; and how often the timestamps began anew before it, see [`StreamClock`]. The picture is
    (height, width, 3) uint8 RGB, upright, or a frame of PyAV, which takes less memory while it waits, and is converted
    by `to_rgb` whenever its image is asked for.
    """

    number: int
    seconds: float
    picture: Any
    duration: float | None = None
    to_rgb: RgbConverter | None = None
    num_restarts: int = 0

    @property
    def image(self) -> np.ndarray:
        """(height, width, 3) uint8 RGB, upright."""
        return self.to_rgb(self.picture) if self.to_rgb else self.picture


class StreamClock:
    """
    Seconds after the first frame, by the timestamps of a stream, always rising.

    A frame without a timestamp comes one mean distance after the frame before. A single frame whose timestamp falls
    back, or jumps by more than `longest_gap` seconds, has come late or damaged: it is put half a mean distance after
    the frame before. A second one in succession means that the sender has started anew, which `num_restarts` counts:
    it comes one mean distance after the frame before, and the timestamps that follow count from there.
    """

    def __init__(self, rate: Fraction | None, longest_gap: float = math.inf):
        self.num_restarts = 0
        self._longest_gap = longest_gap
        self._seconds: float | None = None
        # The timestamp at zero seconds.
        self._origin: float | None = None
        self._is_in_doubt = False
        self._interval = float(1 / (rate or DEFAULT_RATE))
        self._num_steps, self._sum_of_steps = 0, 0.0

    def read(self, timestamp: float | None) -> float:
        """The seconds of the next frame, whose timestamp in seconds is given."""
        if self._seconds is None:
            self._seconds, self._origin = 0.0, timestamp
            return self._seconds
        mean = self._sum_of_steps / self._num_steps if self._num_steps else self._interval
        if timestamp is None:
            self._seconds += mean
            return self._seconds
        since = math.nan if self._origin is None else timestamp - self._origin
        if 0 < since - self._seconds <= self._longest_gap:
            self._sum_of_steps += since - self._seconds
            self._num_steps += 1
            self._seconds = since
            self._is_in_doubt = False
        elif self._origin is not None and not self._is_in_doubt:
            self._seconds += mean / 2
            self._is_in_doubt = True
        else:
            self._seconds += mean
            # The first timestamp of a stream may come late.
            self.num_restarts += self._origin is not None
            self._origin = timestamp - self._seconds
            self._is_in_doubt = False
        return self._seconds


def stream_frames(source: Any, fps: float | None = None, source_fps: float | None = None) -> Iterator[StreamedFrame]:
    """
    The frames of a source in their order, each decoded once. Memory does not grow with the length of the source.

    Args:
        source:
            What [`VideoReader`] takes, `rtsp(s)`, `rtmp(s)`, `udp` or `tcp` URL of a live stream
            (`tcp://HOST:PORT?listen=1` waits for a sender), path of a camera such as `/dev/video0`, or an iterable of
            frames: (height, width, 3) uint8 RGB arrays, which are not changed afterwards, or `StreamedFrame`s whose
            times rise.
        fps (`float`, *optional*):
            Frames to take per second: the first frame at or after each multiple of 1 / `fps` seconds. By default all
            frames.
        source_fps (`float`, *optional*):
            Rate in frames per second at which the pictures of a folder, or the arrays of an iterable, were taken. They
            have no times of their own, and must have it. Other sources have times of their own, and must not.

    Raises:
        `VideoReadError`: if the source cannot be read; for a damaged file as soon as the damage is reached.
        `ValueError`: for a rate that is not positive; if `source_fps` is missing, or given for a source with times;
            for a frame of an iterable that is not a (height, width, 3) uint8 array.
        `TypeError`: if `source` is none of the above.
    """
    check_rate("fps", fps)
    check_rate("source_fps", source_fps)
    frames = _open_frames(Source.of(source), source_fps)
    return frames if fps is None else _take_at_rate(frames, fps)


def comes_live(source: Any) -> bool:
    """Whether frames come as time passes: from a camera, the address of a live stream, or an http response that is a
    stream of unknown length. Asks a server of http, and raises as `stream_frames`."""
    source = Source.of(source)
    if not source.is_http:
        return source.kind == "stream"
    with open_response(source.place, source.name) as response:
        return _is_stream(response, source.name)


def check_rate(name: str, rate: float | None) -> None:
    """Raises `ValueError` for a rate that is neither `None` nor positive and finite."""
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"{name}={rate} must be positive and finite.")


def _take_at_rate(frames: Iterable[StreamedFrame], fps: float) -> Iterator[StreamedFrame]:
    taken = 0
    for frame in frames:
        # Times are rounded to the time base of the file.
        if frame.seconds * fps >= taken - 1e-3:
            taken = max(int(frame.seconds * fps + 1e-3), taken) + 1
            yield frame


def _open_frames(source: Source, source_fps: float | None) -> Iterator[StreamedFrame]:
    name = source.name
    if source.kind == "frames":
        return _time_arrays(source.place, source_fps)
    if source.kind == "folder":
        if source_fps is None:
            raise _tell_no_rate(f"{name} is a folder of frames, which")
        folder = VideoReader(source.place)
        return _time_arrays(map(folder.read, range(len(folder))), source_fps)
    if source_fps is not None:
        raise ValueError(
            f"source_fps={source_fps} is the rate of a folder or iterable of frames; {name} has times of its own."
        )
    if source.kind == "stream" and source.scheme:
        options = {"protocol_whitelist": LIVE_PROTOCOLS[source.scheme], "format_whitelist": _FORMATS}
        return _stream_live(source.place, name, options | _OPTIONS.get(source.scheme, {}))
    if source.kind == "stream":
        if not os.path.exists(source.place):
            raise VideoReadError(f"There is no camera {name}.")
        return _stream_live(source.place, name, {}, CAMERA_FORMAT)
    if source.kind == "decoder":
        raise TypeError(f"{name} is read by number of frame; to stream a video, give its path.")
    file = find_file(source)
    return _stream_address(source) if file is None else _stream_file(file, name)


def _tell_no_rate(subject: str) -> ValueError:
    return ValueError(f"{subject} has no times: give source_fps=..., the rate at which its frames were taken.")


def _time_arrays(frames: Iterable[Any], source_fps: float | None) -> Iterator[StreamedFrame]:
    for number, frame in enumerate(frames):
        if isinstance(frame, StreamedFrame):
            yield frame
            continue
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
            kind = f"{frame.dtype} {frame.shape}" if hasattr(frame, "shape") else type(frame).__name__
            raise ValueError(f"Frame {number} of the iterable is {kind}; expected a (height, width, 3) uint8 array.")
        if source_fps is None:
            raise _tell_no_rate("An iterable of arrays")
        yield StreamedFrame(number, number / source_fps, frame, 1 / source_fps)


def _stream_address(source: Source) -> Iterator[StreamedFrame]:
    if source.is_http:
        with open_response(source.place, source.name) as response:
            if _is_stream(response, source.name):
                # Pictures come without times: those at which they arrive are taken.
                is_pictures = _content_type(response) == _PICTURES
                options = {"use_wallclock_as_timestamps": "1"} if is_pictures else {}
                options["format_whitelist"] = _FORMATS
                yield from _stream_live(_Body(response), source.name, options, "mpjpeg" if is_pictures else None)
                return
    with open_address(source) as file:
        yield from _stream_file(file, source.name)


def _stream_file(source: str | BinaryIO, name: str) -> Iterator[StreamedFrame]:
    with open_stream(source, name, threaded=True) as (container, stream):
        yield from _time_decoded(decode_in_order(container, stream, name), StreamClock(stream.average_rate))


def _stream_live(
    source: Any, name: str, options: dict[str, str], container_format: str | None = None
) -> Iterator[StreamedFrame]:
    """The frames of a live stream or a camera, as they come, without damaged ones."""
    silence, is_open = constants.HF_HUB_DOWNLOAD_TIMEOUT, False
    options = options | pixel_limit()
    # FFmpeg's errors hold the address, which may hold a password: they are not kept as the cause.
    try:
        with av.open(
            source, format=container_format, options=options, metadata_errors="replace", timeout=float(silence)
        ) as container:
            stream = choose_stream(container, name, "SLICE")
            is_open = True
            decoded = (
                frame
                for packet in demux(container, stream)
                for frame in decode_packet(stream, packet) or ()
                if not frame.is_corrupt
            )
            yield from _time_decoded(decoded, StreamClock(stream.average_rate, longest_gap=silence))
    except VideoReadError:
        raise
    except av.error.ExitError:
        raise VideoReadError(f"{name} sent nothing for {silence} s (HF_HUB_DOWNLOAD_TIMEOUT).") from None
    except (av.FFmpegError, OSError) as error:
        what = "broke off" if is_open else "cannot be opened as a stream"
        raise VideoReadError(f"{name} {what}: {error.strerror or error}.") from None


def _time_decoded(decoded: Iterable[Any], clock: StreamClock) -> Iterator[StreamedFrame]:
    """Decoded frames of PyAV with their numbers and times."""
    to_rgb = RgbConverter()
    for number, frame in enumerate(decoded):
        duration = float(frame.duration * frame.time_base) if frame.duration and frame.time_base else None
        seconds = clock.read(frame.time)
        yield StreamedFrame(number, seconds, frame, duration, to_rgb, clock.num_restarts)


def _content_type(response: Any) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _is_stream(response: Any, name: str) -> bool:
    """Whether the body of an http response is a live stream: pictures that replace each other, or a stream of which
    the server says neither where it ends nor what only a file has, such as its version."""
    kind = _content_type(response)
    if kind in _PLAYLIST_TYPES:
        raise VideoReadError(f"{name} is a playlist, which is not read. Give the address of the stream itself.")
    return kind == _PICTURES or (kind in _STREAM_TYPES and not any(name in response.headers for name in _OF_FILES))


class _Body:
    """The body of an http response as a file that can only be read on."""

    def __init__(self, response: Any):
        self._pieces = response.iter_bytes()
        self._rest = b""

    def read(self, size: int) -> bytes:
        self._rest = self._rest or next(self._pieces, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece
