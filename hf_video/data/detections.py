"""Lists key frames with the persons in them, their boxes and actions: AVA's annotations, and those of one's own."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from hf_video.settings import closest, few

from .annotation_files import listed
from .box_files import BoxTable, read_exclusions, read_label_map
from .places import is_frame_folder, is_named_video, require_root, sources_by_split, visible_entries
from .stored_videos import BYTES
from .video_column import find_dataset, known_splits, with_video_names

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
            y1, x2, y2, action and, optionally, person. Boxes are shares of width and height. Rows with the same text
            of a box in one key frame are a person with several actions; one whose action is empty has none. A video
            is a path, or the name of a file without its suffix, as in AVA.
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
    if found is not None:
        given = found if isinstance(found, DatasetDict) else {"train": found}
        splits = {name: _read_dataset(name, rows) for name, rows in known_splits(given, None, None).items()}
    else:
        splits = _read_files(Path(cast(Any, data)).expanduser().absolute(), video_root)
    names = _class_names(splits.values(), labels)
    return DatasetDict({name: split.rows(names, excluded, first_second) for name, split in splits.items()})


def action_names(rows: Dataset) -> list[str]:
    """The names of the classes of rows of `load_detections`, by number."""
    return cast(Any, rows.features["actions"]).feature.feature.names
