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
from datasets import ClassLabel, Dataset, DatasetDict, List, Value

from . import folders
from .rows import DURATION, FRAMES, KNOWN_COLUMNS, UNKNOWN_SPANS, data_sets, item_of, own_name
from .tables import Table, cell_text, column_of, open_tables, require_videos

logger = logging.getLogger(__name__)
# What a table says of its videos, if the columns have these types.
_FACTS = {FRAMES: Value("int64"), DURATION: Value("float64"), UNKNOWN_SPANS: List(List(Value("float64")))}
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
    min_classes: int = 2,
    **options: Any,
) -> DatasetDict:
    """List the labelled videos of a folder, of a list or table, or of a data set with a column of videos.

    Splits have the names that `datasets` knows, such as valid, dev and val. A video is a file with the extension of a
    video, or a folder of JPEG or PNG frames. Hidden files are ignored; files of other kinds, and videos beside the
    class folders, are left out, and a line of the log counts and names them. Files that have the name of a video but
    cannot be read are listed too, so that `inspect_videos` reports them.

    Args:
        data: A folder of class folders; a folder of splits, each of them class folders; a list; or a folder of lists
            named after splits. A list is a CSV file (UTF-8 or Windows-1252) with the columns `path` (or `video`),
            `label` and, optionally, `start` and `end`, in seconds or as 1:02:03.5, and `split`; a JSON list or JSON
            Lines of objects with the same names; lines of these without a first line of names, as those of Kinetics,
            separated by commas or spaces (.csv or .txt), or of a folder of frames, its number of frames and the label;
            or the JSON file of Something-Something, whose classes are its templates. In place of `label` there may be
            `labels`: any number of classes a clip, in CSV separated by semicolons, in JSON a list. Columns may be
            separated by semicolons or tabs, and have capitals and spaces in their names; a line of the log says what
            was guessed. A path may be a URL, and may lack the ending of the file.
            Or a table: a Parquet file, or a tar of WebDataset, by path, by a URL that fsspec knows, or by a pattern of
            names; a folder of them; or a data set of the `datasets` library, as an object, as a folder of
            `save_to_disk`, or by its name on the Hub. Videos are in the column `video`, the only one of the feature
            `Video`, or `path`; whole files are in that feature or in `bytes`. Labels are in `label`, `labels`, or the
            only column of `ClassLabel`. Videos of which a table has `frames` and `duration`, as that of `hf-video
            inspect --output`, are not looked for.
            Or an annotation file that [`read_annotations`] reads, such as a project of BORIS.
        labels: The class names in the order of their ids, such as those of a trained model. By default they are those
            that the data set declares, or the classes that are found, sorted; as numbers if all are whole numbers.
        order: Class names whose order the ids have if the data have the same classes, as those of a model to train.
        video_root: The folder, or its URL, that relative paths count from; by default that of the files, for a data
            set the working directory. Class folders have none.
        columns: Further columns that are kept, such as "person" for `hold_out`; None for all.
        min_classes: How many classes data need without `labels`: one is enough where a background is another.
        options: Of a data set of the `datasets` library: `config`, the name of its configuration; `revision`, on the
            Hub a branch, tag or commit; `train_split` and `validation_split`, by default those with a usual name.
            Of an annotation file: `choices`, see [`read_annotations`]. Its `point_width` is for any list of times:
            the seconds around instants, rows that end where they start, or have a `time` and neither start nor end;
            0 keeps them as they are.

    Returns:
        The splits found among "train", "validation" and "test"; data without splits are "train". Columns: `video`
        (string, absolute path or URL), `label` (`ClassLabel`) or `labels` (list of `ClassLabel`), `start` and `end`
        (float64, seconds, or None), and `columns` (string, None for an empty cell). If videos are stored inside the
        data set, `bytes` holds them and `video` is a name. `frames` (int64) and `duration` (float64) of a table that
        has them.

    Raises:
        FileNotFoundError: If `data`, a file that it names, or `video_root` does not exist.
        ValueError: If the layout is another one, a class has no video, class folders have a `video_root`, or a table
            lacks columns or rows or has a wrong value. If a class is not among `labels`; without these, if there are
            fewer than `min_classes` or "train" lacks a class of another split.
    """
    if known := KNOWN_COLUMNS.intersection(columns or ()):
        raise ValueError(f"The column {min(known)!r} has a meaning of its own, and cannot be a further one.")
    tables = open_tables(data, video_root, read_folder=_classes_in, **options)
    label_of = {
        name: column_of(table.name, table.rows.features, "label", table.own_names) for name, table in tables.items()
    }
    for name, label in label_of.items():
        if all(value.as_py() in _UNKNOWN for value in tables[name].column(label)):
            logger.warning(f"The {name} split is left out: none of its rows has a label.")
            del tables[name]
    if not tables:
        raise ValueError(f"The data set has no labels in its column {next(iter(label_of.values()))!r}.")
    if columns is None:
        of_all = {name: kind for table in tables.values() for name, kind in table.rows.features.items()}
        columns = [name for name, kind in of_all.items() if isinstance(kind, Value) and kind.dtype != "binary"]
    kept = [name for name in columns if name not in {*KNOWN_COLUMNS, *label_of.values()}]
    for name, table in tables.items() if labels is None else ():
        labels = labels or getattr(item_of(table.rows.features[label_of[name]]), "names", None)
    return _rows(data, tables, label_of, kept, labels, order, min_classes)


def left_out(data: str | os.PathLike) -> list[str]:
    """The files of a folder of class folders that are no videos by their names; none of other data."""
    path = Path(data).expanduser().absolute()
    if not path.is_dir() or folders.holds_table(path):
        return []
    inside = [source for source in folders.split_sources(path).values() if source.is_dir()]
    return [str(other) for folder in inside for other in folders.find_videos(folder)[1]]


def load_unlabelled_videos(
    data: str | os.PathLike, *, video_root: str | os.PathLike | None = None, columns: Sequence[str] = ()
) -> DatasetDict:
    """List the videos of a folder, a list or a data set without their labels, which need not be there.

    Args:
        data: A folder with videos at any depth, of which only train/ counts if it is there; a file or a table as for
            `load_video_dataset`, whose rows may lack labels; or a folder of such files named after splits.
        video_root: The folder that relative paths count from; see `load_video_dataset`.
        columns: Further columns that are kept as texts, such as the values that a task of your own learns.

    Returns:
        The splits, of a folder "train", with the columns of `load_video_dataset` except `label` and `labels`.

    Raises:
        FileNotFoundError: If `data`, or a file that it names, does not exist.
        ValueError: If there are no videos, or a column is missing; or the file is none of these.
    """
    tables = open_tables(data, video_root, expected=_EXPECTED, read_folder=_videos_in)
    if "train" in tables and tables["train"].is_folder:
        tables = {"train": tables["train"]}
    return _rows(data, tables, kept=columns)


def _rows(
    data: Any,
    tables: Mapping[str, Table],
    label_of: Mapping[str, str] | None = None,
    kept: Sequence[str] = (),
    labels: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
    min_classes: int = 2,
) -> DatasetDict:
    """The rows of tables, with the labels in the columns `label_of`."""
    videos = require_videos(tables)
    labelled = label_of or dict.fromkeys(tables)
    settled = {name: _settle(table, videos[name], labelled[name], kept) for name, table in tables.items()}
    source = "The data set" if isinstance(data, Dataset | DatasetDict) else data
    loaded = data_sets(source, settled, labels, order, min_classes)
    for name, table in tables.items():
        loaded[name] = table.with_files(loaded[name])
        # Says where on the Hub it comes from.
        loaded[name].info.download_checksums = table.rows.info.download_checksums
    return loaded


def _settle(table: Table, videos: pa.Array, label: str | None, kept: Sequence[str]) -> pa.Table:
    """The rows of a split as `data_sets` takes them."""
    found = {"video": videos}
    if label is not None:
        values, feature = table.column(label), table.rows.features[label]
        is_multi = label == "labels" or pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
        names_of = _several if is_multi else _names
        found["labels" if is_multi else "label"] = values if table.is_folder else names_of(table, values, feature)
    found |= table.times()
    found |= {name: table.column(name) for name, kind in _FACTS.items() if table.rows.features.get(name) == kind}
    names = {name: own_name(table.rows.column_names, name) for name in kept if not table.is_folder}
    return pa.table(found | {name: table.texts(own) for name, own in names.items()})


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
        texts = table.texts("labels").to_pylist()
        values = pa.array([text.split(";") if text else [] for text in texts], pa.list_(pa.string()))
    if (row := pc.index(values.is_null(), True).as_py()) >= 0:
        raise ValueError(f"{table.place(row)}: labels is None; a list of names is expected, or leave the row out.")
    counts = pc.list_value_length(values).to_numpy()
    names = _names(table, values.flatten(), item_of(feature), np.repeat(np.arange(len(values)), counts))
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32()), names)


def _classes_in(folder: Path) -> Table:
    """The videos of class folders."""
    found = folders.read_class_folders(folder)
    return _found_in(folder, [video for video, _ in found], label=[label for _, label in found])


def _videos_in(folder: Path) -> Table:
    """The videos at any depth of a folder, or of a folder of training videos inside if there is one."""
    inside = (entry for entry in folders.visible_entries(folder) if entry.is_dir())
    folder = folders.sources_by_split((entry.name, entry) for entry in inside).get("train", folder)
    videos, others = folders.find_videos(folder)
    if not videos:
        raise ValueError(f"{folder} has no videos inside. {_EXPECTED}")
    folders.tell_others(folder, others)
    return _found_in(folder, videos)


def _found_in(folder: Path, videos: Sequence[Path], **columns: Sequence[str]) -> Table:
    texts = {"video": [*map(str, videos)], **columns}
    rows = pa.table({name: pa.array(values, pa.string()) for name, values in texts.items()})
    return Table(Dataset(rows), str(folder), str(folder), is_folder=True)
