"""What a source of frames is, by its name or type: the one place that knows addresses. It opens nothing."""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

# What FFmpeg may use for a live stream whose address begins so.
LIVE_PROTOCOLS = {
    "rtsp": "rtsp,rtp,udp,tcp",
    "rtsps": "rtsp,rtp,udp,tcp,tls",
    "rtmp": "rtmp,tcp",
    "rtmps": "rtmps,tls,tcp",
    "udp": "udp",
    "tcp": "tcp",
}

Kind = Literal["stream", "address", "folder", "path", "bytes", "file", "frames"]


class VideoReadError(OSError):
    """A video that cannot be read: missing, empty, damaged, or not a video. The message names the file and the cause.

    An `OSError`, like other errors of opening a file, because the file is the cause and not the call.
    """


def kind_of(source: Any) -> Kind:
    """
    What a source is: "stream" (of [`is_live`]), "address" (another URL), "folder" (of pictures), "path" (of a file,
    which need not exist), "bytes", "file" (open), or "frames" (another iterable).

    Raises:
        `TypeError`: if it is none of them.
    """
    if isinstance(source, (str, os.PathLike)):
        if is_live(source):
            return "stream"
        if is_url(source):
            return "address"
        return "folder" if os.path.isdir(source) else "path"
    if isinstance(source, bytes):
        return "bytes"
    if hasattr(source, "read"):
        return "file"
    if isinstance(source, Iterable):
        return "frames"
    raise TypeError(
        "A video is a path, a URL, bytes, an open binary file, the path of a folder of frames, a VideoDecoder of "
        "torchcodec where frames are read by number or, where they come one after another, an iterable of frames, not "
        f"{type(source).__name__}."
    )


def is_url(source: Any) -> bool:
    """Whether a source is named by a URL, such as `https://...`, `s3://...` or `zip://...::s3://...`. A path is
    not, whatever it has in its middle."""
    return isinstance(source, str) and re.match(r"([a-z0-9]{2,}::)*[a-z][a-z0-9+.-]+://", source, re.I) is not None


def is_http(source: Any) -> bool:
    """Whether a source is a URL of `http` or `https`."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def is_live(source: Any) -> bool:
    """Whether a source is the address of a live stream (other than of http), or a camera of this machine."""
    return is_camera(source) or (is_url(source) and scheme_of(source) in LIVE_PROTOCOLS)


def is_camera(source: Any) -> bool:
    """Whether a source is the path of a camera of this machine, such as `/dev/video0`, plugged in or not."""
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source).startswith("/dev/"):
        return False
    if not os.path.exists(source):
        return os.fspath(source).startswith("/dev/video")
    return stat.S_ISCHR(os.stat(source).st_mode)


def scheme_of(url: str) -> str:
    """The protocol of a URL, in lower case."""
    return url.partition("://")[0].lower()


def public_url(url: str) -> str:
    """A URL for messages: without user, password and query, which may hold keys."""
    bare, mark, _ = re.sub(r"(?<=//)[^/?#]*(:[^?#]*)?@", "", url).partition("?")
    return bare[:200] + ("..." if len(bare) > 200 else "") + ("?..." if mark else "")


def describe(source: Any) -> str:
    """A short name of a source for messages."""
    if isinstance(source, (str, os.PathLike)):
        return public_url(source) if isinstance(source, str) and is_url(source) else os.fspath(source)
    if isinstance(source, bytes):
        return f"The video of {len(source)} bytes"
    return str(getattr(source, "name", f"The {type(source).__name__}"))


def name_of(video: str) -> str:
    """The name of a video's file or address, without folders, ending, user or password."""
    if "://" not in video:
        return Path(video).resolve().stem
    address = urlsplit(video)
    return Path(address.path).stem or str(address.hostname)
