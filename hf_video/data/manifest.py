"""Reads manifests: tables of videos that were checked, as `hf-video inspect --output` writes them.

A manifest is a Parquet file, or a folder of such files named after splits. What it says is trusted: no video is opened
to list it. Columns that are not described here are left alone. The index of a pack is a manifest that also says where
in a tar each video is; see `stored_videos`.
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
from datasets import Dataset, DatasetDict
from datasets.data_files import SPLIT_KEYWORDS

from hf_video.reading import VideoReadError
from hf_video.reading.sources import is_url

from .columns import arrow_column, data_sets
from .places import SUFFIX, absolute, file_system, folder_of, sources_by_split, split_of

SPLITS = tuple(map(str, SPLIT_KEYWORDS))
# Columns of a manifest that its data set keeps; of those after the first it has all if it has one.
KEY, CHECKED, ERROR, SIZE, CONTENT = "key", "checked", "error", "size", "content"
# Columns of the index of a pack: the tar, named from the folder of the index; the place of the first byte of the video
# in it; and the SHA-256 of its `size` bytes. They are null for a video that is not in the pack.
SHARD, OFFSET, SHA256 = "shard", "offset", "sha256"
DURATION, FRAMES = "duration", "frames"
INDEX_FILE = f"index{SUFFIX}"
# Values of the column `checked`.
DECODED, OPENED = "decoded", "opened"
# Names of entries in the metadata of a file: when it was written, and the class names by id as a JSON list.
_WRITTEN, CLASS_NAMES = b"hf_video_written", b"hf_video_class_names"
_TYPES = {
    **dict.fromkeys((KEY, "path", "split", "label", CHECKED, ERROR, CONTENT, SHARD, SHA256), pa.string()),
    "labels": pa.list_(pa.string()),
    **dict.fromkeys(("start", "end", DURATION), pa.float64()),
    **dict.fromkeys((FRAMES, SIZE, OFFSET), pa.int64()),
}
# All columns of data sets that have a meaning; no further column has such a name.
KNOWN_COLUMNS = frozenset({*_TYPES, "video", "bytes"})
# Columns without nulls, in files that have them.
_REQUIRED = (KEY, "path", "label", "labels")
# Columns that are read only if they have the type that is written here; those of other programs may say other things.
_ONLY_OURS = (DURATION, FRAMES)
# What was found out about a video.
_CHECKS = (CHECKED, ERROR, SIZE, CONTENT, DURATION, FRAMES)
_PACKED = (SHARD, OFFSET, SHA256)
# Names of other files cannot be written so.
_SHARD_NAME = r"^\w[\w.-]*(/\w[\w.-]*)*$"


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


def is_manifest(file: str | os.PathLike) -> bool:
    """Whether a Parquet file has a column `path` and a column `label` or `labels`; it may lack all others. A file with
    a column of the feature `Video` is not a manifest. Another format than Parquet raises `ValueError`."""
    schema = _read_schema(os.fspath(file))
    has_labels = "label" in schema.names or "labels" in schema.names
    return has_labels and "path" in schema.names and not any(_holds_videos(field.type) for field in schema)


def find_manifest(place: str | os.PathLike) -> dict[str, str] | None:
    """The files of a manifest by split; a single file, whose rows name their splits, stands under "". None if there is
    no manifest. The place is a Parquet file, a folder of them, or a pack, by path or URL.

    Raises:
        ValueError: A file lacks the columns of a manifest, or two files stand for one split.
        OSError, ImportError: The file system of a URL cannot be reached.
    """
    place = absolute(place)
    is_file = Path(place).suffix.lower() == SUFFIX
    index = place + f"/{INDEX_FILE}"
    if not is_file and _exists(index) and _is_index(_read_schema(index)):
        return {"": index}
    if os.path.isdir(place):
        found = (file for file in sorted(Path(place).glob(f"*{SUFFIX}")) if file.is_file())
        files = {name: str(file) for name, file in sources_by_split((file.stem, file) for file in found).items()}
        return files if files and all(map(is_manifest, files.values())) else None
    if not is_file or not _exists(place):
        return None
    if not is_manifest(place):
        raise ValueError(
            f"{place} has the columns {', '.join(_read_schema(place).names)}; a manifest has at least path and label, "
            "or path and labels. `hf-video inspect DATA --output FILE.parquet` writes one."
        )
    return {"": place}


def load_manifest(
    files: Mapping[str, str], labels: Sequence[str] | None = None, root: str | None = None
) -> DatasetDict:
    """The videos of a manifest, as `load_video_dataset` returns them.

    Rows of videos that cannot be read are among them; their column `error` says why. The description of each split
    says from which manifest it is.

    Args:
        files: From `find_manifest`.
        labels: The class names by id; by default those that the manifest says, or those that are found, sorted.
        root: The folder, or its URL, that relative paths and shards count from; by default that of the manifest.

    Raises:
        ValueError: A column has a wrong type, or a row a wrong value. See `load_video_dataset` for classes.
    """
    tables: dict[str, pa.Table] = {}
    about = {}
    for split, file in files.items():
        table = _read_table(file, root or folder_of(file))
        parts = _by_split(table, file)
        if split and (others := sorted(parts.keys() - {split})) and "split" in table.column_names:
            raise ValueError(
                f"{file} stands for the split {split}, but has rows of the split {others[0]!r}. Give this file itself "
                "as the data, or take the column split out of it."
            )
        for name, part in parts.items():
            tables[split or name], about[split or name] = part, _describe(file)
    present = {name for table in tables.values() for name in table.column_names}
    kept = [name for group in ((KEY,), _CHECKS, _PACKED) if present.intersection(group) for name in group]
    for split, table in tables.items():
        for name in {"start", "end", *kept}.difference(table.column_names):
            table = table.append_column(name, pa.nulls(len(table), _TYPES[name]))
        tables[split] = table.rename_columns({"path": "video"})
    splits = data_sets(_name(files), tables, labels or _declared_names(files), kept)
    for split, rows in splits.items():
        rows.info.description = about[split]
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
    """The same rows without what a manifest says about them, but with their keys. Of a pack only `checked` is left
    out: the bytes that the rest is about cannot have changed unnoticed."""
    return DatasetDict(
        {
            name: split.remove_columns(
                [
                    column
                    for column in ((CHECKED,) if SHARD in split.column_names else _CHECKS)
                    if column in split.column_names
                ]
            )
            for name, split in splits.items()
        }
    )


def _declared_names(files: Mapping[str, str]) -> list[str] | None:
    """The class names by id, if a single file says them."""
    if len(files) > 1:
        return None
    (file,) = files.values()
    text = (_read_schema(file).metadata or {}).get(CLASS_NAMES)
    return None if text is None else json.loads(text)


def _name(files: Mapping[str, str]) -> str:
    first = next(iter(files.values()))
    return first if "" in files else folder_of(first)


def _exists(file: str) -> bool:
    """Whether there is such a file. An address that is not of a file, such as that of a camera, gives False."""
    if not is_url(file):
        return os.path.isfile(file)
    try:
        system, path = file_system(file)
    except ValueError:
        return False
    try:
        return system.info(path)["type"] == "file"
    except FileNotFoundError:
        return False


def _is_index(schema: pa.Schema) -> bool:
    return {SHARD, OFFSET} <= {*schema.names}


def _read_schema(file: str) -> pa.Schema:
    system, path = file_system(file)
    try:
        schema = pq.read_schema(path, filesystem=system)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} cannot be read as Parquet: {error}") from error
    for name in _TYPES:
        if schema.names.count(name) > 1:
            raise ValueError(f"{file} has the column {name} several times; keep one of them.")
    return schema


def _read_table(file: str, root: str) -> pa.Table:
    """The known columns with their types; each path absolute, or a URL."""
    schema = _read_schema(file)
    if {"label", "labels"} <= set(schema.names):
        raise ValueError(f"{file} has the columns label and labels; keep one of them.")
    columns = [
        name
        for name, kind in _TYPES.items()
        if name in schema.names
        and (name not in _ONLY_OURS or schema.field(name).type == kind)
        and (name not in _PACKED or _is_index(schema))
    ]
    system, path = file_system(file)
    try:
        table = pq.read_table(path, columns=columns, partitioning=None, filesystem=system)
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
    whole = pc.if_else(is_whole, paths, pc.binary_join_element_wise(root, paths, "/"))
    if _is_index(schema):
        _check_shards(file, table)
        shards = pc.binary_join_element_wise(root, table[SHARD], "/")
        table = table.set_column(table.column_names.index(SHARD), SHARD, shards)
        # A video that is not in the pack has the path that it was read from.
        whole = pc.coalesce(pc.binary_join_element_wise(shards, paths, "/"), whole)
    return table.set_column(table.column_names.index("path"), "path", whole)


def _check_shards(file: str, table: pa.Table) -> None:
    """Refuses an index with wrong places, and one that names files outside its folder: it may be a stranger's."""
    for name in (KEY, SIZE, SHA256):
        if name not in table.column_names:
            raise ValueError(f"{file} has the columns {SHARD} and {OFFSET}, as an index has, but no column {name}.")
    is_packed = pc.is_valid(table[SHARD])
    of_pack = {
        SHARD: pc.match_substring_regex(table[SHARD], _SHARD_NAME),
        OFFSET: pc.greater_equal(table[OFFSET], 0),
        SIZE: pc.greater(table[SIZE], 0),
        SHA256: pc.match_substring_regex(table[SHA256], "^[0-9a-f]{64}$"),
    }
    expected = {
        SHARD: "the name of a file in the folder of the index is expected, of letters, digits, '_', '-', '.' and '/'",
        OFFSET: "a place in the shard is expected, from 0 on",
        SIZE: "a number of bytes is expected, from 1 on",
        SHA256: "64 hexadecimal digits are expected",
    }
    for name, is_right in of_pack.items():
        _require(file, table, name, pc.or_(pc.invert(is_packed), pc.fill_null(is_right, False)), expected[name])
    has_error = pc.is_valid(table[ERROR]) if ERROR in table.column_names else pa.scalar(False)
    _require(file, table, SHARD, pc.or_(is_packed, has_error), "only a row with an error has none")


def _check_times(file: str, table: pa.Table) -> None:
    for name in {"start", "end"} & set(table.column_names):
        is_time = pc.and_(pc.is_finite(table[name]), pc.greater_equal(table[name], 0))
        _require(file, table, name, pc.fill_null(is_time, True), "seconds from 0 on are expected, or null")
    if "end" in table.column_names:
        start = table["start"] if "start" in table.column_names else pa.nulls(len(table), pa.float64())
        is_later = pc.fill_null(pc.greater(table["end"], pc.fill_null(start, 0.0)), True)
        _require(file, table, "end", is_later, "a time after the start of the segment is expected")


def _require(file: str, table: pa.Table, name: str, is_right: Any, expected: str) -> None:
    row = pc.index(is_right, False).as_py()
    if row >= 0:
        raise ValueError(f"{file}, row {row}: {name} is {table[name][row].as_py()!r}; {expected}.")


def _by_split(table: pa.Table, file: str) -> dict[str, pa.Table]:
    """The rows of each split. Rows of a file without the column `split` are for training."""
    if "split" not in table.column_names:
        return {"train": table}
    names: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in pc.unique(table["split"]).to_pylist():
        if (split := split_of(name or "")) is None:
            raise ValueError(f"{file}: split is {name!r}; one of {', '.join(SPLITS)} is expected.")
        names[split].append(name)
    if len(only := [split for split, found in names.items() if found]) == 1:
        return {only[0]: table}
    return {split: table.filter(pc.is_in(table["split"], pa.array(found))) for split, found in names.items() if found}


def _describe(file: str) -> str:
    """The name of a manifest and the time when it was written, for the user."""
    written = (_read_schema(file).metadata or {}).get(_WRITTEN)
    return f"{file}" + (f", written {written.decode(errors='replace')}" if written else "")


def _holds_videos(kind: pa.DataType) -> bool:
    """Whether a column has the type of the feature `Video`."""
    return pa.types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}
