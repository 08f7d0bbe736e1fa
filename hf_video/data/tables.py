"""Reads tables of videos: Parquet files, WebDataset tars, and data sets of the `datasets` library.

The column of videos has paths (`path` or `video`), or the feature `Video`, whose rows may hold whole files; a column
`bytes` may hold them, too. A table with the columns `frames` and `duration`, as `hf-video inspect --output` writes, is
believed: its videos are neither looked for nor opened before they are read.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value, Video, concatenate_datasets
from datasets.data_files import SPLIT_KEYWORDS
from datasets.exceptions import DatasetGenerationError
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_video.reading.sources import is_url

from .annotation_files import KNOWN_COLUMNS, cell_text, listed
from .columns import arrow_column, data_sets
from .places import TABLE_SUFFIXES, absolute, folder_of, split_of, visible_entries
from .stored_videos import BYTES, is_stored

logger = logging.getLogger(__name__)
Split = TypeVar("Split")
FRAMES, DURATION = "frames", "duration"
# What a table says of its videos, if the columns have these types.
_FACTS = {FRAMES: "int64", DURATION: "float64"}
_TIMES = ("start", "end")
# Values of labels that are kept secret, as in the test splits of benchmarks.
_UNKNOWN = (None, -1)
_SAVED = (datasets.config.DATASETDICT_JSON_FILENAME, datasets.config.DATASET_STATE_JSON_FILENAME)


class VideoColumns(NamedTuple):
    """The names of the columns that are read: of videos, of labels (None without), and those of `start` and `end` that
    exist."""

    video: str
    label: str | None
    times: list[str]


def find_dataset(
    data: str | os.PathLike, *, config: str | None = None, revision: str | None = None, streaming: bool = False
) -> Any:
    """The data set in a Parquet file or tar, by path, URL or pattern of names, in a folder of them or of
    `save_to_disk`, or on the Hub; None if `data` is none of these. With `streaming` its splits are streams, except
    those of `save_to_disk`.

    Raises:
        FileNotFoundError: a file, or a name that is neither a path nor a data set of the Hub, does not exist.
        ValueError: a file cannot be read.
    """
    path = Path(data).expanduser()
    if path.is_dir():
        if _is_saved(path):
            return datasets.load_from_disk(path)
        return datasets.load_dataset(str(path), config, streaming=streaming) if holds_table(path) else None
    if is_table(data):
        builder = "parquet" if PurePath(data).suffix.lower() == ".parquet" else "webdataset"
        try:
            return datasets.load_dataset(builder, data_files={"train": absolute(data)}, streaming=streaming)
        except (DatasetGenerationError, pa.ArrowInvalid) as error:
            raise ValueError(f"{data} cannot be read as {builder}: {error.__cause__ or error}") from error
    if not is_hub_name(data):
        return None
    try:
        return datasets.load_dataset(str(data), config, revision=revision, streaming=streaming)
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(
            f"{data} does not exist, and no data set of this name can be read from the Hub: {error}"
        ) from error


def is_table(data: str | os.PathLike) -> bool:
    """Whether data have the name of a Parquet file or of a tar, as path, URL or pattern."""
    return PurePath(data).suffix.lower() in TABLE_SUFFIXES


def holds_table(folder: Path) -> bool:
    """Whether a folder is of `save_to_disk`, or has tars or Parquet files that are data. A Parquet file of paths is
    data if it is named after a split: any other may be a list of the videos beside it. So may a tar beside folders."""
    if _is_saved(folder):
        return True
    visible = visible_entries(folder)
    if any(entry.suffix == ".tar" for entry in visible) and not any(entry.is_dir() for entry in visible):
        return True
    found = [file for pattern in ("*.parquet", "data/*.parquet") for file in folder.glob(pattern)]
    return any(
        split_of(file.stem) is not None or _holds_files(file) for file in found if not file.name.startswith(".")
    )


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _SAVED)


def _holds_files(file: Path) -> bool:
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} cannot be read as Parquet: {error}") from error
    return BYTES in schema.names or any(pa.types.is_struct(kind) or pa.types.is_binary(kind) for kind in schema.types)


def with_video_names(rows: Dataset) -> Dataset:
    """A data set whose column `video` is of paths. Files that are stored inside are in the column `bytes`, and those
    without a name are called after their row."""
    rows = _with_paths(rows, "video")
    if BYTES not in rows.column_names:
        return rows
    names = [path or f"video {number}" for number, path in enumerate(rows["video"])]
    return rows.remove_columns("video").add_column("video", names)


def _with_paths(rows: Dataset, column: str) -> Dataset:
    """Rows whose column `video` has paths, and `bytes` the files that are stored inside, if there are any."""
    if not isinstance(rows.features[column], Value) or rows.features[column].dtype == "binary":
        rows = rows.cast_column(column, Video(decode=False)).flatten()
        if BYTES in rows.column_names:
            rows = rows.remove_columns(f"{column}.bytes")
        names = {f"{column}.path": "video", f"{column}.bytes": BYTES}
    else:
        names = {column: "video"}
    return rows.rename_columns({old: new for old, new in names.items() if old in rows.column_names and old != new})


def is_hub_name(data: str | os.PathLike) -> bool:
    """Whether data are named as a data set of the Hub is, USER/NAME, and no such path exists."""
    if Path(data).expanduser().exists() or str(data).count("/") != 1 or is_table(data):
        return False
    try:
        validate_repo_id(str(data))
    except HFValidationError:
        return False
    return True


def load_table(
    data: str | os.PathLike | DatasetDict | Dataset,
    labels: Sequence[str] | None = None,
    video_root: str | os.PathLike | None = None,
    columns: Sequence[str] | None = (),
    *,
    labelled: bool = True,
    config: str | None = None,
    revision: str | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
) -> DatasetDict | None:
    """The rows of a table, as `load_video_dataset` returns them; None if `data` are no table.

    Args:
        data: an object of the `datasets` library, or what `find_dataset` takes.
        labels: the class names by id; by default those that the data set declares, or those that are found.
        video_root: the folder, or its URL, that relative paths count from; by default that of the files, and for a
            data set the working directory.
        columns: further columns that are kept as text, of those that there are; None for all.
        labelled: whether each row has a label. Otherwise there is no such column.
        config, revision, train_split, validation_split: see `load_video_dataset`.
    """
    is_object = isinstance(data, DatasetDict | Dataset)
    found: Any = data if is_object else find_dataset(data, config=config, revision=revision)
    if found is None:
        return None
    if isinstance(found, Dataset):
        found = DatasetDict(train=found)
    is_file = not (is_object or is_hub_name(data) or _is_saved(Path(data).expanduser()))
    root = absolute(video_root or ("." if not is_file else folder_of(absolute(data)) if is_table(data) else data))
    splits = known_splits(_by_column(data, found) if is_file else found, train_split, validation_split)
    features = next(iter(splits.values())).features
    known = find_columns(features, labelled)
    if columns is None:
        columns = [name for name, kind in features.items() if isinstance(kind, Value) and kind.dtype != "binary"]
    kept = [name for name in columns if name in features and name not in {*KNOWN_COLUMNS, *known[:2]}]
    tables: dict[str, pa.Table] = {}
    files: dict[str, Dataset] = {}
    missing: list[str] = []
    for name, split in splits.items():
        if known.label is not None and all(value in _UNKNOWN for value in split[known.label]):
            logger.warning(f"The {name} split is left out: none of its {len(split)} rows has a label.")
            continue
        facts = [fact for fact, kind in _FACTS.items() if split.features.get(fact) == Value(kind)]
        read = [known.video, BYTES, known.label, *known.times, *facts, *kept]
        rows = _with_paths(split.select_columns([each for each in read if each in split.column_names]), known.video)
        if any(is_stored(rows)):
            files[name] = rows.select_columns(BYTES)
        tables[name], not_there = _read_split(name, rows, known, kept, root)
        missing += not_there
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} videos of the data set do not exist: {listed(missing, separator='; ')}. Relative paths "
            f"count from {root}; say where the videos are with `video_root`."
        )
    if not tables:
        raise ValueError(f"The data set has no labels in its column {known.label!r}.")
    if known.label is not None:
        labels = labels or getattr(_item(features[known.label]), "names", None)
    loaded = data_sets("The data set" if is_object else data, tables, labels)
    for name, stored in files.items():
        loaded[name] = concatenate_datasets([loaded[name], stored], axis=1)
    for split in loaded.values():
        # Says where on the Hub it comes from.
        split.info.download_checksums = next(iter(found.values())).info.download_checksums
    return loaded


def _by_column(data: Any, splits: Mapping[str, Dataset]) -> Mapping[str, Dataset]:
    """The rows of files by their column `split`, if they have one."""
    if any("split" not in rows.column_names for rows in splits.values()):
        return splits
    rows = concatenate_datasets([*splits.values()])
    names = arrow_column(rows, "split").to_pylist()
    split_by_name = {name: split_of(str(name)) for name in dict.fromkeys(names)}
    if unknown := [name for name, split in split_by_name.items() if split is None]:
        expected = ", ".join(map(str, SPLIT_KEYWORDS))
        raise ValueError(f"{data}: split is {unknown[0]!r}; one of {expected} is expected.")
    found = np.array([split_by_name[name] for name in names])
    return {str(split): rows.select(np.flatnonzero(found == split)) for split in np.unique(found)}


def _read_split(
    split: str, rows: Dataset, columns: VideoColumns, kept: Sequence[str], root: str
) -> tuple[pa.Table, list[str]]:
    """The rows of a split as `data_sets` takes them; and the videos that do not exist."""
    has_frames = arrow_column(rows, FRAMES).is_valid() if FRAMES in rows.column_names else pa.repeat(False, len(rows))
    videos, missing = [], []
    cells = zip(arrow_column(rows, "video").to_pylist(), is_stored(rows), has_frames.to_pylist(), strict=True)
    for row, (path, is_inside, is_known) in enumerate(cells):
        if is_inside:
            path = f"{split}[{row}]" if path is None else f"{split}[{row}] {PurePath(path).name}"
        elif not path:
            raise ValueError(f"{split}[{row}] has no video.")
        elif not is_url(path):
            path = os.path.join(root, os.path.expanduser(path))
            if not is_known and not is_url(path) and not os.path.exists(path):
                missing.append(path)
        videos.append(path)
    table = {"video": pa.array(videos, pa.string())}
    if columns.label is not None:
        column, feature = arrow_column(rows, columns.label), rows.features[columns.label]
        if isinstance(feature, List):
            _require(split, columns.label, column, column.is_valid(), "a list of names is expected; leave the row out")
            names = _class_names(split, column.values, feature.feature)
            table["labels"] = pa.ListArray.from_arrays(column.offsets, names)
        else:
            table["label"] = _class_names(split, column, feature)
    table |= _read_times(split, rows)
    table |= {name: arrow_column(rows, name) for name in _FACTS if name in rows.column_names}
    table |= {name: arrow_column(rows, name).cast(pa.string()) for name in kept if name in rows.column_names}
    return pa.table(table), missing


def _class_names(split: str, values: pa.Array, feature: Any) -> pa.Array:
    """The names of the classes, from their ids or names."""
    encoded = values.dictionary_encode(null_encoding="encode")
    names = []
    for number, value in enumerate(encoded.dictionary.to_pylist()):
        where = f"{split}[{pc.index(encoded.indices, number)}]"
        if value in _UNKNOWN:
            raise ValueError(f"{where} has no label. Leave such rows out: dataset.filter(...).")
        is_id = isinstance(feature, ClassLabel)
        names.append(feature.int2str(value) if is_id else cell_text(where, "the label", value))
    return pa.array(names, pa.string()).take(encoded.indices)


def _read_times(split: str, rows: Dataset) -> dict[str, pa.Array]:
    """`start` and `end` in seconds, null where a row has none."""
    times = {}
    for name in _TIMES:
        column = arrow_column(rows, name) if name in rows.column_names else pa.nulls(len(rows))
        try:
            times[name] = column.cast(pa.float64())
        except pa.ArrowException as error:
            raise ValueError(f"The column {name} of the {split} split has no seconds: {error}") from error
        is_time = pc.and_(pc.is_finite(times[name]), pc.greater_equal(times[name], 0))
        _require(split, name, times[name], is_time, "seconds from 0 on are expected, or null")
    is_later = pc.greater(times["end"], pc.fill_null(times["start"], 0.0))
    _require(split, "end", times["end"], is_later, "a time after the start of the segment is expected")
    return times


def _require(split: str, name: str, values: pa.Array, is_right: pa.Array, expected: str) -> None:
    row = pc.index(is_right, False).as_py()
    if row >= 0:
        raise ValueError(f"{split}[{row}]: {name} is {values[row].as_py()!r}; {expected}.")


def known_splits(
    splits: Mapping[str, Split], train_split: str | None = None, validation_split: str | None = None
) -> dict[str, Split]:
    """The splits by "train", "validation" and "test": those that are named, or have a usual name."""
    named = {"train": train_split, "validation": validation_split}
    known: dict[str, Split] = {}
    for split, name in named.items():
        if name is not None and name not in splits:
            raise ValueError(f"{split}_split={name!r} is not among the splits of the data set, {', '.join(splits)}.")
        if name is not None:
            known[split] = splits[name]
    for name, rows in splits.items():
        found = split_of(name)
        if name in named.values() or named.get(found or "") is not None:
            continue
        if found is None:
            logger.warning(f"The split {name!r} is left out: only train, validation and test are read.")
        elif found in known:
            raise ValueError(f"Two splits of the data set stand for {found!r}, one of them {name!r}: leave one out.")
        else:
            known[found] = rows
    if not known:
        raise ValueError(f"The data set has the splits {', '.join(splits)}, but none of train, validation and test.")
    return {str(split): known[split] for split in SPLIT_KEYWORDS if split in known}


def find_columns(features: Features, labelled: bool = True) -> VideoColumns:
    """The columns of a data set that are read. `cls` is what WebDataset calls labels."""
    video = _only(features, "the feature Video", ("video",), lambda feature: isinstance(feature, Video), "path")
    label = None
    if labelled:
        names = ("label", "labels")
        label = _only(features, "labels", names, lambda feature: isinstance(_item(feature), ClassLabel), "cls")
    return VideoColumns(video, label, [name for name in _TIMES if name in features])


def _only(features: Features, what: str, names: tuple[str, ...], fits: Callable[[Any], bool], last: str) -> str:
    """The column with one of `names`, or else the only column that fits, or else that of the `last` name."""
    found = [name for name in names if name in features] or [name for name in features if fits(features[name])]
    found = found or [name for name in (last,) if name in features]
    if len(found) != 1:
        have = f"{len(found)} columns of {what}: {', '.join(found)}" if found else f"no column of {what}"
        raise ValueError(
            f"The data set has {have}; its columns are {', '.join(features)}. Rename the one that is meant to "
            f"{names[0]!r}: dataset.rename_column(name, {names[0]!r})."
        )
    return found[0]


def _item(feature: Any) -> Any:
    return feature.feature if isinstance(feature, List) else feature
