"""Files that list labelled videos: CSV, JSON, the lists of Kinetics, and the files of Something-Something."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hf_video.processing.video_reading import FRAME_EXTENSIONS

ANNOTATION_SUFFIXES = (".csv", ".txt", ".json")
_COLUMNS = ("path", "label", "start", "end")
# Between the labels of a clip in a CSV file.
_LABEL_SEPARATOR = ";"

# The name of a clip's class, or the names of all that it has where clips may have several.
Label = str | tuple[str, ...]
_Row = dict[str | None, Any]
_JSON_VIDEO_SUFFIXES = (".webm", ".mp4", "")


class Clip(NamedTuple):
    """A labelled video, or its segment from `start` to `end` in seconds."""

    video: str
    label: Label
    start: float | None = None
    end: float | None = None


def read_annotations(path: Path, root: Path | None = None) -> list[Clip]:
    """The labelled videos of one file; what formats there are, `load_video_dataset` says.

    Args:
        path: the file.
        root: the folder that relative paths count from; by default that of the file.

    Raises:
        FileNotFoundError: a video does not exist.
        ValueError: the file has none of the formats, no rows, or a row that cannot be right.
    """
    root = path.parent if root is None else root
    rows = list(_json_rows(path, root) if path.suffix.lower() == ".json" else _text_rows(path, root))
    if not rows:
        raise ValueError(f"{path} has no rows. Add one line a video: path,label[,start,end].")
    if len({"labels" in row for _, row in rows}) > 1:
        raise ValueError(f"{path} has entries with label and entries with labels; one of them for all is expected.")
    clips = {where: _clip_of_row(where, row, root) for where, row in rows}
    missing = [f"{where}: {clip.video}" for where, clip in clips.items() if not os.path.exists(clip.video)]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(rows)} videos do not exist: {listed(missing, separator='; ')}. "
            f"Relative paths count from {root}; say where the videos are with `video_root`."
        )
    for where, clip in clips.items():
        if not os.path.isdir(clip.video):
            continue
        if not is_frame_folder(Path(clip.video)):
            raise ValueError(f"{where}: {clip.video} is a folder without JPEG or PNG frames.")
        if clip.start is not None or clip.end is not None:
            raise ValueError(
                f"{where}: {clip.video} is a folder of frames, which have no times; leave start and end empty."
            )
    return list(clips.values())


def _text_rows(path: Path, root: Path) -> Iterator[tuple[str, _Row]]:
    """Rows of a CSV file or of a list without a first line of names, with their places in the file."""
    try:
        # utf-8-sig: spreadsheet programs begin the file with a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
        reader = csv.DictReader(io.StringIO(text), restval="")
        columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        if {"path", "label", "labels"} <= set(columns):
            raise ValueError(f"{path} has the columns label and labels; keep one of them.")
        if {"path", "label"} <= set(columns) or {"path", "labels"} <= set(columns):
            yield from ((f"{path}, line {reader.line_num}", row) for row in reader)
            return
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}. Save it as CSV with UTF-8 encoding.") from error
    lines = [
        (f"{path}, line {number}", line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()
    ]
    cells = [(where, _cells(line, root)) for where, line in lines]
    if not cells or len(cells[0][1]) < 2 or not (path.suffix.lower() == ".txt" or _exists(root, cells[0][1][0])):
        raise ValueError(
            f"The first line of {path} is {','.join(columns)!r}; the columns path,label[,start,end] are expected, or "
            "path,labels[,start,end], separated by commas, or lines of `path label` without names of columns, the "
            f"first with a video that exists in {root}."
        )
    for where, row in cells:
        if not 2 <= len(row) <= len(_COLUMNS):
            raise ValueError(f"{where} has {len(row)} cells; path, label and, optionally, start and end are expected.")
        yield where, dict(zip(_COLUMNS, [*row, "", ""], strict=False))


def _cells(line: str, root: Path) -> list[str]:
    """The cells of a line of a list; separated by spaces, a path may itself have some."""
    if "," in line:
        return [cell.strip() for cell in next(csv.reader([line]))]
    words = line.split()
    for num_others in (1, 3):
        path = line.rsplit(maxsplit=num_others)[0].strip()
        if len(words) > num_others and _exists(root, path):
            return [path, *words[-num_others:]]
    return words


def _json_rows(path: Path, root: Path) -> Iterator[tuple[str, _Row]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(entries, list):
        raise ValueError(
            f"{path} holds a {type(entries).__name__}; a list of entries with path and label, path and "
            "labels, or id and template is expected."
        )
    for number, entry in enumerate(entries, start=1):
        where = f"{path}, entry {number}"
        names = set(entry) if isinstance(entry, dict) else set()
        if "path" in names and len(names & {"label", "labels"}) == 1:
            row: _Row = {name: entry[name] for name in ("path", "label", "labels") if name in names}
            row |= {name: str(entry[name]) for name in ("start", "end") if entry.get(name) is not None}
            yield where, row
            continue
        if not {"id", "template"} <= names:
            raise ValueError(
                f"{where} is {entry!r}; an object with path and either label or labels, or with id and template is "
                "expected. A split without labels, such as the test split of Something-Something, cannot be used: "
                "move its file elsewhere."
            )
        name = str(entry["id"])
        video = next((name + suffix for suffix in _JSON_VIDEO_SUFFIXES if _exists(root, name + suffix)), name)
        yield where, {"path": video, "label": str(entry["template"]).replace("[", "").replace("]", "")}


def _exists(root: Path, path: str) -> bool:
    return (root / Path(path).expanduser()).exists()


def _clip_of_row(where: str, row: _Row, folder: Path) -> Clip:
    if None in row:
        raise ValueError(f'{where} has more cells than the first line. Put values with a comma into quotes: "a,b".')
    path = str(row["path"]).strip()
    label = _labels(where, row["labels"]) if "labels" in row else str(row["label"]).strip()
    if not path or label == "":
        raise ValueError(f"{where}: path is {path!r} and label is {label!r}; both must be given.")
    start = _seconds(where, "start", row.get("start", ""))
    end = _seconds(where, "end", row.get("end", ""))
    if end is not None and end <= (start or 0.0):
        raise ValueError(
            f"{where}: end is {end} s, but the segment starts at {start or 0.0} s; a later end is expected."
        )
    return Clip(str(folder / Path(path).expanduser()), label, start, end)


def _labels(where: str, labels: Any) -> tuple[str, ...]:
    """The classes in a cell of a CSV file, or in a list of a JSON file; there may be none."""
    if isinstance(labels, str):
        labels = labels.split(_LABEL_SEPARATOR) if labels.strip() else []
    if not isinstance(labels, list):
        raise ValueError(f"{where}: labels is {labels!r}; a list of names is expected.")
    names = tuple(str(label).strip() for label in labels)
    if "" in names or len(set(names)) < len(names):
        raise ValueError(f"{where}: labels is {labels!r}; different names, none of them empty, are expected.")
    return names


def _seconds(where: str, column: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: {column} is {text!r}; seconds from 0 on are expected, or an empty cell.")
    return seconds


def is_frame_folder(path: Path) -> bool:
    """Whether a path is a folder with JPEG or PNG frames in it."""
    return path.is_dir() and any(
        entry.suffix.lower() in FRAME_EXTENSIONS and not entry.name.startswith(".") for entry in path.iterdir()
    )


def listed(items: Iterable[object], limit: int = 5, separator: str = ", ") -> str:
    """The first few of many, for an error message."""
    shown = [str(item) for item in items]
    more = f"{separator}and {len(shown) - limit} more" if len(shown) > limit else ""
    return separator.join(shown[:limit]) + more
