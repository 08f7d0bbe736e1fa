"""What a source of frames is, by its name or type: the one place that knows addresses. It opens nothing."""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple
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
FRAME_EXTENSIONS = (".jpg", ".jpeg", ".png")
# The number of Linux for cameras among the devices, of which /dev/null is one, too.
_CAMERAS = 81
# Names of sources in messages are cut to this length.
_LONGEST_NAME = 300

Kind = Literal["stream", "address", "folder", "path", "bytes", "file", "decoder", "frames"]


class VideoReadError(OSError):
    """A video that cannot be read: missing, empty, damaged, or not a video. The message names the file and the cause.

    An `OSError`, like other errors of opening a file, because the file is the cause and not the call.
    """


class Source(NamedTuple):
    """What a source of frames is: its kind, a short name for messages, the path or URL as text or else the object
    itself, and the protocol of a URL, in lower case."""

    kind: Kind
    name: str
    place: Any
    scheme: str = ""

    @classmethod
    def of(cls, source: Any) -> "Source":
        """Raises `TypeError` for what is no source."""
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            if is_url(source):
                scheme = path.partition("://")[0].lower()
                return cls("stream" if scheme in LIVE_PROTOCOLS else "address", public_url(path), path, scheme)
            name = path if len(path) <= _LONGEST_NAME else f"{path[:_LONGEST_NAME]}..."
            return cls("stream" if _is_camera(path) else "folder" if os.path.isdir(path) else "path", name, path)
        if isinstance(source, bytes):
            return cls("bytes", f"The video of {len(source)} bytes", source)
        if hasattr(source, "read"):
            return cls("file", str(getattr(source, "name", None) or f"The {type(source).__name__}"), source)
        if hasattr(source, "get_frames_at") and hasattr(source, "metadata"):
            # The datasets library notes the path.
            return cls("decoder", getattr(source.metadata, "path", None) or f"The {type(source).__name__}", source)
        if isinstance(source, Iterable):
            return cls("frames", f"The {type(source).__name__}", source)
        raise TypeError(
            "A video is a path, a URL, bytes, an open binary file, a VideoDecoder of torchcodec, or an iterable of "
            f"frames, not {type(source).__name__}."
        )

    @property
    def is_http(self) -> bool:
        """Whether it is a URL of `http` or `https`."""
        return self.scheme in ("http", "https")


def kind_of(source: Any) -> Kind:
    """The kind of a source, see [`Source`]. Raises `TypeError` for what is none."""
    return Source.of(source).kind


def describe(source: Any) -> str:
    """A short name of anything for messages."""
    try:
        return Source.of(source).name
    except TypeError:
        return f"The {type(source).__name__}"


def is_url(source: Any) -> bool:
    """Whether a source is named by a URL, such as `https://...`, `s3://...` or `zip://...::s3://...`. A path is
    not, whatever it has in its middle."""
    return isinstance(source, str) and re.match(r"([a-z0-9]{2,}::)*[a-z][a-z0-9+.-]+://", source, re.I) is not None


def _is_camera(path: str) -> bool:
    """Whether a path is that of a camera of this machine, such as `/dev/video0`, plugged in or not."""
    if not path.startswith("/dev/"):
        return False
    if not os.path.exists(path):
        return path.startswith("/dev/video")
    found = os.stat(path)
    return stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) == _CAMERAS


def public_url(url: str) -> str:
    """A URL for messages: without user, password and query, which may hold keys."""
    bare, mark, _ = re.sub(r"(?<=//)[^/?#]*(:[^?#]*)?@", "", url).partition("?")
    return bare[:200] + ("..." if len(bare) > 200 else "") + ("?..." if mark else "")


def name_of(video: str) -> str:
    """The name of a video's file or address, without folders, ending, user or password."""
    if "://" not in video:
        return Path(video).resolve().stem
    address = urlsplit(video)
    return Path(address.path).stem or str(address.hostname)
