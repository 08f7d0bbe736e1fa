"""Tables with a row for each frame: `VIDEO_labels.csv` of DeepEthogram, and SimBA's `targets_inserted/VIDEO.csv`, in
which the choice `classes` names the columns of classes. Their times are those of the video's frames."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_video.io import replace_text

from .table import Medium, Table, What, number

BACKGROUND = "background"
_SUFFIX = "_labels"


def read(table: Table) -> None:
    """Fills the table with the runs of frames of each class."""
    names, classes, rows = _columns(table)
    table.found.classes = dict.fromkeys(classes, "state")
    table.found.background = BACKGROUND if BACKGROUND in names else None
    medium = _video(table)
    if medium is None:
        return
    values = {name: _numbers(rows, names.index(name)) for name in (*classes, *[BACKGROUND] * (BACKGROUND in names))}
    if len(rows) != (count := len(medium.times) - 1):
        table.report("frame_count", media=medium.name, in_file=len(rows), in_video=count)
    for name in classes:
        for start, end in table.runs(medium, values[name] == 1):
            table.add(medium, What(name, "", name, {}), start, end)
    each = np.array([*values.values()])
    table.observe_frames(medium, (each == 1).any(axis=0) | (each >= 0).all(axis=0))


def _columns(table: Table) -> tuple[list[str], list[str], list[list[str]]]:
    """The names of the columns, those of classes, and the rows."""
    delimiter = next((each for each in (",", ";", "\t") if each in table.text.partition("\n")[0]), ",")
    names, *rows = [row for row in csv.reader(io.StringIO(table.text, newline=""), delimiter=delimiter) if row]
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


def _numbers(rows: Sequence[Sequence[str]], column: int) -> np.ndarray:
    found = [number(row[column]) if column < len(row) else None for row in rows]
    return np.array([-1 if value is None else value for value in found])


def _video(table: Table) -> Medium | None:
    """The video of the table's name, beside it or in the folder of videos of the SimBA project."""
    return table.medium(
        table.file.stem.removesuffix(_SUFFIX), table.file.name, extra=_simba_videos(table.file), any_suffix=True
    )


def _simba_videos(file: Path) -> Path | None:
    folders = [folder for folder in file.absolute().parents if folder.name == "csv"]
    return folders[0].parent / "videos" if folders else None


def frames_of(medium: Medium, count: int, found: Sequence[Mapping[str, Any]], label: str) -> np.ndarray:
    """(count,) float64: the highest score of a class in each frame, of which the time lies in a segment; else 0."""
    times = medium.times[:-1][:count]
    scores = np.zeros(count)
    for each in found:
        if each["class"] == label:
            is_in = (times >= each["start"] - 1e-6) & (times < each["end"] - 1e-6)
            scores[: len(times)] = np.maximum(scores[: len(times)], is_in * max(each.get("score", 1.0), 1e-9))
    return scores


def write(table: Table, predictions: Mapping[str, Sequence[Mapping[str, Any]]], output: Path) -> None:
    """Writes a table of the same columns and rows with the model's classes."""
    names, classes, rows = _columns(table)
    medium = _video(table)
    (name, found), *others = predictions.items()
    if others or medium is None or medium.name != name:
        raise ValueError(f"{table.file} is of {_video_name(table)}, and the segments are of {', '.join(predictions)}.")
    require_classes(table, found, classes)
    shown = {label: frames_of(medium, len(rows), found, label) > 0 for label in classes}
    if BACKGROUND in names:
        shown[BACKGROUND] = ~np.any([*shown.values()], axis=0)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(names)
    for number_of_row, row in enumerate(rows):
        cells = zip(names, row, strict=False)
        writer.writerow([int(shown[name][number_of_row]) if name in shown else cell for name, cell in cells])
    replace_text(output, written.getvalue())


def _video_name(table: Table) -> str:
    return table.file.stem.removesuffix(_SUFFIX)


def require_classes(table: Table, found: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> None:
    """Refuses (`ValueError`) segments of classes that a file cannot hold."""
    if unknown := sorted({each["class"] for each in found} - {*classes}):
        raise ValueError(f"{table.file} has no class {unknown[0]!r}, only {', '.join(classes)}.")
