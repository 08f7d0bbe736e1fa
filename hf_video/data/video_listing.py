"""Lists the videos that a user names: files, URLs, folders, and lists or data sets of labelled videos.

The functions for lists and data sets import datasets: for the path of a single video it would be a waste of time.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from hf_video.reading.sources import is_url

from . import folders

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class ListedVideo:
    """A video and its name among others: `id`, the name without suffix, for a video of a folder or list its path from
    there, with slashes, and with the suffix where videos differ in that alone; `source`, an absolute path, a URL, or a
    name for a video that is stored in the `row` of the data set `rows`."""

    id: str
    source: str
    rows: Dataset | None = None
    row: int = 0

    @property
    def sha256(self) -> str | None:
        """The SHA-256 of the file, if a data set stores it."""
        from .rows import stored_sha256

        return None if self.rows is None else stored_sha256(self.rows[self.row])

    def open(self) -> Any:
        """The source to read from, see `read_video`."""
        if self.rows is None:
            return self.source
        from .rows import open_video  # which loads `datasets`: the path of a single video does not need it

        return open_video(self.rows[self.row])


def list_videos(words: Sequence[str], video_root: str | os.PathLike | None = None) -> list[ListedVideo]:
    """The videos that words name, each once, in their order.

    A word is a video file, a URL, a folder of frames, a folder with videos at any depth, or what `load_video_dataset`
    takes, with or without labels. Whole videos count, not their segments, and relative paths count from `video_root`,
    by default the folder of the list. A file that does not exist is listed as well. `ValueError` if there are no
    videos or two of one id; `FileNotFoundError` if `video_root`, or a video of a list, does not exist."""
    folders.require_root(video_root)
    listed = [video for word in words for video in _list(word, video_root)]
    sources = defaultdict[str, set[str]](set)
    for video in listed:
        sources[video.id].add(video.source)
    found: dict[str, ListedVideo] = {}
    for video in listed:
        suffix = PurePosixPath(video.source).suffix if len(sources[video.id]) > 1 else ""
        known = found.setdefault(video.id + suffix, replace(video, id=video.id + suffix))
        if known.source != video.source:
            raise ValueError(
                f"{known.source} and {video.source} would both be called {video.id!r}: rename one of them, or "
                "name a folder that holds both, so that names begin with folders."
            )
    return list(found.values())


def names_several(word: str) -> bool:
    """Whether a word is a list or table of videos or a folder with videos inside, and not a video, or its URL, or a
    folder of frames."""
    if is_url(word):
        return word.endswith(folders.TABLE_SUFFIXES)
    path = Path(os.path.expanduser(word))
    if os.path.isdir(path):
        return bool(word) and not folders.is_frame_folder(path)
    return path.suffix.lower() in (*folders.LIST_SUFFIXES, *folders.TABLE_SUFFIXES) and os.path.isfile(path)


def _is_list(word: str) -> bool:
    return folders.is_hub_name(word) or Path(word).suffix.lower() in (*folders.LIST_SUFFIXES, *folders.TABLE_SUFFIXES)


def _list(word: str, root: str | os.PathLike | None) -> Iterator[ListedVideo]:
    if not word:
        raise ValueError("The name of a video is empty.")
    path = Path(folders.absolute(word))
    if is_url(word) and not word.endswith(folders.TABLE_SUFFIXES):
        yield ListedVideo(_name_from(path, word), word)
    elif folders.is_frame_folder(path):
        yield ListedVideo(path.name, str(path))
    elif folders.holds_list(path) if path.is_dir() else _is_list(word):
        yield from _of_list(word, root)
    elif path.is_dir():
        folders.require_root(root, path)
        found, others = folders.find_videos(path)
        if not found:
            raise ValueError(f"{path} has neither videos nor JPEG or PNG frames inside.")
        folders.tell_others(path, others)
        yield from (ListedVideo(_name_from(path, str(video)), str(video)) for video in found)
    else:
        yield ListedVideo(path.stem, str(path))


def _of_list(word: str, root: str | os.PathLike | None) -> Iterator[ListedVideo]:
    from .rows import is_stored
    from .video_dataset import load_unlabelled_videos

    splits, path = load_unlabelled_videos(word, video_root=root), Path(folders.absolute(word))
    base = Path(folders.absolute(root)) if root is not None else path if path.is_dir() else path.parent
    places = {os.path.dirname(video) for rows in splits.values() for video in rows["video"] if os.path.isabs(video)}
    if not all(Path(folder).is_relative_to(base) for folder in places):
        base = Path(os.path.commonpath(places))
    for rows in splits.values():
        for row, (video, is_inside) in enumerate(zip(rows["video"], is_stored(rows), strict=True)):
            if is_inside:
                yield ListedVideo(Path(video).stem, video, rows, row)
            else:
                yield ListedVideo(_name_from(base, video), video)


def _name_from(base: Path, video: str) -> str:
    """The path of a video from a folder, without suffix and with slashes, or its name alone; of a URL, its name."""
    if is_url(video):
        # Also that of an address that is not valid: who reads it says so.
        _, _, name = re.split(r"[?#]", video, maxsplit=1)[0].partition("://")[2].partition("/")
        return PurePosixPath(unquote(name)).stem or "video"
    path = Path(video)
    path = path.relative_to(base) if path.is_relative_to(base) else Path(path.name)
    return (path if os.path.isdir(video) else path.with_suffix("")).as_posix()
