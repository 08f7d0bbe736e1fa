"""Reads files that list labelled videos: CSV, JSON, the lists of Kinetics, and the files of Something-Something."""

import csv
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hf_video.io import named_rows, read_csv, read_json, read_lines
from hf_video.reading.sources import kind_of

from .places import is_frame_folder

ANNOTATION_SUFFIXES = (".csv", ".txt", ".json")
_COLUMNS = ("path", "label", "labels", "start", "end")
# Columns of data that have a meaning of their own; no further column has such a name.
KNOWN_COLUMNS = frozenset({*_COLUMNS, "video", "bytes", "split", "frames", "duration"})
_LIST_COLUMNS = ("path", "label", "start", "end")
_UNLABELLED = ("path", "start", "end")
# Between the labels of a clip in a CSV file.
_LABEL_SEPARATOR = ";"
# The name of a clip's class, or the names of all its classes if clips may have several.
Label = str | tuple[str, ...]
_Row = dict[str, Any]
_JSON_VIDEO_SUFFIXES = (".webm", ".mp4", "")
# How programs write a value that is missing.
_MISSING_TEXTS = ("nan", "NaN", "None", "null", "NULL", "<NA>")


class Clip(NamedTuple):
    """A labelled video, or its segment from `start` to `end` in seconds, with the cells of further columns."""

    video: str
    label: Label
    start: float | None = None
    end: float | None = None
    further: tuple[str | None, ...] = ()


def clip_table(clips: Sequence[Clip], columns: Sequence[str] = ()) -> pa.Table:
    """The columns `video`, `label` or `labels`, `start` and `end` of clips, of which there is at least one, and the
    further `columns` that they have. A path that is not UTF-8 raises `ValueError`."""
    videos, labels, starts, ends, further = zip(*clips, strict=True)
    is_multi = isinstance(labels[0], tuple)
    try:
        table = {
            "video": pa.array(videos, pa.string()),
            "labels" if is_multi else "label": pa.array(labels, pa.list_(pa.string()) if is_multi else pa.string()),
        }
    except UnicodeEncodeError as error:
        name = os.fsencode(error.object).decode(errors="backslashreplace")
        raise ValueError(f"The name of {name} is not UTF-8. Rename the file or folder.") from error
    cells = zip(columns, zip(*further, strict=True), strict=True)
    table |= {name: pa.array(values, pa.string()) for name, values in cells}
    return pa.table({**table, "start": pa.array(starts, pa.float64()), "end": pa.array(ends, pa.float64())})


def read_annotations(
    path: Path, root: Path | None = None, *, labelled: bool = True, columns: Sequence[str] | None = ()
) -> pa.Table:
    """The `clip_table` of one file, in one of the formats of `load_video_dataset`.

    Args:
        path: the file.
        root: the folder that relative paths count from; by default the folder of the file.
        labelled: whether each row has a label. Otherwise a row may be a path alone, and labels are not read.
        columns: further columns that are kept, None for all; an empty or missing cell gives None.

    Raises:
        FileNotFoundError: a video does not exist.
        ValueError: the file has none of the formats or no rows, or a row has a wrong value.
    """
    root = path.parent if root is None else root
    read = _json_rows if path.suffix.lower() == ".json" else _text_rows
    rows = list(read(path, root, labelled))
    if not labelled:
        rows = [(where, {name: row[name] for name in _UNLABELLED if name in row}) for where, row in rows]
    if not rows:
        raise ValueError(f"{path} has no rows. Add one line for each video: path,label[,start,end].")
    if len({"labels" in row for _, row in rows}) > 1:
        raise ValueError(f"{path} has entries with label and entries with labels; one of them for all is expected.")
    if columns is None:
        columns = [*dict.fromkeys(name for _, row in rows for name in row if name not in KNOWN_COLUMNS)]
    clips = {where: _clip_of_row(where, row, root, columns) for where, row in rows}
    _check_kinds(rows)
    missing = [f"{where}: {clip.video}" for where, clip in clips.items() if not os.path.exists(clip.video)]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(rows)} videos do not exist: {listed(missing, separator='; ')}. "
            f"Relative paths count from {root}; say where the videos are with `video_root`."
        )
    for where, clip in clips.items():
        if kind_of(clip.video) != "folder":
            continue
        if not is_frame_folder(Path(clip.video)):
            raise ValueError(f"{where}: {clip.video} is a folder without JPEG or PNG frames.")
        if clip.start is not None or clip.end is not None:
            raise ValueError(
                f"{where}: {clip.video} is a folder of frames, which have no times; leave start and end empty."
            )
    table = clip_table(list(clips.values()), columns)
    return table if labelled else table.drop_columns("label")


def _text_rows(path: Path, root: Path, labelled: bool) -> Iterator[tuple[str, _Row]]:
    """The rows of a CSV file, or of a list without a line of column names, each with its place in the file."""
    rows = read_csv(path)
    _, names = next(rows, (0, []))
    columns = [name.strip() for name in names]
    if {"path", "label", "labels"} <= set(columns):
        raise ValueError(f"{path} has the columns label and labels; keep one of them.")
    if "path" in columns and (not labelled or {"label", "labels"} & set(columns)):
        for name in columns:
            if name not in _COLUMNS and name.lower() in _COLUMNS:
                raise ValueError(f"{path} has the column {name!r}; did you mean {name.lower()!r}?")
        yield from ((f"{path}, line {line}", row) for line, row in named_rows(path, columns, rows))
        return
    lines = [(f"{path}, line {number}", line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]
    cells = [(where, _cells(where, line, root)) for where, line in lines]
    fewest = 2 if labelled else 1
    if not cells or len(cells[0][1]) < fewest or not (path.suffix.lower() == ".txt" or _exists(root, cells[0][1][0])):
        raise ValueError(
            f"The first line of {path} is {','.join(columns)!r}; the columns path,label[,start,end] are expected, or "
            "path,labels[,start,end], separated by commas, or lines of `path label` without names of columns, the "
            f"first with a video that exists in {root}."
        )
    for where, row in cells:
        if not fewest <= len(row) <= len(_LIST_COLUMNS):
            raise ValueError(f"{where} has {len(row)} cells; path, label and, optionally, start and end are expected.")
        yield where, dict(zip(_LIST_COLUMNS, [*row, "", "", ""], strict=False))


def _cells(where: str, line: str, root: Path) -> list[str]:
    """The cells of a line of a list. Cells are separated by commas, or by spaces, which a path may also have."""
    if "," in line:
        try:
            (cells,) = csv.reader([line], skipinitialspace=True, strict=True)
        except csv.Error as error:
            raise ValueError(f"{where} cannot be read as CSV: {error}.") from error
        return [cell.strip() for cell in cells]
    words = line.split()
    if _exists(root, line.strip()):
        return [line.strip()]
    for num_others in (1, 3):
        path = line.rsplit(maxsplit=num_others)[0].strip()
        if len(words) > num_others and _exists(root, path):
            return [path, *words[-num_others:]]
    return words


def _json_rows(path: Path, root: Path, labelled: bool) -> Iterator[tuple[str, _Row]]:
    entries = read_json(path)
    if not isinstance(entries, list):
        raise ValueError(
            f"{path} holds a {type(entries).__name__}; a list of entries with path and label, path and "
            "labels, or id and template is expected."
        )
    for number, entry in enumerate(entries, start=1):
        where = f"{path}, entry {number}"
        names = set(entry) if isinstance(entry, dict) else set()
        if "path" in names and labelled <= len(names & {"label", "labels"}) <= 1:
            yield where, entry
            continue
        if not {"id", "template"} <= names:
            raise ValueError(
                f"{where} is {entry!r}; an object with path and either label or labels, or with id and template is "
                "expected. A split without labels, such as the test split of Something-Something, cannot be used: "
                "move its file elsewhere."
            )
        name = cell_text(where, "id", entry["id"])
        video = next((name + suffix for suffix in _JSON_VIDEO_SUFFIXES if _exists(root, name + suffix)), name)
        template = cell_text(where, "template", entry["template"])
        yield where, {"path": video, "label": template.replace("[", "").replace("]", "")}


def _exists(root: Path, path: str) -> bool:
    return (root / Path(path).expanduser()).exists()


def _check_kinds(rows: Iterable[tuple[str, _Row]]) -> None:
    """Raises `ValueError` for labels of which some are numbers and some texts: 1 and "1" would become one class."""
    places: dict[bool, str] = {}
    for where, row in rows:
        labels = row.get("labels", [row.get("label")])
        for label in labels if isinstance(labels, list) else [labels]:
            places.setdefault(isinstance(label, str), f"{where} has {label!r}")
    if len(places) > 1:
        raise ValueError(f"Labels are all texts or all numbers, but {places[True]} and {places[False]}.")


def _clip_of_row(where: str, row: _Row, folder: Path, columns: Sequence[str]) -> Clip:
    path = cell_text(where, "path", row["path"])
    label: Label = cell_text(where, "label", row["label"]) if "label" in row else ""
    label = _labels(where, row["labels"]) if "labels" in row else label
    further = tuple(None if (cell := row.get(name)) is None else str(cell).strip() or None for name in columns)
    times = segment(where, row.get("start"), row.get("end"))
    return Clip(str(folder / Path(path).expanduser()), label, *times, further)


def _labels(where: str, labels: Any) -> tuple[str, ...]:
    """The names of classes in a cell of a CSV file or in a list of a JSON file; possibly none."""
    if isinstance(labels, str):
        labels = labels.split(_LABEL_SEPARATOR) if labels.strip() else []
    if not isinstance(labels, list):
        raise ValueError(f"{where}: labels is {labels!r}; a list of names is expected.")
    names = tuple(cell_text(where, "one of labels", label) for label in labels)
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: labels is {labels!r}; different names are expected.")
    return names


def listed(items: Iterable[object], limit: int = 5, separator: str = ", ") -> str:
    """The first `limit` items and the number of the others, for an error message."""
    shown = [str(item) for item in items]
    more = f"{separator}and {len(shown) - limit} more" if len(shown) > limit else ""
    return separator.join(shown[:limit]) + more


def cell_text(where: str, column: str, value: Any) -> str:
    """The text of a cell, without the spaces around it. A number becomes a text. A cell that is empty, null, NaN or a
    text that stands for one of these, true or false, or no single value raises `ValueError`."""
    if isinstance(value, str):
        text = value.strip()
        if text in _MISSING_TEXTS:
            raise ValueError(
                f"{where}: {column} is {text!r}, as programs write a missing value. Leave the row out, or write it "
                "otherwise if it is meant."
            )
        if text:
            return text
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise ValueError(f"{where}: {column} is {value!r}; a text is expected. Leave the row out if there is none.")


def segment(where: str, start: Any, end: Any) -> tuple[float | None, float | None]:
    """Start and end in seconds, None for an empty cell. An end that is not after the start raises `ValueError`."""
    first, stop = _seconds(where, "start", start), _seconds(where, "end", end)
    if stop is not None and stop <= (first or 0.0):
        raise ValueError(
            f"{where}: end is {stop} s, but the segment starts at {first or 0.0} s; a later end is expected."
        )
    return first, stop


def _seconds(where: str, column: str, value: Any) -> float | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: {column} is {value!r}; seconds from 0 on are expected, or an empty cell.")
    return seconds
