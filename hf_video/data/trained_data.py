"""Recognises the data of a training: when it is resumed, and when its model is measured."""

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from hf_video.io import read_own_json, replace_text
from hf_video.output_folders import OPTIONS_FILE
from hf_video.texts import count

from .checks import MAX_OPENED, inspect_videos, readable_videos, spans
from .folders import listed
from .holding_out import further_columns, hold_out
from .rows import BYTES, KNOWN_COLUMNS, UNKNOWN_SPANS, VideoRows, rows_without

TRAINED_VIDEOS_FILE = "trained_videos.json"


def describe_data(source: str, splits: DatasetDict, class_names: list[str] | None = None) -> dict[str, Any]:
    """A description of the data of a run, for `train_options.json`. It does not change if the videos are moved."""
    names = {name: split["video"][:] for name, split in splits.items()}
    root = len(os.path.commonprefix([*chain.from_iterable(names.values())]))
    columns = ("start", "end", "question", "answer") if class_names is None else ("label", "labels", "start", "end")
    digest = hashlib.sha256()
    for name, split in sorted(splits.items()):
        described = [column for column in split.column_names if column in columns or column not in KNOWN_COLUMNS]
        rows = split.select_columns(described)[:]
        digest.update(json.dumps([name, [path[root:] for path in names[name]], rows], sort_keys=True).encode())
    return {
        "source": source,
        "class_names": class_names,
        "num_videos": {name: len(split) for name, split in splits.items()},
        "digest": digest.hexdigest(),
        "sizes": _digest_of_sizes([path for _, split in sorted(names.items()) for path in split]),
    }


def _digest_of_sizes(videos: list[str]) -> str | None:
    """It tells other videos of the same names; None if the files are many."""
    if len({*videos}) > MAX_OPENED:
        return None
    sizes = [os.path.getsize(video) if os.path.isfile(video) else None for video in videos]
    return hashlib.sha256(json.dumps(sizes).encode()).hexdigest()


def _is_same_data(given: dict[str, Any], saved: dict[str, Any]) -> bool:
    return all(given[name] == saved[name] for name in ("class_names", "digest"))


def check_same_data(given: dict[str, Any], saved: dict[str, Any] | None) -> None:
    """Refuses (`ValueError`) data whose description differs from that of the run being resumed, if there is one."""
    if saved is None or _is_same_data(given, saved):
        return
    found, known = (
        f"{data['source']} ({count(sum(data['num_videos'].values()), 'video')}; classes "
        f"{listed(data['class_names'] or ['none'])}; digest {data['digest'][:8]})"
        for data in (given, saved)
    )
    raise ValueError(
        f"The data {found} differ from those of the run being resumed, {known}. Resume with the same videos and "
        "classes, or train into another folder."
    )


def write_trained_videos(
    folder: Path, splits: Mapping[str, Dataset], held_out: Mapping[str, Dataset] | None = None
) -> None:
    """Writes path, start and end of the rows that a model is trained and chosen on, by split, and of those that are
    held out and choose nothing; not of videos that are stored inside the data set."""

    def clips(split: Dataset) -> list[tuple[str, float, float | None]]:
        return [(v, start, None if math.isinf(end) else end) for v, start, end in dict.fromkeys(spans(split))]

    content: dict[str, Any] = {"columns": ("path", "start", "end")}
    for key, of_key in {"splits": splits, "held_out": held_out or {}}.items():
        content[key] = {name: clips(split) for name, split in of_key.items() if BYTES not in split.column_names}
    replace_text(folder / TRAINED_VIDEOS_FILE, json.dumps(content) + "\n")


def _run_folder(folder: Path) -> Path:
    """The folder of a training, for that of its model or of a checkpoint inside."""
    folder = folder.expanduser().absolute()
    return folder.parent if folder.name.startswith("checkpoint-") else folder


def _read_trained_videos(folder: Path) -> dict[str, Any] | None:
    kept = read_own_json(_run_folder(folder) / TRAINED_VIDEOS_FILE)
    return kept if isinstance(kept, dict) and "splits" in kept else None


def count_trained(folder: Path, rows: Dataset, by_video: bool = False) -> dict[str, int] | None:
    """How many rows, or videos of these, share seconds of a video with those that the model in a folder was trained
    on, or chosen on, by split; None if nothing says so."""
    kept = _read_trained_videos(folder)
    if BYTES in rows.column_names or kept is None:
        return None
    asked, counts = spans(rows), {}
    for name, of_split in kept["splits"].items():
        known: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for video, start, end in of_split:
            known[video].append((start or 0.0, math.inf if end is None else end))
        found = [
            video for video, start, end in asked if any(first < end and start < last for first, last in known[video])
        ]
        counts[name] = len(set(found) if by_video else found)
    return counts


def read_training(model: str | Path) -> dict[str, Any]:
    """What `train_options.json` says of the training of a model or checkpoint; empty for one that has none."""
    found = read_own_json(_run_folder(Path(model)) / OPTIONS_FILE)
    return found if isinstance(found, dict) else {}


def was_split_by(training: dict[str, Any], data: DatasetDict, class_names: list[str] | None) -> bool:
    """Whether a training, as of `read_training`, held out a part of these data, which have no other splits."""
    known = training.get("data") or {}
    if known.get("num_videos") != {"train": len(data.get("train", ()))} or "validation_fraction" not in training:
        return False
    if class_names is not None:  # of other columns of a table a training of classes knew nothing
        read = {*KNOWN_COLUMNS, UNKNOWN_SPANS, *further_columns(training.get("split_by"))}
        data = DatasetDict({name: split.select_columns([*read & {*split.features}]) for name, split in data.items()})
    given = describe_data("", data, class_names)
    return _is_same_data(given, known) and given["sizes"] == known.get("sizes")


def read_in_training(training: dict[str, Any], data: Mapping[str, Dataset]) -> Mapping[str, Dataset]:
    """What a training could read of its data, of which it held out a part."""
    return data if training.get("on_error", "error") == "error" else readable_videos(data, "skip")[0]


def parts_of_training(
    model: str | Path, training: dict[str, Any], data: DatasetDict, class_names: list[str] | None
) -> DatasetDict | None:
    """What a training of clips trained on and what it held out of these data; None if it held none out."""
    if not was_split_by(training, data, class_names):
        return parts_by_file(Path(model), data)
    rows = read_in_training(training, data)["train"]
    train, validation = hold_out(rows, training["validation_fraction"], training["seed"], training.get("split_by"))
    return DatasetDict(train=train, validation=validation)


def parts_by_file(folder: Path, data: DatasetDict) -> DatasetDict | None:
    """What the model in a folder was trained on and what was held out of these data, which have no other splits; None
    if there are not both, a file is in both parts, or one is none of the training."""
    kept, rows = _read_trained_videos(folder), data.get("train")
    if kept is None or rows is None or len(data) > 1 or BYTES in rows.column_names:
        return None
    splits = kept["splits"] | kept.get("held_out", {})
    trained, held_out = set[str](), set[str]()
    for name, clips in splits.items():
        (trained if name == "train" else held_out).update(video for video, *_ in clips)
    videos = {*rows["video"]}
    if trained.isdisjoint(videos) or held_out.isdisjoint(videos) or trained & held_out:
        return None
    # A training may have left out what it could not read.
    others = rows.select(rows_without(rows, trained | held_out))
    of_others = VideoRows(others)
    for number in range(len(of_others)):
        (video,) = inspect_videos(others, progress=False, chosen=[number])
        if video.error is None and len(video.empty_rows) < len(of_others.rows(number)):
            return None
    parts = {"train": held_out, "validation": trained}
    return DatasetDict(
        {name: rows.select(rows_without(rows, {*without, *others["video"]})) for name, without in parts.items()}
    )
