"""Lists key frames with the persons in them, their boxes and actions, and reads and writes files of these: in AVA's
form, and with names of columns.

AVA's files have no first line of names. A row is video, second, left, top, right, bottom, action id and, in
annotations, the number of a person, in detections a score. A file with names of columns has `video`, `second`, `x1`,
`y1`, `x2`, `y2`, `action` and, optionally, `person` or `score`; an action is then a name, or an id of the label map.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, NamedSplit, Value, concatenate_datasets
from pyarrow import csv

from hf_video.io import check_regular_file, read_csv, read_text, replacing_file
from hf_video.settings import closest

from .folders import absolute, lists_in, require_root, sources_by_split
from .rows import BYTES, sorted_names
from .tables import Table, find_dataset, known_names, only_tables, open_tables, require_videos

_COORDINATES = ("x1", "y1", "x2", "y2")
_COLUMNS = ("video", "second", *_COORDINATES, "action")
_EXPECTED = (
    "Expected rows as AVA's, video,second,x1,y1,x2,y2,action id[,person id or score], or a first line of names: "
    "video,second,x1,y1,x2,y2,action[,person or score]."
)
_FRAME_COLUMNS = ("video", "second", "boxes", "actions")
_BOX_LISTS = List(List(Value("float64"), length=4))
_EXPECTED_DATA = (
    "Expected a CSV file in AVA's form, or with the columns video,second,x1,y1,x2,y2,action[,person]; a folder with "
    "such files named train.csv, validation.csv and test.csv; or a data set with the columns video, second, boxes and "
    "actions."
)
# What AVA puts around the name of a split.
_OF_AVA = re.compile(r"^ava_|_v\d[\d.]*$")
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
            line = file.readline()
        delimiter = next((each for each in (",", ";", "\t") if each in line), ",")
        first = [cell.strip() for cell in line.split(delimiter)]
        if first == [""]:
            raise ValueError(f"{path} is empty. {_EXPECTED}")
        columns = known_names(str(path), first)
        self.has_names = {"video", "second"} <= set(columns)
        names = columns if self.has_names else [*_COLUMNS, "last"][: len(first)]
        if missing := [name for name in _COLUMNS if name not in names]:
            raise ValueError(f"The first line of {path} is {','.join(first)!r}, without {missing[0]}. {_EXPECTED}")
        try:
            table = csv.read_csv(
                path,
                csv.ReadOptions(column_names=names, skip_rows=int(self.has_names)),
                csv.ParseOptions(delimiter=delimiter),
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
        return float(text.replace(",", "."))
    except ValueError:
        return math.nan


def load_detections(
    data: str | os.PathLike | DatasetDict | Dataset,
    *,
    video_root: str | os.PathLike | None = None,
    label_map: str | os.PathLike | None = None,
    exclude: str | os.PathLike | None = None,
    first_second: float = 0,
    config: str | None = None,
    revision: str | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
) -> DatasetDict:
    """List key frames with the boxes and actions of the persons in them.

    Args:
        data: A CSV file, or a folder of such files named after splits. In AVA's form a row is video, second, left,
            top, right, bottom, action id and person id; other files have a first line of names, video, second, x1,
            y1, x2, y2, action and, optionally, person. Boxes are shares of width and height. Rows of one key frame are
            one person with several actions if they have the same person, or, where that is not given, the same text
            of a box; AVA's ids of persons do not count, as in the original. A person whose action is empty has none.
            A video is a path, or the name of a file without its suffix, as in AVA.
            Or a data set of the `datasets` library, as an object, as a folder of `save_to_disk` or Parquet files, or
            by its name on the Hub, with the columns `video` (the feature `Video`, or paths), `second`, `boxes`, n
            lists of four numbers, and `actions`, n lists of class names or of `ClassLabel`.
        video_root: The folder that relative paths of a file count from; by default that of the file.
        label_map: AVA's names of actions by their ids, a .pbtxt file. The class of an action is its id - 1, as in the
            original, and ids that the map leaves out are classes, too. By default classes of AVA's form are called by
            their ids, and those of other files are the names that are found, sorted.
        exclude: A CSV file of video,second: key frames that are left out.
        first_second: The second of the annotations at which the video files begin: 900 for AVA's files of 15 minutes.
        config, revision, train_split, validation_split: Of a data set; see `load_video_dataset`.

    Returns:
        The splits found among "train", "validation" and "test"; data without splits are "train". A row is a key frame
        with at least one person. Columns: `video` (path), `second` (float64, after the first frame of the file),
        `boxes` (n, 4) float64, `actions`, n lists of `ClassLabel`; if videos are stored inside the data set, `bytes`
        holds them and `video` is a name.

    Raises:
        FileNotFoundError: If `data`, or a file that it names, does not exist.
        ValueError: If there are no rows, a row has a wrong value, or an action is not in `label_map`; the error names
            the row.
    """
    labels = None if label_map is None else read_label_map(label_map)
    excluded = set() if exclude is None else read_exclusions(exclude)
    names = None if labels is None else [labels.get(number, str(number)) for number in range(1, max(labels) + 1)]
    if isinstance(data, Dataset | DatasetDict) or find_dataset(data, config=config, revision=revision) is not None:
        named = {"config": config, "revision": revision}
        named |= {"train_split": train_split, "validation_split": validation_split}
        tables = only_tables(open_tables(data, video_root, expected=_EXPECTED_DATA, **named), _EXPECTED_DATA)
        splits = {name: _frames_of_table(table, labels) for name, table in tables.items()}
        names = names or next((each for table in tables.values() if (each := _declared(table.rows)) is not None), None)
    else:
        require_root(video_root)
        files = _split_files(Path(data).expanduser().absolute())
        splits = {name: _read_file(file, video_root, labels) for name, file in files.items()}
    if names is None:
        names = sorted_names(
            {action for split in splits.values() for frame in split.actions for each in frame for action in each}
        )
        if any(split.has_ids for split in splits.values()):
            names = [str(number) for number in range(1, int(names[-1]) + 1)] if names else []
    if not names:
        raise ValueError(f"{data} names no action. {_EXPECTED_DATA}")
    found = require_videos({name: split.table for name, split in splits.items()})
    return DatasetDict(
        {
            name: _make_rows(name, split, found[name].to_pylist(), names, excluded, first_second)
            for name, split in splits.items()
        }
    )


def action_names(rows: Dataset) -> list[str]:
    """The names of the classes of rows of `load_detections`, by number."""
    return _inner(rows).names


class _KeyFrames(NamedTuple):
    """The key frames of a split: the table of their videos, for each its second, boxes, and the names of the actions
    of each box; and whether the actions are ids."""

    table: Table
    seconds: list[float]
    boxes: list[list[list[float]]]
    actions: list[list[list[str]]]
    has_ids: bool = False


def _make_rows(
    split: str,
    frames: _KeyFrames,
    videos: Sequence[str],
    names: list[str],
    excluded: Set[tuple[str, float]],
    first_second: float,
) -> Dataset:
    """The rows of a split. Excluded key frames are named by the path of the video or its name, with suffix or not."""
    number_of = {name: number for number, name in enumerate(names)}
    kept = []
    for row, (video, second, boxes) in enumerate(zip(videos, frames.seconds, frames.boxes, strict=True)):
        if second < first_second:
            raise ValueError(
                f"{frames.table.place(row)}: second is {second:g}; at least first_second={first_second:g} is "
                "expected, at which the video files begin."
            )
        if boxes and not {(name, second) for name in (video, Path(video).name, Path(video).stem)} & excluded:
            kept.append(row)
    if not kept:
        raise ValueError(f"The {split} split has no key frame with a person that is not excluded.")
    columns = {
        "video": [videos[row] for row in kept],
        "second": [frames.seconds[row] - first_second for row in kept],
        "boxes": [frames.boxes[row] for row in kept],
        "actions": [[[number_of[name] for name in each] for each in frames.actions[row]] for row in kept],
    }
    features = {
        "video": Value("string"),
        "second": Value("float64"),
        "boxes": _BOX_LISTS,
        "actions": List(List(ClassLabel(names=names))),
    }
    rows = Dataset.from_dict(columns, Features(features), split=NamedSplit(split))
    if BYTES not in frames.table:
        return rows
    return concatenate_datasets([rows, frames.table.rows.select_columns(BYTES).select(kept)], axis=1)


def _split_files(path: Path) -> dict[str, Path]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {_EXPECTED_DATA}")
    if not path.is_dir():
        return {"train": path}
    files = sources_by_split((_OF_AVA.sub("", each.stem), each) for each in lists_in(path, (".csv",)))
    if not files:
        raise ValueError(f"{path} holds no such file. {_EXPECTED_DATA}")
    return files


def _read_file(path: Path, video_root: str | os.PathLike | None, labels: Mapping[int, str] | None) -> _KeyFrames:
    table = BoxTable(path)
    if (row := _wrong_box(table.boxes)) is not None:
        raise ValueError(f"{table.place(row)}: {_tell_box(table.boxes[row])}")
    actions = _names_of_actions(table, labels)
    texts = zip(*(table.columns[name].to_pylist() for name in ("x1", "y1", "x2", "y2")), strict=True)
    videos = table.columns["video"].to_pylist()
    named = table.columns["person"].to_pylist() if "person" in table.columns else [""] * len(videos)
    persons: dict[tuple[str, float], dict[Any, tuple[list[float], list[str]]]] = {}
    first: dict[tuple[str, float], int] = {}
    cells = zip(videos, table.second.tolist(), texts, named, table.boxes.tolist(), actions, strict=True)
    for row, (video, second, text, name, box, action) in enumerate(cells):
        first.setdefault((video, second), row + 1)
        known, of_person = persons.setdefault((video, second), {}).setdefault(name or text, (box, []))
        if box != known:
            raise ValueError(
                f"{table.place(row)}: the person {name!r} has another box at this second in a row before. Give each "
                "person a name or number of its own, or leave out the column person."
            )
        if action is not None and action not in of_person:
            of_person.append(action)
    named_videos = Dataset(pa.table({"video": pa.array([video for video, _ in persons], pa.string())}))
    return _KeyFrames(
        Table(named_videos, str(path), absolute(video_root or path.parent), [*first.values()], "row"),
        seconds=[second for _, second in persons],
        boxes=[[box for box, _ in each.values()] for each in persons.values()],
        actions=[[of_person for _, of_person in each.values()] for each in persons.values()],
        has_ids=not table.has_names,
    )


def _names_of_actions(table: BoxTable, labels: Mapping[int, str] | None) -> list[str | None]:
    """The name of the action of each row; None where it has none."""
    texts = table.columns["action"].to_pylist()
    names: dict[str, str | None] = {"": None}
    for row, text in enumerate(texts):
        if text not in names:
            names[text] = _name_of_action(table.place(row), text, labels, has_ids=not table.has_names)
    return [names[text] for text in texts]


def _name_of_action(place: str, text: str, labels: Mapping[int, str] | None, has_ids: bool) -> str:
    if has_ids and not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"{place}: the action is {text!r}; an id from 1 on is expected, or nothing.")
    if labels is None:
        return str(int(text)) if has_ids else text
    if not has_ids and text in labels.values():
        return text
    if text.isdecimal() and 0 < int(text) <= max(labels):
        return labels.get(int(text), str(int(text)))
    hint = closest(text, labels.values())
    raise ValueError(
        f"{place}: the action {text!r} is unknown; the label map has the ids 1 to {max(labels)}. {hint}".rstrip()
    )


def _frames_of_table(table: Table, labels: Mapping[int, str] | None) -> _KeyFrames:
    if missing := [name for name in _FRAME_COLUMNS if name not in table]:
        raise ValueError(f"The data set has the columns {', '.join(table.names)}: {missing[0]!r} is missing.")
    inner = _inner(table.rows)
    if not isinstance(inner, ClassLabel) and inner.dtype != "string":
        raise ValueError(
            f"The actions of the data set are {inner.dtype}; lists of names or of ClassLabel are expected: "
            'dataset.cast_column("actions", List(List(ClassLabel(names=...)))).'
        )
    boxes, actions, seconds = (table.column(name).to_pylist() for name in ("boxes", "actions", "second"))
    for row, (of_frame, named, second) in enumerate(zip(boxes, actions, seconds, strict=True)):
        if len(of_frame) != len(named) or any(len(box) != 4 for box in of_frame):
            raise ValueError(
                f"{table.place(row)} has {len(of_frame)} boxes and {len(named)} lists of actions; one list for each "
                "box of four numbers is expected."
            )
        if second is None or not math.isfinite(second):
            raise ValueError(f"{table.place(row)}: second is {second!r}; a finite number is expected.")
        values = np.array(of_frame, np.float64).reshape(-1, 4)
        if (wrong := _wrong_box(values)) is not None:
            raise ValueError(f"{table.place(row)}: {_tell_box(values[wrong])}")
    to_name = inner.int2str if isinstance(inner, ClassLabel) else str
    named_actions = [
        [
            [
                each if labels is None else _name_of_action(table.place(row), each, labels, False)
                for each in map(to_name, person)
            ]
            for person in frame
        ]
        for row, frame in enumerate(actions)
    ]
    return _KeyFrames(table, [float(each) for each in seconds], boxes, named_actions)


def _inner(rows: Dataset) -> Any:
    return cast(Any, rows.features["actions"]).feature.feature


def _declared(rows: Dataset) -> list[str] | None:
    inner = _inner(rows)
    return inner.names if isinstance(inner, ClassLabel) else None


def _wrong_box(boxes: np.ndarray) -> int | None:
    """The number of the first row that is no box, None if all are."""
    left, top, right, bottom = boxes.T
    is_box = (left >= 0) & (top >= 0) & (left <= right) & (top <= bottom) & (right <= 1) & (bottom <= 1)
    return None if is_box.all() else int(np.flatnonzero(~is_box)[0])


def _tell_box(box: np.ndarray) -> str:
    shown = ", ".join(f"{value:g}" for value in box)
    return (
        f"the box is {shown}; left, top, right and bottom as shares of width and height are expected: "
        "0 <= x1 <= x2 <= 1 and 0 <= y1 <= y2 <= 1."
    )
