"""Where videos lie: paths, URLs, names of splits and videos, and folders whose names are those of classes.

Datasets is imported by none of this: the path of a single video does not need it.
"""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hf_video.reading.sources import FRAME_EXTENSIONS, is_url, kind_of
from hf_video.texts import count

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
# Of a folder of `save_to_disk`.
_SAVED = ("dataset_dict.json", "state.json")


def absolute(place: str | os.PathLike) -> str:
    """An absolute path, or a URL without a slash at its end."""
    return os.fspath(place).rstrip("/") if is_url(place) else os.path.abspath(os.path.expanduser(place))


def require_inputs(names: Sequence[str], expected: str = "") -> None:
    """Refuses (`FileNotFoundError`) names of videos or data if nothing is at any of them. What has the name of a data
    set of the Hub, a URL or a pattern is not looked for. Commands call it before they import what reads videos."""
    are_missing = (
        kind_of(name) == "path" and "*" not in name and not is_hub_name(name) and not os.path.lexists(absolute(name))
        for name in names
    )
    if all(are_missing):
        missing = absolute(names[0]) if len(names) == 1 else f"Each of {listed(names)}"
        raise FileNotFoundError(f"{missing} does not exist. {expected}".rstrip())


def address(root: str, video: str) -> str:
    """The path or URL of a video that a table names; relative paths count from the root, a folder or URL."""
    return video if is_url(video) else os.path.join(root, os.path.expanduser(video))


def require_root(root: str | os.PathLike | None, folder: object = None) -> None:
    """Refuses a local folder of videos that is not there, and one beside a `folder` of videos."""
    if root is not None and not is_url(root) and not os.path.isdir(absolute(root)):
        raise FileNotFoundError(f"There is no folder {absolute(root)}, which `video_root` (--video-root) names.")
    if root is not None and folder is not None:
        raise ValueError(f"{folder} holds the videos themselves: leave out `video_root` (--video-root).")


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


def is_named_video(path: Path) -> bool:
    """Whether a path has the suffix of a video."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def without_suffix(name: str) -> str:
    """The name or path of a video without the suffix, if it has one of a video."""
    path = Path(name)
    return str(path.with_suffix("")) if is_named_video(path) else name


def is_frame_folder(path: Path) -> bool:
    """Whether a path is a folder with JPEG or PNG frames in it, and without videos: beside these, a picture is none
    of the frames."""
    entries = visible_entries(path) if path.is_dir() else []
    has_frames = any(entry.suffix.lower() in FRAME_EXTENSIONS for entry in entries)
    return has_frames and not any(map(is_named_video, entries))


def visible_entries(folder: Path) -> list[Path]:
    """The files and folders that are not hidden, sorted."""
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _is_video(path: Path) -> bool:
    return is_frame_folder(path) or (is_named_video(path) and not path.is_dir())


def videos_in(folder: Path) -> list[Path]:
    """The videos directly inside, also those that are broken."""
    return [*filter(_is_video, visible_entries(folder))]


def find_videos(folder: Path) -> tuple[list[Path], list[Path]]:
    """The videos at any depth, also those that are broken, and the other files that are not part of one."""
    is_video = {entry: _is_video(entry) for entry in visible_entries(folder)}
    videos, others = [entry for entry in is_video if is_video[entry]], []
    for entry in (entry for entry in is_video if not is_video[entry]):
        if entry.is_dir() and not entry.is_symlink():
            videos_inside, others_inside = find_videos(entry)
            videos += videos_inside
            others += others_inside
        else:
            others.append(entry)
    return videos, others


def tell_others(folder: Path, others: Iterable[Path]) -> None:
    """Logs how many files of a folder are not taken, and names them."""
    if names := [entry.relative_to(folder).as_posix() for entry in others]:
        logger.warning(f"{count(len(names), 'file')} of {folder} left out, not named as a video: {listed(names)}.")


def listed(items: Iterable[object], limit: int = 5, separator: str = ", ") -> str:
    """The first `limit` items and the number of the others, for a message."""
    shown = [str(item) for item in items]
    more = f"{separator}and {len(shown) - limit} more" if len(shown) > limit else ""
    return separator.join(shown[:limit]) + more


def is_hub_name(data: str | os.PathLike) -> bool:
    """Whether data are named as a data set of the Hub is, USER/NAME, and not as a file, and no such path exists."""
    path = Path(data).expanduser()
    is_file = path.suffix.lower() in (*TABLE_SUFFIXES, *LIST_SUFFIXES) or is_named_video(path) or path.exists()
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(data)) is not None and not is_file


def is_saved(folder: Path) -> bool:
    """Whether a folder is one of `save_to_disk`."""
    return any((folder / name).is_file() for name in _SAVED)


def holds_table(folder: Path) -> bool:
    """Whether a folder is of `save_to_disk`, or has tars or Parquet files that are data: those named after a split, in
    data/, or with neither videos nor folders beside them, of which they may be a list or an archive."""
    visible = visible_entries(folder)
    tables = [entry for entry in visible if entry.suffix in TABLE_SUFFIXES]
    return (
        is_saved(folder)
        or any(folder.glob("data/*.parquet"))
        or any(entry.suffix == ".parquet" and split_of(entry.stem) for entry in tables)
        or (bool(tables) and not any(entry.is_dir() or is_named_video(entry) for entry in visible))
    )


def holds_list(folder: Path) -> bool:
    """Whether a folder holds a table or a list of videos, of all or of a split."""
    lists = lists_in(folder)
    return holds_table(folder) or metadata_of(folder) is not None or any(split_of(each.stem) for each in lists)


def lists_in(folder: Path, suffixes: tuple[str, ...] = LIST_SUFFIXES) -> list[Path]:
    """The lists of a folder."""
    return [entry for entry in visible_entries(folder) if entry.suffix.lower() in suffixes and not entry.is_dir()]


def metadata_of(folder: Path) -> Path | None:
    """The table that the `datasets` library reads beside the videos of a folder; None if there is none."""
    for file in lists_in(folder, (".csv", ".jsonl")):
        if file.stem == "metadata":
            with open(file, encoding="utf-8", errors="replace") as text:
                if "file_name" in text.readline(10_000):
                    return file
    return None


def split_sources(path: Path) -> dict[str, Path]:
    """The file, or the folder of class folders, of every split of a file or folder."""
    if not path.is_dir():
        return {"train": path}
    if lists := sources_by_split((file.stem, file) for file in lists_in(path)):
        return lists
    if metadata := metadata_of(path):
        return {"train": metadata}
    folders = [entry for entry in visible_entries(path) if entry.is_dir()]
    splits = sources_by_split((each.name, each) for each in folders if split_of(each.name) and _holds_classes(each))
    for folder in folders if splits else []:
        if folder not in splits.values() and (split_of(folder.name) or videos_in(folder)):
            raise ValueError(
                f"{path} holds splits ({', '.join(splits)}), but {folder.name}/ is not a split of class "
                f"folders. Move it elsewhere, or into the split it belongs to. {LAYOUTS}"
            )
    return {split: metadata_of(folder) or folder for split, folder in splits.items()} or {"train": path}


def _holds_classes(folder: Path) -> bool:
    classes = (entry for entry in visible_entries(folder) if entry.is_dir())
    return metadata_of(folder) is not None or any(map(videos_in, classes))


def read_class_folders(folder: Path) -> list[tuple[Path, str]]:
    """The videos of the class folders in a folder, each with the name of its class. What is left out is logged."""
    entries = visible_entries(folder)
    classes = [entry for entry in entries if entry.is_dir()]
    if not classes:
        holds = f"It holds {listed(entry.name for entry in entries)}." if entries else "It is empty."
        lists = [str(each) for each in entries if each.suffix.lower() in {*TABLE_SUFFIXES, *LIST_SUFFIXES} - {".txt"}]
        table = f" If {' or '.join(lists[:5])} is the table of these videos, give that." if lists else ""
        raise ValueError(f"{folder} has no class folder. {holds}{table} {LAYOUTS}")
    found: list[tuple[Path, str]] = []
    files = [entry for entry in entries if not entry.is_dir()]
    loose = [entry for entry in files if is_named_video(entry)]
    others = [entry for entry in files if not is_named_video(entry)]
    for entry in classes:
        videos, others_inside = find_videos(entry)
        others += others_inside
        deeper = [video for video in videos if video.parent != entry]
        if len(deeper) == len(videos):
            inside = [each.name for each in visible_entries(entry)]
            raise ValueError(f"The class folder {entry} has no video, only {listed(inside) or 'nothing'}. {LAYOUTS}")
        if deeper:
            raise ValueError(
                f"The class folder {entry} has videos, and more of them further down in "
                f"{deeper[0].relative_to(entry).parts[0]}/. Put all videos of a class directly into its folder."
            )
        found += [(video, entry.name) for video in videos]
    if loose:
        logger.warning(
            f"{count(len(loose), 'video')} of {folder} left out, beside the folders of the classes and so without a "
            f"class: {listed(entry.name for entry in loose)}."
        )
    tell_others(folder, others)
    return found
