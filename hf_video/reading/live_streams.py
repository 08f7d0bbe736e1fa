"""Frames of streams that come as time passes: network cameras and senders, and cameras of this machine.

A live stream is never downloaded, and cannot be read again. What it holds before the first key frame, and frames that
the network damaged, are left out: the frame before them is shown on. It ends when the sender closes it. A sender that
is silent for `HF_HUB_DOWNLOAD_TIMEOUT` seconds raises `VideoReadError`. So the timestamps of two frames never lie
further apart than that: where they do, or fall back, as when a camera starts anew, time goes on as `StreamClock` says.

FFmpeg may use only the protocols of the address, and only formats that hold a stream: a playlist, such as HLS, could
name any other address, and is refused.
"""

import os
import stat
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import constants

from .frame_streaming import StreamClock, StreamedFrame, time_frames
from .video_downloading import public_url
from .video_opening import VideoReadError, choose_stream, pixel_limit

try:
    import av
except ImportError:
    av = None  # type: ignore[assignment]

# What FFmpeg may use for an address that begins so.
PROTOCOLS = {
    "rtsp": "rtsp,rtp,udp,tcp",
    "rtsps": "rtsp,rtp,udp,tcp,tls",
    "rtmp": "rtmp,tcp",
    "rtmps": "rtmps,tls,tcp",
    "udp": "udp",
    "tcp": "tcp",
}
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


def is_live(source: Any) -> bool:
    """Whether a source is the address of a live stream (other than of http), or a camera of this machine."""
    return is_camera(source) or (isinstance(source, str) and _scheme(source) in PROTOCOLS)


def is_camera(source: Any) -> bool:
    """Whether a source is the path of a camera of this machine, such as `/dev/video0`, plugged in or not."""
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source).startswith("/dev/"):
        return False
    if not os.path.exists(source):
        return os.fspath(source).startswith("/dev/video")
    return stat.S_ISCHR(os.stat(source).st_mode)


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
    scheme = _scheme(os.fspath(source))
    options = {"protocol_whitelist": PROTOCOLS[scheme], "format_whitelist": _FORMATS}
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


def _scheme(address: str) -> str:
    return urlsplit(address).scheme.lower() if "://" in address else ""


def _silent(name: str, seconds: float) -> str:
    return (
        f"{name} sent nothing for {seconds} s. Check that the sender runs, or wait longer with "
        "HF_HUB_DOWNLOAD_TIMEOUT=SECONDS."
    )
