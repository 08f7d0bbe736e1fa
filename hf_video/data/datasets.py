"""Labelled videos on disk as a `datasets.DatasetDict`: class folders, split folders or CSV files.

A row holds the path of a video, never its frames, and lives in memory: nothing is copied and no cache is written, so
a data set is always what the folder holds at the moment of the call.
"""

import mimetypes
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets.data_files import SPLIT_KEYWORDS
from datasets.packaged_modules.videofolder.videofolder import VIDEO_EXTENSIONS

from .annotation_files import ANNOTATION_SUFFIXES, Clip, is_frame_folder, listed, read_annotations

_LAYOUTS = (
    "Expected one folder a class with videos inside (DATA/<class>/<video>), such folders inside train/, validation/ "
    "and test/, a CSV file with the columns path,label[,start,end], a list of `path label` lines as of Kinetics, a "
    "JSON file of Something-Something, or a folder with such files named train, validation and test."
)


def load_video_dataset(
    data: str | os.PathLike, *, labels: Sequence[str] | None = None, video_root: str | os.PathLike | None = None
) -> DatasetDict:
    """List the labelled videos of a folder or of an annotation file.

    Splits are recognised by the names `datasets` knows (train, training; validation, valid, dev, val; test, testing,
    eval, evaluation). A video is a file with the extension of one, or a folder of JPEG or PNG frames. Hidden files and
    files of other kinds are ignored.

    Args:
        data: A folder of class folders; a folder of splits, each of them class folders; an annotation file, UTF-8; or
            a folder of such files named after splits. An annotation file is a CSV file with the columns `path`,
            `label` and, optionally, `start` and `end` in seconds; a list with these without a first line of names, as
            those of Kinetics, separated by commas or spaces (.csv or .txt); or the JSON file of Something-Something,
            whose classes are its templates.
        labels: The class names in the order of their ids, such as those of a trained model. By default they are the
            classes found, sorted, by value where all of them are whole numbers.
        video_root: The folder that relative paths in annotation files count from; by default that of the file.

    Returns:
        The splits found among "train", "validation" and "test"; data without splits are all "train". Columns: `video`
        (string, absolute path), `label` (`ClassLabel`), `start` and `end` (float64, seconds, or None).

    Raises:
        FileNotFoundError: If `data`, or a file that an annotation names, does not exist.
        ValueError: If the layout is none of these, a class has no video, there are fewer than two classes, splits
            differ in their classes while `labels` is not given, a class is not among `labels`, or an annotation file
            lacks columns or rows or has a row that cannot be right.
    """
    path = Path(data).expanduser().absolute()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {_LAYOUTS}")
    root = None if video_root is None else Path(video_root).expanduser().absolute()
    splits = {
        split: read_annotations(source, root) if source.is_file() else _read_class_folders(source)
        for split, source in _find_splits(path).items()
    }
    names = _class_names(path, splits, labels)
    features = Features(
        {
            "video": Value("string"),
            "label": ClassLabel(names=names),
            "start": Value("float64"),
            "end": Value("float64"),
        }
    )
    return DatasetDict(
        {
            split: Dataset.from_list([clip._asdict() for clip in clips], features=features, split=split)
            for split, clips in splits.items()
        }
    )


def hold_out(dataset: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split a data set of `load_video_dataset` in two, stratified by label.

    Whole videos are held out, so that segments of one file never stand on both sides. Every class keeps at least one
    video for training; a class with two or more also gives at least one.

    Args:
        dataset: The rows to split, with the columns `video` and `label`.
        fraction: The share of every class's videos that is held out, between 0 and 1.
        seed: The same seed chooses the same videos.

    Returns:
        The rows to train on and the rows held out, both in their original order.

    Raises:
        ValueError: If `fraction` is not between 0 and 1, or no class has a second video.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}; a number between 0 and 1 is expected, such as 0.2.")
    generator = np.random.default_rng(seed)
    rows = np.array(dataset["video"])
    videos, first_rows = np.unique(rows, return_index=True)
    labels = np.array(dataset["label"])[first_rows]
    held_out: list[str] = []
    for label in np.unique(labels):
        of_class = generator.permutation(videos[labels == label])
        count = min(max(1, round(fraction * len(of_class))), len(of_class) - 1)
        held_out.extend(of_class[:count])
    if not held_out:
        raise ValueError(
            f"No class has more than one video ({len(videos)} in all), so none can be held out. "
            "Add videos, or a validation/ folder or validation.csv of your own."
        )
    is_held_out = np.isin(rows, held_out)
    return dataset.select(np.flatnonzero(~is_held_out)), dataset.select(np.flatnonzero(is_held_out))


def _find_splits(path: Path) -> dict[str, Path]:
    """The annotation file, or the folder of class folders, of every split."""
    if path.is_file():
        if path.suffix.lower() not in ANNOTATION_SUFFIXES:
            raise ValueError(f"{path} is a file, but not a CSV file, a list or a JSON file. {_LAYOUTS}")
        return {"train": path}
    entries = _visible(path)
    files = (entry for entry in entries if entry.suffix.lower() in ANNOTATION_SUFFIXES and entry.is_file())
    if file_splits := _by_split(files):
        return file_splits
    folders = [entry for entry in entries if entry.is_dir()]
    folder_splits = _by_split(folder for folder in folders if _split_of(folder) and _holds_class_folders(folder))
    if not folder_splits:
        return {"train": path}
    for folder in folders:
        if folder not in folder_splits.values() and (_split_of(folder) or _videos_in(folder)):
            raise ValueError(
                f"{path} holds splits ({', '.join(folder_splits)}), but {folder.name}/ is not a split of class "
                f"folders. Move it elsewhere, or into the split it belongs to. {_LAYOUTS}"
            )
    return folder_splits


def _by_split(sources: Iterable[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for source in sources:
        split = _split_of(source)
        if split is None:
            continue
        if split in found:
            raise ValueError(f"{found[split]} and {source.name} both name the split {split!r}. Keep one of them.")
        found[split] = source
    return {str(split): found[split] for split in SPLIT_KEYWORDS if split in found}


def _split_of(source: Path) -> str | None:
    name = source.stem.lower() if source.suffix.lower() in ANNOTATION_SUFFIXES else source.name.lower()
    return next((str(split) for split, words in SPLIT_KEYWORDS.items() if name in words), None)


def _holds_class_folders(folder: Path) -> bool:
    return any(entry.is_dir() and _videos_in(entry) for entry in _visible(folder))


def _read_class_folders(folder: Path) -> list[Clip]:
    class_folders = [entry for entry in _visible(folder) if entry.is_dir()]
    if not class_folders:
        loose = [entry.name for entry in _visible(folder)]
        holds = f"It holds {listed(loose)}." if loose else "It is empty."
        raise ValueError(f"{folder} has no class folder. {holds} {_LAYOUTS}")
    clips: list[Clip] = []
    for class_folder in class_folders:
        videos = _videos_in(class_folder)
        others = sorted(set(_visible(class_folder)).difference(videos))
        if not videos:
            holds = f"holds only {listed(entry.name for entry in others)}" if others else "is empty"
            raise ValueError(f"The class folder {class_folder} has no video: it {holds}. {_LAYOUTS}")
        for entry in others:
            if entry.is_dir() and _videos_in(entry):
                raise ValueError(
                    f"The class folder {class_folder} has videos, and more of them one level down in {entry.name}/. "
                    "Put all videos of a class directly into its folder."
                )
        clips.extend(Clip(str(video), class_folder.name) for video in videos)
    return clips


def _class_names(path: Path, splits: dict[str, list[Clip]], labels: Sequence[str] | None) -> list[str]:
    found = {split: {clip.label for clip in clips} for split, clips in splits.items()}
    every = set().union(*found.values())
    if labels is not None:
        if unknown := sorted(every - set(labels)):
            raise ValueError(
                f"{path} has {listed(map(repr, unknown))}, not among the {len(labels)} known labels: "
                f"{listed(map(repr, labels))}. Rename or remove these classes, or train a model that knows them."
            )
        return list(labels)
    for split, names in found.items():
        if lacking := sorted(every - names):
            raise ValueError(
                f"The splits of {path} differ in their classes: {split} lacks {listed(map(repr, lacking))}. "
                "Add videos of these classes, remove them from the other splits, or pass all names as `labels`."
            )
    if len(every) < 2:
        raise ValueError(f"{path} has only one class, {every.pop()!r}; at least two are expected. {_LAYOUTS}")
    # Labels that are numbers keep their order, so that class 10 does not come before class 2.
    return sorted(every, key=int) if all(name.isdecimal() for name in every) else sorted(every)


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _videos_in(folder: Path) -> list[Path]:
    return [entry for entry in _visible(folder) if _is_video_file(entry) or is_frame_folder(entry)]


def _is_video_file(path: Path) -> bool:
    kind, _ = mimetypes.guess_type(path.name)
    is_video = path.suffix.lower() in VIDEO_EXTENSIONS or (kind is not None and kind.startswith("video/"))
    return is_video and path.is_file()
