"""Reads and writes files of labelled boxes at key frames, in AVA's form and with names of columns.

AVA's files have no first line of names. A row is video, second, left, top, right, bottom, action id and, in
annotations, the number of a person, in detections a score. A file with names of columns has `video`, `second`, `x1`,
`y1`, `x2`, `y2`, `action` and, optionally, `person` or `score`; an action is then a name, or an id of the label map.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from hf_video.io import check_regular_file, read_csv, read_text, replacing_file

_COORDINATES = ("x1", "y1", "x2", "y2")
_COLUMNS = ("video", "second", *_COORDINATES, "action")
_EXPECTED = (
    "Expected rows as AVA's, video,second,x1,y1,x2,y2,action id[,person id or score], or a first line of names: "
    "video,second,x1,y1,x2,y2,action[,person or score]."
)
_BLOCK = re.compile(r'\{((?:[^{}"]|"(?:[^"\\]|\\.)*")*)\}')
_NAME, _ID = re.compile(r'\bname\s*:\s*"((?:[^"\\]|\\.)*)"'), re.compile(r"\b(?:label_)?id\s*:\s*(\d+)")


class LabelledBoxes(NamedTuple):
    """
    Boxes of key frames, each with one action; a person with several actions has as many rows.

    Attributes:
        video: (n,) text, the name of the video: a list or an array.
        second: (n,) float64, the time of the key frame in seconds.
        boxes: (n, 4) float64, left, top, right and bottom.
        action: (n,) int64, the number of the class; -1 for one that does not count, or none.
        score: (n,) float64, the confidence of a detection; 1 for an annotation.
    """

    video: Any
    second: np.ndarray
    boxes: np.ndarray
    action: np.ndarray
    score: np.ndarray

    def names(self) -> pa.Array:
        """The names of the videos as one array."""
        if isinstance(self.video, pa.ChunkedArray):
            return self.video.combine_chunks()
        return self.video if isinstance(self.video, pa.Array) else pa.array(self.video, pa.string())


def read_label_map(path: str | os.PathLike) -> dict[int, str]:
    """The names of actions by their ids, of a label map of AVA: a text file of protocol buffers, whose blocks have
    `name` and `id` or `label_id`.

    Raises:
        FileNotFoundError, OSError: See `read_text`.
        ValueError: The file has no such blocks, an id below 1, or an id or a name twice; or as `read_text`.
    """
    found: dict[int, str] = {}
    for block in _BLOCK.findall(read_text(path)):
        name, number = _NAME.search(block), _ID.search(re.sub(r'"(?:[^"\\]|\\.)*"', "", block))
        if name is None or number is None or int(number[1]) < 1:
            raise ValueError(f"{path}: {block.strip()!r} is no action; a name and an id from 1 on are expected.")
        text = re.sub(r"\\(.)", r"\1", name[1])
        if int(number[1]) in found or text in found.values():
            raise ValueError(f"{path} has the action {text!r} or the id {number[1]} twice. Keep one of them.")
        found[int(number[1])] = text
    if not found:
        raise ValueError(f'{path} has no actions. Expected a label map: label {{ name: "walk" label_id: 12 }} ...')
    return found


def read_exclusions(path: str | os.PathLike) -> set[tuple[str, float]]:
    """The key frames, video and second, of a file of excluded time stamps of AVA.

    Raises:
        FileNotFoundError, OSError, ValueError: See `read_csv`; or a row is not video,second.
    """
    excluded = set()
    for line, cells in read_csv(path):
        try:
            video, second = cells
            excluded.add((video, float(second)))
        except ValueError:
            raise ValueError(f"{path}, line {line} is {','.join(cells)!r}; video,second is expected.") from None
    return excluded


class BoxTable:
    """
    The rows of a file of labelled boxes.

    Args:
        path: The file, UTF-8.

    Attributes:
        columns: Each column as text, by its name; in AVA's form the last one, of persons or scores, is "last".
        has_names: Whether the first line names the columns.
        second: (n,) float64.
        boxes: (n, 4) float64.

    Raises:
        FileNotFoundError, OSError: The file cannot be opened.
        ValueError: The file has no rows or lacks columns, or a number of it is none.
    """

    def __init__(self, path: str | os.PathLike):
        check_regular_file(path)
        self.path = path
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            first = [cell.strip() for cell in file.readline().split(",")]
        if first == [""]:
            raise ValueError(f"{path} is empty. {_EXPECTED}")
        self.has_names = {"video", "second"} <= set(first)
        names = first if self.has_names else [*_COLUMNS, "last"][: len(first)]
        if missing := [name for name in _COLUMNS if name not in names]:
            raise ValueError(f"The first line of {path} is {','.join(first)!r}, without {missing[0]}. {_EXPECTED}")
        try:
            table = csv.read_csv(
                path,
                csv.ReadOptions(column_names=names, skip_rows=int(self.has_names)),
                convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
            )
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path} cannot be read as CSV: {error}. {_EXPECTED}") from error
        if not len(table):
            raise ValueError(f"{path} has no rows. {_EXPECTED}")
        self.columns = {name: pc.utf8_trim_whitespace(table[name]) for name in names}
        self.second = self.numbers("second")
        self.boxes = np.stack([self.numbers(name) for name in _COORDINATES], axis=1)

    def numbers(self, name: str) -> np.ndarray:
        """A column of finite numbers, float64; another value raises `ValueError`."""
        texts = self.columns[name]
        try:
            values = texts.cast(pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            values = np.array([_number(text) for text in texts.to_pylist()])
        if (wrong := np.flatnonzero(~np.isfinite(values))).size:
            row = int(wrong[0])
            raise ValueError(f"{self.place(row)}: {name} is {texts[row].as_py()!r}; a finite number is expected.")
        return values

    def place(self, row: int) -> str:
        """The place of a row in the file, for messages."""
        return f"{self.path}, row {row + 1}"


def read_boxes(path: str | os.PathLike, classes: Mapping[str, int], *, scored: bool = False) -> LabelledBoxes:
    """The boxes of a file.

    Args:
        path: The file.
        classes: The numbers of classes by their names and ids, as the file writes them; others are -1.
        scored: Whether rows are detections, which have a score.

    Raises:
        FileNotFoundError, OSError, ValueError: See `BoxTable`; or detections have no score.
    """
    table = BoxTable(path)
    column = "score" if table.has_names else "last"
    if scored and column not in table.columns:
        raise ValueError(f"{path} has no scores: the rows of detections end with one. {_EXPECTED}")
    numbers = pa.array([*classes.values(), -1], pa.int64())
    places = pc.index_in(table.columns["action"], pa.array(list(classes), pa.string()))
    action = numbers.take(pc.fill_null(places, len(classes)).combine_chunks()).to_numpy()
    score = table.numbers(column) if scored else np.ones(len(action))
    return LabelledBoxes(table.columns["video"], table.second, table.boxes, action, score)


def write_boxes(path: str | os.PathLike, boxes: LabelledBoxes, actions: Sequence[str | int]) -> None:
    """Writes detections in AVA's form, with five decimals, as a whole.

    Args:
        path: The file.
        boxes: The rows.
        actions: What stands for each class in the file: its id or its name.
    """
    times = [f"{second:04.0f}" if second.is_integer() else repr(second) for second in boxes.second.tolist()]
    cells = [
        _quoted(boxes.names()),
        pa.array(times, pa.string()),
        *(_decimals(column) for column in boxes.boxes.T),
        _quoted(pa.array(map(str, actions), pa.string())).take(pa.array(boxes.action)),
        _decimals(boxes.score),
    ]
    rows = pc.binary_join_element_wise(*cells, ",")
    with replacing_file(path) as unfinished, open(unfinished, "w", encoding="utf-8", newline="") as file:
        file.writelines(f"{row}\n" for row in rows.to_pylist())


def _decimals(values: np.ndarray) -> pa.Array:
    """Numbers as texts with five decimals."""
    return pa.array(values.round(5)).cast(pa.decimal128(20, 5)).cast(pa.string())


def _quoted(texts: pa.Array) -> pa.Array:
    """Texts as CSV writes them."""
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    return pc.if_else(pc.match_substring_regex(texts, '[",\r\n]'), quoted, texts)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
