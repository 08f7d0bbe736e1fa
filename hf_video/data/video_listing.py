"""Lists the videos that a user names: files, URLs, folders, and lists or data sets of labelled videos.

The functions for lists and data sets import datasets: for the path of a single video it would be a waste of time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hf_video.reading.sources import is_url

from .folders import (
    LIST_SUFFIXES,
    TABLE_SUFFIXES,
    absolute,
    is_frame_folder,
    lists_in,
    metadata_of,
    no_root_for,
    require_root,
    split_of,
    tell_others,
    video_id,
    videos_below,
    visible_entries,
)

if TYPE_CHECKING:
    from datasets import Dataset


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListedVideo:
    """A video and its name among others.

    Attributes:
        id: name without suffix; for a video of a folder or list its path from there, with slashes. Videos that differ
            in the suffix alone keep it.
        source: absolute path, or URL; a name for a video that is stored inside a data set.
        rows: the data set that stores the video.
        row: its number there.
    """

    id: str
    source: str
    rows: Dataset | None = None
    row: int = 0

    @property
    def sha256(self) -> str | None:
        """The SHA-256 of the file, if a data set stores it."""
        if self.rows is None:
            return None
        from .rows import stored_sha256

        return stored_sha256(self.rows[self.row])

    def open(self) -> Any:
        """The source to read from, see `read_video`."""
        if self.rows is None:
            return self.source
        from .rows import open_video

        return open_video(self.rows[self.row])


def list_videos(words: Sequence[str], video_root: str | os.PathLike | None = None) -> list[ListedVideo]:
    """The videos that words name, each once, in their order.

    Args:
        words: Each is a video file, a URL, a folder of frames, a folder with videos at any depth, or what
            `load_video_dataset` takes: a list of videos, a table, or a data set; they need no labels. Of these, the
            whole videos count, not their segments. A file that does not exist is listed as well.
        video_root: The folder that relative paths in lists count from; by default that of the list.

    Raises:
        ValueError: If a folder has no videos, or videos and a `video_root`, a list is wrong, or two videos have one
            id; the error names both.
        FileNotFoundError: If `video_root`, or a video of a list, does not exist.
    """
    require_root(video_root)
    listed = [video for word in words for video in _list(word, video_root)]
    first: dict[str, str] = {}
    shared = {video.id for video in listed if first.setdefault(video.id, video.source) != video.source}
    found: dict[str, ListedVideo] = {}
    for video in listed:
        suffix = PurePosixPath(video.source).suffix if video.id in shared else ""
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
    try:
        if is_url(word):
            return word.endswith(TABLE_SUFFIXES)
        path = Path(word).expanduser()
        if path.is_dir():
            return bool(word) and not is_frame_folder(path) and any(visible_entries(path))
        return path.suffix.lower() in (*LIST_SUFFIXES, *TABLE_SUFFIXES) and path.is_file()
    except (ValueError, RuntimeError, OSError):  # no such user, or no name of a file
        return False


def _list(word: str, root: str | os.PathLike | None) -> Iterator[ListedVideo]:
    if not word:
        raise ValueError("The name of a video is empty.")
    if is_url(word) and not word.endswith(TABLE_SUFFIXES):
        yield ListedVideo(video_id(word, Path()), word)
        return
    from .rows import is_stored
    from .tables import holds_table, is_hub_name, is_table
    from .video_dataset import load_listed_videos

    path = Path(absolute(word))
    is_folder = path.is_dir() and not is_url(word)
    if is_folder and is_frame_folder(path):
        yield ListedVideo(path.name, str(path))
    elif is_folder and not _holds_list(path) and not holds_table(path):
        if root is not None:
            raise no_root_for(path)
        videos = list(videos_below(path))
        if not videos:
            raise ValueError(f"{path} has neither videos nor JPEG or PNG frames inside.")
        if sentence := tell_others(path):
            logger.warning(sentence)
        yield from (ListedVideo(video_id(video, path), str(video)) for video in videos)
    elif is_folder or path.suffix.lower() in LIST_SUFFIXES or is_table(word) or is_hub_name(word):
        base = (path if is_folder else path.parent) if root is None else Path(absolute(root))
        splits = load_listed_videos(word, video_root=root)
        if is_table(word) or (is_folder and holds_table(path)):
            base = _folder_of_all([video for split in splits.values() for video in split["video"][:]], base)
        for split in splits.values():
            for row, (video, is_inside) in enumerate(zip(split["video"][:], is_stored(split), strict=True)):
                if is_inside:
                    yield ListedVideo(Path(video).stem, video, split, row)
                else:
                    yield ListedVideo(video_id(video, base), video)
    else:
        yield ListedVideo(path.stem, str(path))


def _folder_of_all(videos: Sequence[str], base: Path) -> Path:
    """The folder itself if all videos lie below it, otherwise the lowest one that holds all of them."""
    others = {os.path.dirname(video) for video in videos if os.path.isabs(video)}
    if all(f"{folder}/".startswith(f"{base}/") for folder in others):
        return base
    return Path(os.path.commonpath(others))


def _holds_list(folder: Path) -> bool:
    return metadata_of(folder) is not None or any(split_of(path.stem) for path in lists_in(folder))
