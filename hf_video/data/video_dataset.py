"""Lists labelled videos in a `datasets.DatasetDict`: of class folders, annotation files, and columns of videos.

A row holds the path of a video, never its frames. Rows live in memory, so a folder is always read as it is at the
moment of the call. Only videos that are stored inside a data set stay inside it.
"""

import logging
import mimetypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from datasets import Dataset, DatasetDict

from hf_video.reading.sources import is_url

from .annotation_files import ANNOTATION_SUFFIXES, KNOWN_COLUMNS, Clip, clip_table, listed, read_annotations
from .columns import data_sets
from .places import (
    absolute,
    is_named_video,
    leads_nowhere,
    no_root_for,
    require_root,
    sources_by_split,
    split_of,
    videos_below,
    videos_in,
    visible_entries,
)
from .tables import load_table

logger = logging.getLogger(__name__)
_LAYOUTS = (
    "Expected one folder for each class with videos inside (DATA/<class>/<video>); such folders in train/, "
    "validation/ and test/; a CSV file with the columns path,label[,start,end]; a list of `path label` lines as of "
    "Kinetics; a JSON file of Something-Something; a folder with such files named train, validation and test; a table "
    "(.parquet or .tar, or a folder of them) of paths or videos with labels; or a data set of videos, in "
    "a folder of save_to_disk or on the Hub."
)
_EXPECTED = (
    "Expected a folder with videos at any depth; a list of paths (CSV, .txt or JSON), with or without labels; a table "
    "(.parquet or .tar); or a data set with a column of the feature Video."
)


def load_video_dataset(
    data: str | os.PathLike | DatasetDict | Dataset,
    *,
    labels: Sequence[str] | None = None,
    video_root: str | os.PathLike | None = None,
    columns: Sequence[str] | None = (),
    config: str | None = None,
    revision: str | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
) -> DatasetDict:
    """List the labelled videos of a folder, of an annotation file, or of a data set with a column of videos.

    Splits have the names that `datasets` knows (train, training; validation, valid, dev, val; test, testing, eval,
    evaluation). A video is a file with the extension of a video, or a folder of JPEG or PNG frames. Hidden files and
    files of other kinds are ignored; videos beside the class folders are ignored with a warning. Entries that look
    like a video but cannot be read are listed too, so that `inspect_videos` reports them: a link to nowhere, and a
    FIFO, socket or folder without frames that has the name of a video.

    Args:
        data: A folder of class folders; a folder of splits, each of them class folders; an annotation file, UTF-8; or
            a folder of such files named after splits. An annotation file is a CSV file with the columns `path`,
            `label` and, optionally, `start` and `end` in seconds; a JSON list of objects with the same names; a list
            with these without a first line of names, as those of Kinetics, separated by commas or spaces (.csv or
            .txt); or the JSON file of Something-Something, whose classes are its templates. In place of `label` there
            may be `labels`: any number of classes a clip, in CSV separated by semicolons, in JSON a list.
            Or a table: a Parquet file, or a tar of WebDataset, by path, by a URL that fsspec knows, or by a pattern of
            names; a folder of them; or a data set of the `datasets` library, as an object, as a folder of
            `save_to_disk`, or by its name on the Hub. Videos are in the column `video`, the only one of the feature
            `Video`, or `path`; whole files are in that feature or in `bytes`. Labels are in `label`, `labels`, or the
            only column of `ClassLabel`. A Parquet file may have a column `split`. Videos of which a table has `frames`
            and `duration`, as that of `hf-video inspect --output`, are not looked for.
        labels: The class names in the order of their ids, such as those of a trained model. By default they are those
            that the data set declares, or the classes that are found, sorted; as numbers if all are whole numbers.
        video_root: The folder that relative paths count from; by default that of the files, for a data set the working
            directory. Of a table it may be a URL. Class folders have none.
        columns: Further columns that are kept, such as "person" for `hold_out`; None for all.
        config, revision: Of a data set of the `datasets` library: the name of its configuration, and on the Hub a
            branch, tag or commit.
        train_split, validation_split: Of such a data set: the splits to train on and to validate with; by default
            those with a usual name.

    Returns:
        The splits found among "train", "validation" and "test"; data without splits are "train". Columns: `video`
        (string, absolute path), `label` (`ClassLabel`) or `labels` (list of `ClassLabel`), `start` and `end` (float64,
        seconds, or None), and `columns` (string, None for an empty cell). If videos are stored inside the data set,
        `bytes` holds them and `video` is a name. `frames` (int64) and `duration` (float64) of a table that has them.

    Raises:
        FileNotFoundError: If `data`, a file that it names, or `video_root` does not exist, or a link in the place of a
            class folder leads nowhere.
        ValueError: If the layout is another one, a class has no video, class folders have a `video_root`, the name
            of a file is not UTF-8, or an annotation file lacks columns or rows or has a wrong value. If a class is not
            among `labels`; without `labels`, if there are fewer than two classes or "train" lacks a class of another
            split.
    """
    if known := KNOWN_COLUMNS.intersection(columns or ()):
        raise ValueError(f"The column {min(known)!r} has a meaning of its own, and cannot be a further one.")
    named: dict[str, Any] = {"config": config, "revision": revision}
    named |= {"train_split": train_split, "validation_split": validation_split}
    require_root(video_root)
    splits = load_table(data, labels, video_root, columns, **named)
    if splits is not None:
        return splits
    if is_url(data):
        raise FileNotFoundError(f"{data} is no table that can be read: by URL, data end in .parquet or .tar.")
    if given := [name for name, value in named.items() if value is not None]:
        raise ValueError(f"{given[0]} is for data sets of the datasets library, and {data} is none: leave it out.")
    path = Path(cast(str, data)).expanduser().absolute()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {_LAYOUTS}")
    sources = find_splits(path)
    if video_root is not None and any(source.is_dir() for source in sources.values()):
        raise no_root_for(path)
    tables = {
        split: clip_table(_read_class_folders(source))
        if source.is_dir()
        else _read_list(source, video_root, columns=columns)
        for split, source in sources.items()
    }
    return data_sets(path, tables, labels)


def _read_list(file: Path, video_root: str | os.PathLike | None, **options: Any) -> pa.Table:
    return read_annotations(file, None if video_root is None else Path(absolute(video_root)), **options)


def find_splits(path: Path) -> dict[str, Path]:
    """The annotation file, or the folder of class folders, of every split."""
    if not path.is_dir():
        if path.suffix.lower() not in ANNOTATION_SUFFIXES:
            raise ValueError(f"{path} is a file, but not a CSV file, a list or a JSON file. {_LAYOUTS}")
        return {"train": path}
    entries = visible_entries(path)
    # A FIFO or broken link with such a name is kept: reading it raises the error that explains it.
    files = (entry for entry in entries if entry.suffix.lower() in ANNOTATION_SUFFIXES and not entry.is_dir())
    if file_splits := sources_by_split((file.stem, file) for file in files):
        return file_splits
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
                f"folders. Move it elsewhere, or into the split it belongs to. {_LAYOUTS}"
            )
    return folder_splits


def _holds_class_folders(folder: Path) -> bool:
    return any(entry.is_dir() and videos_in(entry) for entry in visible_entries(folder))


def _read_class_folders(folder: Path) -> list[Clip]:
    class_folders = _folders_in(folder)
    if not class_folders:
        loose = [entry.name for entry in visible_entries(folder)]
        holds = f"It holds {listed(loose)}." if loose else "It is empty."
        raise ValueError(f"{folder} has no class folder. {holds} {_LAYOUTS}")
    if loose_videos := [
        entry.name for entry in visible_entries(folder) if not entry.is_dir() and is_named_video(entry)
    ]:
        logger.warning(
            f"{len(loose_videos)} videos are left out: they lie in {folder} beside the folders of the classes, and "
            f"have none: {listed(loose_videos)}."
        )
    clips: list[Clip] = []
    for class_folder in class_folders:
        videos = videos_in(class_folder)
        others = sorted(set(visible_entries(class_folder)).difference(videos))
        if not videos:
            holds = f"holds only {listed(entry.name for entry in others)}" if others else "is empty"
            raise ValueError(f"The class folder {class_folder} has no video: it {holds}. {_LAYOUTS}")
        for entry in others:
            if entry.is_dir() and any(videos_below(entry)):
                raise ValueError(
                    f"The class folder {class_folder} has videos, and more of them further down in {entry.name}/. "
                    "Put all videos of a class directly into its folder."
                )
        clips.extend(Clip(str(video), class_folder.name) for video in videos)
    return clips


def _folders_in(folder: Path) -> list[Path]:
    entries = visible_entries(folder)
    for entry in entries:
        if leads_nowhere(entry) and mimetypes.guess_type(entry.name)[0] is None:
            raise FileNotFoundError(
                f"{entry} is a link to {os.readlink(entry)}, where nothing is. It may stand for the folder of a class "
                "or split: repair or remove it."
            )
    return [entry for entry in entries if entry.is_dir()]


def load_listed_videos(data: str | os.PathLike, *, video_root: str | os.PathLike | None = None) -> DatasetDict:
    """The rows of a list or a table, or of a folder of them named after splits, as of `load_video_dataset`; labels are
    not read, and need not be there."""
    require_root(video_root)
    splits = load_table(data, video_root=video_root, labelled=False)
    if splits is None:
        files = find_splits(Path(data).expanduser().absolute())
        tables = {split: _read_list(file, video_root, labelled=False) for split, file in files.items()}
        splits = data_sets(data, tables, None)
    return splits


def load_unlabelled_videos(data: str | os.PathLike, *, video_root: str | os.PathLike | None = None) -> DatasetDict:
    """List the training videos of a folder, a list or a data set, without their labels.

    Args:
        data: A folder with videos at any depth, of which only train/ counts if it is there; a file or a table as for
            `load_video_dataset`, whose rows may lack labels; or a folder of such files named after splits.
        video_root: The folder that relative paths count from; see `load_video_dataset`.

    Returns:
        The split "train", with the columns of `load_video_dataset` except `label` and `labels`.

    Raises:
        FileNotFoundError: If `data`, or a file that it names, does not exist.
        ValueError: If there are no videos, or no training split; or the file is none of these.
    """
    require_root(video_root)
    found: Mapping[str, Any] | None = load_table(data, video_root=video_root, labelled=False)
    is_listed = found is not None
    path = Path(data).expanduser().absolute()
    if found is None:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist. {_EXPECTED}")
        if path.is_file() and path.suffix.lower() not in ANNOTATION_SUFFIXES:
            raise ValueError(f"{path} is a file, but no list of videos. {_EXPECTED}")
        found = find_splits(path)
    if "train" not in found:
        raise ValueError(f"{data} has no training split, only {', '.join(found)}. Add train/ or train.csv.")
    if is_listed:
        return DatasetDict(train=found["train"])
    source = found["train"]
    table = _videos_below(source) if source.is_dir() else _read_list(source, video_root, labelled=False)
    return data_sets(path, {"train": table}, None)


def _videos_below(folder: Path) -> pa.Table:
    """The videos at any depth; if there is a folder of training videos, those inside."""
    folders = (entry for entry in visible_entries(folder) if entry.is_dir())
    folder = sources_by_split((entry.name, entry) for entry in folders).get("train", folder)
    videos = [str(video) for video in videos_below(folder)]
    if not videos:
        raise ValueError(f"{folder} has no videos inside. {_EXPECTED}")
    return clip_table([Clip(video, "") for video in videos]).drop_columns("label")
