"""Places of data: local paths, and URLs of the file systems that fsspec knows."""

import os
from typing import Any

from fsspec.core import url_to_fs

from hf_video.reading.sources import is_url


def absolute(place: str | os.PathLike) -> str:
    """An absolute path, or a URL without a slash at its end."""
    if is_url(place):
        return os.fspath(place).rstrip("/")
    return os.path.abspath(os.path.expanduser(place))


def require_root(root: str | os.PathLike | None) -> None:
    """Refuses a folder of videos that is not there, before it is joined to any path.

    Raises:
        FileNotFoundError: it is a local path, and no folder is there.
    """
    if root is not None and not is_url(root) and not os.path.isdir(absolute(root)):
        raise FileNotFoundError(f"There is no folder {absolute(root)}, which `video_root` (--video-root) names.")


def no_root_for(folder: object) -> ValueError:
    """The error for a `video_root` beside a folder that is itself the place of its videos."""
    return ValueError(
        f"{folder} holds the videos themselves, so `video_root` (--video-root) has no meaning: leave it out. It says "
        "where the relative paths of a list of videos begin."
    )


def folder_of(place: str) -> str:
    """The folder that a file lies in."""
    return place.rpartition("/")[0] if is_url(place) else os.path.dirname(place)


def file_system(place: str) -> tuple[Any, str]:
    """The file system of a URL and the path there; None and the path itself for a local path, so that no character of
    it has a meaning of its own. It is looked up for each access: connections do not survive a fork.

    Raises:
        ValueError: fsspec does not know the protocol.
        ImportError: the package for the protocol is not installed.
    """
    return url_to_fs(place) if is_url(place) else (None, place)
