"""Lists key frames with the persons in them, their boxes and actions: AVA's annotations, and those of one's own."""

import math
import os
import re
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, NamedSplit, Value, concatenate_datasets

from hf_video.settings import closest

from .annotation_files import listed
from .box_files import BoxTable, read_exclusions, read_label_map
from .places import is_frame_folder, is_named_video, require_root, sources_by_split, visible_entries
from .stored_videos import BYTES
from .tables import find_dataset, known_splits, with_video_names

_COLUMNS = ("video", "second", "boxes", "actions")
_BOXES = List(List(Value("float64"), length=4))
_EXPECTED = (
    "Expected a CSV file in AVA's form, or with the columns video,second,x1,y1,x2,y2,action[,person]; a folder with "
    "such files named train.csv, validation.csv and test.csv; or a data set with the columns video, second, boxes and "
    "actions."
)
# What AVA puts around the name of a split.
_OF_AVA = re.compile(r"^ava_|_v\d[\d.]*$")


def load_detections(
    data: str | os.PathLike | DatasetDict | Dataset,
    *,
    video_root: str | os.PathLike | None = None,
    label_map: str | os.PathLike | None = None,
    exclude: str | os.PathLike | None = None,
    first_second: float = 0,
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
    is_object = isinstance(data, Dataset | DatasetDict)
    found = data if is_object else find_dataset(cast(Any, data))
    names = None if labels is None else [labels.get(number, str(number)) for number in range(1, max(labels) + 1)]
    if found is not None:
        given = known_splits(found if isinstance(found, DatasetDict) else {"train": found}, None, None)
        splits = {name: _dataset_frames(name, rows, labels) for name, rows in given.items()}
        names = names or next((each for rows in given.values() if (each := _declared(rows)) is not None), None)
    else:
        files = _split_files(Path(cast(Any, data)).expanduser().absolute())
        require_root(video_root)
        splits = {name: _read_file(file, video_root, labels) for name, file in files.items()}
    if names is None:
        every = {action for split in splits.values() for frame in split.actions for each in frame for action in each}
        is_numbered = all(name.isdecimal() for name in every)
        names = sorted(every, key=int) if is_numbered else sorted(every)
        if any(split.has_ids for split in splits.values()):
            names = [str(number) for number in range(1, int(names[-1]) + 1)] if names else []
    if not names:
        raise ValueError(f"{data} names no action. {_EXPECTED}")
    return DatasetDict(
        {name: _make_rows(name, split, names, excluded, first_second) for name, split in splits.items()}
    )


def action_names(rows: Dataset) -> list[str]:
    """The names of the classes of rows of `load_detections`, by number."""
    return _inner(rows).names


class _KeyFrames(NamedTuple):
    """The key frames of a split: for each its place in the data, video, second, boxes, and the names of the actions of
    each box; whether the actions are ids; and the data set that holds the bytes of the videos."""

    places: list[str]
    videos: list[str]
    seconds: list[float]
    boxes: list[list[list[float]]]
    actions: list[list[list[str]]]
    has_ids: bool = False
    stored: Dataset | None = None


def _make_rows(
    split: str, frames: _KeyFrames, names: list[str], excluded: Set[tuple[str, float]], first_second: float
) -> Dataset:
    """The rows of a split. Excluded key frames are named by the path of the video or its name, with suffix or not."""
    number_of = {name: number for number, name in enumerate(names)}
    kept = []
    for row, (place, video, second, boxes) in enumerate(
        zip(frames.places, frames.videos, frames.seconds, frames.boxes, strict=True)
    ):
        if second < first_second:
            raise ValueError(
                f"{place}: second is {second:g}; at least first_second={first_second:g} is expected, at which the "
                "video files begin."
            )
        if boxes and not {(name, second) for name in (video, Path(video).name, Path(video).stem)} & excluded:
            kept.append(row)
    columns = {
        "video": [frames.videos[row] for row in kept],
        "second": [frames.seconds[row] - first_second for row in kept],
        "boxes": [frames.boxes[row] for row in kept],
        "actions": [[[number_of[name] for name in each] for each in frames.actions[row]] for row in kept],
    }
    if not kept:
        raise ValueError(f"The {split} split has no key frame with a person that is not excluded.")
    features = {
        "video": Value("string"),
        "second": Value("float64"),
        "boxes": _BOXES,
        "actions": List(List(ClassLabel(names=names))),
    }
    rows = Dataset.from_dict(columns, Features(features), split=NamedSplit(split))
    return rows if frames.stored is None else concatenate_datasets([rows, frames.stored.select(kept)], axis=1)


def _split_files(path: Path) -> dict[str, Path]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {_EXPECTED}")
    if not path.is_dir():
        return {"train": path}
    files = sources_by_split(
        (_OF_AVA.sub("", each.stem), each) for each in visible_entries(path) if each.suffix.lower() == ".csv"
    )
    if not files:
        raise ValueError(f"{path} holds no such file. {_EXPECTED}")
    return files


def _read_file(path: Path, video_root: str | os.PathLike | None, labels: Mapping[int, str] | None) -> _KeyFrames:
    table = BoxTable(path)
    _check_boxes(table.boxes, table.place)
    actions = _names_of_actions(table, labels)
    texts = zip(*(table.columns[name].to_pylist() for name in ("x1", "y1", "x2", "y2")), strict=True)
    videos = table.columns["video"].to_pylist()
    named = table.columns["person"].to_pylist() if "person" in table.columns else [""] * len(videos)
    persons: dict[tuple[str, float], dict[Any, tuple[list[float], list[str]]]] = {}
    places: dict[tuple[str, float], str] = {}
    cells = zip(videos, table.second.tolist(), texts, named, table.boxes.tolist(), actions, strict=True)
    for row, (video, second, text, name, box, action) in enumerate(cells):
        places.setdefault((video, second), table.place(row))
        known, of_person = persons.setdefault((video, second), {}).setdefault(name or text, (box, []))
        if box != known:
            raise ValueError(
                f"{table.place(row)}: the person {name!r} has another box at this second in a row before. Give each "
                "person a name or number of its own, or leave out the column person."
            )
        if action is not None and action not in of_person:
            of_person.append(action)
    root = path.parent if video_root is None else Path(video_root).expanduser().absolute()
    paths = _find_videos({video: place for (video, _), place in reversed(places.items())}, root)
    return _KeyFrames(
        places=list(places.values()),
        videos=[paths[video] for video, _ in persons],
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


def _find_videos(named: Mapping[str, str], root: Path) -> dict[str, str]:
    """The paths of videos, by their names in a file. `named` says where each is named first."""
    by_stem: dict[str, list[Path]] = {}
    for entry in visible_entries(root):
        if is_named_video(entry):
            by_stem.setdefault(entry.stem, []).append(entry)
    paths, missing = dict[str, str](), list[str]()
    for name, place in named.items():
        path = root / Path(name).expanduser()
        found = [path] if path.is_file() or is_frame_folder(path) else by_stem.get(name, [])
        if len(found) > 1:
            raise ValueError(f"{place}: {name!r} stands for {listed(each.name for each in found)}. Keep one of them.")
        if found:
            paths[name] = str(found[0])
        else:
            missing.append(f"{place}: {name}")
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(named)} videos do not exist: {listed(missing, separator='; ')}. They are looked "
            f"for in {root}, with or without their suffix; say where they are with `video_root` (--video-root)."
        )
    return paths


def _dataset_frames(split: str, rows: Dataset, labels: Mapping[int, str] | None) -> _KeyFrames:
    if missing := [name for name in _COLUMNS if name not in rows.column_names]:
        raise ValueError(f"The data set has the columns {', '.join(rows.column_names)}: {missing[0]!r} is missing.")
    rows = with_video_names(rows.select_columns(list(_COLUMNS)))
    inner = _inner(rows)
    if not isinstance(inner, ClassLabel) and inner.dtype != "string":
        raise ValueError(
            f"The actions of the data set are {inner.dtype}; lists of names or of ClassLabel are expected: "
            'dataset.cast_column("actions", List(List(ClassLabel(names=...)))).'
        )
    places = [f"{split}[{row}]" for row in range(len(rows))]
    boxes, actions, seconds = (rows[name][:] for name in ("boxes", "actions", "second"))
    for place, of_frame, named, second in zip(places, boxes, actions, seconds, strict=True):
        if len(of_frame) != len(named) or any(len(box) != 4 for box in of_frame):
            raise ValueError(
                f"{place} has {len(of_frame)} boxes and {len(named)} lists of actions; one list for each box of four "
                "numbers is expected."
            )
        if second is None or not math.isfinite(second):
            raise ValueError(f"{place}: second is {second!r}; a finite number is expected.")
        _check_boxes(np.array(of_frame, np.float64).reshape(-1, 4), lambda _, place=place: place)  # type: ignore[misc]
    to_name = inner.int2str if isinstance(inner, ClassLabel) else str
    named_actions = [
        [
            [each if labels is None else _name_of_action(place, each, labels, False) for each in map(to_name, person)]
            for person in frame
        ]
        for place, frame in zip(places, actions, strict=True)
    ]
    stored = rows.select_columns(BYTES) if BYTES in rows.column_names else None
    return _KeyFrames(places, rows["video"][:], [float(each) for each in seconds], boxes, named_actions, False, stored)


def _inner(rows: Dataset) -> Any:
    return cast(Any, rows.features["actions"]).feature.feature


def _declared(rows: Dataset) -> list[str] | None:
    inner = _inner(rows)
    return inner.names if isinstance(inner, ClassLabel) else None


def _check_boxes(boxes: np.ndarray, place: Callable[[int], str]) -> None:
    left, top, right, bottom = boxes.T
    is_box = (left >= 0) & (top >= 0) & (left <= right) & (top <= bottom) & (right <= 1) & (bottom <= 1)
    if not is_box.all():
        row = int(np.flatnonzero(~is_box)[0])
        shown = ", ".join(f"{value:g}" for value in boxes[row])
        raise ValueError(
            f"{place(row)}: the box is {shown}; left, top, right and bottom as shares of width and height are "
            "expected: 0 <= x1 <= x2 <= 1 and 0 <= y1 <= y2 <= 1."
        )
