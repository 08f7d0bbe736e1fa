"""Lists key frames with the persons in them, their boxes and actions, and reads and writes files of these: in AVA's
form, and with names of columns.

AVA's files have no first line of names. A row is video, second, left, top, right, bottom, action id and, in
annotations, the number of a person, in detections a score. A file with names of columns has `video`, `second`, `x1`,
`y1`, `x2`, `y2`, `action` and, optionally, `person` or `score`; an action is then a name, or an id of the label map.
"""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, DatasetInfo, Features, List, NamedSplit, Value
from pyarrow import csv

from hf_video.io import check_regular_file, read_csv, read_text, replacing_file
from hf_video.settings import closest

from .folders import absolute, lists_in, require_root, sources_by_split
from .lists import find_delimiter, known_names
from .rows import sorted_names
from .tables import Table, open_tables, require_videos

_COORDINATES = ("x1", "y1", "x2", "y2")
_COLUMNS = ("video", "second", *_COORDINATES, "action")
_EXPECTED = (
    "Expected rows as AVA's, video,second,x1,y1,x2,y2,action id[,person id or score], or a first line of names: "
    "video,second,x1,y1,x2,y2,action[,person or score]."
)
_EXPECTED_DATA = (
    "Expected a CSV file in AVA's form, or with the columns video,second,x1,y1,x2,y2,action[,person]; a folder with "
    "such files named train.csv, validation.csv and test.csv; or a data set with the columns video, second, boxes and "
    "actions."
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
    """The names of actions by their ids, of a label map of AVA: a text file of protocol buffers, whose blocks have
    `name` and `id` or `label_id`. Raises as `read_text`, and `ValueError` if the file has no such blocks, an id below
    1, or an id or a name twice."""
    found: dict[int, str] = {}
    for block in _BLOCK.findall(read_text(path)):
        name, number = _NAME.search(block), _ID.search(re.sub(_QUOTED, "", block))
        if name is None or number is None or int(number[1]) < 1:
            raise ValueError(f"{path}: {block.strip()!r} is no action; a name and an id from 1 on are expected.")
        text = re.sub(r"\\(.)", r"\1", name[1][1:-1])
        if int(number[1]) in found or text in found.values():
            raise ValueError(f"{path} has the action {text!r} or the id {number[1]} twice. Keep one of them.")
        found[int(number[1])] = text
    if not found:
        raise ValueError(f'{path} has no actions. Expected a label map: label {{ name: "walk" label_id: 12 }} ...')
    return found


def read_exclusions(path: str | os.PathLike) -> set[tuple[str, float]]:
    """The key frames, video and second, of a file of excluded time stamps of AVA. Raises as `read_csv`, and
    `ValueError` for a row that is not video,second."""
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
    check_regular_file(path)
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        line = file.readline()
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
        table = csv.read_csv(
            path,
            csv.ReadOptions(column_names=names, skip_rows=int(has_names)),
            csv.ParseOptions(delimiter=delimiter),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}. {_EXPECTED}") from error
    if not len(table):
        raise ValueError(f"{path} has no rows. {_EXPECTED}")
    texts = pa.table({name: pc.utf8_trim_whitespace(table[name]) for name in names})
    root = absolute(video_root or Path(path).parent)
    return Table(Dataset(texts), str(path), root, range(1, len(table) + 1), "row"), has_names


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
    """The boxes of a file; those of detections are `scored`. The numbers of `classes` are by their names and ids, as
    the file writes them; others are -1. Raises `OSError` if the file cannot be opened, and `ValueError` if it has no
    rows, lacks columns or scores, or a number of it is none."""
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
    """Writes detections in AVA's form, with five decimals, as a whole. `actions` stand for the classes in the file:
    ids or names."""
    times = [f"{second:04.0f}" if second.is_integer() else repr(second) for second in boxes.second.tolist()]
    names = _quoted(pa.array(map(str, actions), pa.string())).take(pa.array(boxes.action))
    *coordinates, score = (
        pa.array(column.round(5)).cast(pa.decimal128(20, 5)).cast(pa.string())
        for column in (*boxes.boxes.T, boxes.score)
    )
    rows = pc.binary_join_element_wise(_quoted(boxes.names()), pa.array(times), *coordinates, names, score, ",")
    with replacing_file(path) as unfinished, open(unfinished, "w", encoding="utf-8", newline="") as file:
        file.writelines(f"{row}\n" for row in rows.to_pylist())


def _quoted(texts: pa.Array) -> pa.Array:
    """Texts as CSV writes them."""
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    return pc.if_else(pc.match_substring_regex(texts, '[",\r\n]'), quoted, texts)


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
            one person with several actions if they have the same person, or, where that is not given, the same text
            of a box; AVA's ids of persons do not count, as in the original. A person whose action is empty has none.
            A video is a path, or the name of a file without its suffix, as in AVA.
            Or a JSON file or a data set of the `datasets` library, as an object, as a folder of `save_to_disk` or
            Parquet files, or by its name on the Hub, with the columns `video` (the feature `Video`, or paths),
            `second`, `boxes`, n lists of four numbers, and `actions`, n lists of class names or of `ClassLabel`.
        video_root: The folder that relative paths of a file count from; by default that of the file.
        label_map: AVA's names of actions by their ids, a .pbtxt file. The class of an action is its id - 1, as in the
            original, and ids that the map leaves out are classes, too. By default classes of AVA's form are called by
            their ids, and those of other files are the names that are found, sorted.
        exclude: A CSV file of video,second: key frames that are left out.
        first_second: The second of the annotations at which the video files begin: 900 for AVA's files of 15 minutes.
        options: `config`, `revision`, `train_split` and `validation_split`; see `load_video_dataset`.

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
    files = {} if isinstance(data, Dataset | DatasetDict) else _files_in(Path(data).expanduser().absolute())
    names: list[str] | None = None
    has_ids = False
    if files:
        require_root(video_root)
        opened = {name: read_box_table(file, video_root) for name, file in files.items()}
        has_ids = not all(has_names for _, has_names in opened.values())
        splits = {name: _of_file(table, labels, not has_names) for name, (table, has_names) in opened.items()}
    else:
        tables = open_tables(data, video_root, expected=_EXPECTED_DATA, **options)
        splits = {name: _of_columns(table, labels) for name, table in tables.items()}
        declared = (_inner(table.rows) for table in tables.values())
        names = next((inner.names for inner in declared if isinstance(inner, ClassLabel)), None)
    if labels is not None:
        names = [labels.get(number, str(number)) for number in range(1, max(labels) + 1)]
    if names is None:
        found = [split.actions.flatten().flatten() for split in splits.values()]
        names = sorted_names(pa.concat_arrays(found).unique().to_pylist())
        names = [str(number) for number in range(1, int(names[-1]) + 1)] if has_ids and names else names
    if not names:
        raise ValueError(f"{data} names no action. {_EXPECTED_DATA}")
    videos = require_videos({name: split.table for name, split in splits.items()})
    features = Features(
        {
            "video": Value("string"),
            "second": Value("float64"),
            "boxes": List(List(Value("float64"), length=4)),
            "actions": List(List(ClassLabel(names=names))),
        }
    )
    return DatasetDict(
        {
            name: _make_rows(name, split, videos[name], features, excluded, first_second)
            for name, split in splits.items()
        }
    )


def action_names(rows: Dataset) -> list[str]:
    """The names of the classes of rows of `load_detections`, by number."""
    return _inner(rows).names


def _inner(rows: Dataset) -> Any:
    return cast(Any, rows.features["actions"]).feature.feature


class _KeyFrames(NamedTuple):
    """The key frames of a split: the table that has a row for each; the second of each, (n,) float64; and the lists of
    its boxes, and of the lists of names of actions for each box."""

    table: Table
    second: np.ndarray
    boxes: pa.ListArray
    actions: pa.ListArray


def _make_rows(
    split: str,
    frames: _KeyFrames,
    videos: pa.Array,
    features: Features,
    excluded: set[tuple[str, float]],
    first_second: float,
) -> Dataset:
    """The rows of a split. Excluded key frames are named by the path of the video or its name, with suffix or not."""
    second = frames.second
    if (early := np.flatnonzero(second < first_second)).size:
        raise ValueError(
            f"{frames.table.place(int(early[0]))}: second is {second[early[0]]:g}; at least "
            f"first_second={first_second:g} is expected, at which the video files begin."
        )
    is_kept = pc.list_value_length(frames.boxes).to_numpy() > 0
    for row, video in enumerate(videos.to_pylist() if excluded else ()):
        names = {video, Path(video).name, Path(video).stem}
        is_kept[row] &= not excluded.intersection((name, second[row].item()) for name in names)
    if not is_kept.any():
        raise ValueError(f"The {split} split has no key frame with a person that is not excluded.")
    videos, boxes, actions = (column.filter(pa.array(is_kept)) for column in (videos, frames.boxes, frames.actions))
    persons = actions.flatten()
    ids = pc.index_in(persons.flatten(), pa.array(features["actions"].feature.feature.names, pa.string()))
    ids = pa.ListArray.from_arrays(actions.offsets, pa.ListArray.from_arrays(persons.offsets, ids))
    columns = {"video": videos, "second": second[is_kept] - first_second, "boxes": boxes, "actions": ids}
    found = pa.table(columns).cast(features.arrow_schema)
    made = Dataset(found, DatasetInfo(features=features), NamedSplit(split))
    return frames.table.with_files(made, np.flatnonzero(is_kept))


def _lists(counts: np.ndarray, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), values)


def _box_lists(counts: np.ndarray, boxes: np.ndarray, place: Callable[[int], str]) -> pa.Array:
    """Lists of boxes, (n, 4) float64, which are checked; `place` says where the box of a number is."""
    left, top, right, bottom = boxes.T
    is_box = (left >= 0) & (top >= 0) & (left <= right) & (top <= bottom) & (right <= 1) & (bottom <= 1)
    if not is_box.all():
        row = int(is_box.argmin())
        raise ValueError(
            f"{place(row)}: the box is {', '.join(f'{value:g}' for value in boxes[row])}; left, top, right and bottom "
            "as shares of width and height are expected: 0 <= x1 <= x2 <= 1 and 0 <= y1 <= y2 <= 1."
        )
    return _lists(counts, pa.FixedSizeListArray.from_arrays(boxes.ravel(), 4))


def _files_in(path: Path) -> dict[str, Path]:
    """The CSV files by split, of a file or folder; none of other data."""
    if not path.is_dir():
        return {"train": path} if path.suffix.lower() == ".csv" and path.exists() else {}
    return sources_by_split((_OF_AVA.sub("", each.stem), each) for each in lists_in(path, (".csv",)))


def _of_file(table: Table, labels: Mapping[int, str] | None, has_ids: bool) -> _KeyFrames:
    """The key frames of a CSV file, of which each action of a person has a row."""
    second, boxes = table.numbers("second", _finite).to_numpy(), _boxes_of(table)
    name_of = partial(_name_of_action, labels=labels, has_ids=has_ids)
    action = table.converted(table.column("action"), "action", name_of, pa.string())
    named = pc.binary_join_element_wise(*(table.column(name) for name in _COORDINATES), ",")
    if "person" in table:
        named = pc.if_else(pc.equal(table.column("person"), ""), named, table.column("person"))
    frame = _numbered(table.column("video"), pa.array(second))
    person = _numbered(pa.array(frame), named)
    first_rows, first_of_frame = (np.unique(each, return_index=True)[1] for each in (person, frame))
    # Persons in the order of their key frames, and each action of a person once, in the order of persons.
    order = np.argsort(frame[first_rows], kind="stable")
    place = np.argsort(order)
    first_rows = first_rows[order]
    num_persons = np.bincount(frame[first_rows])
    lists = _box_lists(num_persons, boxes[first_rows], lambda box: table.place(int(first_rows[box])))
    if (others := np.flatnonzero((boxes != boxes[first_rows[place[person]]]).any(axis=1))).size:
        row = int(others[0])
        raise ValueError(
            f"{table.place(row)}: the person {named[row].as_py()!r} has another box at this second in a row before. "
            "Give each person a name or number of its own, or leave out the column person."
        )
    pairs = np.unique(_numbered(pa.array(person), action), return_index=True)[1]
    pairs = pairs[action.take(pa.array(pairs)).is_valid().to_numpy(zero_copy_only=False)]
    pairs = pairs[np.argsort(place[person[pairs]], kind="stable")]
    num_actions = np.bincount(place[person[pairs]], minlength=len(first_rows))
    actions = _lists(num_persons, _lists(num_actions, action.take(pa.array(pairs))))
    return _KeyFrames(table.select(first_of_frame), second[first_of_frame], lists, actions)


def _numbered(*columns: pa.Array) -> np.ndarray:
    """A number for each row, int64: rows with equal values in two columns have the same, in the order of their first
    rows."""
    first, second = (column.dictionary_encode(null_encoding="encode") for column in columns)
    keys = first.indices.to_numpy().astype(np.int64) * len(second.dictionary) + second.indices.to_numpy()
    return pa.array(keys).dictionary_encode().indices.to_numpy()


def _of_columns(table: Table, labels: Mapping[int, str] | None) -> _KeyFrames:
    """The key frames of a table with a row for each key frame."""
    if missing := [name for name in ("video", "second", "boxes", "actions") if name not in table]:
        raise ValueError(f"The data set has the columns {', '.join(table.names)}: {missing[0]!r} is missing.")
    inner = _inner(table.rows)
    if not isinstance(inner, ClassLabel) and inner.dtype != "string":
        raise ValueError(
            f"The actions of the data set are {inner.dtype}; lists of names or of ClassLabel are expected: "
            'dataset.cast_column("actions", List(List(ClassLabel(names=...)))).'
        )
    second = table.numbers("second", _finite).to_numpy()
    boxes, actions = table.column("boxes"), table.column("actions")
    num_boxes, num_lists = (pc.list_value_length(column).fill_null(0).to_numpy() for column in (boxes, actions))
    frame = np.repeat(np.arange(len(table)), num_boxes)
    is_wrong = num_boxes != num_lists
    is_wrong[frame[pc.list_value_length(boxes.flatten()).to_numpy() != 4]] = True
    if is_wrong.any():
        row = int(is_wrong.argmax())
        raise ValueError(
            f"{table.place(row)} has {num_boxes[row]} boxes and {num_lists[row]} lists of actions; one list for each "
            "box of four numbers is expected."
        )
    values = boxes.flatten().flatten().cast(pa.float64()).to_numpy(zero_copy_only=False).reshape(-1, 4)
    lists = _box_lists(num_boxes, values, lambda box: table.place(int(frame[box])))
    of_persons = actions.flatten()
    num_actions = pc.list_value_length(of_persons).fill_null(0).to_numpy()

    def name_of(place: str, _: str, value: Any) -> str | None:
        name = inner.int2str(value) if isinstance(inner, ClassLabel) else str(value)
        return name if labels is None else _name_of_action(place, "action", name, labels, has_ids=False)

    action = table.converted(of_persons.flatten(), "action", name_of, pa.string(), np.repeat(frame, num_actions))
    return _KeyFrames(table, second, lists, _lists(num_boxes, _lists(num_actions, action)))


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
