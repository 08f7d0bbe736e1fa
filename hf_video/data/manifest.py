"""Reads manifests: tables of videos that were checked, as `hf-video inspect --output` writes them.

A manifest is a Parquet file, or a folder of such files named after splits. What it says is trusted: no video is opened
to list it. Columns that are not described here are left alone.
"""

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, DatasetInfo, Features, Value
from datasets.table import InMemoryTable

from hf_video.processing import VideoReadError

from .columns import arrow_column
from .content_digest import content_digest
from .labels import choose_names, label_feature
from .splits import SPLITS, sources_by_split, split_of

SUFFIX = ".parquet"
# Columns of a manifest that its data set keeps; of those after the first it has all if it has one.
KEY, CHECKED, ERROR, SIZE, CONTENT = "key", "checked", "error", "size", "content"
DURATION, FRAMES = "duration", "frames"
# Values of the column `checked`.
DECODED, OPENED = "decoded", "opened"
# Names of entries in the metadata of a file: when it was written, and the class names by id as a JSON list.
_WRITTEN, CLASS_NAMES = b"hf_video_written", b"hf_video_class_names"

_TYPES = {
    **dict.fromkeys((KEY, "path", "split", "label", CHECKED, ERROR, CONTENT), pa.string()),
    "labels": pa.list_(pa.string()),
    **dict.fromkeys(("start", "end", DURATION), pa.float64()),
    **dict.fromkeys((FRAMES, SIZE), pa.int64()),
}
# Columns without nulls, in files that have them.
_REQUIRED = (KEY, "path", "label", "labels")
# Columns that are read only if they have the type that is written here; those of other programs may say other things.
_ONLY_OURS = (DURATION, FRAMES)
# What was found out about a video.
_CHECKS = (CHECKED, ERROR, SIZE, CONTENT, DURATION, FRAMES)


class StaleManifestError(VideoReadError):
    """A file is gone, or is another than the one that its manifest describes."""


def manifest_schema(multi_label: bool) -> pa.Schema:
    """The columns of a manifest that is written: `labels`, a list, if a clip may have several classes, else `label`.

    `key` is unique; `path` counts from the folder of the manifest; `start`, `end` and `duration` are in seconds,
    `size` in bytes; `checked` is "decoded" or "opened"; `error` is null for a video that can be read; `content` is
    the `content_digest`, null if there is none.
    """
    without = "label" if multi_label else "labels"
    times = ("start", "end", DURATION, FRAMES)
    order = (KEY, "path", "split", "label", "labels", *times, SIZE, CHECKED, ERROR, CONTENT)
    written = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return pa.schema([(name, _TYPES[name]) for name in order if name != without], metadata={_WRITTEN: written})


def is_manifest(file: Path) -> bool:
    """Whether a Parquet file has a column `path` and a column `label` or `labels`; it may lack all others. A file with
    a column of the feature `Video` is none.

    Raises:
        ValueError: The file cannot be read as Parquet, or has a column twice.
    """
    schema = _read_schema(file)
    has_labels = "label" in schema.names or "labels" in schema.names
    return has_labels and "path" in schema.names and not any(_holds_videos(field.type) for field in schema)


def find_manifest(path: Path) -> dict[str, Path] | None:
    """The files of a manifest by split; a single file, whose rows name their splits, stands under "". None if there is
    no manifest.

    Raises:
        ValueError: A file lacks the columns of a manifest, or two files stand for one split.
    """
    if path.is_dir():
        files = sources_by_split((file.stem, file) for file in sorted(path.glob(f"*{SUFFIX}")) if file.is_file())
        return files if files and all(map(is_manifest, files.values())) else None
    if path.suffix.lower() != SUFFIX or not path.is_file():
        return None
    if not is_manifest(path):
        raise ValueError(
            f"{path} has the columns {', '.join(_read_schema(path).names)}; a manifest has at least path and label, "
            "or path and labels. `hf-video inspect DATA --output FILE.parquet` writes one."
        )
    return {"": path}


def load_manifest(
    files: Mapping[str, Path], labels: Sequence[str] | None = None, root: Path | None = None
) -> DatasetDict:
    """The videos of a manifest, as `load_video_dataset` returns them.

    Rows of videos that cannot be read are among them; their column `error` says why. The description of each split
    says from which manifest it is.

    Args:
        files: From `find_manifest`.
        labels: The class names by id; by default those that the manifest says, or those that are found, sorted.
        root: The folder that relative paths count from; by default that of the manifest.

    Raises:
        ValueError: A column has a wrong type, or a row a wrong value. See `load_video_dataset` for classes.
    """
    tables: dict[str, pa.Table] = {}
    about = {}
    for split, file in files.items():
        table = _read_table(file, root or file.parent)
        parts = _by_split(table, file)
        if split and (others := sorted(parts.keys() - {split})) and "split" in table.column_names:
            raise ValueError(
                f"{file} stands for the split {split}, but has rows of the split {others[0]!r}. Give this file itself "
                "as the data, or take the column split out of it."
            )
        for name, part in parts.items():
            tables[split or name], about[split or name] = part, _describe(file)
    kinds = {"labels" in table.column_names for table in tables.values()}
    if len(kinds) > 1:
        raise ValueError(f"{_name(files)} has splits with the column label and others with labels. Give all the same.")
    multi_label = kinds.pop()
    found = {split: _names_in(table) for split, table in tables.items()}
    names = choose_names(_name(files), found, labels or _declared_names(files))
    present = {name for table in tables.values() for name in table.column_names}
    kept = [*([KEY] if KEY in present else ()), *(_CHECKS if present.intersection(_CHECKS) else ())]
    splits = DatasetDict()
    for split, table in tables.items():
        features = Features(
            {
                "video": Value("string"),
                **label_feature(names, multi_label),
                "start": Value("float64"),
                "end": Value("float64"),
                **{name: Value(str(_TYPES[name]).replace("double", "float64")) for name in kept},
            }
        )
        columns = [
            table[name] if name in table.column_names else pa.nulls(len(table), _TYPES[name])
            for name in ("start", "end", *kept)
        ]
        columns = [table["path"], _label_ids(table, names), *columns]
        rows = InMemoryTable(pa.table(columns, schema=features.arrow_schema))
        splits[split] = Dataset(rows, DatasetInfo(description=about[split], features=features), split)
    return splits


def is_checked(dataset: Dataset, *ways: str) -> np.ndarray:
    """Whether each row is of a manifest and was checked in one of the ways, (num_rows,) bool."""
    if CHECKED not in dataset.column_names:
        return np.zeros(len(dataset), dtype=bool)
    return pc.is_in(arrow_column(dataset, CHECKED), pa.array(ways)).to_numpy(zero_copy_only=False)


def known_errors(dataset: Dataset) -> dict[str, str]:
    """The videos that cannot be read as their manifest says, with the reasons."""
    if ERROR not in dataset.column_names:
        return {}
    videos, errors = arrow_column(dataset, "video"), arrow_column(dataset, ERROR)
    is_broken = errors.is_valid()
    return dict(zip(videos.filter(is_broken).to_pylist(), errors.filter(is_broken).to_pylist(), strict=True))


def without_checks(splits: Mapping[str, Dataset]) -> DatasetDict:
    """The same rows without what a manifest says about them, but with their keys."""
    return DatasetDict(
        {
            name: split.remove_columns([column for column in _CHECKS if column in split.column_names])
            for name, split in splits.items()
        }
    )


def check_unchanged(row: Mapping[str, Any]) -> None:
    """Refuses a file that is gone or was changed since it was checked. It is compared by its `content_digest`; of rows
    without one, of folders of frames and of URLs nothing is compared.

    Args:
        row: A row of `load_video_dataset`.

    Raises:
        StaleManifestError: The file is gone or has another content.
    """
    expected, path = row.get(CONTENT), row["video"]
    if expected is None or "://" in path or os.path.isdir(path):
        return
    way_out = "Check the data again: `hf-video inspect DATA --output NEW.parquet`"
    try:
        found = content_digest(path)
    except OSError as error:
        raise StaleManifestError(
            f"{path} is listed in the manifest, but cannot be read ({error.strerror or error}). {way_out}; or, if "
            "the videos lie elsewhere, say where with `video_root`."
        ) from error
    if found != expected:
        raise StaleManifestError(f"{path} is not the file that the manifest describes: it was changed. {way_out}.")


def _declared_names(files: Mapping[str, Path]) -> list[str] | None:
    """The class names by id, if a single file says them."""
    if len(files) > 1:
        return None
    (file,) = files.values()
    text = (pq.read_schema(file).metadata or {}).get(CLASS_NAMES)
    return None if text is None else json.loads(text)


def _name(files: Mapping[str, Path]) -> Path:
    first = next(iter(files.values()))
    return first if "" in files else first.parent


def _read_schema(file: Path) -> pa.Schema:
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} cannot be read as Parquet: {error}") from error
    for name in _TYPES:
        if schema.names.count(name) > 1:
            raise ValueError(f"{file} has the column {name} several times; keep one of them.")
    return schema


def _read_table(file: Path, root: Path) -> pa.Table:
    """The known columns with their types; each path absolute, or a URL."""
    schema = _read_schema(file)
    if {"label", "labels"} <= set(schema.names):
        raise ValueError(f"{file} has the columns label and labels; keep one of them.")
    columns = [
        name
        for name, kind in _TYPES.items()
        if name in schema.names and (name not in _ONLY_OURS or schema.field(name).type == kind)
    ]
    try:
        table = pq.read_table(file, columns=columns, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} cannot be read as Parquet: {error}") from error
    if not len(table):
        raise ValueError(f"{file} has no rows.")
    for place, name in enumerate(table.column_names):
        try:
            table = table.set_column(place, name, table[name].cast(_TYPES[name]))
        except pa.ArrowException as error:
            raise ValueError(
                f"The column {name} of {file} has the type {table[name].type}; {_TYPES[name]} is expected: {error}"
            ) from error
    for name in table.column_names:
        if name in _REQUIRED:
            _require(file, table, name, pc.is_valid(table[name]), "a value is expected; leave the row out")
        if _TYPES[name] == pa.string():
            expected = "a text is expected" if name in _REQUIRED else "a text is expected, or null"
            _require(file, table, name, pc.not_equal(table[name], ""), expected)
    if "labels" in table.column_names:
        among = pc.list_flatten(table["labels"])
        if among.null_count or pc.any(pc.equal(among, "")).as_py():
            raise ValueError(f"{file} has a null or an empty text among labels; a list of names is expected.")
    _check_times(file, table)
    if KEY in table.column_names and pc.count_distinct(table[KEY]).as_py() < len(table):
        counts = pc.value_counts(table[KEY].combine_chunks())
        twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
        raise ValueError(f"{file} has the key {twice!r} several times; each row has its own.")
    paths = table["path"]
    is_whole = pc.or_(pc.starts_with(paths, "/"), pc.match_substring(paths, "://"))
    whole = pc.if_else(is_whole, paths, pc.binary_join_element_wise(str(root), paths, os.sep))
    return table.set_column(table.column_names.index("path"), "path", whole)


def _check_times(file: Path, table: pa.Table) -> None:
    for name in {"start", "end"} & set(table.column_names):
        is_time = pc.and_(pc.is_finite(table[name]), pc.greater_equal(table[name], 0))
        _require(file, table, name, pc.fill_null(is_time, True), "seconds from 0 on are expected, or null")
    if "end" in table.column_names:
        start = table["start"] if "start" in table.column_names else pa.nulls(len(table), pa.float64())
        is_later = pc.fill_null(pc.greater(table["end"], pc.fill_null(start, 0.0)), True)
        _require(file, table, "end", is_later, "a time after the start of the segment is expected")


def _require(file: Path, table: pa.Table, name: str, is_right: Any, expected: str) -> None:
    row = pc.index(is_right, False).as_py()
    if row >= 0:
        raise ValueError(f"{file}, row {row}: {name} is {table[name][row].as_py()!r}; {expected}.")


def _by_split(table: pa.Table, file: Path) -> dict[str, pa.Table]:
    """The rows of each split. Rows of a file without the column `split` are for training."""
    if "split" not in table.column_names:
        return {"train": table}
    names: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in pc.unique(table["split"]).to_pylist():
        if (split := split_of(name or "")) is None:
            raise ValueError(f"{file}: split is {name!r}; one of {', '.join(SPLITS)} is expected.")
        names[split].append(name)
    return {split: table.filter(pc.is_in(table["split"], pa.array(found))) for split, found in names.items() if found}


def _names_in(table: pa.Table) -> set[str]:
    column = pc.list_flatten(table["labels"]) if "labels" in table.column_names else table["label"]
    return set(pc.unique(column).to_pylist())


def _label_ids(table: pa.Table, names: Sequence[str]) -> pa.Array:
    """The class id of each row, or a list of them."""
    ids = pa.array(names, pa.string())
    if "label" in table.column_names:
        return pc.index_in(table["label"].combine_chunks(), ids).cast(pa.int64())
    labels = table["labels"].combine_chunks()
    return pa.ListArray.from_arrays(labels.offsets, pc.index_in(labels.values, ids).cast(pa.int64()))


def _describe(file: Path) -> str:
    """The name of a manifest and the time when it was written, for the user."""
    written = (pq.read_schema(file).metadata or {}).get(_WRITTEN)
    return f"{file}" + (f", written {written.decode(errors='replace')}" if written else "")


def _holds_videos(kind: pa.DataType) -> bool:
    """Whether a column has the type of the feature `Video`."""
    return pa.types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}
