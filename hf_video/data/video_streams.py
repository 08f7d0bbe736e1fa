"""Opens data sets of the `datasets` library as streams: training videos are read while a model trains."""

import os
from collections.abc import Mapping, Sequence

from datasets import Dataset, DatasetDict, Features, IterableDataset, List, Video

from .clip_stream import declared_names, require_names
from .rows import BYTES
from .tables import find_columns, find_dataset, known_splits
from .video_dataset import load_video_dataset


def load_video_stream(
    data: str | os.PathLike | Mapping[str, IterableDataset],
    *,
    labels: Sequence[str] | None = None,
    video_root: str | os.PathLike | None = None,
    config: str | None = None,
    revision: str | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
) -> tuple[IterableDataset, DatasetDict]:
    """Open the training split of a data set with a column of the feature `Video` as a stream for `ClipStream`.

    Args:
        data: The name of a data set on the Hub, a folder of Parquet files or tars, or streams by the names of their
            splits.
        labels: The class names by id, such as those of a trained model; by default those that the data set declares.
        video_root: The folder that relative paths of the other splits count from.
        config, revision, train_split, validation_split: As for `load_video_dataset`.

    Returns:
        The stream, with the columns `video` (`Video(decode=False)`), `label` or `labels`, `start` and `end`; and the
        other splits, as of `load_video_dataset`. These are read whole and kept in memory.

    Raises:
        FileNotFoundError: There are no such data.
        ValueError: The data cannot be a stream, a split is not there, the columns are not clear, or the labels have no
            names.
    """
    splits = open_video_streams(
        data, config=config, revision=revision, train_split=train_split, validation_split=validation_split
    )
    stream = splits.pop("train")
    names = require_names(declared_names(stream) if labels is None else labels)
    if not splits:
        return stream, DatasetDict()
    held = {name: Dataset.from_list([*split], features=split.features) for name, split in splits.items()}
    return stream, load_video_dataset(DatasetDict(held), labels=names, video_root=video_root)


def open_video_streams(
    data: str | os.PathLike | Mapping[str, IterableDataset],
    *,
    config: str | None = None,
    revision: str | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
) -> dict[str, IterableDataset]:
    """All splits of `load_video_stream` as streams, by "train", "validation" and "test"; there is "train"."""
    found: object = data
    if isinstance(data, str | os.PathLike):
        found = find_dataset(data, config=config, revision=revision, streaming=True)
    if not isinstance(found, dict) or not all(isinstance(split, IterableDataset) for split in found.values()):
        raise ValueError(
            f"{data} cannot be a stream: data sets on the Hub and folders of Parquet files or tars can, and streams "
            "of the datasets library by the names of their splits. Leave streaming out for other data."
        )
    splits = known_splits(found, train_split, validation_split)
    if "train" not in splits:
        raise ValueError(f"{data} has no training split, only {', '.join(splits)}: name one with train_split.")
    return {name: _with_plain_columns(split) for name, split in splits.items()}


def _with_plain_columns(stream: IterableDataset) -> IterableDataset:
    """A stream with the columns that `ClipStream` reads, and videos that are not decoded."""
    features = stream.features or Features()
    columns = find_columns(features)
    label = str(columns.label)
    names = {columns.video: "video", label: "labels" if isinstance(features[label], List) else "label"}
    # First of all, because the other steps, and the threads of the library for remote files, would decode.
    stream = stream.decode(False)
    if BYTES in features:
        joined = {name: kind for name, kind in features.items() if name != BYTES}
        stream = stream.map(
            lambda row: {columns.video: {"path": row[columns.video], "bytes": row[BYTES]}},
            remove_columns=BYTES,
            features=Features(joined | {columns.video: Video(decode=False)}),
        )
    stream = stream.select_columns([columns.video, label, *columns.times])
    if not isinstance(features[columns.video], Video):
        stream = stream.cast_column(columns.video, Video(decode=False))
    return stream.rename_columns({old: new for old, new in names.items() if old != new})
