"""Lists of videos in files of text: CSV, JSON, and lines of a path and a label; each as columns of cells."""

import csv
import logging
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hf_video.io import lines_of, parse_csv, read_json, read_json_lines, read_table
from hf_video.reading.sources import is_url

from .folders import LIST_SUFFIXES, address, is_frame_folder
from .rows import KNOWN_COLUMNS

logger = logging.getLogger(__name__)
_NAMES = KNOWN_COLUMNS - {"path"} | {"question", "answer", "caption", "time"}
_BOX_NAMES = {"second", "x1", "y1", "x2", "y2", "action"}
# Other names of columns, in lower case and with underscores.
_ALIASES = {
    **dict.fromkeys(("path", "file", "filename", "file_name", "file_path", "video_path", "video_file"), "video"),
    **dict.fromkeys(("clip", "recording", "media", "media_file", "video_name"), "video"),
    **dict.fromkeys(("class", "class_name", "behavior", "behaviour", "activity", "action", "category"), "label"),
    **dict.fromkeys(("begin", "start_time", "start_s", "onset"), "start"),
    **dict.fromkeys(("end_time", "end_s", "stop", "stop_time", "stop_s", "offset"), "end"),
}
_UNNAMED = ("video", "label", "start", "end")
# What pyarrow raises for values that are not of a type.
NOT_OF_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def read_list(path: Path, root: str, expected: str) -> tuple[dict[str, pa.Array], Sequence[int], str, dict[str, str]]:
    """The columns of a list, the number of each row in the file, what that counts, and the names of the columns in the
    file. Paths count from `root`."""
    suffix = path.suffix.lower()
    if suffix not in LIST_SUFFIXES:
        raise ValueError(f"{path} is neither a list nor a table. {expected}")
    read = _read_json(path, expected) if suffix in (".json", ".jsonl") else _read_text(path, root, expected)
    columns, lines, own_names = read
    if not lines:
        raise ValueError(f"{path} has no rows. {expected}")
    if {"label", "labels"} <= columns.keys():
        raise ValueError(f"{path} has the columns label and labels; keep one of them.")
    return columns, lines, "entry" if suffix == ".json" else "line", own_names


def known_names(source: str, names: Sequence[str]) -> list[str]:
    """The names of columns: in place of another form or word, that which is known here. A line of the log names
    the words."""
    found, guessed = [name.strip() for name in names], list[str]()
    plain = [re.sub(r"[\W_]+", "_", name.casefold()).strip("_") for name in found]
    known = _NAMES | (_BOX_NAMES if "x1" in plain else set())
    for number, name in enumerate(found):
        words = (plain[number], _ALIASES.get(plain[number]))
        meant = next((word for word in words if word in known and word not in found), None)
        if name not in known and meant:
            found[number] = meant
            if meant != plain[number] and name != "path":
                guessed.append(f"{name!r} as {'path' if meant == 'video' else meant}")
    if guessed:
        logger.warning(f"{source}: columns are read by what their names mean: {', '.join(guessed)}.")
    if "start" in found and "end" not in found:
        others = ", ".join(name for name in found if name not in known) or "none"
        logger.warning(
            f"{source} has no column of ends, so each row lasts to the end of its video. Other columns: {others}."
        )
    return found


def find_delimiter(line: str) -> str | None:
    """What separates the cells of a line. Programs for tables write semicolons where a comma is part of a number, and
    no cell has a tab."""
    return next((each for each in ("\t", ",", ";") if each in line), None)


def _read_text(path: Path, root: str, expected: str) -> tuple[dict[str, pa.Array], Sequence[int], dict[str, str]]:
    text = read_table(path)
    lines = lines_of(text)
    first = next(filter(str.strip, lines), "")
    delimiter = find_delimiter(first) or ","
    rows = parse_csv(path, text, delimiter)
    own = next(rows, (0, []))[1]
    names = known_names(str(path), own)
    if "video" in names:
        if twice := [name for name in names if name and names.count(name) > 1]:
            raise ValueError(f"{path} has the column {twice[0]!r} twice. Keep one of them.")
        numbered = [*rows]
    else:

        @cache
        def exists(video: str) -> bool:
            found = address(root, video)
            return len(found.split()) == 1 if is_url(found) else os.path.exists(found)

        texts = ((number, line.strip()) for number, line in enumerate(lines, 1) if line.strip(" ,;\t"))
        numbered = [(number, _cells(f"{path}, line {number}", text, root, exists)) for number, text in texts]
        if not numbered or (path.suffix.lower() != ".txt" and not exists(numbered[0][1][0])):
            what = f"names no column path or video, and is no video in {root}"
            raise ValueError(f"The first line of {path} is {first!r}, which {what}. {expected}")
        own = names = [*_UNNAMED[: max(len(cells) for _, cells in numbered)]]
    if too_long := [number for number, cells in numbered if len(cells) > len(names)]:
        known = f"the columns {', '.join(names)}: put a value with a comma into quotes"
        raise ValueError(f"{path}, line {too_long[0]} has more cells than {known}.")
    columns = zip_longest(names, *(cells for _, cells in numbered), fillvalue="")
    found = {name: pc.utf8_trim_whitespace(pa.array(values, pa.string())) for name, *values in columns if name}
    return found, [number for number, _ in numbered], dict(zip(names, own, strict=True))


def _cells(where: str, line: str, root: str, exists: Callable[[str], bool]) -> list[str]:
    """The cells of a line of a list without names of columns: a path, which may have spaces, and others behind it."""
    if (delimiter := find_delimiter(line)) is not None and not exists(line):
        cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    else:
        ends = (line.rsplit(maxsplit=count) if count else [line] for count in range(4))
        cells = next((found for found in ends if exists(found[0])), line.split())
    if len(cells) == 3 and cells[1].isdecimal() and cells[2].isdecimal():
        if is_frame_folder(Path(address(root, cells[0]))):  # path, number of frames, label
            return [cells[0], cells[2]]
        what = "may be a label and a start, or a number of frames and a label"
        raise ValueError(f"{where}: {cells[1]} and {cells[2]} {what}: name the columns in the first line.")
    return cells


def _read_json(path: Path, expected: str) -> tuple[dict[str, pa.Array], Sequence[int], dict[str, str]]:
    content = read_json_lines(path) if path.suffix.lower() == ".jsonl" else read_json(path)
    if not isinstance(content, list):
        raise ValueError(f"{path} holds a {type(content).__name__}; a list of objects is expected. {expected}")
    numbered = content if path.suffix.lower() == ".jsonl" else [*enumerate(content, 1)]
    if wrong := [each for each in numbered if not isinstance(each[1], dict)]:
        raise ValueError(f"{path}, entry {wrong[0][0]} is {wrong[0][1]!r}; an object is expected. {expected}")
    entries: list[dict[str, Any]] = [entry for _, entry in numbered]
    names = [*dict.fromkeys(name for entry in entries for name in entry)]
    columns = dict(zip(names, known_names(str(path), names), strict=True))
    if "id" in names and "video" not in columns.values():  # Something-Something
        columns["id"] = "video"
        if "template" in names:
            columns = {name: f"given {new}" if new == "label" else new for name, new in columns.items()}
            columns["template"] = "label"
            for entry in entries:
                if isinstance(entry.get("template"), str):
                    entry["template"] = re.sub(r"[\[\]]", "", entry["template"])
    if "video" not in columns.values() and entries:
        raise ValueError(f"{path}, entry 1 is {entries[0]!r}, without path or video. {expected}")
    found = {new: _array([entry.get(name) for entry in entries]) for name, new in columns.items()}
    return found, [number for number, _ in numbered], {new: name for name, new in columns.items()}


def _array(values: list[Any]) -> pa.Array:
    """The values of a column of JSON: lists if one of them is, and texts if they are of several kinds."""

    def text(value: Any) -> Any:
        return [*map(text, value)] if isinstance(value, list) else None if value is None else str(value)

    if any(isinstance(value, list) for value in values):
        values = [value if isinstance(value, list) or value is None else [value] for value in values]
    try:
        return pa.array(values)
    except NOT_OF_TYPE:
        return pa.array(map(text, values))
