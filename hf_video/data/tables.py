"""The one road from any table of videos to rows: lists (CSV, text, JSON), Parquet files, tars of WebDataset, and data
sets of the `datasets` library.

Whatever a table lists, labels, texts or boxes, the names of its columns, its splits, and the addresses of its videos
are settled here. A table with the columns `frames` and `duration`, as `hf-video inspect --output` writes, is believed:
its videos are neither looked for nor opened before they are read.
"""

import csv
import logging
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, List, Value, Video
from datasets.exceptions import DatasetGenerationError
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_video.io import check_regular_file, named_rows, read_csv, read_json, read_json_lines, read_lines
from hf_video.reading.sources import is_url

from .folders import (
    LAYOUTS,
    LIST_SUFFIXES,
    TABLE_SUFFIXES,
    absolute,
    address,
    folder_of,
    is_frame_folder,
    is_named_video,
    listed,
    require_root,
    split_of,
    split_sources,
    visible_entries,
)
from .rows import BYTES, FRAMES, KNOWN_COLUMNS, arrow_column, is_stored

logger = logging.getLogger(__name__)
Split = TypeVar("Split")
_SAVED = (datasets.config.DATASETDICT_JSON_FILENAME, datasets.config.DATASET_STATE_JSON_FILENAME)
_TIMES = ("start", "end")
_NAMES = KNOWN_COLUMNS - {"path"} | {"question", "answer", "caption", "second", "x1", "y1", "x2", "y2", "action"}
# Other names of columns, in lower case and with underscores.
_ALIASES = {
    **dict.fromkeys(("path", "file", "filename", "file_name", "file_path", "video_path", "video_file"), "video"),
    **dict.fromkeys(("class", "class_name"), "label"),
    **dict.fromkeys(("begin", "start_time", "start_s"), "start"),
    **dict.fromkeys(("end_time", "end_s"), "end"),
}
_LIST_COLUMNS = ("video", "label", "start", "end")
# How programs write a number that is missing.
_MISSING_TEXTS = ("nan", "NaN", "<NA>")


class Table:
    """The rows of a split as a file or a data set has them.

    Args:
        rows: the columns, `video` with paths, and `bytes` with files that are stored inside.
        name: of the file or split, for messages.
        root: the folder or URL that relative paths count from.
        lines: the number of each row in a file; None for a data set.
        word: what such a number counts.
    """

    def __init__(self, rows: Dataset, name: str, root: str, lines: Sequence[int] | None = None, word: str = "line"):
        self.rows, self.name, self.root, self.lines, self.word = rows, name, root, lines, word

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return self.rows.column_names

    def place(self, row: int) -> str:
        """Where a row is, for messages."""
        return f"{self.name}[{row}]" if self.lines is None else f"{self.name}, {self.word} {self.lines[row]}"

    def select(self, rows: Sequence[int] | np.ndarray) -> "Table":
        """Some of the rows."""
        lines = None if self.lines is None else [self.lines[row] for row in rows]
        return Table(self.rows.select(rows), self.name, self.root, lines, self.word)

    def column(self, name: str) -> pa.Array:
        """A column as it is; nulls if there is none."""
        return arrow_column(self.rows, name) if name in self else pa.nulls(len(self), pa.string())

    def converted(
        self,
        values: pa.Array,
        name: str,
        convert: Callable[[str, str, Any], Any],
        kind: Any,
        rows: Sequence[int] | np.ndarray | None = None,
    ) -> pa.Array:
        """A column, each different value of it converted by `convert(place, name, value)`. `rows` are the numbers of
        the rows of the values, if there is not one for each."""
        if pa.types.is_null(values.type):
            values = values.cast(pa.string())
        try:
            encoded = values.dictionary_encode(null_encoding="encode")
        except pa.ArrowNotImplementedError as error:
            raise ValueError(f"{self.place(0)}: {name} is {values[0].as_py()!r}; one value is expected.") from error
        found = []
        for number, value in enumerate(encoded.dictionary.to_pylist()):
            try:
                found.append(convert("", name, value))
            except ValueError:
                row = pc.index(encoded.indices, number).as_py()
                convert(self.place(row if rows is None else int(rows[row])), name, value)
                raise
        return pa.array(found, kind).take(encoded.indices)

    def texts(self, name: str) -> pa.Array:
        """A column of texts; an empty cell raises `ValueError`."""
        return self.converted(self.column(name), name, cell_text, pa.string())

    def further(self, name: str) -> pa.Array:
        """A column of texts that may be missing."""
        return self.converted(
            self.column(name),
            name,
            lambda _, __, value: None if value is None else str(value).strip() or None,
            pa.string(),
        )

    def times(self) -> dict[str, pa.Array]:
        """`start` and `end` in seconds, null where a row has none. A wrong time raises `ValueError`."""
        times = {name: self._seconds(name) for name in _TIMES}
        is_later = pc.greater(times["end"], pc.fill_null(times["start"], 0.0))
        if (row := pc.index(is_later, False).as_py()) >= 0:
            raise ValueError(
                f"{self.place(row)}: end is {times['end'][row]} s, but the segment starts at "
                f"{times['start'][row].as_py() or 0.0} s; a later end is expected."
            )
        return times

    def _seconds(self, name: str) -> pa.Array:
        values = self.column(name)
        if pa.types.is_floating(values.type) or pa.types.is_integer(values.type):
            seconds = values.cast(pa.float64())
            is_right = pc.and_(pc.is_finite(seconds), pc.greater_equal(seconds, 0))
            if pc.all(is_right, min_count=0).as_py():
                return seconds
        return self.converted(values, name, _seconds, pa.float64())

    def videos(self) -> tuple[pa.Array, list[str]]:
        """The addresses of the videos, a name for one that is stored inside; and the places of those that do not
        exist. What is neither a file nor a folder of frames raises `ValueError`."""
        is_inside = is_stored(self.rows)
        is_believed = arrow_column(self.rows, FRAMES).is_valid().to_pylist() if FRAMES in self else [False] * len(self)
        found: list[str] = []
        known: dict[str, str] = {}
        missing = []
        for row, video in enumerate(self.column("video").to_pylist()):
            if is_inside[row]:
                found.append(f"{self.name}[{row}]" + (f" {PurePath(video).name}" if video else ""))
                continue
            path = address(self.root, cell_text(self.place(row), "video", video))
            if not (is_believed[row] or is_url(path)):
                if path not in known:
                    known[path] = self._find(row, path)
                missing += [] if known[path] else [f"{self.place(row)}: {path}"]
                path = known[path]
            found.append(path)
        return pa.array(found, pa.string()), missing

    def _find(self, row: int, path: str) -> str:
        """The path of a video, which a table may name without its ending; "" if there is none."""
        if os.path.isfile(path) or is_frame_folder(Path(path)):
            return path
        folder, name = os.path.split(path)
        if len(others := _by_stem(folder).get(name, [])) > 1:
            raise ValueError(f"{self.place(row)}: {name!r} stands for {listed(others)}. Keep one of them.")
        if others:
            return os.path.join(folder, others[0])
        if os.path.isdir(path):
            raise ValueError(
                f"{self.place(row)}: {path} is a folder without JPEG or PNG frames, or with videos beside."
            )
        if os.path.lexists(path):
            try:
                check_regular_file(path)
            except (OSError, ValueError) as error:
                raise type(error)(f"{self.place(row)}: {error}") from error
        return ""


def require_videos(tables: Mapping[str, Table]) -> dict[str, pa.Array]:
    """The addresses of the videos of each split. Those that do not exist raise `FileNotFoundError`, once for all."""
    _by_stem.cache_clear()
    found = {name: table.videos() for name, table in tables.items()}
    if missing := [place for _, places in found.values() for place in places]:
        roots = listed({table.root for table in tables.values()})
        raise FileNotFoundError(
            f"{len(missing)} of {sum(map(len, tables.values()))} videos do not exist: "
            f"{listed(missing, separator='; ')}. "
            f"Relative paths count from {roots}, and endings may be left out; say where the videos are with "
            "`video_root` (--video-root)."
        )
    return {name: videos for name, (videos, _) in found.items()}


@cache
def _by_stem(folder: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in visible_entries(Path(folder)) if os.path.isdir(folder) else []:
        if is_named_video(entry):
            found.setdefault(entry.stem, []).append(entry.name)
    return found


def open_tables(
    data: Any,
    video_root: str | os.PathLike | None = None,
    *,
    expected: str = LAYOUTS,
    config: str | None = None,
    revision: str | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
) -> dict[str, "Table | Path"]:
    """The tables of data by "train", "validation" and "test"; or, for data that have none, the folders of videos.

    Args:
        data: an object of the `datasets` library, or a path, URL or name of one of the forms above.
        video_root: the folder, or its URL, that relative paths count from; by default that of the files, and for a
            data set the working directory.
        expected: what an error says of the forms.
        config, revision, train_split, validation_split: see `load_video_dataset`.

    Raises:
        FileNotFoundError: the data do not exist.
        ValueError: they cannot be read.
    """
    named = {"config": config, "revision": revision, "train_split": train_split, "validation_split": validation_split}
    require_root(video_root)
    if isinstance(data, IterableDataset) or (isinstance(data, Mapping) and not isinstance(data, DatasetDict)):
        raise ValueError(
            "A data set that is a stream is not listed: open it with `load_video_stream` (--streaming), or load the "
            "data set without streaming."
        )
    is_object = isinstance(data, DatasetDict | Dataset)
    found: Any = data if is_object else find_dataset(data, config=config, revision=revision)
    if found is not None:
        splits = known_splits(
            found if isinstance(found, DatasetDict) else {"train": found}, train_split, validation_split
        )
        is_file = not (is_object or is_hub_name(data) or _is_saved(Path(data).expanduser()))
        root = absolute(video_root or ("." if not is_file else folder_of(absolute(data)) if is_table(data) else data))
        tables = {name: Table(_plain(rows), name, root) for name, rows in splits.items()}
        return {**_by_column(data, tables)} if is_file else {**tables}
    if is_url(data):
        raise FileNotFoundError(f"{data} is no table that can be read: by URL, data end in .parquet or .tar.")
    if given := [name for name, value in named.items() if value is not None]:
        raise ValueError(f"{given[0]} is for data sets of the datasets library, and {data} is none: leave it out.")
    path = Path(data).expanduser().absolute()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {expected}")
    sources = split_sources(path)
    if any(source.is_dir() for source in sources.values()):
        return {**sources}
    lists = {split: _read_list(file, absolute(video_root or file.parent), expected) for split, file in sources.items()}
    return {**_by_column(data, lists)}


def only_tables(tables: Mapping[str, "Table | Path"], expected: str) -> dict[str, Table]:
    """The tables; a folder of videos in their place raises `ValueError`."""
    found = {name: table for name, table in tables.items() if isinstance(table, Table)}
    for folder in tables.values():
        if isinstance(folder, Path):
            raise ValueError(f"{folder} holds no such file. {expected}")
    return found


def _by_column(data: Any, tables: dict[str, Table]) -> dict[str, Table]:
    """The rows of one file by their column `split`, if it has one."""
    (table, *others) = tables.values()
    if others or "split" not in table:
        return tables
    names = table.column("split").to_pylist()
    split_by_name = {name: split_of(str(name).strip()) for name in dict.fromkeys(names)}
    if unknown := [name for name, split in split_by_name.items() if split is None]:
        raise ValueError(f"{data}: split is {unknown[0]!r}; one of train, validation and test is expected.")
    found = np.array([split_by_name[name] for name in names])
    parts = {name: table.select(np.flatnonzero(found == name)) for name in ("train", "validation", "test")}
    if table.lines is None:
        for name, part in parts.items():
            part.name = name
    return {name: part for name, part in parts.items() if len(part)}


def find_dataset(
    data: str | os.PathLike, *, config: str | None = None, revision: str | None = None, streaming: bool = False
) -> Any:
    """The data set in a Parquet file or tar, by path, URL or pattern of names, in a folder of them or of
    `save_to_disk`, or on the Hub; None if `data` is none of these. With `streaming` its splits are streams, except
    those of `save_to_disk`.

    Raises:
        FileNotFoundError: a file, or a name that is neither a path nor a data set of the Hub, does not exist.
        ValueError: a file cannot be read.
    """
    path = Path(data).expanduser()
    if path.is_dir():
        if _is_saved(path):
            return datasets.load_from_disk(path)
        return datasets.load_dataset(str(path), config, streaming=streaming) if holds_table(path) else None
    if is_table(data):
        builder = "parquet" if PurePath(data).suffix.lower() == ".parquet" else "webdataset"
        try:
            return datasets.load_dataset(builder, data_files={"train": absolute(data)}, streaming=streaming)
        except (DatasetGenerationError, pa.ArrowInvalid) as error:
            raise ValueError(f"{data} cannot be read as {builder}: {error.__cause__ or error}") from error
    if not is_hub_name(data):
        return None
    try:
        return datasets.load_dataset(str(data), config, revision=revision, streaming=streaming)
    except (FileNotFoundError, ConnectionError) as error:
        raise FileNotFoundError(
            f"{data} does not exist, and no data set of this name can be read from the Hub: {error}"
        ) from error


def is_table(data: str | os.PathLike) -> bool:
    """Whether data have the name of a Parquet file or of a tar, as path, URL or pattern."""
    return PurePath(data).suffix.lower() in TABLE_SUFFIXES


def is_hub_name(data: str | os.PathLike) -> bool:
    """Whether data are named as a data set of the Hub is, USER/NAME, and not as a file, and no such path exists."""
    name, path = str(data), Path(data).expanduser()
    is_file = path.suffix.lower() in (*TABLE_SUFFIXES, *LIST_SUFFIXES) or is_named_video(path)
    if name.count("/") != 1 or is_file or path.exists():
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def holds_table(folder: Path) -> bool:
    """Whether a folder is of `save_to_disk`, or has tars or Parquet files that are data. A Parquet file of paths is
    data if it is named after a split: any other may be a list of the videos beside it. So may a tar beside folders."""
    if _is_saved(folder):
        return True
    visible = visible_entries(folder)
    if any(entry.suffix == ".tar" for entry in visible) and not any(entry.is_dir() for entry in visible):
        return True
    found = [file for pattern in ("*.parquet", "data/*.parquet") for file in folder.glob(pattern)]
    return any(
        split_of(file.stem) is not None or _holds_files(file) for file in found if not file.name.startswith(".")
    )


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _SAVED)


def _holds_files(file: Path) -> bool:
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} cannot be read as Parquet: {error}") from error
    return BYTES in schema.names or any(pa.types.is_struct(kind) or pa.types.is_binary(kind) for kind in schema.types)


def known_splits(
    splits: Mapping[str, Split], train_split: str | None = None, validation_split: str | None = None
) -> dict[str, Split]:
    """The splits by "train", "validation" and "test": those that are named, or have a usual name."""
    named = {"train": train_split, "validation": validation_split}
    known: dict[str, Split] = {}
    for split, name in named.items():
        if name is not None and name not in splits:
            raise ValueError(f"{split}_split={name!r} is not among the splits of the data set, {', '.join(splits)}.")
        if name is not None:
            known[split] = splits[name]
    for name, rows in splits.items():
        found = split_of(name)
        if name in named.values() or named.get(found or "") is not None:
            continue
        if found is None:
            logger.warning(f"The split {name!r} is left out: only train, validation and test are read.")
        elif found in known:
            raise ValueError(f"Two splits of the data set stand for {found!r}, one of them {name!r}: leave one out.")
        else:
            known[found] = rows
    if not known:
        raise ValueError(f"The data set has the splits {', '.join(splits)}, but none of train, validation and test.")
    return {split: known[split] for split in ("train", "validation", "test") if split in known}


class VideoColumns(NamedTuple):
    """The names of the columns that are read: of videos, of labels (None without), and those of `start` and `end` that
    exist."""

    video: str
    label: str | None
    times: list[str]


def find_columns(features: Features, labelled: bool = True) -> VideoColumns:
    """The columns of a data set that are read. `cls` is what WebDataset calls labels."""
    video = _only(features, "the feature Video", ("video",), lambda feature: isinstance(feature, Video), "path")
    label = None
    if labelled:
        names = ("label", "labels")
        label = _only(features, "labels", names, lambda feature: isinstance(item_of(feature), ClassLabel), "cls")
    return VideoColumns(video, label, [name for name in _TIMES if name in features])


def _only(features: Features, what: str, names: tuple[str, ...], fits: Callable[[Any], bool], last: str) -> str:
    """The column with one of `names`, or else the only column that fits, or else that of the `last` name."""
    found = [name for name in names if name in features] or [name for name in features if fits(features[name])]
    found = found or [name for name in (last,) if name in features]
    if len(found) != 1:
        have = f"{len(found)} columns of {what}: {', '.join(found)}" if found else f"no column of {what}"
        raise ValueError(
            f"The data set has {have}; its columns are {', '.join(features)}. Rename the one that is meant to "
            f"{names[0]!r}: dataset.rename_column(name, {names[0]!r})."
        )
    return found[0]


def item_of(feature: Any) -> Any:
    """The feature of the items of a list, or the feature itself."""
    return feature.feature if isinstance(feature, List) else feature


def _plain(rows: Dataset) -> Dataset:
    """Rows whose column `video` has paths, and `bytes` the files that are stored inside, if there are any."""
    names = rows.column_names
    if not any(isinstance(feature, Video) for feature in rows.features.values()):
        renamed = dict(zip(names, known_names("The data set", names), strict=True))
        rows = rows.rename_columns({old: new for old, new in renamed.items() if old != new})
    column = find_columns(rows.features, labelled=False).video
    if isinstance(rows.features[column], Value) and rows.features[column].dtype != "binary":
        return rows if column == "video" else rows.rename_column(column, "video")
    rows = rows.cast_column(column, Video(decode=False)).flatten()
    if BYTES in rows.column_names:
        rows = rows.remove_columns(f"{column}.bytes")
    renamed = {f"{column}.path": "video", f"{column}.bytes": BYTES}
    return rows.rename_columns({old: new for old, new in renamed.items() if old in rows.column_names})


def known_names(source: str, names: Sequence[str]) -> list[str]:
    """The names of columns: in place of another form or word, that which is known here. A line of the log says so."""
    given = [name.strip() for name in names]
    found, guessed = list(given), []
    for number, name in enumerate(given):
        plain = re.sub(r"[\s-]+", "_", name.casefold())
        for known in (plain, _ALIASES.get(plain)):
            if name not in _NAMES and known in _NAMES and known not in found:
                found[number] = known
                guessed += [f"{name!r} as {known!r}"] if name != "path" else []
    if guessed:
        logger.warning(f"{source}: columns are read by what their names mean: {', '.join(guessed)}.")
    return found


def _read_list(path: Path, root: str, expected: str) -> Table:
    """The table of a CSV or JSON file, or of a list without a first line of names."""
    suffix = path.suffix.lower()
    if suffix not in LIST_SUFFIXES:
        raise ValueError(f"{path} has another ending. {expected}")
    word = "entry" if suffix == ".json" else "line"
    read = _read_json if suffix in (".json", ".jsonl") else _read_text
    lines, columns = read(path, root, expected)
    if not lines:
        raise ValueError(f"{path} has no rows. {expected}")
    return Table(Dataset(pa.table(columns)), str(path), root, lines, word)


def _read_text(path: Path, root: str, expected: str) -> tuple[list[int], dict[str, pa.Array]]:
    lines = read_lines(path)
    first = next((line for line in lines if line.strip()), "")
    # Programs for tables write semicolons where a comma is part of a number.
    delimiter = next((each for each in (",", ";", "\t") if each in first), ",")
    rows = read_csv(path, delimiter)
    _, names = next(rows, (0, []))
    columns = known_names(str(path), names) if any(name.strip() for name in names) else []
    if "video" in columns:
        if delimiter != ",":
            logger.warning(f"{path}: cells are read as separated by {delimiter!r}.")
        if {"label", "labels"} <= set(columns):
            raise ValueError(f"{path} has the columns label and labels; keep one of them.")
        numbered = list(named_rows(path, columns, rows))
        cells = {name: pa.array([row[name].strip() for _, row in numbered], pa.string()) for name in columns if name}
        return [number for number, _ in numbered], cells
    found = [
        (number, _cells(f"{path}, line {number}", line, root)) for number, line in enumerate(lines, 1) if line.strip()
    ]
    is_list = found and (path.suffix.lower() == ".txt" or _exists(root, found[0][1][0]))
    if not is_list:
        raise ValueError(
            f"The first line of {path} is {first!r}, which names no column path or video, and is no video in {root}. "
            f"{expected}"
        )
    for number, row in found:
        if len(row) > len(_LIST_COLUMNS):
            raise ValueError(
                f"{path}, line {number} has {len(row)} cells; path, label and, optionally, start and end are expected."
            )
    width = max(len(row) for _, row in found)
    padded = [[*row, *[""] * (width - len(row))] for _, row in found]
    cells = {
        name: pa.array([row[place] for row in padded], pa.string()) for place, name in enumerate(_LIST_COLUMNS[:width])
    }
    return [number for number, _ in found], cells


def _cells(where: str, line: str, root: str) -> list[str]:
    """The cells of a line of a list: a path, which may have spaces, and others behind it."""
    words = line.split()
    delimiter = next((each for each in (",", ";", "\t") if each in line), None)
    if _exists(root, line.strip()):
        words = [line.strip()]
    elif delimiter is not None:
        try:
            (cells,) = csv.reader([line], delimiter=delimiter, skipinitialspace=True, strict=True)
        except csv.Error as error:
            raise ValueError(f"{where} cannot be read as CSV: {error}.") from error
        words = [cell.strip() for cell in cells]
    else:
        for count in range(1, min(len(words), 4)):
            path = line.rsplit(maxsplit=count)[0].strip()
            if _exists(root, path):
                words = [path, *words[-count:]]
                break
    if len(words) == 3 and words[1].isdecimal() and words[2].isdecimal():
        video = Path(address(root, words[0]))
        if is_frame_folder(video):  # as lists of folders of frames: path, number of frames, label
            return [words[0], words[2]]
        if video.is_file():
            raise ValueError(
                f"{where}: {words[1]} and {words[2]} may be a label and a start, or a number of frames and a label. "
                "Put names of the columns into the first line, such as path,label,start."
            )
    return words


def _exists(root: str, path: str) -> bool:
    return is_url(found := address(root, path)) or os.path.exists(found)


def _read_json(path: Path, root: str, expected: str) -> tuple[list[int], dict[str, pa.Array]]:
    if path.suffix.lower() == ".jsonl":
        numbered, word = read_json_lines(path), "line"
    else:
        content, word = read_json(path), "entry"
        if not isinstance(content, list):
            raise ValueError(f"{path} holds a {type(content).__name__}; a list of objects is expected. {expected}")
        numbered = [*enumerate(content, 1)]
    entries: list[dict[str, Any]] = []
    for number, entry in numbered:
        if not isinstance(entry, dict):
            raise ValueError(f"{path}, {word} {number} is {entry!r}; an object is expected. {expected}")
        entries.append(entry)
    names = [*dict.fromkeys(name for entry in entries for name in entry)]
    columns = dict(zip(names, known_names(str(path), names), strict=True)) if names else {}
    if "id" in names and "video" not in columns.values():  # Something-Something
        columns["id"] = "video"
        if "template" in names:
            columns = {name: f"given {new}" if new == "label" else new for name, new in columns.items()}
            columns["template"] = "label"
    places = [f"{path}, {word} {number}" for number, _ in numbered]
    if "video" not in columns.values() and entries:
        raise ValueError(f"{places[0]} is {entries[0]!r}, without path or video. {expected}")
    if {"label", "labels"} <= set(columns.values()):
        raise ValueError(f"{path} has entries with label and entries with labels; one of them for all is expected.")
    cells = {new: [entry.get(name) for entry in entries] for name, new in columns.items()}
    if columns.get("template") == "label":
        cells["label"] = [re.sub(r"[\[\]]", "", each) if isinstance(each, str) else each for each in cells["label"]]
    return [number for number, _ in numbered], {name: _array(name, cells[name], places) for name in cells}


def _array(name: str, values: list[Any], places: Sequence[str]) -> pa.Array:
    """The values of a column of JSON, as texts if they are of several kinds, and as lists if one of them is."""
    is_lists = any(isinstance(value, list) for value in values)
    if is_lists:
        values = [value if isinstance(value, list) or value is None else [value] for value in values]
    first: dict[str, tuple[str, Any]] = {}
    for place, value in zip(places, values, strict=True):
        for each in value if is_lists and value is not None else [value]:
            if each is not None:
                kind = "text" if isinstance(each, str) else "other" if isinstance(each, (list, dict)) else "number"
                first.setdefault("truth" if isinstance(each, bool) else kind, (place, each))
    if len(first) > 1 and name in ("label", "labels"):
        (place, one), (other_place, other) = list(first.values())[:2]
        raise ValueError(
            f"{other_place}: {name} is {other!r}, and {place} has {one!r}; labels are all texts or all numbers."
        )
    if name in ("label", "labels") and "other" in first:
        raise ValueError(f"{first['other'][0]}: {name} is {first['other'][1]!r}; names are expected.")
    try:
        if len(first) <= 1 and "other" not in first:
            return pa.array(values, None if first else pa.string())
    except (pa.ArrowException, OverflowError):
        pass

    def text(value: Any) -> Any:
        return value if value is None else [*map(text, value)] if is_lists and isinstance(value, list) else str(value)

    return pa.array([*map(text, values)])


def cell_text(where: str, column: str, value: Any) -> str:
    """The text of a cell, without the spaces around it. A number becomes a text. A cell that is empty, null or NaN, or
    no single value, raises `ValueError`."""
    if isinstance(value, str):
        text = value.strip()
        if text in _MISSING_TEXTS:
            raise ValueError(
                f"{where}: {column} is {text!r}, as programs write a missing value. Leave the row out, or write it "
                "otherwise if it is meant."
            )
        if text:
            return text
    elif isinstance(value, int | float) and math.isfinite(value):
        return str(value)
    raise ValueError(f"{where}: {column} is {value!r}; a text is expected. Leave the row out if there is none.")


def _seconds(where: str, column: str, value: Any) -> float | None:
    """Seconds of a cell: a number, also with a decimal comma, or hours, minutes and seconds, as 1:02:03.5."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    seconds = math.nan
    if isinstance(value, str):
        parts = value.strip().replace(",", ".").split(":")
        if all(re.fullmatch(r"\d+", part) for part in parts[:-1]) and len(parts) <= 3:
            seconds = _number(parts[-1]) if len(parts) == 1 or re.match(r"[0-5]?\d(\D|$)", parts[-1]) else math.nan
            seconds += sum(60.0**power * int(part) for power, part in enumerate(reversed(parts[:-1]), 1))
    elif not isinstance(value, bool):
        seconds = _number(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: {column} is {value!r}; seconds from 0 on are expected, or an empty cell.")
    return seconds


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
