"""The classes of labelled videos: one for each clip in the column `label`, or any number in the column `labels`."""

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

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
    """Whether a label is a tuple of names in all splits, rather than one name.

    Raises:
        ValueError: The splits differ.
    """
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

    Args:
        source: The data, for messages.
        found: The names of the classes in each split.
        labels: All names, if they are known.

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
