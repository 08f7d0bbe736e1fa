"""Tables with a row for each frame: `VIDEO_labels.csv` of DeepEthogram, and SimBA's `targets_inserted/VIDEO.csv`, in
which the choice `classes` names the columns of classes. Their times are those of the video's frames."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from hf_video.data.lists import find_delimiter

from .table import Found, Medium, Table, number

BACKGROUND = "background"


def read(table: Table) -> None:
    """Fills the table with the runs of frames of each class."""
    names, classes, rows = _columns(table)
    table.found.classes = dict.fromkeys(classes, "state")
    table.found.background = BACKGROUND if BACKGROUND in names else None
    if (medium := _video(table)) is not None:
        places = [names.index(name) for name in (*classes, *[BACKGROUND] * (BACKGROUND in names))]
        cells = [[number(row[place]) if place < len(row) else None for row in rows] for place in places]
        values = np.array([[-1 if cell is None else cell for cell in column] for column in cells])
        is_known = (values == 1).any(axis=0) | (values >= 0).all(axis=0)
        table.add_frames(medium, dict(zip(classes, values == 1, strict=False)), is_known)


def _columns(table: Table) -> tuple[list[str], list[str], list[list[str]]]:
    """The names of the columns, those of classes, and the rows."""
    delimiter = find_delimiter(table.text.partition("\n")[0]) or ","
    names, *rows = [row for row in csv.reader(io.StringIO(table.text, newline=""), delimiter=delimiter) if any(row)]
    names = [name.strip() for name in names]
    chosen = table.choices.get("classes")
    if chosen is None and BACKGROUND not in names:
        raise ValueError(
            f"{table.file} does not say which of its {len(names)} columns are classes: name them with the choice "
            "`classes` (--choose classes=NAME,NAME)."
        )
    classes = [name for name in names[1:] if name != BACKGROUND] if chosen is None else [*chosen]
    if unknown := [name for name in classes if name not in names]:
        raise ValueError(f"{table.file} has no column {unknown[0]!r}, only {', '.join(names)}.")
    return names, classes, rows


def _video(table: Table) -> Medium | None:
    """The video of the table's name, beside it or in the folder of videos of the SimBA project."""
    folders = [folder.parent / "videos" for folder in table.file.absolute().parents if folder.name == "csv"]
    table.root = table.root or next(iter(folders), None)
    return table.medium(table.file.stem.removesuffix("_labels"), table.file.name)


def frames_of(times: np.ndarray, found: Sequence[Mapping[str, Any]], label: str) -> np.ndarray:
    """(num_frames,) float64: the highest score of a class at each time (num_frames,) that lies in a segment; else
    0."""
    scores = np.zeros(len(times))
    for each in found:
        if each["class"] == label:
            is_in = (times >= each["start"] - 1e-6) & (times < each["end"] - 1e-6)
            scores = np.maximum(scores, is_in * max(each.get("score", 1.0), 1e-9))
    return scores


def require_classes(table: Table, found: Sequence[Mapping[str, Any]], classes: Collection[str]) -> None:
    """Refuses (`ValueError`) segments of classes that a file cannot hold."""
    if unknown := sorted({each["class"] for each in found} - {*classes}):
        raise ValueError(f"{table.file} has no class {unknown[0]!r}, only {', '.join(classes)}.")


def render(table: Table, predictions: Found) -> str:
    """A table of the same columns and rows with the model's classes."""
    names, classes, rows = _columns(table)
    medium = _video(table)
    (name, found), *others = predictions.items()
    if others or medium is None or medium.name != name:
        raise ValueError(f"{table.file} is of one video, and the segments are of {', '.join(predictions)}.")
    require_classes(table, found, classes)
    times = np.full(len(rows), np.inf)
    times[: len(medium.times) - 1] = medium.times[: min(len(medium.times) - 1, len(rows))]
    shown = {label: frames_of(times, found, label) > 0 for label in classes}
    if BACKGROUND in names:
        shown[BACKGROUND] = ~np.any([*shown.values()], axis=0)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(names)
    for place, row in enumerate(rows):
        cells = zip(names, row, strict=False)
        writer.writerow([int(shown[name][place]) if name in shown else cell for name, cell in cells])
    return written.getvalue()
