"""Where videos lie: paths and URLs, the names of splits and videos, and what in a folder is a video.

The functions that need datasets import it: a path of a single video does not.
"""

import mimetypes
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from hf_video.reading.sources import FRAME_EXTENSIONS, is_url

# Of files of rows that may hold videos.
TABLE_SUFFIXES = (".parquet", ".tar")


def absolute(place: str | os.PathLike) -> str:
    """An absolute path, or a URL without a slash at its end."""
    if is_url(place):
        return os.fspath(place).rstrip("/")
    return os.path.abspath(os.path.expanduser(place))


def require_root(root: str | os.PathLike | None) -> None:
    """Raises `FileNotFoundError` for a local folder of videos that is not there, before it is joined to any path."""
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


def split_of(name: str) -> str | None:
    """The split, "train", "validation" or "test", that a name stands for; None if it stands for none."""
    from datasets.data_files import SPLIT_KEYWORDS

    return next((str(split) for split, words in SPLIT_KEYWORDS.items() if name.lower() in words), None)


def sources_by_split(names: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """The file or folder of each split, in the order train, validation, test, of pairs of a name and its source.
    Names of no split are left out; two names of one split raise `ValueError`."""
    from datasets.data_files import SPLIT_KEYWORDS

    found: dict[str, Path] = {}
    for name, source in names:
        split = split_of(name)
        if split is None:
            continue
        if split in found:
            raise ValueError(f"{found[split]} and {source.name} both name the split {split!r}. Keep one of them.")
        found[split] = source
    return {str(split): found[split] for split in SPLIT_KEYWORDS if split in found}


def video_id(video: str | os.PathLike, base: Path) -> str:
    """The path of a video from a folder, without suffix and with slashes; its name alone if it lies elsewhere. For a
    URL, the name of its file."""
    if is_url(video):
        # Also that of an address that is not valid: who reads it says so.
        _, _, name = re.sub(r"[?#].*$", "", os.fspath(video).partition("://")[2], flags=re.DOTALL).partition("/")
        return PurePosixPath(unquote(name)).stem or "video"
    path = Path(video)
    path = path.relative_to(base) if path.is_relative_to(base) else Path(path.name)
    return (path if os.path.isdir(video) else path.with_suffix("")).as_posix()


def is_frame_folder(path: Path) -> bool:
    """Whether a path is a folder with JPEG or PNG frames in it."""
    return path.is_dir() and any(
        entry.suffix.lower() in FRAME_EXTENSIONS and not entry.name.startswith(".") for entry in path.iterdir()
    )


def visible_entries(folder: Path) -> list[Path]:
    """The files and folders that are not hidden, sorted."""
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def videos_in(folder: Path) -> list[Path]:
    """The videos directly inside, also those that are broken: what has the name of a video, and links to nowhere that
    may have led to one."""
    return [entry for entry in visible_entries(folder) if _stands_for_video(entry)]


def videos_below(folder: Path) -> Iterator[Path]:
    """The videos at any depth, also those that are broken."""
    videos = dict.fromkeys(videos_in(folder))
    yield from videos
    for entry in visible_entries(folder):
        if entry.is_dir() and not entry.is_symlink() and entry not in videos:
            yield from videos_below(entry)


def is_named_video(path: Path) -> bool:
    """Whether a path has the suffix of a video."""
    from datasets.packaged_modules.videofolder.videofolder import VIDEO_EXTENSIONS

    kind, _ = mimetypes.guess_type(path.name)
    return path.suffix.lower() in VIDEO_EXTENSIONS or (kind is not None and kind.startswith("video/"))


def without_suffix(name: str) -> str:
    """The name or path of a video without the suffix, if it has one of a video."""
    path = Path(name)
    return str(path.with_suffix("")) if is_named_video(path) else name


def leads_nowhere(path: Path) -> bool:
    """Whether a path is a broken link."""
    return path.is_symlink() and not path.exists()


def _stands_for_video(path: Path) -> bool:
    if leads_nowhere(path):
        return is_named_video(path) or mimetypes.guess_type(path.name)[0] is None
    # A folder of videos may have such a name, too.
    return is_frame_folder(path) or (is_named_video(path) and not (path.is_dir() and videos_in(path)))
