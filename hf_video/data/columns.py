"""Columns of a data set: its classes, and arrays without a Python object for each value.

A clip has one class, in the column `label`, or any number of them, in the column `labels`.
"""

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, List

from .annotation_files import Clip, listed

logger = logging.getLogger(__name__)


def is_multi_label(dataset: Dataset) -> bool:
    """Whether a clip of a data set of `load_video_dataset` may have several classes, or none."""
    return "labels" in dataset.column_names


def label_names(dataset: Dataset) -> list[str]:
    """The class names of a data set of `load_video_dataset`, by id."""
    return dataset.features["labels"].feature.names if is_multi_label(dataset) else dataset.features["label"].names


def label_ids(dataset: Dataset) -> list[list[int]]:
    """The class ids of every row."""
    return dataset["labels"][:] if is_multi_label(dataset) else [[label] for label in dataset["label"][:]]


def label_feature(names: Sequence[str], multi_label: bool) -> dict[str, Any]:
    """The name of the column of labels, `label` or `labels`, and its feature."""
    label = ClassLabel(names=list(names))
    return {"labels": List(label)} if multi_label else {"label": label}


def has_several(source: object, splits: Mapping[str, Sequence[Clip]]) -> bool:
    """Whether a label is a tuple of names in all splits, rather than one name. A mixture raises `ValueError`."""
    kinds = {isinstance(clip.label, tuple) for clips in splits.values() for clip in clips}
    if len(kinds) > 1:
        raise ValueError(
            f"The splits of {source} differ: some have one label a clip, others a list of labels. Give all of them "
            "the column labels."
        )
    return kinds.pop()


def class_names(source: object, splits: Mapping[str, Sequence[Clip]], labels: Sequence[str] | None) -> list[str]:
    """The class names of all splits in the order of their ids; see `choose_names`."""
    found = {
        split: {name for clip in clips for name in (clip.label if isinstance(clip.label, tuple) else [clip.label])}
        for split, clips in splits.items()
    }
    return choose_names(source, found, labels)


def _warn_of_similar(source: object, names: Set[str]) -> None:
    """Logs which names differ only in upper and lower case, in spaces, or in how Unicode writes a letter."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        alike[" ".join(unicodedata.normalize("NFKC", name).casefold().split())].append(name)
    if similar := [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]:
        logger.warning(
            f"Classes of {source} have almost the same name, and count as different ones: {listed(similar, limit=3)}. "
            "If they are meant to be one class, give all of their videos one name."
        )


def choose_names(source: object, found: Mapping[str, Set[str]], labels: Sequence[str] | None) -> list[str]:
    """The class names of all splits in the order of their ids: `labels`, or else the names that are found, sorted.

    Only the training split must have a clip of each class: other splits may lack rare classes. A line of the log says
    which of the names that are found are almost the same, such as `Run` and `run`.

    Raises:
        ValueError: A class is not among `labels`. Without `labels`: the training split lacks a class, or there are
            fewer than two.
    """
    every = set().union(*found.values())
    if labels is not None:
        if unknown := sorted(every - set(labels)):
            raise ValueError(
                f"{source} has {listed(map(repr, unknown))}, not among the {len(labels)} known labels: "
                f"{listed(map(repr, labels))}. Rename or remove these classes, or train a model that knows them."
            )
        return list(labels)
    if lacking := sorted(every - found.get("train", every)):
        raise ValueError(
            f"The splits of {source} differ in their classes: train lacks {listed(map(repr, lacking))}. "
            "Add videos of these classes, remove them from the other splits, or pass all names as `labels`."
        )
    if len(every) < 2:
        only = f"only one class, {every.pop()!r}" if every else "no class"
        raise ValueError(f"{source} has {only}; at least two are expected.")
    _warn_of_similar(source, every)
    # Labels that are numbers keep their order, so that class 10 does not come before class 2.
    return sorted(every, key=int) if all(name.isdecimal() for name in every) else sorted(every)


def arrow_column(dataset: Dataset, name: str) -> pa.Array:
    """A column of a data set as one array."""
    column = dataset.select_columns(name).with_format("arrow")[:][name]
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def rows_without(dataset: Dataset, videos: Iterable[str]) -> np.ndarray:
    """The numbers of the rows whose video is none of these, int64."""
    is_among = pc.is_in(arrow_column(dataset, "video"), pa.array(videos, pa.string()))
    return np.flatnonzero(~is_among.to_numpy(zero_copy_only=False))


class VideoRows:
    """The different videos of a data set in the order of their first rows, and the rows of each.

    Args:
        dataset: rows of `load_video_dataset`.

    Attributes:
        videos: the value of the column `video` for each.
        of_row: (num_rows,) int, the number of each row's video.
        last_row: (num_videos,) int, the last row of each.
    """

    def __init__(self, dataset: Dataset):
        column = arrow_column(dataset, "video").dictionary_encode()
        self.videos: pa.Array = column.dictionary
        self.of_row = column.indices.to_numpy()
        self._sorted = np.argsort(self.of_row, kind="stable")
        self._first = np.searchsorted(self.of_row[self._sorted], np.arange(len(self.videos) + 1))
        self.last_row = self._sorted[self._first[1:] - 1]

    def __len__(self) -> int:
        return len(self.videos)

    def rows(self, video: int) -> list[int]:
        """The rows of a video, rising."""
        return self._sorted[self._first[video] : self._first[video + 1]].tolist()
