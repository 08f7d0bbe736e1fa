"""Names videos by where they lie."""

import os
import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from hf_video.reading.sources import is_url


def segment_suffix(start: float | None, end: float | None) -> str:
    """What a name of a segment has after that of its video (https://www.w3.org/TR/media-frags/#naming-time)."""
    return f"#t={'' if start is None else start},{'' if end is None else end}"


def video_id(video: str | os.PathLike, base: Path) -> str:
    """The path of a video from a folder, without suffix and with slashes; its name alone if it lies elsewhere. For a
    URL, the name of its file."""
    if is_url(video):
        # Also that of an address that is not valid: who reads it says so.
        _, _, name = re.sub(r"[?#].*$", "", str(video).partition("://")[2], flags=re.DOTALL).partition("/")
        return PurePosixPath(unquote(name)).stem or "video"
    path = Path(video)
    path = path.relative_to(base) if path.is_relative_to(base) else Path(path.name)
    return (path if os.path.isdir(video) else path.with_suffix("")).as_posix()
