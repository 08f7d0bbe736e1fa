"""Recognises the data of a training: when it is resumed, and when its model is measured."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from hf_video.io import read_own_json, replace_text
from hf_video.output_folders import OPTIONS_FILE

from .checks import clip_times, readable_videos, span, spans
from .folders import listed
from .holding_out import hold_out
from .rows import BYTES, KNOWN_COLUMNS

TRAINED_VIDEOS_FILE = "trained_videos.json"


def describe_data(source: str, splits: DatasetDict, class_names: list[str] | None = None) -> dict[str, Any]:
    """A description of the data of a run, for `train_options.json`. It does not change if the videos are moved. Videos
    without classes have no `class_names`."""
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
    }


def check_same_data(given: dict[str, Any], saved: dict[str, Any] | None) -> None:
    """Refuses (`ValueError`) data whose description differs from that of the run being resumed, if there is one."""
    if saved is None or all(given[name] == saved[name] for name in ("class_names", "digest")):
        return
    found, known = (
        f"{data['source']} ({sum(data['num_videos'].values())} videos"
        + (f" of the classes {listed(data['class_names'])}" if data["class_names"] else "")
        + f"; digest {data['digest'][:8]})"
        for data in (given, saved)
    )
    raise ValueError(
        f"The data {found} differ from those of the run being resumed, {known}. Resume with the same videos and "
        "classes, or train into another folder."
    )


def write_trained_videos(folder: Path, splits: Mapping[str, Dataset]) -> None:
    """Writes `trained_videos.json`: path, start and end of the rows of each split, once each. Videos that are stored
    inside a data set have no path, and are left out."""
    splits = {name: split for name, split in splits.items() if BYTES not in split.column_names}
    rows = {name: [*dict.fromkeys(clip_times(split))] for name, split in splits.items()}
    content = {"columns": ("path", "start", "end"), "splits": rows}
    replace_text(folder / TRAINED_VIDEOS_FILE, json.dumps(content) + "\n")


def run_folder(folder: Path) -> Path:
    """The folder of a training, for that of its model or of a checkpoint inside."""
    folder = folder.expanduser().absolute()
    return folder.parent if folder.name.startswith("checkpoint-") else folder


def count_trained(folder: Path, rows: Dataset) -> dict[str, int] | None:
    """How many rows share seconds of a video with those that a model was trained on, or that its checkpoint was chosen
    on, by split. None if the folder, that of a model or of a checkpoint inside, does not say so, or the videos are
    stored inside a data set."""
    kept = read_own_json(run_folder(folder) / TRAINED_VIDEOS_FILE)
    if BYTES in rows.column_names or not isinstance(kept, dict) or not {"columns", "splits"} <= kept.keys():
        return None
    asked, counts = spans(rows), {}
    for name, of_split in kept["splits"].items():
        known: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for video, *times in of_split:
            known[video].append(span(*times))
        counts[name] = sum(
            any(first < end and start < last for first, last in known[video]) for video, start, end in asked
        )
    return counts


def read_training(model: str | Path) -> dict[str, Any]:
    """What `train_options.json` says of the training of a model or checkpoint; empty for one that has none, as on the
    Hub."""
    found = read_own_json(run_folder(Path(model)) / OPTIONS_FILE)
    return found if isinstance(found, dict) else {}


def was_split_by(training: dict[str, Any], data: DatasetDict, class_names: list[str]) -> bool:
    """Whether a training held out a part of these data, which have no other splits.

    Args:
        training: from `read_training`.
        data: the data, with the column that they were split by.
        class_names: those of the model.
    """
    known = training.get("data") or {}
    if known.get("num_videos") != {"train": len(data.get("train", ()))} or "validation_fraction" not in training:
        return False
    try:
        check_same_data(describe_data("", data, class_names), known)
    except ValueError:
        return False
    return True


def parts_of_training(training: dict[str, Any], data: DatasetDict, class_names: list[str]) -> DatasetDict | None:
    """What a training of clips trained on and what it held out, as "train" and "validation"; None unless
    [`was_split_by`], which has the same arguments, says that it held some out."""
    if not was_split_by(training, data, class_names):
        return None
    # Training held out a part of what it could read.
    rows = readable_videos(data, "skip")[0]["train"] if training["on_error"] != "error" else data["train"]
    train, validation = hold_out(rows, training["validation_fraction"], training["seed"], training.get("split_by"))
    return DatasetDict(train=train, validation=validation)
