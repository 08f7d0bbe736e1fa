"""Rows of videos: where the video of a row is, its classes, and columns without a Python object for each value.

A clip has one class, in the column `label`, or any number of them, in the column `labels`.
"""

import hashlib
import io
import logging
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, DatasetInfo, Features, IterableDataset, List, NamedSplit

from .folders import listed

logger = logging.getLogger(__name__)
# A class of so few rows whose name is like that of a class of so many may be misspelt. Of more names none is compared.
_RARE, _FREQUENT, _SIMILARITY, _MAX_COMPARED = 2, 10, 0.85, 500
# The column of video files that are stored inside a data set, and what a table says of the videos.
BYTES, FRAMES, DURATION = "bytes", "frames", "duration"
# The column of the spans of a video that nobody annotated, [start, end] in seconds, which are never background.
UNKNOWN_SPANS = "unknown"
# The class of stretches that `hf-video suggest` wants a person to label. Their time is unknown until it has another.
TO_LABEL = "to label"
# Columns of data that have a meaning of their own; no further column has such a name.
KNOWN_COLUMNS = frozenset({"path", "label", "labels", "start", "end", "video", "split", BYTES, FRAMES, DURATION})


def nothing_labelled(file: str | os.PathLike, count: int) -> ValueError:
    """The error about a file in which nobody labelled any of the stretches to label."""
    return ValueError(
        f"{file}: nothing is labelled yet, as its {count} segments are all {TO_LABEL!r}. Replace this class by what "
        "each of them shows."
    )


def open_video(row: Mapping[str, Any]) -> str | BinaryIO:
    """The video of a row of `load_video_dataset`, for `read_video`: a path or URL, or a file if the row stores it."""
    if row.get(BYTES) is None:
        return row["video"]
    file = io.BytesIO(row[BYTES])
    file.name = row["video"]  # for messages
    return file


def stored_sha256(row: Mapping[str, Any]) -> str | None:
    """The SHA-256 of a video that is stored in its row; None for a file of its own or a URL."""
    return None if row.get(BYTES) is None else hashlib.sha256(row[BYTES]).hexdigest()


def number_of_clip(video: str, row: Mapping[str, Any]) -> int:
    """A number below 2^64 that depends on the name or digest of a video and the segment of a row alone."""
    text = repr((video, row.get("start"), row.get("end")))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def is_stored(dataset: Dataset) -> list[bool]:
    """Whether each row stores its video, without reading it."""
    if BYTES not in dataset.column_names:
        return [False] * len(dataset)
    batches = dataset.select_columns(BYTES).with_format("arrow").iter(1000)
    return [each for batch in batches for each in batch[BYTES].is_valid().to_pylist()]


def is_multi_label(dataset: Dataset) -> bool:
    """Whether a clip of a data set of `load_video_dataset` may have several classes, or none."""
    return "labels" in dataset.column_names


def item_of(feature: Any) -> Any:
    """The feature of the items of a list, or the feature itself."""
    return feature.feature if isinstance(feature, List) else feature


def declared_names(rows: Dataset | IterableDataset) -> list[str] | None:
    """The class names that the labels of rows declare, by id; None for labels without names, or no labels."""
    features = rows.features or {}
    return getattr(item_of(features.get("labels", features.get("label"))), "names", None)


def label_names(dataset: Dataset) -> list[str]:
    """The class names of a data set of `load_video_dataset`, by id; none of captioned videos."""
    return declared_names(dataset) or []


def label_ids(dataset: Dataset) -> list[list[int]]:
    """The class ids of every row; none of captioned videos."""
    if is_multi_label(dataset):
        return dataset["labels"][:]
    return [[label] for label in dataset["label"][:]] if "label" in dataset.column_names else [[]] * len(dataset)


def class_counts(dataset: Dataset) -> np.ndarray:
    """The number of rows of each class, (num_classes,) int64."""
    if not {"label", "labels"} & {*dataset.column_names}:
        return np.zeros(0, np.int64)
    is_multi = is_multi_label(dataset)
    ids = arrow_column(dataset, "labels" if is_multi else "label")
    return np.bincount((ids.flatten() if is_multi else ids).to_numpy(), minlength=len(label_names(dataset)))


def data_sets(
    source: object,
    splits: Mapping[str, pa.Table],
    labels: Sequence[str] | None,
    order: Sequence[str] | None = None,
    min_classes: int = 2,
) -> DatasetDict:
    """Data sets of clips, with class ids in place of the names in `label` or of lists of names in `labels`, if there
    are any. For the other arguments see `load_video_dataset`; errors call the data `source`."""
    kinds = {name for table in splits.values() for name in ("label", "labels") if name in table.column_names}
    if not kinds:
        return DatasetDict({name: Dataset(table, split=NamedSplit(name)) for name, table in splits.items()})
    if len(kinds) > 1:
        raise ValueError(f"The splits of {source} differ: give all of them the column labels, or all label.")
    (label,) = kinds
    columns = {split: table[label].combine_chunks() for split, table in splits.items()}
    flat = {split: each.flatten() if label == "labels" else each for split, each in columns.items()}
    found = {
        split: {each["values"]: each["counts"] for each in pc.value_counts(of_split).to_pylist()}
        for split, of_split in flat.items()
    }
    names = choose_names(source, found, labels, min_classes)
    if order is not None and sorted(order) == sorted(names):
        names = list(order)
    made = DatasetDict()
    for split, table in splits.items():
        ids = pc.index_in(flat[split], pa.array(names, pa.string())).cast(pa.int64())
        if label == "labels":
            ids = pa.ListArray.from_arrays(columns[split].offsets, ids)
        rows = table.set_column(table.column_names.index(label), label, ids)
        features = Features.from_arrow_schema(rows.schema)
        features[label] = List(ClassLabel(names=names)) if label == "labels" else ClassLabel(names=names)
        made[split] = Dataset(rows.cast(features.arrow_schema), DatasetInfo(features=features), NamedSplit(split))
    return made


def choose_names(
    source: object, found: Mapping[str, Mapping[str, int]], labels: Sequence[str] | None, min_classes: int = 2
) -> list[str]:
    """The class names of all splits by id: `labels`, or else the names of the clips, sorted."""
    counts = sum(map(Counter, found.values()), Counter[str]())
    every = set(counts)
    if labels is not None:
        if unknown := sorted(every - set(labels)):
            raise ValueError(
                f"{source} has {listed(map(repr, unknown))}, not among the {len(labels)} known labels: "
                f"{listed(map(repr, labels))}."
            )
        return list(labels)
    if lacking := sorted(every - set(found.get("train", every))):
        raise ValueError(
            f"The splits of {source} differ in their classes: train lacks {listed(map(repr, lacking))}. "
            "Add videos of these classes, remove them from the other splits, or pass all names as `labels`."
        )
    if len(every) < min_classes:
        only = f"only one class, {every.pop()!r}" if every else "no class"
        raise ValueError(f"{source} has {only}; at least {['one is', 'two are'][min_classes - 1]} expected.")
    if alike := tell_alike(source, counts):
        logger.warning(alike)
    return sorted_names(every)


def tell_alike(source: object, counts: Mapping[str, int]) -> str:
    """A sentence about classes of almost the same name, of their numbers of rows; empty if there are none."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(counts):
        alike[" ".join(unicodedata.normalize("NFKC", name).casefold().split())].append(name)
    groups = [group for group in alike.values() if len(group) > 1]
    groups += _misspelt({name: (group, sum(counts[each] for each in group)) for name, group in alike.items()})
    if not groups:
        return ""
    similar = (" and ".join(f"{name!r} ({counts[name]:,})" for name in group) for group in groups)
    return (
        f"Classes of {source} have almost the same name, and count as different ones (with their rows): "
        f"{listed(similar, limit=3)}. If they are meant to be one class, write its name in the same way in all rows."
    )


def _misspelt(known: Mapping[str, tuple[list[str], int]]) -> list[list[str]]:
    """The names of a rare class beside those of a frequent one that differ in about a letter, which is no number and
    stands not alone, as in `player A`."""
    rare = [name for name, (_, count) in known.items() if count <= _RARE] if len(known) <= _MAX_COMPARED else []
    frequent = [name for name, (_, count) in known.items() if count >= _FREQUENT]
    pairs = ((name, other) for name in rare for other in get_close_matches(name, frequent, 1, _SIMILARITY))
    mark = re.compile(r"\d+|\b\w\b")
    return [known[name][0] + known[other][0] for name, other in pairs if mark.findall(name) == mark.findall(other)]


def sorted_names(names: Iterable[str]) -> list[str]:
    """Names by number if all are whole numbers, and by text."""
    by_text = sorted(names)
    return sorted(by_text, key=int) if all(name.isdecimal() for name in by_text) else by_text


def own_name(names: Sequence[str], name: str) -> str:
    """The name of a column as it is among those of a table: it may differ in capitals and spaces at its ends."""
    alike = [own for own in names if own.strip().casefold() == name.strip().casefold()]
    return alike[0] if name not in names and len(alike) == 1 else name


def arrow_column(dataset: Dataset, name: str) -> pa.Array:
    """A column of a data set as one array."""
    column = dataset.select_columns(name).with_format("arrow")[:][name]
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def times_of(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of rows in seconds, (num_rows,) float64; 0 and infinity where a row has none."""
    nothing = pa.nulls(len(dataset))
    times = (arrow_column(dataset, name) if name in dataset.column_names else nothing for name in ("start", "end"))
    starts, ends = (column.cast(pa.float64()) for column in times)
    return starts.fill_null(0.0).to_numpy(), ends.fill_null(np.inf).to_numpy()


def with_times(dataset: Dataset, rows: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Dataset:
    """Some rows with other starts and ends, in seconds; where these are NaN, they stay."""
    table = dataset.select(rows).with_format("arrow")[:]
    for name, values in (("start", starts), ("end", ends)):
        column = pc.coalesce(pa.array(values, from_pandas=True), table[name])
        table = table.set_column(table.column_names.index(name), name, column)
    return Dataset(table.cast(dataset.features.arrow_schema), info=dataset.info.copy(), split=dataset.split)


def rows_without(dataset: Dataset, videos: Iterable[str]) -> np.ndarray:
    """The numbers of the rows with another video than these, int64."""
    is_among = pc.is_in(arrow_column(dataset, "video"), pa.array(videos, pa.string()))
    return np.flatnonzero(~is_among.to_numpy(zero_copy_only=False))


class VideoRows:
    """The different `videos` of rows in the order of the `first` row of each; `of_row` numbers the video of a row."""

    def __init__(self, dataset: Dataset):
        column = arrow_column(dataset, "video").dictionary_encode()
        self.videos: pa.Array = column.dictionary
        self.of_row = column.indices.to_numpy()
        self._sorted = np.argsort(self.of_row, kind="stable")
        self._begins = np.searchsorted(self.of_row[self._sorted], np.arange(len(self.videos) + 1))
        self.first = self._sorted[self._begins[:-1]]

    def __len__(self) -> int:
        return len(self.videos)

    def rows(self, video: int) -> list[int]:
        """The rows of a video, rising."""
        return self._sorted[self._begins[video] : self._begins[video + 1]].tolist()
