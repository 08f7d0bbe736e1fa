"""Reads data sets of the `datasets` library that have a column of the feature `Video`."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import datasets
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Video, concatenate_datasets
from datasets.data_files import SPLIT_KEYWORDS
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_video.reading.sources import is_url

from .annotation_files import Clip, Label, cell_text, clip_table, listed, segment
from .columns import data_sets
from .manifest import is_manifest
from .places import split_of
from .stored_videos import BYTES, stored_sizes

logger = logging.getLogger(__name__)
Split = TypeVar("Split")
_TIMES = ("start", "end")
# Values of labels that are kept secret, as in the test splits of benchmarks.
_UNKNOWN = (None, -1)
_SAVED = (datasets.config.DATASETDICT_JSON_FILENAME, datasets.config.DATASET_STATE_JSON_FILENAME)


class VideoColumns(NamedTuple):
    """The names of the columns that are read: of videos, of labels, and those of `start` and `end` that exist."""

    video: str
    label: str
    times: list[str]


def find_dataset(
    data: str | os.PathLike, *, config: str | None = None, revision: str | None = None, streaming: bool = False
) -> Any:
    """The data set in a folder of `save_to_disk` or of Parquet files, or on the Hub; None if `data` is neither. A name
    that is neither a path nor a data set of the Hub raises `FileNotFoundError`. With `streaming` its splits are
    streams, except those of `save_to_disk`."""
    path = Path(data).expanduser()
    if path.is_dir():
        if any((path / name).is_file() for name in _SAVED):
            return datasets.load_from_disk(path)
        files = (file for pattern in ("*.parquet", "data/*.parquet") for file in path.glob(pattern))
        if any(not is_manifest(file) for file in files if not file.name.startswith(".")):
            return datasets.load_dataset(str(path), config, streaming=streaming)
        return None
    if not is_hub_name(data):
        return None
    try:
        return datasets.load_dataset(str(data), config, revision=revision, streaming=streaming)
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(
            f"{data} does not exist, and no data set of this name can be read from the Hub: {error}"
        ) from error


def with_video_names(rows: Dataset) -> Dataset:
    """A data set whose column `video` is of paths. If it has the feature `Video`, files that are stored inside are in
    the column `bytes`, and those without a name are called after their row."""
    if not isinstance(rows.features["video"], Video):
        return rows
    rows = rows.cast_column("video", Video(decode=False)).flatten()
    rows = rows.rename_columns({"video.path": "video", "video.bytes": BYTES})
    names = [path or f"video {number}" for number, path in enumerate(rows["video"])]
    return rows.remove_columns("video").add_column("video", names)


def is_hub_name(data: str | os.PathLike) -> bool:
    """Whether data are named as a data set of the Hub is, USER/NAME, and no such path exists."""
    if Path(data).expanduser().exists() or str(data).count("/") != 1:
        return False
    try:
        validate_repo_id(str(data))
    except HFValidationError:
        return False
    return True


def load_video_column(
    source: object,
    dataset: DatasetDict | Dataset,
    labels: Sequence[str] | None,
    root: Path,
    columns: Sequence[str] = (),
    *,
    train_split: str | None = None,
    validation_split: str | None = None,
) -> DatasetDict:
    """The splits of a data set with one column of videos and one of labels; a single data set is "train". Relative
    paths count from `root`. Without `labels`, the class names are those that the data set declares. Further `columns`
    that it has are kept as text. The training and the validation split may be named."""
    given = dataset if isinstance(dataset, DatasetDict) else {"train": dataset}
    splits = known_splits(given, train_split, validation_split)
    features = next(iter(splits.values())).features
    video, label, times = find_columns(features)
    columns = [name for name in columns if name in features]
    missing: list[str] = []
    clips: dict[str, list[Clip]] = {}
    files: dict[str, Dataset] = {}
    for name, split in splits.items():
        if all(value in _UNKNOWN for value in split[label]):
            logger.warning(f"The {name} split is left out: none of its {len(split)} rows has a label.")
            continue
        split = (
            split.select_columns([video, label, *times, *columns]).cast_column(video, Video(decode=False)).flatten()
        )
        split = split.rename_columns({f"{video}.path": "video", f"{video}.bytes": BYTES})
        stored = [size is not None for size in stored_sizes(split)]
        if any(stored):
            files[name] = split.select_columns(BYTES)
        nothing = [None] * len(split)
        cells = (split["video"], stored, split[label], *(split[t] if t in times else nothing for t in _TIMES))
        further = zip(*(split[column] for column in columns), strict=True) if columns else ((),) * len(split)
        clips[name] = []
        for row, (path, is_stored, value, start, end, others) in enumerate(zip(*cells, further, strict=True)):
            where = f"{name}[{row}]"
            path = _name(where, path) if is_stored else _path(where, path, root)
            others = tuple(None if cell is None else str(cell) for cell in others)
            clips[name].append(Clip(path, _label(where, value, features[label]), *segment(where, start, end), others))
            if not is_stored and not is_url(path) and not os.path.exists(path):
                missing.append(path)
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} videos of the data set do not exist: {listed(missing, separator='; ')}. Relative paths "
            f"count from {root}; say where the videos are with `video_root`."
        )
    if not clips:
        raise ValueError(f"The data set has no labels in its column {label!r}.")
    names = labels or getattr(_item(features[label]), "names", None)
    loaded = data_sets(source, {name: clip_table(rows, columns) for name, rows in clips.items()}, names, columns)
    for name, stored_files in files.items():
        loaded[name] = concatenate_datasets([loaded[name], stored_files], axis=1)
    first = dataset if isinstance(dataset, Dataset) else next(iter(dataset.values()))
    for split in loaded.values():
        split.info.download_checksums = first.info.download_checksums  # says where on the Hub it comes from
    return loaded


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


def find_columns(features: Features) -> VideoColumns:
    """The columns of a data set that are read. `cls` is what WebDataset calls labels."""
    video = _only(features, "the feature Video", ("video",), lambda feature: isinstance(feature, Video))
    label = _only(
        features, "labels", ("label", "labels"), lambda feature: isinstance(_item(feature), ClassLabel), "cls"
    )
    return VideoColumns(video, label, [name for name in _TIMES if name in features])


def _only(features: Features, what: str, names: tuple[str, ...], fits: Callable[[Any], bool], last: str = "") -> str:
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


def _name(where: str, path: str | None) -> str:
    return where if path is None else f"{where} {Path(path).name}"


def _path(where: str, path: str | None, root: Path) -> str:
    if path is None:
        raise ValueError(f"{where} has no video.")
    return path if is_url(path) else str(root / Path(path).expanduser())


def _label(where: str, value: Any, feature: Any) -> Label:
    """The names of the classes in a row, from their ids or names."""

    def name_of(item: Any) -> str:
        if item in _UNKNOWN:
            raise ValueError(f"{where} has no label. Leave such rows out: dataset.filter(...).")
        is_id = isinstance(_item(feature), ClassLabel)
        return _item(feature).int2str(item) if is_id else cell_text(where, "the label", item)

    return tuple(map(name_of, value)) if isinstance(value, list) else name_of(value)
