"""The one road from any table of videos to rows: lists (CSV, text, JSON), Parquet files, tars of WebDataset, and data
sets of the `datasets` library.

Whatever a table lists, labels, texts or boxes, the names of its columns, its splits, and the addresses of its videos
are settled here. A table with the column `frames`, as `hf-video inspect --output` writes, is believed: its videos are
neither looked for nor opened before they are read.
"""

import logging
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import compress
from pathlib import Path, PurePath
from typing import Any, TypeVar

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, Features, IterableDataset, List, Value, Video
from datasets.exceptions import DatasetGenerationError
from huggingface_hub.utils import httpx

from hf_video.io import hub_or_cache
from hf_video.reading.sources import is_url
from hf_video.texts import count

from . import folders
from .annotations import find_format, read_as_rows
from .lists import NOT_OF_TYPE, known_names, read_list
from .rows import BYTES, FRAMES, TO_LABEL, UNKNOWN_SPANS, arrow_column, is_stored, item_of, nothing_labelled

logger = logging.getLogger(__name__)
Split = TypeVar("Split")
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
    # What a file calls its columns, by the names that they have here.
    own_names: Mapping[str, str] = field(default_factory=dict)
    # Seconds around instants; 0 keeps them as they are, and None refuses them.
    point_width: float | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: str) -> bool:
        return name in self.rows.column_names

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
        return datasets.concatenate_datasets([made, files if rows is None else files.select(rows)], axis=1)

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
        rows = np.arange(len(values)) if rows is None else np.asarray(rows)
        if pa.types.is_nested(values.type):
            raise ValueError(f"{self.place(int(rows[0]))}: {name} is {values[0].as_py()!r}; one value is expected.")
        values = values.cast(pa.string()) if pa.types.is_null(values.type) else values
        encoded = values.dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy()
        places = map(self.place, rows[np.unique(codes, return_index=True)[1]].tolist())
        found, wrong = list[Any](), dict[int, tuple[str, str]]()
        for code, (place, value) in enumerate(zip(places, encoded.dictionary.to_pylist(), strict=True)):
            try:
                found.append(convert(place, name, value))
            except ValueError as error:
                wrong[code] = place, str(error)
        if len(bad := np.flatnonzero(np.isin(codes, [*wrong]))):
            told = [(self.place(int(rows[each])), *wrong[codes[each]]) for each in bad[:_MAX_TOLD]]
            raise _wrong_rows(len(bad), [text.replace(place, here, 1) for here, place, text in told])
        return pa.array(found, kind).take(encoded.indices)

    def texts(self, name: str) -> pa.Array:
        """A column of texts that may be missing."""
        return self.converted(self.column(name), name, _text_or_none, pa.string())

    def times(self) -> dict[str, pa.Array]:
        """`start` and `end` in seconds, null where a row has none. An instant ends where it starts; without both
        columns there may be one of instants, `time`."""
        names = ("time", "time") if "time" in self and not ("start" in self or "end" in self) else ("start", "end")
        start, end = (self.numbers(name, _seconds, optional=True) for name in names)
        begin = pc.fill_null(start, 0.0)
        is_point = pc.fill_null(pc.equal(begin, end), False)
        is_wrong = pc.or_(pc.less(end, begin), pc.and_(is_point, self.point_width is None))
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
        exist."""
        column, found = self.column("video"), np.empty(len(self), object)
        if self.is_folder:
            return column, []
        is_inside = np.array(is_stored(self.rows), bool)
        rows = np.flatnonzero(~is_inside)
        convert = self._address if FRAMES in self else self._find
        paths = self.converted(column.take(pa.array(rows)), "video", convert, pa.string(), rows)
        found[rows] = paths.to_numpy(zero_copy_only=False)
        missing = [
            f"{self.place(row)}: {self._address('', 'video', column[row].as_py())}"
            for row in rows.tolist()
            if found[row] is None
        ]
        for row in np.flatnonzero(is_inside).tolist():
            found[row] = f"{self.name}[{row}] {PurePath(column[row].as_py() or '').name}".rstrip()
        return pa.array(found, pa.string()), missing

    def _address(self, where: str, name: str, video: Any) -> str:
        return folders.address(self.root, cell_text(where, name, video))

    def _find(self, where: str, name: str, video: Any) -> str | None:
        """The path of a video, which a table may name without its ending; None if there is none."""
        path = self._address(where, name, video)
        if is_url(path) or os.path.isfile(path) or folders.is_frame_folder(Path(path)):
            return path
        folder, stem = os.path.split(path)
        others = _by_stem(folder).get(stem, [])
        if len(others) > 1:
            raise ValueError(f"{where}: {stem!r} stands for {folders.listed(others)}. Keep one of them.")
        return os.path.join(folder, others[0]) if others else None


def require_videos(tables: Mapping[str, Table]) -> dict[str, pa.Array]:
    """The addresses of the videos of each split. Those that do not exist raise `FileNotFoundError`, once for all."""
    _by_stem.cache_clear()
    found = {name: table.videos() for name, table in tables.items()}
    if missing := [place for _, places in found.values() for place in places]:
        roots = folders.listed({table.root for table in tables.values()})
        raise FileNotFoundError(
            f"No file and no folder of frames for {len(missing)} of {count(sum(map(len, tables.values())), 'row')}: "
            f"{folders.listed(missing, separator='; ')}. Relative paths count from {roots}, and endings may be left "
            "out; say where the videos are with `video_root` (--video-root)."
        )
    return {name: videos for name, (videos, _) in found.items()}


@cache
def _by_stem(folder: str) -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for entry in folders.visible_entries(Path(folder)) if os.path.isdir(folder) else []:
        if folders.is_named_video(entry):
            found[entry.stem].append(entry.name)
    return found


def open_tables(
    data: Any,
    video_root: str | os.PathLike | None = None,
    *,
    expected: str = folders.LAYOUTS,
    read_folder: Callable[[Path], Table] | None = None,
    config: str | None = None,
    revision: str | None = None,
    choices: Mapping[str, Any] | None = None,
    **named: str | None,
) -> dict[str, Table]:
    """The tables of data, see `load_video_dataset`, by "train", "validation" and "test". `read_folder` makes that of a
    folder without any; by default that is an error, which says what is `expected`."""
    width = (choices or {}).get("point_width")
    folders.require_root(video_root)
    if isinstance(data, IterableDataset) or (isinstance(data, dict) and not isinstance(data, DatasetDict)):
        raise ValueError("A data set that is a stream is opened with `load_video_stream` (--streaming).")
    is_object = isinstance(data, DatasetDict | Dataset)
    found, folder = (data, None) if is_object else find_dataset(data, config=config, revision=revision)
    if found is not None:
        splits = found if isinstance(found, DatasetDict) else {"train": found}
        splits, root = known_splits(splits, **named), folders.absolute(video_root or folder or ".")
        tables = {name: Table(_plain(rows), name, root, point_width=width) for name, rows in splits.items()}
        return _by_column(tables) if folder else tables
    if any((config, revision, *named.values())):
        raise ValueError(f"{data} is no data set of the datasets library: leave out its configuration and splits.")
    if is_url(data):
        raise FileNotFoundError(f"{data} is no table that can be read: by URL, data end in .parquet or .tar.")
    path = Path(data).expanduser().absolute()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {expected}")
    sources = folders.split_sources(path)
    if any(source.is_dir() for source in sources.values()):
        if read_folder is None:
            raise ValueError(f"{path} holds no such file. {expected}")
        folders.require_root(video_root, path)

    def read(source: Path) -> Table:
        if read_folder is not None and source.is_dir():
            return read_folder(source)
        root = folders.absolute(video_root or source.parent)
        if find_format(source, choices) is not None:
            rows = read_as_rows(source, video_root, choices or {})
            return Table(Dataset(rows), str(source), root, range(1, len(rows) + 1), "row", point_width=width)
        columns, lines, word, own_names = read_list(source, root, expected)
        options: dict[str, Any] = {"own_names": own_names, "point_width": width}
        return _without_open(Table(Dataset(pa.table(columns)), str(source), root, lines, word, **options))

    return _by_column({split: read(source) for split, source in sources.items()})


def _without_open(table: Table) -> Table:
    """The rows that have a label. The time of the others is unknown."""
    is_open = [label == TO_LABEL for label in table.column("label").to_pylist()]
    if not any(is_open):
        return table
    if all(is_open):
        raise nothing_labelled(table.name, len(is_open))
    logger.warning(f"{table.name}: {count(sum(is_open), 'row')} left out, still {TO_LABEL!r}: that time is unknown.")
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
    parts = {name: table.select(np.flatnonzero(found == name)) for name in folders.SPLITS}
    return {name: part if table.lines else replace(part, name=name) for name, part in parts.items() if len(part)}


def _split(where: str, column: str, value: Any) -> str:
    if (found := folders.split_of(str(value).strip())) is None:
        raise ValueError(f"{where}: {column} is {value!r}; one of train, validation and test is expected.")
    return found


def find_dataset(
    data: str | os.PathLike, *, config: str | None = None, revision: str | None = None, streaming: bool = False
) -> tuple[Any, str | None]:
    """The data set in a Parquet file or tar, by path, URL or pattern of names, in a folder of them or of
    `save_to_disk`, or on the Hub; None if `data` is none of these. And the folder of the file, or that of files."""
    path, suffix = Path(data).expanduser(), PurePath(data).suffix.lower()
    if path.is_dir():
        if folders.is_saved(path):
            return datasets.load_from_disk(path), None
        found = datasets.load_dataset(str(path), config, streaming=streaming) if folders.holds_table(path) else None
        return found, str(path)
    if suffix in folders.TABLE_SUFFIXES:
        builder = "parquet" if suffix == ".parquet" else "webdataset"
        place = folders.absolute(data)
        try:
            found = datasets.load_dataset(builder, data_files={"train": place}, streaming=streaming)
        except (DatasetGenerationError, pa.ArrowInvalid) as error:
            raise ValueError(f"{data} cannot be read as {builder}: {error.__cause__ or error}") from error
        return found, os.path.dirname(place)
    if not folders.is_hub_name(data):
        return None, None
    try:
        with hub_or_cache():
            return datasets.load_dataset(str(data), config, revision=revision, streaming=streaming), None
    except (FileNotFoundError, ConnectionError, httpx.TransportError) as error:
        raise FileNotFoundError(f"{data} is no path, and cannot be read from the Hub: {error}") from error


def known_splits(
    splits: Mapping[str, Split], train_split: str | None = None, validation_split: str | None = None
) -> dict[str, Split]:
    """The splits by "train", "validation" and "test": those that are named, or have a usual name."""
    chosen = {"train": train_split, "validation": validation_split}
    if unknown := [
        f"{each}_split={name!r}" for each, name in chosen.items() if name is not None and name not in splits
    ]:
        raise ValueError(f"{unknown[0]} is not among the splits of the data set, {', '.join(splits)}.")
    known = {split: splits[name] for split, name in chosen.items() if name is not None}
    for name, rows in splits.items():
        found = folders.split_of(name)
        if name in chosen.values() or (found is not None and chosen.get(found) is not None):
            continue
        if found is None:
            logger.warning(f"The split {name!r} is left out: only train, validation and test are read.")
        else:
            if found in known:
                raise ValueError(f"Two splits of the data set stand for {found!r}, one is {name!r}: leave one out.")
            known[found] = rows
    if not known:
        raise ValueError(f"The data set has the splits {', '.join(splits)}, but none of train, validation and test.")
    return {split: known[split] for split in folders.SPLITS if split in known}


def column_of(source: str, features: Features, what: str, own_names: Mapping[str, str] | None = None) -> str:
    """The name of the column of "video" or "label": one of the usual names, or else the only column that has the
    feature of these, or else what programs call it. `own_names` are those of the file, for the error."""
    names, kind, last = _COLUMNS_OF[what]
    found = [name for name in names if name in features]
    found = found or [name for name in features if isinstance(item_of(features[name]), kind)]
    found = found or [name for name in (last,) if name in features]
    if len(found) != 1:
        told = "the feature Video" if what == "video" else "labels"
        have = f"{len(found)} columns of {told}: {', '.join(found)}" if found else f"no column of {told}"
        columns = ", ".join((own_names or {}).get(name, name) for name in features)
        raise ValueError(f"{source} has {have}; its columns are {columns}. Call one {what!r}. {folders.LAYOUTS}")
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
    """The text of a cell, without the spaces around it; a number becomes a text. One that is missing, or no single
    value, raises `ValueError`."""
    if isinstance(value, str):
        value = value.strip()
        if value and value not in _MISSING_TEXTS:
            return value
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
    if clock := re.fullmatch(r"(?:(\d+):)?(\d+):([0-5]?\d(?:\.\d*)?)", text):
        return 3600.0 * int(clock[1] or 0) + 60.0 * int(clock[2]) + float(clock[3])
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: {column} is {value!r}; seconds from 0 on are expected, or an empty cell.")
    return seconds
