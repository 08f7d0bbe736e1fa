"""The output of a bulk run: a folder of Parquet files, the parts, with one row a video.

A part is written as a whole, after all of its videos. Its name follows from their keys. So whatever dies, a video is
in no part or in one, and a part that is made again replaces itself. The parts themselves say what is done.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from hf_video.io import StoredFolder
from hf_video.settings import few

from .bulk_batches import ERROR, KEY, PATH, BulkVideo, as_utf8

logger = logging.getLogger(__name__)

# Hidden, since `datasets` reads every other file of a folder.
SETTINGS_FILE = ".bulk.json"
# What `plan_parts` calls a part. A file of another name is somebody else's.
_PART_NAME = re.compile(r"part-\d{6,}-[0-9a-f]{16}\.parquet")
# Rows are written together from this size on.
_ROW_GROUP_BYTES = 32 * 2**20


class Part(NamedTuple):
    """Videos whose rows stand in one file."""

    name: str
    videos: Sequence[BulkVideo]


class FinishedVideos(NamedTuple):
    """What the parts of a folder hold.

    Attributes:
        rows: the columns `key`, `path` and `error`.
    """

    rows: pa.Table

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def errors(self) -> pa.Table:
        """The rows with an error."""
        return self.rows.filter(self.rows[ERROR].is_valid())


class PartFolder:
    """A folder of parts, on this machine or at an fsspec URL.

    Args:
        place: path or URL.

    Attributes:
        place: absolute path, or URL.
        path: the local folder; None if it is elsewhere.

    Raises:
        ValueError: fsspec knows no such protocol.
    """

    def __init__(self, place: str):
        self._folder = StoredFolder(place)
        self.place, self.path = str(self._folder), self._folder.path

    def check(self, key: dict[str, Any]) -> bool:
        """Whether a run has claimed the folder for rows of these settings; nothing is written.

        Args:
            key: all that a row follows from, besides its video; JSON holds it.

        Raises:
            ValueError: the folder is a file, or has other files, or rows of other settings.
        """
        key = json.loads(json.dumps(key))
        known = self.read_key()
        if known is None:
            self._require_empty()
            return False
        if differing := sorted(name for name in key.keys() | known.keys() if known.get(name) != key.get(name)):
            told = "; ".join(_difference(name, known.get(name), key.get(name)) for name in differing)
            raise ValueError(
                f"{self.place} has rows of other settings ({told}), which are never mixed: choose another --output, "
                "or the same settings."
            )
        return True

    def claim(self, key: dict[str, Any]) -> None:
        """Makes the folder and notes the settings of its rows. Takes and raises what `check` does."""
        if not self.check(key):
            with self._folder.writing(SETTINGS_FILE) as file:
                file.write(json.dumps(key, indent=1, sort_keys=True).encode())

    def read_key(self) -> dict[str, Any] | None:
        """The settings of the rows; None if no run has claimed the folder."""
        text = self._folder.read(SETTINGS_FILE)
        try:
            return None if text is None else json.loads(text)
        except ValueError as error:
            raise ValueError(
                f"{self.place}/{SETTINGS_FILE} is damaged ({error}): remove it if you need none of the rows there."
            ) from error

    def read_finished(self) -> FinishedVideos:
        """The videos in the parts. A damaged part is removed, and its videos count as not done."""
        names = self.part_names()
        schema = pa.schema([(name, pa.string()) for name in (KEY, PATH, ERROR)])
        columns = schema.names

        def read(names: list[str]) -> pa.Table:
            system, root = self._folder.find()
            files = [f"{root}/{name}" for name in names]
            return ds.dataset(files, schema=schema, format="parquet", filesystem=system).to_table(columns=columns)

        if not names:
            return FinishedVideos(schema.empty_table())
        try:
            return FinishedVideos(read(names))
        except (pa.ArrowInvalid, OSError):
            pass  # one of them: which shows singly
        tables = [table for name in names if (table := self._read_or_remove(name, columns)) is not None]
        return FinishedVideos(pa.concat_tables([schema.empty_table(), *tables]))

    def _read_or_remove(self, name: str, columns: list[str] | None = None) -> pa.Table | None:
        """The rows of a part; None if it is damaged, and then it is removed. It is fetched before it is parsed, since
        Arrow raises OSError for damaged pages as well, and a part that cannot be reached must stay."""
        with self._folder.open(name) as file:
            content = file.read()
        try:
            return pq.read_table(pa.BufferReader(content), columns=columns)
        except (pa.ArrowInvalid, OSError) as error:
            logger.warning(f"{self.place}/{name} is damaged, and its videos are done again: {error}")
            self._folder.remove(name)
            return None

    def forget_errors(self) -> None:
        """Removes the rows with an error, so that their videos are done again."""
        for name in self.part_names():
            table = self._read_or_remove(name)
            if table is None or table[ERROR].null_count == len(table):
                continue
            if len(kept := table.filter(table[ERROR].is_null())):
                self.write(name, [kept])
            else:
                self._folder.remove(name)

    def write(self, name: str, rows: Iterable[pa.Table]) -> None:
        """Writes a part as a whole. Memory holds one group of its rows.

        Args:
            name: see `Part`.
            rows: tables of one schema, at least one.

        Raises:
            OSError: writing failed.
        """
        with self._folder.writing(name) as file:
            _write_rows(file, rows)

    def part_names(self) -> list[str]:
        """The names of the parts that were written."""
        return sorted(filter(_PART_NAME.fullmatch, self._names()))

    def _names(self) -> list[str]:
        """The files and folders that are not hidden."""
        return [name for name in self._folder.names() if not name.startswith(".")]

    def _require_empty(self) -> None:
        system, root = self._folder.find()
        if system.isfile(root):
            raise ValueError(f"{self.place} is a file; a folder is expected.")
        if found := self._names():
            raise ValueError(f"{self.place} has other files ({few(found)}): choose another --output.")


def plan_parts(videos: Sequence[BulkVideo], finished: FinishedVideos, part_size: int) -> list[Part]:
    """The parts that are left to do. Videos are divided before the finished ones are left out, so that batches, and
    with them the last digits of the outputs, do not depend on where a run was ended.

    Args:
        videos: all videos, each with a key of its own.
        finished: what is done.
        part_size: videos of a part.

    Raises:
        ValueError: a key was done for another path.
    """
    keys = pa.array([as_utf8(video.id) for video in videos], pa.string())
    paths = pa.array([as_utf8(video.source) for video in videos], pa.string())
    found = pc.index_in(keys, finished.rows[KEY].combine_chunks())
    known = finished.rows[PATH].combine_chunks().take(found)
    other = pc.index(pc.fill_null(pc.not_equal(known, paths), False), True).as_py()
    if other >= 0:
        raise ValueError(
            f"The output has {known[other]} under the key {keys[other].as_py()!r}, which {paths[other]} would have as "
            "well: choose another --output, or rename the video."
        )
    is_left = found.is_null().to_numpy(zero_copy_only=False)
    parts = []
    for number, start in enumerate(range(0, len(videos), part_size)):
        left = (start + np.flatnonzero(is_left[start : start + part_size])).tolist()
        if left:
            chosen = [videos[place] for place in left]
            digest = hashlib.sha256(json.dumps([video.id for video in chosen]).encode()).hexdigest()[:16]
            parts.append(Part(f"part-{number:06d}-{digest}.parquet", chosen))
    return parts


def _write_rows(file: BinaryIO, rows: Iterable[pa.Table]) -> None:
    writer, waiting = None, []
    try:
        for row in rows:
            writer = writer or pq.ParquetWriter(file, row.schema)
            waiting.append(row)
            if sum(table.nbytes for table in waiting) >= _ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(waiting).combine_chunks())
                waiting = []
        if writer is not None and waiting:
            writer.write_table(pa.concat_tables(waiting).combine_chunks())
    finally:
        if writer is not None:
            writer.close()


def _difference(name: str, known: Any, given: Any) -> str:
    is_short = not isinstance(given, dict) and len(str(given)) + len(str(known)) < 60
    return f"{name} {known!r}, not {given!r}" if is_short else f"other {name}"
