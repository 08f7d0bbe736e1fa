"""Where videos lie: paths, URLs, names of splits and videos, and folders whose names are those of classes.

Datasets is imported by none of this: the path of a single video does not need it.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

from hf_video.reading.sources import FRAME_EXTENSIONS, is_url

logger = logging.getLogger(__name__)
# The endings of the containers that the reader opens and that mostly hold videos, the same on every machine.
VIDEO_SUFFIXES = frozenset(
    ".3g2 .3gp .amv .asf .avi .divx .dv .f4v .flv .gif .h264 .h265 .hevc .ivf .m1v .m2t .m2ts .m2v .m4v .mjpeg .mjpg "
    ".mk3d .mkv .mov .mp4 .mpe .mpeg .mpg .mts .mxf .nut .ogm .ogv .qt .rm .rmvb .ts .vob .webm .wmv .wtv .y4m".split()
)
TABLE_SUFFIXES = (".parquet", ".tar")
LIST_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl")
# The other names of splits, as those of the `datasets` library.
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
LAYOUTS = (
    "Expected one folder for each class with videos inside (DATA/<class>/<video>); such folders in train/, "
    "validation/ and test/; a list or table (.csv, .txt, .json, .jsonl, .parquet, .tar, or a folder of them named "
    "train, validation and test) of the columns path,label[,start,end]; or a data set of videos, "
    "in a folder of save_to_disk or on the Hub."
)


def absolute(place: str | os.PathLike) -> str:
    """An absolute path, or a URL without a slash at its end."""
    if is_url(place):
        return os.fspath(place).rstrip("/")
    return os.path.abspath(os.path.expanduser(place))


def address(root: str, video: str) -> str:
    """The path or URL of a video that a table names; relative paths count from the root, a folder or URL."""
    return video if is_url(video) else os.path.join(root, os.path.expanduser(video))


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
    return next((split for split, words in SPLITS.items() if name.lower() in words), None)


def sources_by_split(names: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """The file or folder of each split, in the order train, validation, test, of pairs of a name and its source.
    Names of no split are left out; two names of one split raise `ValueError`."""
    found: dict[str, Path] = {}
    for name, source in names:
        split = split_of(name)
        if split in found:
            raise ValueError(f"{found[split]} and {source.name} both name the split {split!r}. Keep one of them.")
        if split is not None:
            found[split] = source
    return {split: found[split] for split in SPLITS if split in found}


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
    """Whether a path is a folder with JPEG or PNG frames in it, and without videos: beside these, a picture is none
    of the frames."""
    entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")] if path.is_dir() else []
    has_frames = any(entry.suffix.lower() in FRAME_EXTENSIONS for entry in entries)
    return has_frames and not any(is_named_video(entry) for entry in entries)


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


def others_below(folder: Path) -> list[Path]:
    """The files at any depth that are neither videos nor frames of one."""
    found = []
    for entry in visible_entries(folder):
        if entry.is_dir() and not entry.is_symlink():
            found += [] if _stands_for_video(entry) else others_below(entry)
        elif not _stands_for_video(entry):
            found.append(entry)
    return found


def tell_others(folder: Path) -> str | None:
    """A sentence that counts and names the files of a folder that are not taken; None if there are none."""
    if not (others := others_below(folder)):
        return None
    names = listed(entry.relative_to(folder).as_posix() for entry in others)
    count = f"{len(others)} files of {folder} are" if len(others) > 1 else f"1 file of {folder} is"
    return f"{count} left out, because the name is not that of a video: {names}."


def is_named_video(path: Path) -> bool:
    """Whether a path has the suffix of a video."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def without_suffix(name: str) -> str:
    """The name or path of a video without the suffix, if it has one of a video."""
    path = Path(name)
    return str(path.with_suffix("")) if is_named_video(path) else name


def listed(items: Iterable[object], limit: int = 5, separator: str = ", ") -> str:
    """The first `limit` items and the number of the others, for a message."""
    shown = [str(item) for item in items]
    more = f"{separator}and {len(shown) - limit} more" if len(shown) > limit else ""
    return separator.join(shown[:limit]) + more


def _leads_nowhere(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _stands_for_video(path: Path) -> bool:
    if _leads_nowhere(path):
        return is_named_video(path) or not path.suffix
    # A folder of videos may have such a name, too.
    return is_frame_folder(path) or (is_named_video(path) and not (path.is_dir() and videos_in(path)))


class FolderClip(NamedTuple):
    """A video and the class whose folder it is in."""

    video: str
    label: str


def split_sources(path: Path) -> dict[str, Path]:
    """The list, or the folder of class folders, of every split of a file or folder."""
    if not path.is_dir():
        if path.suffix.lower() not in LIST_SUFFIXES:
            raise ValueError(f"{path} is a file, but neither a list nor a table. {LAYOUTS}")
        return {"train": path}
    if file_splits := sources_by_split((file.stem, file) for file in lists_in(path)):
        return file_splits
    if metadata := metadata_of(path):
        return {"train": metadata}
    folders = _folders_in(path)
    folder_splits = sources_by_split(
        (folder.name, folder) for folder in folders if split_of(folder.name) and _holds_class_folders(folder)
    )
    if not folder_splits:
        return {"train": path}
    for folder in folders:
        if folder not in folder_splits.values() and (split_of(folder.name) or videos_in(folder)):
            raise ValueError(
                f"{path} holds splits ({', '.join(folder_splits)}), but {folder.name}/ is not a split of class "
                f"folders. Move it elsewhere, or into the split it belongs to. {LAYOUTS}"
            )
    return {split: metadata_of(folder) or folder for split, folder in folder_splits.items()}


def lists_in(folder: Path, suffixes: tuple[str, ...] = LIST_SUFFIXES) -> list[Path]:
    """The lists of a folder. A FIFO or broken link with such a name is one: reading it raises the error of it."""
    return [entry for entry in visible_entries(folder) if entry.suffix.lower() in suffixes and not entry.is_dir()]


def metadata_of(folder: Path) -> Path | None:
    """The table that the `datasets` library reads beside the videos of a folder; None if there is none."""
    for file in lists_in(folder, (".csv", ".jsonl")):
        if file.stem == "metadata" and file.is_file():
            with open(file, encoding="utf-8", errors="replace") as text:
                if "file_name" in text.readline(10_000):
                    return file
    return None


def _holds_class_folders(folder: Path) -> bool:
    return metadata_of(folder) is not None or any(
        entry.is_dir() and videos_in(entry) for entry in visible_entries(folder)
    )


def read_class_folders(folder: Path) -> list[FolderClip]:
    """The videos of the class folders in a folder. What is left out is said in a line of the log.

    Raises:
        ValueError: there is no class folder, or one has no video, or some of its videos lie deeper.
    """
    class_folders = _folders_in(folder)
    if not class_folders:
        loose = [entry.name for entry in visible_entries(folder)]
        holds = f"It holds {listed(loose)}." if loose else "It is empty."
        raise ValueError(f"{folder} has no class folder. {holds} {LAYOUTS}")
    if loose_videos := [
        entry.name for entry in visible_entries(folder) if not entry.is_dir() and is_named_video(entry)
    ]:
        logger.warning(
            f"{len(loose_videos)} videos are left out: they lie in {folder} beside the folders of the classes, and "
            f"have none: {listed(loose_videos)}."
        )
    clips: list[FolderClip] = []
    for class_folder in class_folders:
        videos = videos_in(class_folder)
        others = sorted(set(visible_entries(class_folder)).difference(videos))
        if not videos:
            holds = f"holds only {listed(entry.name for entry in others)}" if others else "is empty"
            raise ValueError(f"The class folder {class_folder} has no video: it {holds}. {LAYOUTS}")
        for entry in others:
            if entry.is_dir() and any(videos_below(entry)):
                raise ValueError(
                    f"The class folder {class_folder} has videos, and more of them further down in {entry.name}/. "
                    "Put all videos of a class directly into its folder."
                )
        clips.extend(FolderClip(str(video), class_folder.name) for video in videos)
    return clips


def _folders_in(folder: Path) -> list[Path]:
    entries = visible_entries(folder)
    for entry in entries:
        if _leads_nowhere(entry) and not entry.suffix:
            raise FileNotFoundError(
                f"{entry} is a link to {os.readlink(entry)}, where nothing is. It may stand for the folder of a class "
                "or split: repair or remove it."
            )
    return [entry for entry in entries if entry.is_dir()]
