"""Frames one after another, from everything that gives them: files, addresses, folders, iterables, live streams.

A live stream is never downloaded, and cannot be read again. What it holds before the first key frame, and frames that
the network damaged, are left out: the frame before them is shown on. It ends when the sender closes it. A sender that
is silent for `HF_HUB_DOWNLOAD_TIMEOUT` seconds raises `VideoReadError`. So the timestamps of two frames never lie
further apart than that: where they do, or fall back, as when a camera starts anew, time goes on as `StreamClock` says.

FFmpeg may use only the protocols of the address, and only formats that hold a stream: a playlist, such as HLS, could
name any other address, and is refused.
"""

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import constants

from .downloading import open_response, read_max_size, receive_video
from .frame_streaming import StreamClock, StreamedFrame, check_rate, stream_frames, time_frames
from .pyav_streams import choose_stream, pixel_limit
from .sources import LIVE_PROTOCOLS, VideoReadError, describe, is_camera, is_http, kind_of, public_url, scheme_of
from .video_reading import FrameFolder

try:
    import av
except ImportError:
    av = None  # type: ignore[assignment]

_OPTIONS = {
    # Firewalls let TCP pass, and it loses nothing.
    "rtsp": {"rtsp_flags": "prefer_tcp"},
    "rtsps": {"rtsp_flags": "prefer_tcp"},
    # Who reads slower than the sender sends loses frames, not the stream.
    "udp": {"overrun_nonfatal": "1"},
}
_FORMATS = "mpegts,mpegtsraw,flv,live_flv,matroska,webm,mpeg,h264,hevc,mjpeg,mpjpeg,mpeg,nut,ogg,ivf,rtsp,rtp"
# The format in which FFmpeg reads a camera.
CAMERA_FORMAT = "v4l2"
# Types of http bodies that hold a stream, if the server does not say where they end.
_STREAM_TYPES = ("video/mp2t", "video/x-flv", "video/mpeg", "video/h264", "video/x-motion-jpeg", "video/webm")
_PICTURES = "multipart/x-mixed-replace"
_PLAYLIST_TYPES = ("application/vnd.apple.mpegurl", "application/x-mpegurl", "audio/mpegurl", "application/dash+xml")


def open_frames(source: Any, source_fps: float | None = None) -> Iterator[StreamedFrame]:
    """
    The frames of a source in their order, each decoded once.

    Args:
        source:
            Path of a video file, bytes of one, open binary file, `http(s)` URL (a file is downloaded within the limits
            of [`download_video`], a stream is not), URL of another protocol of fsspec, a live stream or camera as for
            [`stream_live`], path of a folder of JPEG / PNG frames, or an iterable of frames: (height, width, 3) uint8
            RGB arrays, which are not changed afterwards, or `StreamedFrame`s whose times rise.
        source_fps (`float`, *optional*):
            Rate in frames per second at which the pictures of a folder, or the arrays of an iterable, were taken. They
            have no times of their own, and must have it. Other sources have times of their own, and must not.

    Raises:
        `VideoReadError`: if the source cannot be read; for a damaged file as soon as the damage is reached.
        `ValueError`: if `source_fps` is missing, not positive, or given for a source with times; for a frame of an
            iterable that is no (height, width, 3) uint8 array.
        `TypeError`: if `source` is none of the above.
    """
    check_rate("source_fps", source_fps)
    kind = kind_of(source)
    if kind == "folder":
        rate = _required(source_fps, f"{source} is a folder of frames, which")
        return _stream_folder(FrameFolder(Path(source)), rate)
    if kind == "frames":
        return _stream_iterable(source, source_fps)
    if source_fps is not None:
        raise ValueError(
            f"source_fps={source_fps} is the rate of a folder or iterable of frames; {describe(source)} has times of "
            "its own. fps=... sets how many frames are taken in a second."
        )
    if kind == "stream":
        return stream_live(source)
    if is_http(source):
        return _stream_url(source)
    return stream_frames(io.BytesIO(source) if kind == "bytes" else source, name=describe(source))


def _required(source_fps: float | None, subject: str) -> float:
    if source_fps is None:
        raise ValueError(f"{subject} has no times: give source_fps=..., the rate at which its frames were taken.")
    return source_fps


def _stream_url(url: str) -> Iterator[StreamedFrame]:
    name, max_size = public_url(url), read_max_size()
    with open_response(url) as response:
        if is_stream_response(response, name):
            yield from stream_response(response, name)
            return
        video = receive_video(response, name, max_size)
    yield from stream_frames(video, name=name)


def _stream_folder(folder: Any, source_fps: float) -> Iterator[StreamedFrame]:
    for number in range(len(folder)):
        image = folder.read(np.array([number]))[0]
        yield StreamedFrame(number, number / source_fps, image, 1 / source_fps)


def _stream_iterable(frames: Iterable[Any], source_fps: float | None) -> Iterator[StreamedFrame]:
    for number, frame in enumerate(frames):
        if isinstance(frame, StreamedFrame):
            yield frame
            continue
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
            kind = f"{frame.dtype} {frame.shape}" if hasattr(frame, "shape") else type(frame).__name__
            raise ValueError(f"Frame {number} of the iterable is {kind}; expected a (height, width, 3) uint8 array.")
        rate = _required(source_fps, "An iterable of arrays")
        yield StreamedFrame(number, number / rate, frame, 1 / rate)


def stream_live(source: str | os.PathLike) -> Iterator[StreamedFrame]:
    """
    The frames of a live stream, as they come.

    Args:
        source (`str` or `os.PathLike`):
            An `rtsp(s)`, `rtmp(s)`, `udp` or `tcp` URL (`tcp://HOST:PORT?listen=1` waits for a sender), or the path of
            a camera.

    Raises:
        `VideoReadError`: if nobody sends, the stream is of an unknown format or holds no video, or it breaks off.
    """
    name = public_url(os.fspath(source))
    if is_camera(source):
        if not os.path.exists(source):
            raise VideoReadError(f"There is no camera {name}.")
        return _decode(os.fspath(source), name, {}, CAMERA_FORMAT)
    scheme = scheme_of(os.fspath(source))
    options = {"protocol_whitelist": LIVE_PROTOCOLS[scheme], "format_whitelist": _FORMATS}
    return _decode(os.fspath(source), name, options | _OPTIONS.get(scheme, {}))


def is_stream_response(response: Any, name: str) -> bool:
    """
    Whether the body of an http response is a live stream: pictures that replace each other, or a stream of which the
    server does not say where it ends.

    Raises:
        `VideoReadError`: for a playlist.
    """
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in _PLAYLIST_TYPES:
        raise VideoReadError(
            f"{name} is a playlist, which may name any other address, and is not read. Give the address of the stream "
            "itself, or let another program read it: ffmpeg -i URL -c copy -f mpegts tcp://127.0.0.1:PORT"
        )
    return kind == _PICTURES or (kind in _STREAM_TYPES and "Content-Length" not in response.headers)


def stream_response(response: Any, name: str) -> Iterator[StreamedFrame]:
    """The frames of an http body as they come, for which `is_stream_response` holds."""
    # Pictures come without times: those at which they arrive are taken.
    is_pictures = response.headers.get("Content-Type", "").lower().startswith(_PICTURES)
    options = {"format_whitelist": _FORMATS} | ({"use_wallclock_as_timestamps": "1"} if is_pictures else {})
    return _decode(_Body(response), name, options, "mpjpeg" if is_pictures else None)


class _Body:
    """The body of an http response as a file that can only be read on."""

    def __init__(self, response: Any):
        self._pieces = response.iter_bytes()
        self._rest = b""

    def read(self, size: int) -> bytes:
        if not self._rest:
            self._rest = next(self._pieces, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


def _decode(
    source: Any, name: str, options: dict[str, str], container_format: str | None = None
) -> Iterator[StreamedFrame]:
    silence = constants.HF_HUB_DOWNLOAD_TIMEOUT
    # FFmpeg's errors hold the address, which may hold a password: they are not kept as the cause.
    try:
        container = av.open(
            source,
            format=container_format,
            options=options | pixel_limit(),
            metadata_errors="replace",
            timeout=float(silence),
        )
    except av.error.ExitError:
        raise VideoReadError(_silent(name, silence)) from None
    except (av.FFmpegError, OSError) as error:
        if isinstance(error, VideoReadError):
            raise
        raise VideoReadError(f"{name} cannot be opened as a stream: {error.strerror or error}.") from None
    with choose_stream(container, name, "SLICE") as stream:
        clock = StreamClock(stream.average_rate, longest_gap=silence)
        try:
            yield from time_frames(_decode_packets(container, stream), clock)
        except av.error.ExitError:
            raise VideoReadError(_silent(name, silence)) from None
        except av.FFmpegError as error:
            raise VideoReadError(f"{name} broke off: {error.strerror}.") from None


def _decode_packets(container: Any, stream: Any) -> Iterator[Any]:
    for packet in container.demux(stream):
        try:
            decoded = stream.decode(packet)
        except av.error.InvalidDataError:
            continue
        for frame in decoded:
            if not frame.is_corrupt:
                yield frame


def _silent(name: str, seconds: float) -> str:
    return (
        f"{name} sent nothing for {seconds} s. Check that the sender runs, or wait longer with "
        "HF_HUB_DOWNLOAD_TIMEOUT=SECONDS."
    )
