"""The one road from any table of videos to rows: lists (CSV, text, JSON), Parquet files, tars of WebDataset, and data
sets of the `datasets` library.

Whatever a table lists, labels, texts or boxes, the names of its columns, its splits, and the addresses of its videos
are settled here. A table with the columns `frames` and `duration`, as `hf-video inspect --output` writes, is believed:
its videos are neither looked for nor opened before they are read.
"""

import logging
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress
from pathlib import Path, PurePath
from typing import Any, TypeVar

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    IterableDataset,
    List,
    Value,
    Video,
    concatenate_datasets,
)
from datasets.exceptions import DatasetGenerationError
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import httpx, validate_repo_id

from hf_video.io import check_regular_file, hub_or_cache
from hf_video.reading.sources import is_url

from .annotations import find_format, read_as_rows
from .folders import (
    LAYOUTS,
    LIST_SUFFIXES,
    SPLITS,
    TABLE_SUFFIXES,
    absolute,
    address,
    is_frame_folder,
    is_named_video,
    listed,
    require_root,
    split_of,
    split_sources,
    visible_entries,
)
from .lists import NOT_OF_TYPE, known_names, read_list
from .rows import BYTES, FRAMES, TO_LABEL, UNKNOWN_SPANS, arrow_column, is_stored, item_of

logger = logging.getLogger(__name__)
Split = TypeVar("Split")
_SAVED = (datasets.config.DATASETDICT_JSON_FILENAME, datasets.config.DATASET_STATE_JSON_FILENAME)
# Of a column: its names, its feature, and what Parquet files and WebDataset call it.
_COLUMNS_OF = {"video": (("video",), Video, "path"), "label": (("label", "labels"), ClassLabel, "cls")}
# How programs write a number that is missing.
_MISSING_TEXTS = ("nan", "NaN", "<NA>")
_MAX_TOLD = 3


def _wrong_rows(count: int, sentences: Sequence[str]) -> ValueError:
    """What is wrong in so many rows; the sentences of the first ones say it."""
    more = [f"{count} rows are wrong, such as these:"] if count > 1 else []
    return ValueError("\n  ".join([*more, *sentences]))


@dataclass(eq=False)
class Table:
    """The rows of a split as a file or a data set has them. `video` has paths, `bytes` the files stored inside."""

    rows: Dataset
    # Of the file or split, for messages.
    name: str
    # The folder or URL that relative paths count from.
    root: str
    # The number of each row in a file, and what it counts; None for a data set.
    lines: Sequence[int] | None = None
    word: str = "line"
    # Whether the rows are what a folder holds, as it is.
    is_folder: bool = False
    # Seconds around instants; 0 keeps them as they are, and None refuses them.
    point_width: float | None = None

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
        return replace(self, rows=self.rows.select(rows), lines=lines)

    def with_files(self, made: Dataset, rows: Sequence[int] | np.ndarray | None = None) -> Dataset:
        """What was made of all or some of the rows, with the files that are stored in these."""
        if not any(is_stored(self.rows)):
            return made
        files = self.rows.select_columns(BYTES)
        return concatenate_datasets([made, files if rows is None else files.select(rows)], axis=1)

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
        the rows of the values, if there is not one for each. Wrong values are one `ValueError`."""
        if pa.types.is_null(values.type):
            values = values.cast(pa.string())
        if pa.types.is_nested(values.type):
            place = self.place(int(rows[0]) if rows is not None else 0)
            raise ValueError(f"{place}: {name} is {values[0].as_py()!r}; one value is expected.")
        encoded = values.dictionary_encode(null_encoding="encode")
        numbers, codes = np.arange(len(values)) if rows is None else np.asarray(rows), encoded.indices.to_numpy()
        places = map(self.place, numbers[np.unique(codes, return_index=True)[1]].tolist())
        found, wrong = list[Any](), dict[int, tuple[str, str]]()
        for code, (place, value) in enumerate(zip(places, encoded.dictionary.to_pylist(), strict=True)):
            try:
                found.append(convert(place, name, value))
            except ValueError as error:
                wrong[code] = place, str(error)
        if len(bad := np.flatnonzero(np.isin(codes, [*wrong]))):
            told = [(self.place(int(numbers[each])), *wrong[codes[each]]) for each in bad[:_MAX_TOLD]]
            raise _wrong_rows(len(bad), [text.replace(place, here, 1) for here, place, text in told])
        return pa.array(found, kind).take(encoded.indices)

    def texts(self, name: str) -> pa.Array:
        """A column of texts that may be missing."""
        return self.converted(self.column(name), name, _text_or_none, pa.string())

    def times(self) -> dict[str, pa.Array]:
        """`start` and `end` in seconds, null where a row has none. An instant ends where it starts; without both
        columns there may be one of instants, `time`. A wrong time raises `ValueError`."""
        names = ("time", "time") if "time" in self and not {"start", "end"} & {*self.names} else ("start", "end")
        start, end = (self.numbers(name, _seconds, optional=True) for name in names)
        begin = pc.fill_null(start, 0.0)
        is_point = pc.fill_null(pc.equal(begin, end), False)
        is_wrong = pc.less(end, begin)
        if self.point_width is None:
            is_wrong = pc.or_(is_wrong, is_point)
        if len(wrong := np.flatnonzero(is_wrong.fill_null(False)).tolist()):
            way_out = "; instants need seconds: --choose point_width=SECONDS" if is_point[wrong[0]].as_py() else ""
            told = "{}: end is {} s, but the segment starts at {} s; a later end is expected{}."
            sentences = [told.format(self.place(row), end[row], begin[row], way_out) for row in wrong[:_MAX_TOLD]]
            raise _wrong_rows(len(wrong), sentences)
        if half := (self.point_width or 0) / 2:
            start = pc.if_else(is_point, pc.max_element_wise(pc.subtract(begin, half), 0.0), start)
            end = pc.if_else(is_point, pc.add(end, half), end)
        return {"start": start, "end": end}

    def numbers(self, name: str, convert: Callable[[str, str, Any], Any], optional: bool = False) -> pa.Array:
        """A column of float64, as of `converted`, which plain numbers from 0 on are spared; with `optional` a cell may
        be empty."""
        values = self.column(name)
        try:
            is_empty = pc.equal(values, "") if pa.types.is_string(values.type) else False
            found = pc.if_else(is_empty, None, values).cast(pa.float64())
            is_plain = pc.and_(pc.is_finite(found), pc.greater_equal(found, 0))
            if pc.all(is_plain, skip_nulls=optional, min_count=0).as_py():
                return found
        except NOT_OF_TYPE:  # such as 1:02:03.5
            pass
        return self.converted(values, name, convert, pa.float64())

    def videos(self) -> tuple[pa.Array, list[str]]:
        """The addresses of the videos, a name for one that is stored inside; and the places of those that do not
        exist. What is neither a file nor a folder of frames raises `ValueError`."""
        if self.is_folder:
            return self.column("video"), []
        column, found = self.column("video"), np.empty(len(self), object)
        is_inside, is_believed = np.array(is_stored(self.rows), bool), np.zeros(len(self), bool)
        if FRAMES in self:
            is_believed = arrow_column(self.rows, FRAMES).is_valid().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(is_inside).tolist():
            video = column[row].as_py()
            found[row] = f"{self.name}[{row}]" + (f" {PurePath(video).name}" if video else "")
        for convert, are_of in ((self._address, is_believed), (self._find, ~is_believed)):
            rows = np.flatnonzero(are_of & ~is_inside)
            converted = self.converted(column.take(pa.array(rows)), "video", convert, pa.string(), rows)
            found[rows] = converted.to_numpy(zero_copy_only=False)
        missing = [
            f"{self.place(row)}: {self._address('', 'video', column[row].as_py())}"
            for row, video in enumerate(found.tolist())
            if video is None
        ]
        return pa.array(found, pa.string()), missing

    def _address(self, where: str, name: str, video: Any) -> str:
        return address(self.root, cell_text(where, name, video))

    def _find(self, where: str, name: str, video: Any) -> str | None:
        """The path of a video, which a table may name without its ending; None if there is none."""
        path = self._address(where, name, video)
        if is_url(path) or os.path.isfile(path) or is_frame_folder(Path(path)):
            return path
        folder, stem = os.path.split(path)
        others = _by_stem(folder).get(stem, [])
        if len(others) > 1:
            raise ValueError(f"{where}: {stem!r} stands for {listed(others)}. Keep one of them.")
        if others:
            return os.path.join(folder, others[0])
        if os.path.isdir(path):
            raise ValueError(f"{where}: {path} is a folder without JPEG or PNG frames, or with videos beside.")
        try:
            if os.path.lexists(path):
                check_regular_file(path)
        except (OSError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from error
        return None


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
    read_folder: Callable[[Path], Table] | None = None,
    config: str | None = None,
    revision: str | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
    choices: Mapping[str, Any] | None = None,
) -> dict[str, Table]:
    """The tables of data, see `load_video_dataset`, by "train", "validation" and "test". `read_folder` makes that of a
    folder without any; by default that is an error, which says what is `expected`. `choices` are of
    `read_annotations`, and `point_width`, the seconds around instants: 0 keeps these as they are."""
    named = {"config": config, "revision": revision, "train_split": train_split, "validation_split": validation_split}
    width = (choices or {}).get("point_width")
    require_root(video_root)
    if isinstance(data, IterableDataset) or (isinstance(data, Mapping) and not isinstance(data, DatasetDict)):
        raise ValueError(
            "A data set that is a stream is not listed: open it with `load_video_stream` (--streaming), or load the "
            "data set without streaming."
        )
    is_object = isinstance(data, DatasetDict | Dataset)
    found, folder = (data, None) if is_object else find_dataset(data, config=config, revision=revision)
    if found is not None:
        splits = found if isinstance(found, DatasetDict) else {"train": found}
        splits, root = known_splits(splits, train_split, validation_split), absolute(video_root or folder or ".")
        tables = {name: Table(_plain(rows), name, root, point_width=width) for name, rows in splits.items()}
        return _by_column(tables) if folder else tables
    if is_url(data):
        raise FileNotFoundError(f"{data} is no table that can be read: by URL, data end in .parquet or .tar.")
    if given := [name for name, value in named.items() if value is not None]:
        raise ValueError(f"{given[0]} is for data sets of the datasets library, and {data} is none: leave it out.")
    path = Path(data).expanduser().absolute()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {expected}")
    sources = split_sources(path)
    if any(source.is_dir() for source in sources.values()):
        if read_folder is None:
            raise ValueError(f"{path} holds no such file. {expected}")
        require_root(video_root, path)

    def read(source: Path) -> Table:
        if read_folder is not None and source.is_dir():
            return read_folder(source)
        root = absolute(video_root or source.parent)
        if find_format(source, choices) is not None:
            rows = Dataset(read_as_rows(source, video_root, choices or {}))
            return Table(rows, str(source), root, point_width=width)
        columns, lines, word = read_list(source, root, expected)
        return _without_open(Table(Dataset(pa.table(columns)), str(source), root, lines, word, point_width=width))

    return _by_column({split: read(source) for split, source in sources.items()})


def _without_open(table: Table) -> Table:
    """The rows that have a label. The time of the others is unknown."""
    is_open = [label == TO_LABEL for label in table.column("label").to_pylist()]
    if not any(is_open):
        return table
    logger.warning(f"{table.name}: {sum(is_open)} rows are {TO_LABEL!r}, and left out: their time is unknown.")
    times, unknown = table.times(), defaultdict[str, list[list[float]]](list)
    columns = (table.column("video"), times["start"].fill_null(0.0), times["end"].fill_null(math.inf))
    for video, start, end in compress(zip(*(each.to_pylist() for each in columns), strict=True), is_open):
        unknown[video].append([start, end])
    kept = table.select(np.flatnonzero(np.logical_not(is_open)))
    spans = [unknown[video] for video in kept.column("video").to_pylist()]
    return replace(kept, rows=kept.rows.add_column(UNKNOWN_SPANS, spans, feature=List(List(Value("float64")))))


def _by_column(tables: dict[str, Table]) -> dict[str, Table]:
    """The rows of one file by their column `split`, if it has one."""
    (table, *others) = tables.values()
    if others or "split" not in table:
        return tables
    found = np.array(table.converted(table.column("split"), "split", _split, pa.string()).to_pylist())
    parts = {name: table.select(np.flatnonzero(found == name)) for name in SPLITS}
    return {name: part if table.lines else replace(part, name=name) for name, part in parts.items() if len(part)}


def _split(where: str, column: str, value: Any) -> str:
    if (found := split_of(str(value).strip())) is None:
        raise ValueError(f"{where}: {column} is {value!r}; one of train, validation and test is expected.")
    return found


def find_dataset(
    data: str | os.PathLike, *, config: str | None = None, revision: str | None = None, streaming: bool = False
) -> tuple[Any, str | None]:
    """The data set in a Parquet file or tar, by path, URL or pattern of names, in a folder of them or of
    `save_to_disk`, or on the Hub; None if `data` is none of these. With `streaming` its splits are streams, except
    those of `save_to_disk`. And the folder of the file, or that of files, if it is one."""
    path = Path(data).expanduser()
    if path.is_dir():
        if _is_saved(path):
            return datasets.load_from_disk(path), None
        found = datasets.load_dataset(str(path), config, streaming=streaming) if holds_table(path) else None
        return found, str(path)
    if PurePath(data).suffix.lower() in TABLE_SUFFIXES:
        builder = "parquet" if PurePath(data).suffix.lower() == ".parquet" else "webdataset"
        place = absolute(data)
        try:
            found = datasets.load_dataset(builder, data_files={"train": place}, streaming=streaming)
        except (DatasetGenerationError, pa.ArrowInvalid) as error:
            raise ValueError(f"{data} cannot be read as {builder}: {error.__cause__ or error}") from error
        return found, os.path.dirname(place)
    if not is_hub_name(data):
        return None, None
    try:
        with hub_or_cache():
            return datasets.load_dataset(str(data), config, revision=revision, streaming=streaming), None
    except (FileNotFoundError, ConnectionError, httpx.TransportError) as error:
        raise FileNotFoundError(
            f"{data} does not exist, and no data set of this name can be read from the Hub: {error}"
        ) from error


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
    """Whether a folder is of `save_to_disk`, or has tars or Parquet files that are data: those named after a split, in
    data/, or with neither videos nor folders beside them, of which they may be a list or an archive."""
    visible = visible_entries(folder)
    tables = [entry for entry in visible if entry.suffix in TABLE_SUFFIXES]
    return (
        _is_saved(folder)
        or any(folder.glob("data/*.parquet"))
        or any(entry.suffix == ".parquet" and split_of(entry.stem) for entry in tables)
        or (bool(tables) and not any(entry.is_dir() or is_named_video(entry) for entry in visible))
    )


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _SAVED)


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
    return {split: known[split] for split in SPLITS if split in known}


def column_of(source: str, features: Features, what: str) -> str:
    """The name of the column of "video" or "label": one of the usual names, or else the only column that has the
    feature of these, or else what programs call it."""
    names, kind, last = _COLUMNS_OF[what]
    found = [name for name in names if name in features]
    found = found or [name for name in features if isinstance(item_of(features[name]), kind)]
    found = found or [name for name in (last,) if name in features]
    if len(found) != 1:
        told = "the feature Video" if what == "video" else "labels"
        have = f"{len(found)} columns of {told}: {', '.join(found)}" if found else f"no column of {told}"
        raise ValueError(
            f"{source} has {have}; its columns are {', '.join(features)}. Call the one that is meant {what!r}. "
            f"{LAYOUTS}"
        )
    return found[0]


def _plain(rows: Dataset) -> Dataset:
    """Rows whose column `video` has paths, and `bytes` the files that are stored inside, if there are any."""
    if not any(isinstance(feature, Video) for feature in rows.features.values()):
        known = known_names("The data set", rows.column_names)
        rows = rows.rename_columns({old: new for old, new in zip(rows.column_names, known, strict=True) if old != new})
    column = column_of("The data set", rows.features, "video")
    if isinstance(rows.features[column], Value) and rows.features[column].dtype != "binary":
        return rows if column == "video" else rows.rename_column(column, "video")
    rows = rows.cast_column(column, Video(decode=False)).flatten()
    if BYTES in rows.column_names:
        rows = rows.remove_columns(f"{column}.bytes")
    renamed = {f"{column}.path": "video", f"{column}.bytes": BYTES}
    return rows.rename_columns({old: new for old, new in renamed.items() if old in rows.column_names})


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


def _text_or_none(where: str, column: str, value: Any) -> str | None:
    return None if value is None else str(value).strip() or None


def _seconds(where: str, column: str, value: Any) -> float | None:
    """Seconds of a cell: a number, also with a decimal comma, or hours, minutes and seconds, as 1:02:03.5."""
    text = "" if value is None else str(value).strip().replace(",", ".")
    if not text:
        return None
    *larger, last = text.split(":")
    is_clock = len(larger) <= 2 and all(map(str.isdecimal, larger)) and re.match(r"[0-5]?\d(\D|$)", last)
    try:
        seconds = float(last) if is_clock or not larger else math.nan
    except ValueError:
        seconds = math.nan
    seconds += sum(60.0**power * int(part) for power, part in enumerate(reversed(larger), 1) if is_clock)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: {column} is {value!r}; seconds from 0 on are expected, or an empty cell.")
    return seconds
