"""Labels of FERAL (JSON): a class, or a 0 or 1 for each class, for each frame of each video, and splits."""

import json

import numpy as np

from hf_video.data.folders import split_of

from .frame_tables import frames_of, require_classes
from .table import Found, Table, name_in

BACKGROUND = "other"


def read(table: Table) -> None:
    """Fills the table with the runs of frames of each class."""
    names = _class_names(table)
    table.found.background = BACKGROUND if BACKGROUND in names.values() else None
    table.found.classes = {name: "state" for name in names.values() if name != BACKGROUND}
    table.found.splits = {
        split_of(split) or split: [name_in(video) for video in videos]
        for split, videos in table.json.get("splits", {}).items()
    }
    for video, labels in table.json["labels"].items():
        if (medium := table.medium(video, "labels")) is not None:
            values = np.array(labels)
            of_classes = values == np.array([*names])[:, None] if values.ndim == 1 else values.T[[*names]] == 1
            shown = {name: row for name, row in zip(names.values(), of_classes, strict=True) if name != BACKGROUND}
            is_known = of_classes.any(axis=0) if values.ndim == 1 else (values >= 0).all(axis=1)
            table.add_frames(medium, shown, np.asarray(is_known), "labels")


def _class_names(table: Table) -> dict[int, str]:
    return dict(sorted((int(key), name) for key, name in table.json["class_names"].items()))


def render(table: Table, predictions: Found) -> str:
    """Labels of the same classes, of the videos with segments alone; where two overlap, the higher score is shown if a
    frame has one class."""
    content, names = table.json, _class_names(table)
    other, several = [name == BACKGROUND for name in names.values()], content.get("is_multilabel")
    if not any(other) and not several:
        raise ValueError(f"{table.file} has no class {BACKGROUND!r} for frames outside of all segments.")
    listed = [*content["labels"], *(video for videos in content["splits"].values() for video in videos)]
    labels, written = {}, {name_in(video): video for video in reversed(listed)}
    for name, found in predictions.items():
        times = table.media[name].times[:-1]
        require_classes(table, found, names.values())
        scores = np.array([frames_of(times, found, label) for label in names.values()])
        scores[other] = np.where(scores.any(axis=0), scores[other], 1.0)
        shown = (scores > 0).T.astype(int) if several else np.array([*names])[scores.argmax(axis=0)]
        labels[written.get(name, name)] = shown.tolist()
    splits = {split: [each for each in videos if each in labels] for split, videos in content["splits"].items()}
    if new := [each for each in labels if not any(each in videos for videos in splits.values())]:
        splits.setdefault("inference", []).extend(new)
    return json.dumps(content | {"labels": labels, "splits": splits}, indent=2) + "\n"
