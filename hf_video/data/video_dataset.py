"""Lists labelled videos in a `datasets.DatasetDict`: of class folders, lists, tables, and data sets.

A row holds the path of a video, never its frames. Rows live in memory, so a folder is always read as it is at the
moment of the call. Only videos that are stored inside a data set stay inside it.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, Value, concatenate_datasets

from .folders import (
    LAYOUTS,
    no_root_for,
    others_below,
    read_class_folders,
    sources_by_split,
    split_sources,
    tell_others,
    videos_below,
    visible_entries,
)
from .rows import BYTES, DURATION, FRAMES, KNOWN_COLUMNS, arrow_column, data_sets, is_stored
from .tables import Table, cell_text, find_columns, holds_table, item_of, open_tables, require_videos

logger = logging.getLogger(__name__)
# What a table says of its videos, if the columns have these types.
_FACTS = {FRAMES: "int64", DURATION: "float64"}
# Values of labels that are kept secret, as in the test splits of benchmarks.
_UNKNOWN = (None, -1)
_EXPECTED = (
    "Expected a folder with videos at any depth; a list of paths (CSV, .txt or JSON), with or without labels; a table "
    "(.parquet or .tar); or a data set with a column of the feature Video."
)


def load_video_dataset(
    data: str | os.PathLike | DatasetDict | Dataset,
    *,
    labels: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
    video_root: str | os.PathLike | None = None,
    columns: Sequence[str] | None = (),
    config: str | None = None,
    revision: str | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
) -> DatasetDict:
    """List the labelled videos of a folder, of a list or table, or of a data set with a column of videos.

    Splits have the names that `datasets` knows (train, training; validation, valid, dev, val; test, testing, eval,
    evaluation). A video is a file with the extension of a video, the same ones on every machine, or a folder of JPEG
    or PNG frames. Hidden files are ignored; files of other kinds, and videos beside the class folders, are left out,
    and a line of the log counts and names them. Entries that look like a video but cannot be read are listed too, so
    that `inspect_videos` reports them: a link to nowhere, and a FIFO, socket or folder without frames that has the
    name of a video.

    Args:
        data: A folder of class folders; a folder of splits, each of them class folders; a list, UTF-8; or a folder of
            lists named after splits. A list is a CSV file with the columns `path` (or `video`), `label` and,
            optionally, `start` and `end`, in seconds or as 1:02:03.5, and `split`; a JSON list or JSON Lines of
            objects with the same names; lines of these without a first line of names, as those of Kinetics, separated
            by commas or spaces (.csv or .txt), or of a folder of frames, its number of frames and the label; or the
            JSON file of Something-Something, whose classes are its templates. In place of `label` there may be
            `labels`: any number of classes a clip, in CSV separated by semicolons, in JSON a list. Columns may be
            separated by semicolons or tabs, and have capitals and spaces in their names; a line of the log says what
            was guessed. A path may be a URL, and may lack the ending of the file.
            Or a table: a Parquet file, or a tar of WebDataset, by path, by a URL that fsspec knows, or by a pattern of
            names; a folder of them; or a data set of the `datasets` library, as an object, as a folder of
            `save_to_disk`, or by its name on the Hub. Videos are in the column `video`, the only one of the feature
            `Video`, or `path`; whole files are in that feature or in `bytes`. Labels are in `label`, `labels`, or the
            only column of `ClassLabel`. Videos of which a table has `frames` and `duration`, as that of `hf-video
            inspect --output`, are not looked for.
        labels: The class names in the order of their ids, such as those of a trained model. By default they are those
            that the data set declares, or the classes that are found, sorted; as numbers if all are whole numbers.
        order: Class names whose order the ids have if the data have the same classes, such as those of a model.
        video_root: The folder, or its URL, that relative paths count from; by default that of the files, for a data
            set the working directory. Class folders have none.
        columns: Further columns that are kept, such as "person" for `hold_out`; None for all.
        config, revision: Of a data set of the `datasets` library: the name of its configuration, and on the Hub a
            branch, tag or commit.
        train_split, validation_split: Of such a data set: the splits to train on and to validate with; by default
            those with a usual name.

    Returns:
        The splits found among "train", "validation" and "test"; data without splits are "train". Columns: `video`
        (string, absolute path or URL), `label` (`ClassLabel`) or `labels` (list of `ClassLabel`), `start` and `end`
        (float64, seconds, or None), and `columns` (string, None for an empty cell). If videos are stored inside the
        data set, `bytes` holds them and `video` is a name. `frames` (int64) and `duration` (float64) of a table that
        has them.

    Raises:
        FileNotFoundError: If `data`, a file that it names, or `video_root` does not exist, or a link in the place of a
            class folder leads nowhere.
        ValueError: If the layout is another one, a class has no video, class folders have a `video_root`, the name
            of a file is not UTF-8, or a table lacks columns or rows or has a wrong value. If a class is not among
            `labels`; without `labels`, if there are fewer than two classes or "train" lacks a class of another split.
    """
    if known := KNOWN_COLUMNS.intersection(columns or ()):
        raise ValueError(f"The column {min(known)!r} has a meaning of its own, and cannot be a further one.")
    named: dict[str, Any] = {
        "config": config,
        "revision": revision,
        "train_split": train_split,
        "validation_split": validation_split,
    }
    tables = open_tables(data, video_root, **named)
    if any(isinstance(table, Path) for table in tables.values()) and video_root is not None:
        raise no_root_for(data)
    return _rows(data, tables, labels, columns, labelled=True, order=order)


def left_out(data: str | os.PathLike) -> list[str]:
    """The files of a folder of class folders that are no videos by their names; none of other data."""
    path = Path(data).expanduser().absolute()
    if not path.is_dir() or holds_table(path):
        return []
    folders = [source for source in split_sources(path).values() if source.is_dir()]
    return [str(other) for folder in folders for other in others_below(folder)]


def load_listed_videos(data: str | os.PathLike, *, video_root: str | os.PathLike | None = None) -> DatasetDict:
    """The rows of a list or a table, or of a folder of them named after splits, as of `load_video_dataset`; labels are
    not read, and need not be there."""
    return _rows(data, open_tables(data, video_root, expected=_EXPECTED), None, (), labelled=False)


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
    tables = open_tables(data, video_root, expected=_EXPECTED)
    if "train" not in tables:
        raise ValueError(f"{data} has no training split, only {', '.join(tables)}. Add train/ or train.csv.")
    return _rows(data, {"train": tables["train"]}, None, (), labelled=False)


def _rows(
    data: Any,
    tables: Mapping[str, Table | Path],
    labels: Sequence[str] | None,
    columns: Sequence[str] | None,
    labelled: bool,
    order: Sequence[str] | None = None,
) -> DatasetDict:
    """The rows of `load_video_dataset` of opened tables or folders."""
    read = {name: table for name, table in tables.items() if isinstance(table, Table)}
    if len(read) < len(tables):
        if read:
            raise ValueError(f"{data} has lists and class folders as splits; one kind for all is expected.")
        folders = {name: folder for name, folder in tables.items() if isinstance(folder, Path)}
        of_folders = {name: _of_folder(folder, labelled) for name, folder in folders.items()}
        return data_sets(data, of_folders, labels, order)
    for table in read.values():
        if labelled and table.lines is not None and not ("label" in table or "labels" in table):
            raise ValueError(f"{table.name} has no column label or labels, but {', '.join(table.names)}. {LAYOUTS}")
    known = {name: find_columns(table.rows.features, labelled).label for name, table in read.items()}
    for name, label in known.items():
        if label is not None and all(value in _UNKNOWN for value in read[name].column(label).to_pylist()):
            logger.warning(f"The {name} split is left out: none of its {len(read[name])} rows has a label.")
            del read[name]
    if not read:
        raise ValueError(f"The data set has no labels in its column {next(iter(known.values()))!r}.")
    features = next(iter(read.values())).rows.features
    if columns is None:
        of_all = {name: kind for table in read.values() for name, kind in table.rows.features.items()}
        columns = [name for name, kind in of_all.items() if isinstance(kind, Value) and kind.dtype != "binary"]
    kept = [name for name in columns if name not in {*KNOWN_COLUMNS, *known.values()}]
    if not isinstance(data, str | os.PathLike) or all(table.lines is None for table in read.values()):
        kept = [name for name in kept if any(name in table for table in read.values())]
    videos = require_videos(read)
    settled = {name: _settle(table, videos[name], known[name], kept) for name, table in read.items()}
    if labelled:
        labels = labels or getattr(item_of(features[str(next(iter(known.values())))]), "names", None)
    loaded = data_sets("The data set" if isinstance(data, Dataset | DatasetDict) else data, settled, labels, order)
    for name, table in read.items():
        if any(is_stored(table.rows)):
            loaded[name] = concatenate_datasets([loaded[name], table.rows.select_columns(BYTES)], axis=1)
        # Says where on the Hub it comes from.
        loaded[name].info.download_checksums = table.rows.info.download_checksums
    return loaded


def _settle(table: Table, videos: pa.Array, label: str | None, kept: Sequence[str]) -> pa.Table:
    """The rows of a split as `data_sets` takes them."""
    found = {"video": videos}
    if label is not None:
        values, feature = table.column(label), table.rows.features[label]
        is_multi = label == "labels" or pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
        found["labels" if is_multi else "label"] = (_several if is_multi else _names)(table, values, feature)
    times = table.times()
    has_times = pc.or_(times["start"].is_valid(), times["end"].is_valid())
    for video in pc.unique(videos.filter(has_times)).to_pylist():
        if FRAMES not in table and os.path.isdir(video):
            row = pc.index(pc.and_(has_times, pc.equal(videos, video)), True).as_py()
            raise ValueError(
                f"{table.place(row)}: {video} is a folder of frames, which have no times; leave start and end empty."
            )
    found |= times
    facts = [name for name, kind in _FACTS.items() if table.rows.features.get(name) == Value(kind)]
    found |= {name: arrow_column(table.rows, name) for name in facts}
    return pa.table(found | {name: table.further(name) for name in kept})


def _names(table: Table, values: pa.Array, feature: Any, rows: np.ndarray | None = None) -> pa.Array:
    """The names of classes, of their ids or names."""

    def name_of(place: str, column: str, value: Any) -> str:
        if isinstance(feature, ClassLabel) and value not in _UNKNOWN:
            return feature.int2str(value)
        return cell_text(place, column, None if isinstance(feature, ClassLabel) else value)

    return table.converted(values, "label" if rows is None else "one of labels", name_of, pa.string(), rows)


def _several(table: Table, values: pa.Array, feature: Any) -> pa.Array:
    """The lists of names of the classes of each row, of lists or of texts with semicolons."""
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        texts = values.cast(pa.string()).fill_null("").to_pylist()
        lists = [[each.strip() for each in text.split(";")] if text.strip() else [] for text in texts]
        values = pa.array(lists, pa.list_(pa.string()))
    if values.null_count:
        row = pc.index(values.is_null(), True).as_py()
        raise ValueError(f"{table.place(row)}: labels is None; a list of names is expected, or leave the row out.")
    for row, value in enumerate(values.to_pylist()):
        if len(set(value)) < len(value):
            raise ValueError(f"{table.place(row)}: labels is {value!r}; different names are expected.")
        if None in value or "" in value:
            raise ValueError(f"{table.place(row)}: one of labels is {'' if '' in value else None!r}; leave it out.")
    counts = pc.list_value_length(values).to_numpy()
    names = _names(table, values.flatten(), item_of(feature), np.repeat(np.arange(len(values)), counts))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names)


def _of_folder(folder: Path, labelled: bool) -> pa.Table:
    """The videos of class folders; or those at any depth, of a folder of training videos alone if there is one."""
    if labelled:
        clips = read_class_folders(folder)
        columns = {"video": [clip.video for clip in clips], "label": [clip.label for clip in clips]}
    else:
        folders = (entry for entry in visible_entries(folder) if entry.is_dir())
        folder = sources_by_split((entry.name, entry) for entry in folders).get("train", folder)
        columns = {"video": [str(video) for video in videos_below(folder)]}
        if not columns["video"]:
            raise ValueError(f"{folder} has no videos inside. {_EXPECTED}")
    if sentence := tell_others(folder):
        logger.warning(sentence)
    times = {name: pa.nulls(len(columns["video"]), pa.float64()) for name in ("start", "end")}
    try:
        return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()} | times)
    except UnicodeEncodeError as error:
        name = os.fsencode(error.object).decode(errors="backslashreplace")
        raise ValueError(f"The name of {name} is not UTF-8. Rename the file or folder.") from error
