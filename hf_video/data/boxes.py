"""Lists key frames with the persons in them, their boxes and actions, and reads and writes files of these.

AVA's files have no first line of names: a row is video, second, left, top, right, bottom, action id and, in
annotations, the number of a person, in detections a score. Others have `video`, `second`, `x1`, `y1`, `x2`, `y2`,
`action`, a name or an id of the label map, and, optionally, `person` or `score`.
"""

import csv
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, DatasetInfo, Features, List, NamedSplit, Value
from pyarrow import csv as arrow_csv

from hf_video.io import read_csv, read_table, read_text, replacing_file
from hf_video.settings import closest

from .folders import absolute, lists_in, require_root, sources_by_split
from .lists import find_delimiter, known_names
from .rows import sorted_names
from .tables import Table, open_tables, require_videos

_COORDINATES = ("x1", "y1", "x2", "y2")
_COLUMNS = ("video", "second", *_COORDINATES, "action")
_EXPECTED = (
    "Expected a CSV file, or a folder of them named train.csv, validation.csv and test.csv, in AVA's form or with "
    "video,second,x1,y1,x2,y2,action[,person or score]; or a data set with video, second, boxes and actions."
)
# What AVA puts around the name of a split.
_OF_AVA = re.compile(r"^ava_|_v\d[\d.]*$")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_BLOCK = re.compile(rf"\{{((?:[^{{}}\"]|{_QUOTED})*)\}}")
_NAME, _ID = re.compile(rf"\bname\s*:\s*({_QUOTED})"), re.compile(r"\b(?:label_)?id\s*:\s*(\d+)")


class LabelledBoxes(NamedTuple):
    """Boxes of key frames, each with one action; a person with several actions has as many rows: `video` (n,) names, a
    list or an array; `second` (n,) float64; `boxes` (n, 4) float64, left, top, right and bottom; `action` (n,) int64,
    the number of the class, -1 for one that does not count, or none; `score` (n,) float64, the confidence of a
    detection, 1 for an annotation."""

    video: Any
    second: np.ndarray
    boxes: np.ndarray
    action: np.ndarray
    score: np.ndarray

    def names(self) -> pa.Array:
        """The names of the videos as one array."""
        return self.video if isinstance(self.video, pa.Array) else pa.array(self.video, pa.string())


def read_label_map(path: str | os.PathLike) -> dict[int, str]:
    """The names of actions by their ids, of a label map of AVA: a text file of protocol buffers."""
    found: dict[int, str] = {}
    for block in _BLOCK.findall(read_text(path)):
        name, number = _NAME.search(block), _ID.search(re.sub(_QUOTED, "", block))
        if name is None or number is None or int(number[1]) < 1:
            raise ValueError(f"{path}: {block.strip()!r} is no action; a name and an id from 1 on are expected.")
        text = re.sub(r"\\(.)", r"\1", name[1][1:-1])
        if text in found.values():
            raise ValueError(f"{path} has the action {text!r} twice. Keep one of them.")
        found[int(number[1])] = text
    if not found:
        raise ValueError(f'{path} has no actions. Expected a label map: label {{ name: "walk" label_id: 12 }} ...')
    return found


def read_exclusions(path: str | os.PathLike) -> set[tuple[str, float]]:
    """The key frames, video and second, of a file of excluded time stamps of AVA."""
    excluded = set()
    for line, cells in read_csv(path):
        try:
            video, second = cells
            excluded.add((video, float(second)))
        except ValueError:
            raise ValueError(f"{path}, line {line} is {','.join(cells)!r}; video,second is expected.") from None
    return excluded


def read_box_table(path: str | os.PathLike, video_root: str | os.PathLike | None = None) -> tuple[Table, bool]:
    """The rows of a file of boxes, as texts, and whether the first line names the columns. In AVA's form the last
    column, of persons or scores, is "last"."""
    text = read_table(path)
    line = re.split(r"[\r\n]", text, maxsplit=1)[0]
    delimiter = find_delimiter(line) or ","
    first = [cell.strip() for cell in line.split(delimiter)]
    if first == [""]:
        raise ValueError(f"{path} is empty. {_EXPECTED}")
    columns = known_names(str(path), first)
    has_names = {"video", "second"} <= set(columns)
    names = columns if has_names else [*_COLUMNS, "last"][: len(first)]
    if missing := [name for name in _COLUMNS if name not in names]:
        raise ValueError(f"The first line of {path} is {','.join(first)!r}, without {missing[0]}. {_EXPECTED}")
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(text.encode()),
            arrow_csv.ReadOptions(column_names=names, skip_rows=int(has_names)),
            arrow_csv.ParseOptions(delimiter=delimiter),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}. {_EXPECTED}") from error
    texts = pa.table({name: pc.utf8_trim_whitespace(table[name]) for name in names})
    is_row = pc.not_equal(pc.binary_join_element_wise(*texts.columns, ""), "")
    rows = np.flatnonzero(is_row)
    if not len(rows):
        raise ValueError(f"{path} has no rows. {_EXPECTED}")
    root = absolute(video_root or Path(path).parent)
    return Table(Dataset(texts.filter(is_row)), str(path), root, (rows + 1).tolist(), "row"), has_names


def _boxes_of(table: Table) -> np.ndarray:
    return np.stack([table.numbers(name, _finite).to_numpy() for name in _COORDINATES], axis=1)


def _finite(where: str, column: str, value: Any) -> float:
    try:
        number = float(str(value).replace(",", "."))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where}: {column} is {value!r}; a finite number is expected.")
    return number


def read_boxes(path: str | os.PathLike, classes: Mapping[str, int], *, scored: bool = False) -> LabelledBoxes:
    """The boxes of a file; those of detections are `scored`. `classes` are numbers by the text of an action."""
    table, has_names = read_box_table(path)
    column = "score" if has_names else "last"
    if scored and column not in table:
        raise ValueError(f"{path} has no scores: the rows of detections end with one. {_EXPECTED}")
    places = pc.index_in(table.column("action"), pa.array(list(classes), pa.string()))
    action = np.array([*classes.values(), -1])[pc.fill_null(places, len(classes)).to_numpy()]
    score = table.numbers(column, _finite).to_numpy() if scored else np.ones(len(action))
    second = table.numbers("second", _finite).to_numpy()
    return LabelledBoxes(table.column("video"), second, _boxes_of(table), action, score)


def write_boxes(path: str | os.PathLike, boxes: LabelledBoxes, actions: Sequence[str | int]) -> None:
    """Writes detections in AVA's form, with five decimals; `actions` stand for the classes."""
    times = (f"{second:04.0f}" if second.is_integer() else repr(second) for second in boxes.second.tolist())
    numbers = ([f"{number:.5f}" for number in column.tolist()] for column in (*boxes.boxes.T, boxes.score))
    *coordinates, score = numbers
    names = (actions[number] for number in boxes.action.tolist())
    with replacing_file(path) as unfinished, open(unfinished, "w", encoding="utf-8", newline="") as file:
        rows = zip(boxes.names().to_pylist(), times, *coordinates, names, score, strict=True)
        csv.writer(file, lineterminator="\n").writerows(rows)


def load_detections(
    data: str | os.PathLike | DatasetDict | Dataset,
    *,
    video_root: str | os.PathLike | None = None,
    label_map: str | os.PathLike | None = None,
    exclude: str | os.PathLike | None = None,
    first_second: float = 0,
    **options: Any,
) -> DatasetDict:
    """List key frames with the boxes and actions of the persons in them.

    Args:
        data: A CSV file, or a folder of such files named after splits. In AVA's form a row is video, second, left,
            top, right, bottom, action id and person id; other files have a first line of names, video, second, x1,
            y1, x2, y2, action and, optionally, person. Boxes are shares of width and height. Rows of one key frame are
            one person with several actions if they have the same person, or, where that is not given, the same box;
            AVA's ids of persons do not count, as in the original. A person whose action is empty has none.
            Or a JSON file or a data set of the `datasets` library, as for `load_video_dataset`, with the columns
            `video`, `second`, `boxes`, n lists of four numbers, and `actions`, n lists of class names or `ClassLabel`.
        video_root: The folder that relative paths of a file count from; by default that of the file.
        label_map: AVA's names of actions by their ids, a .pbtxt file. The class of an action is its id - 1, as in the
            original, and ids that the map leaves out are classes, too. By default classes of AVA's form are called by
            their ids, and those of other files are the names that are found, sorted.
        exclude: A CSV file of video,second: key frames that are left out.
        first_second: The second of the annotations at which the video files begin: 900 for AVA's files of 15 minutes.
        options: `config`, `revision`, `train_split` and `validation_split`; see `load_video_dataset`.

    Returns:
        The splits found among "train", "validation" and "test"; data without splits are "train". A row is a key frame
        with at least one person: `video` (path), `second` (float64, after the first frame of the file), `boxes` (n, 4)
        float64, `actions`, n lists of `ClassLabel`; if videos are stored inside the data set, `bytes` holds them.

    Raises:
        FileNotFoundError: If `data`, or a file that it names, does not exist.
        ValueError: If there are no rows, or one has a wrong value or an action that is not in `label_map`.
    """
    labels = None if label_map is None else read_label_map(label_map)
    excluded = set() if exclude is None else read_exclusions(exclude)
    files = {} if isinstance(data, Dataset | DatasetDict) else _files_in(Path(data).expanduser().absolute())
    names: list[str] | None = None
    has_ids = False
    if files:
        require_root(video_root)
        opened = {name: read_box_table(file, video_root) for name, file in files.items()}
        tables = {name: table for name, (table, _) in opened.items()}
        has_ids = not all(has_names for _, has_names in opened.values())
        splits = {name: _of_file(table, labels, not has_names) for name, (table, has_names) in opened.items()}
    else:
        tables = open_tables(data, video_root, expected=_EXPECTED, **options)
        splits = {name: _of_columns(table, labels) for name, table in tables.items()}
        declared = (_inner(table.rows) for table in tables.values())
        names = next((inner.names for inner in declared if isinstance(inner, ClassLabel)), None)
    if labels is not None:
        names = [labels.get(number, str(number)) for number in range(1, max(labels) + 1)]
    if names is None:
        persons = (person for frames in splits.values() for frame in frames for person in frame.persons)
        names = sorted_names({action for _, actions in persons for action in actions})
        names = [str(number) for number in range(1, int(names[-1]) + 1)] if has_ids and names else names
    if not names:
        raise ValueError(f"{data} names no action. {_EXPECTED}")
    videos = require_videos(tables)
    columns: dict[str, Any] = {"video": Value("string"), "second": Value("float64")}
    columns |= {"boxes": List(List(Value("float64"), length=4)), "actions": List(List(ClassLabel(names=names)))}
    ids, made = {name: number for number, name in enumerate(names)}, DatasetDict()
    for split, frames in splits.items():
        kept = []
        paths = videos[split].take(pa.array([frame.row for frame in frames])).to_pylist()
        for frame, video in zip(frames, paths, strict=True):
            if frame.second < first_second:
                place = f"{tables[split].place(frame.row)}: second is {frame.second:g}"
                raise ValueError(f"{place}; at least first_second={first_second:g} is expected.")
            if frame.persons and not (excluded and _is_excluded(video, frame.second, excluded)):
                kept.append((video, frame))
        if not kept:
            raise ValueError(f"The {split} split has no key frame with a person that is not excluded.")
        rows = {
            "video": [video for video, _ in kept],
            "second": [frame.second - first_second for _, frame in kept],
            "boxes": [[box for box, _ in frame.persons] for _, frame in kept],
            "actions": [[[ids[action] for action in actions] for _, actions in frame.persons] for _, frame in kept],
        }
        features = Features(columns)
        found = pa.table(rows, features.arrow_schema)
        of_split = Dataset(found, DatasetInfo(features=features), NamedSplit(split))
        made[split] = tables[split].with_files(of_split, [frame.row for _, frame in kept])
    return made


def _is_excluded(video: str, second: float, excluded: set[tuple[str, float]]) -> bool:
    """Whether a key frame is named by the path of the video or its name, with suffix or not."""
    return any((name, second) in excluded for name in (video, Path(video).name, Path(video).stem))


def action_names(rows: Dataset) -> list[str]:
    """The names of the classes of rows of `load_detections`, by number."""
    return _inner(rows).names


def _inner(rows: Dataset) -> Any:
    return cast(Any, rows.features["actions"]).feature.feature


class _KeyFrame(NamedTuple):
    """The first row of a key frame, its second, and the box and the actions of each person."""

    row: int
    second: float
    persons: list[tuple[list[float], list[str]]]


def _files_in(path: Path) -> dict[str, Path]:
    """The CSV files by split, of a file or folder; none of other data."""
    if not path.is_dir():
        return {"train": path} if path.suffix.lower() == ".csv" and path.exists() else {}
    return sources_by_split((_OF_AVA.sub("", each.stem), each) for each in lists_in(path, (".csv",)))


def _of_file(table: Table, labels: Mapping[int, str] | None, has_ids: bool) -> list[_KeyFrame]:
    """The key frames of a CSV file, of which each action of a person has a row."""
    seconds, boxes = table.numbers("second", _finite).to_pylist(), _boxes_of(table).tolist()
    name_of = partial(_name_of_action, labels=labels, has_ids=has_ids)
    actions = table.converted(table.column("action"), "action", name_of, pa.string()).to_pylist()
    videos, people = table.column("video").to_pylist(), table.column("person").to_pylist()
    frames: dict[tuple[str, float], _KeyFrame] = {}
    persons: dict[tuple[str, float, str], tuple[list[float], list[str]]] = {}
    for row, (video, second, box, person, action) in enumerate(
        zip(videos, seconds, boxes, people, actions, strict=True)
    ):
        frame = frames.setdefault((video, second), _KeyFrame(row, second, []))
        # Without names of persons, equal boxes are one.
        key = (video, second, person or str(box))
        if key not in persons:
            persons[key] = _checked(table, row, box), []
            frame.persons.append(persons[key])
        if persons[key][0] != box:
            who = f"{table.place(row)}: the person {person!r}"
            raise ValueError(f"{who} has another box at this second in a row before. Give each a name of its own.")
        if action is not None and action not in persons[key][1]:
            persons[key][1].append(action)
    return [*frames.values()]


def _of_columns(table: Table, labels: Mapping[int, str] | None) -> list[_KeyFrame]:
    """The key frames of a table with a row for each key frame."""
    if missing := [name for name in ("video", "second", "boxes", "actions") if name not in table]:
        raise ValueError(
            f"The data set has {', '.join(table.rows.column_names)}; the column {missing[0]!r} is missing."
        )
    inner = _inner(table.rows)
    if not isinstance(inner, ClassLabel) and inner.dtype != "string":
        raise ValueError(f"The actions of the data set are {inner.dtype}; names or ClassLabel are expected.")
    name_of = inner.int2str if isinstance(inner, ClassLabel) else str
    seconds = table.numbers("second", _finite).to_pylist()
    frames = []
    columns = (seconds, table.column("boxes").to_pylist(), table.column("actions").to_pylist())
    for row, (second, boxes, actions) in enumerate(zip(*columns, strict=True)):
        boxes, actions = boxes or [], actions or []
        if len(boxes) != len(actions) or any(len(box) != 4 for box in boxes):
            raise ValueError(
                f"{table.place(row)} has {len(boxes)} boxes and {len(actions)} lists of actions; one list for each "
                "box of four numbers is expected."
            )
        names = [[name_of(action) for action in of_person or ()] for of_person in actions]
        if labels is not None:
            where = (table.place(row), "action")
            names = [[_name_of_action(*where, name, labels, has_ids=False) or name for name in each] for each in names]
        frames.append(_KeyFrame(row, second, [*zip((_checked(table, row, box) for box in boxes), names, strict=True)]))
    return frames


def _checked(table: Table, row: int, box: list[float]) -> list[float]:
    left, top, right, bottom = box
    if not (0 <= left <= right <= 1 and 0 <= top <= bottom <= 1):
        raise ValueError(
            f"{table.place(row)}: the box is {', '.join(f'{value:g}' for value in box)}; left, top, right and bottom "
            "as shares of width and height are expected: 0 <= x1 <= x2 <= 1 and 0 <= y1 <= y2 <= 1."
        )
    return box


def _name_of_action(place: str, column: str, text: str, labels: Mapping[int, str] | None, has_ids: bool) -> str | None:
    if not text:
        return None
    if has_ids and not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"{place}: the {column} is {text!r}; an id from 1 on is expected, or nothing.")
    if labels is None:
        return str(int(text)) if has_ids else text
    if not has_ids and text in labels.values():
        return text
    if text.isdecimal() and 0 < int(text) <= max(labels):
        return labels.get(int(text), str(int(text)))
    hint = closest(text, labels.values())
    raise ValueError(
        f"{place}: the {column} {text!r} is unknown; the label map has the ids 1 to {max(labels)}. {hint}".rstrip()
    )
