"""Labels of FERAL (JSON): a class, or a 0 or 1 for each class, for each frame of each video, and splits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_video.data.folders import split_of
from hf_video.io import replace_text

from .frame_tables import frames_of, require_classes
from .table import Table, What, name_in

BACKGROUND = "other"
_SOURCE = "labels"


def read(table: Table) -> None:
    """Fills the table with the runs of frames of each class."""
    content = table.json
    names = {int(key): name for key, name in content["class_names"].items()}
    table.found.background = BACKGROUND if BACKGROUND in names.values() else None
    table.found.classes = {name: "state" for name in names.values() if name != BACKGROUND}
    table.found.splits = {
        split_of(split) or split: [name_in(video) for video in videos]
        for split, videos in content.get("splits", {}).items()
    }
    for video, labels in content["labels"].items():
        medium = table.medium(video, _SOURCE)
        if medium is None:
            continue
        count, values = len(medium.times) - 1, np.array(labels)
        if len(values) != count:
            table.report("frame_count", media=medium.name, in_file=len(values), in_video=count)
        for number, name in names.items():
            if name != BACKGROUND:
                is_shown = values == number if values.ndim == 1 else values[:, number] == 1
                for start, end in table.runs(medium, is_shown):
                    table.add(medium, What(_SOURCE, "", name, {}), start, end)
        is_known = np.isin(values, [*names]) if values.ndim == 1 else np.all(values >= 0, axis=1)
        table.observe_frames(medium, np.asarray(is_known))


def write(table: Table, predictions: Mapping[str, Sequence[Mapping[str, Any]]], output: Path) -> None:
    """Writes labels of the same classes, of the videos with segments alone; where two overlap, the higher score is
    shown if a frame has one class."""
    content = table.json
    names = {int(key): name for key, name in content["class_names"].items()}
    if BACKGROUND not in names.values() and not content.get("is_multilabel"):
        raise ValueError(f"{table.file} has no class {BACKGROUND!r} for frames outside of all segments.")
    labels, written = {}, {name_in(video): video for videos in content["splits"].values() for video in videos}
    written |= {name_in(video): video for video in content["labels"]}
    for name, found in predictions.items():
        medium = table.media[name]
        require_classes(table, found, [*names.values()])
        scores = np.array([frames_of(medium, len(medium.times) - 1, found, names[key]) for key in sorted(names)])
        if content.get("is_multilabel"):
            shown = (scores > 0).astype(int)
            shown[[names[key] == BACKGROUND for key in sorted(names)]] = ~scores.any(axis=0)
            labels[written.get(name, name)] = shown.T.tolist()
        else:
            other = next(key for key, each in names.items() if each == BACKGROUND)
            best = np.array(sorted(names))[scores.argmax(axis=0)]
            labels[written.get(name, name)] = np.where(scores.any(axis=0), best, other).tolist()
    splits = {split: [each for each in videos if each in labels] for split, videos in content["splits"].items()}
    if new := [each for each in labels if not any(each in videos for videos in splits.values())]:
        splits.setdefault("inference", []).extend(new)
    replace_text(output, json.dumps(content | {"labels": labels, "splits": splits}, indent=2) + "\n")
