"""A sink of Parquet files, the parts, with one row a video, or several.

A part is written as a whole, after all of its videos. Its name follows from their keys. So whatever dies, a video is
in no part or in one, and a part that is made again replaces itself.
"""

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from hf_video.io import StoredFolder

from .batches import Video, VideoOutputs, reason_of
from .runner import Part, Sink, require_no_files, require_same_settings
from .tasks import Task

logger = logging.getLogger(__name__)

# Hidden, since `datasets` reads every other file of a folder.
SETTINGS_FILE, NOTES = ".bulk.json", "notes"
# A file of another name was not written here.
_PART_NAME = re.compile(r"part-\d{6,}-[0-9a-f]{16}\.parquet")
KEY, PATH, ERROR = "key", "path", "error"
_FACTS = pa.schema([(name, pa.string()) for name in (KEY, PATH, ERROR)])
# Rows are written together from this size on.
_ROW_GROUP_BYTES = 32 * 2**20


class ParquetParts(Sink):
    """A folder of parts, on this machine or at an fsspec URL. Each row has the `key`, `path` and `error` of its video,
    and the columns of the task.

    Args:
        place: path or URL.
        key: all that a row follows from, besides its video; JSON holds it. See `Task.key`.
        part_size: videos of a part.
        notes: JSON values that are kept beside the key, and may differ.

    Attributes:
        place: absolute path, or URL.
        path: the local folder; None if it is elsewhere.
        finished: the rows that were there when the run began, their `key`, `path` and `error`, one for each video.

    Raises:
        ValueError: fsspec knows no such protocol.
    """

    def __init__(self, place: str, key: dict[str, Any], part_size: int = 128, notes: dict[str, Any] | None = None):
        self._folder = StoredFolder(place)
        self.place, self.path = str(self._folder), self._folder.path
        self.key, self.part_size, self.notes = json.loads(json.dumps(key)), part_size, notes
        self.finished = _FACTS.empty_table()

    def check(self) -> bool:
        """Whether a run has claimed the folder for rows of these settings; nothing is written.

        Raises:
            ValueError: the folder is a file, or has other files, or rows of other settings.
        """
        text = self._folder.read(SETTINGS_FILE)
        if text is None:
            system, root = self._folder.find()
            visible = [name for name in self._folder.names() if not name.startswith(".")]
            require_no_files(self.place, system.isfile(root), visible)
            return False
        try:
            known = json.loads(text)
        except ValueError as error:
            raise ValueError(
                f"{self.place}/{SETTINGS_FILE} is damaged ({error}): remove it if you need none of the rows there."
            ) from error
        known.pop(NOTES, None)
        require_same_settings(self, known, self.key)
        return True

    def claim(self) -> None:
        """Makes the folder and notes the settings of its rows. Raises what `check` does."""
        if not self.check():
            with self._folder.writing(SETTINGS_FILE) as file:
                content = self.key if self.notes is None else self.key | {NOTES: self.notes}
                file.write(json.dumps(content, indent=1, sort_keys=True).encode())

    def is_claimed(self) -> bool:
        return self._folder.read(SETTINGS_FILE) is not None

    def plan(self, videos: Sequence[Video]) -> list[Part]:
        """The parts that are left. Videos are divided before the finished ones are left out, so that batches, and with
        them the last digits of the outputs, do not depend on where a run was ended."""
        self.finished = self.read_finished()
        keys = pa.array([_as_utf8(video.id) for video in videos], pa.string())
        paths = pa.array([_as_utf8(video.source) for video in videos], pa.string())
        rows = pc.index_in(keys, self.finished[KEY].combine_chunks())
        known = self.finished[PATH].combine_chunks().take(rows)
        other = pc.index(pc.fill_null(pc.not_equal(known, paths), False), True).as_py()
        if other >= 0:
            raise ValueError(
                f"The output has {known[other]} under the key {keys[other].as_py()!r}, which {paths[other]} would "
                "have as well: choose another --output, or rename the video."
            )
        is_left = rows.is_null().to_numpy(zero_copy_only=False)
        parts = []
        for number, start in enumerate(range(0, len(videos), self.part_size)):
            left = start + np.flatnonzero(is_left[start : start + self.part_size])
            if chosen := [videos[place] for place in left.tolist()]:
                digest = hashlib.sha256(json.dumps([video.id for video in chosen]).encode()).hexdigest()[:16]
                parts.append(Part(f"part-{number:06d}-{digest}.parquet", chosen))
        return parts

    def read_finished(self) -> pa.Table:
        """The `key`, `path` and `error` of the videos in the parts. A damaged part is removed, and its videos count as
        not done."""
        names, (system, root) = self.part_names(), self._folder.find()
        rows = _FACTS.empty_table()
        try:
            if names:
                files = [f"{root}/{name}" for name in names]
                dataset = ds.dataset(files, schema=_FACTS, format="parquet", filesystem=system)
                rows = dataset.to_table(columns=_FACTS.names)
        except (pa.ArrowInvalid, OSError):  # one of them: which shows singly
            tables = [table for name in names if (table := self._read_or_remove(name, _FACTS.names)) is not None]
            rows = pa.concat_tables([rows, *tables])
        # Tasks with several rows a video give each of them its key.
        keys = pc.unique(rows[KEY])
        return rows if len(keys) == len(rows) else rows.take(pc.index_in(keys, rows[KEY].combine_chunks()))

    def known_errors(self) -> list[tuple[str, str]]:
        """Path and reason of the finished videos with an error."""
        rows = self.finished.filter(self.finished[ERROR].is_valid())
        return list(zip(rows[PATH].to_pylist(), rows[ERROR].to_pylist(), strict=True))

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
        self._keep(lambda facts, name: facts[ERROR].is_null())

    def forget_changed(self, videos: Sequence[Video], *, others: bool = False) -> None:
        """Removes the rows of local files among these that changed after their part; with `others` also those of
        videos that are not among these."""
        changed = {(_as_utf8(video.id), _as_utf8(video.source)): _changed(video.source) for video in videos}

        def is_current(facts: pa.Table, name: str) -> pa.Array:
            system, path = self._folder.find(name)
            written = system.modified(path).timestamp()
            videos_of_rows = zip(facts[KEY].to_pylist(), facts[PATH].to_pylist(), strict=True)
            unnamed = math.inf if others else 0.0
            return pa.array([changed.get(video, unnamed) <= written for video in videos_of_rows])

        self._keep(is_current)

    def _keep(self, is_kept: Callable[[pa.Table, str], pa.Array | pa.ChunkedArray]) -> None:
        """Keeps the rows for which a function of the facts of a part, and of its name, is true."""
        for name in self.part_names():
            facts = self._read_or_remove(name, _FACTS.names)
            if facts is None or pc.all(kept := is_kept(facts, name)).as_py():
                continue
            if pc.any(kept).as_py() and (table := self._read_or_remove(name)) is not None:
                self.write_rows(name, [table.filter(kept)])
            else:
                self._folder.remove(name)

    def write(self, task: Task, part: Part, outputs: Iterator[VideoOutputs]) -> None:
        self.write_rows(part.name, (_rows_of(task, of_video) for of_video in outputs))

    def write_rows(self, name: str, tables: Iterable[pa.Table]) -> None:
        """Writes the file of a part as a whole, from tables of one schema. Memory holds one group of its rows."""
        tables = iter(tables)
        with self._folder.writing(name) as file:
            waiting = [next(tables)]
            # A dictionary of floats, which seldom repeat, would take half of the time to read them.
            texts = [field.name for field in waiting[0].schema if pa.types.is_string(field.type)]
            with pq.ParquetWriter(file, waiting[0].schema, use_dictionary=texts) as writer:
                for table in tables:
                    if sum(each.nbytes for each in waiting) >= _ROW_GROUP_BYTES:
                        writer.write_table(pa.concat_tables(waiting).combine_chunks())
                        waiting = []
                    waiting.append(table)
                writer.write_table(pa.concat_tables(waiting).combine_chunks())

    def part_names(self) -> list[str]:
        """The names of the parts that were written."""
        return sorted(filter(_PART_NAME.fullmatch, self._folder.names()))


def _rows_of(task: Task, outputs: VideoOutputs) -> pa.Table:
    """The rows of a video."""
    video, gathered = outputs.video, outputs.gather()
    columns = {} if outputs.error is not None else task.describe(*gathered)
    num_rows = len(next(iter(columns.values()), [None]))
    reason = None if outputs.error is None else reason_of(outputs.error)
    for name, text in ((KEY, video.id), (PATH, video.source), (ERROR, reason)):
        columns[name] = pa.array([None if text is None else _as_utf8(text)] * num_rows, pa.string())
    schema = pa.schema([*_FACTS, *task.columns])
    return pa.table([columns.get(field.name, pa.nulls(num_rows, field.type)) for field in schema], schema=schema)


def _changed(source: str) -> float:
    """When a local file changed, in seconds since 1970; 0 for anything else."""
    return os.path.getmtime(source) if os.path.isfile(source) else 0.0


def _as_utf8(text: str) -> str:
    """The text for a column. Names of files, and messages with them, may have bytes that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()
