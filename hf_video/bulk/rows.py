"""A folder of Parquet files, the parts, with one row a piece of a video.

The rows say what is done: there is no other record. So whatever dies, the next run does the rows that are not there.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from hf_video.inference.detection import KeyFrame, Person, with_tracks
from hf_video.inference.video_search import SETTINGS_FILE, read_rows, row_files
from hf_video.io import StoredFolder

from .run import Row, Todo, content_of, reason_of, require_no_files, require_same_settings
from .tasks import Task

if TYPE_CHECKING:
    import pandas as pd

    from hf_video.data.video_listing import ListedVideo

logger = logging.getLogger(__name__)

FACTS = pa.schema(
    {"key": pa.string(), "path": pa.string(), "content": pa.string(), "piece": pa.int64()}
    | {"is_last": pa.bool_(), "error": pa.string()}
)
# Rows are written together from this size on.
_PART_BYTES = 32 * 2**20


class RowFolder:
    """A folder of parts, on this machine or at an fsspec URL. Each row has the `key` and `path` of its video, its
    `content` (digits that change when the file does), the number of the `piece`, whether it `is_last`, an `error` or
    null, and the columns of the task. `notes` are JSON values beside the key of the task, which may differ."""

    def __init__(self, place: str, task: Task, notes: dict[str, Any] | None = None):
        self.stored, self.task = StoredFolder(place), task
        self.key, self.notes = json.loads(json.dumps(task.key)), notes

    def __str__(self) -> str:
        return str(self.stored)

    def is_claimed(self) -> bool:
        """Whether a run has begun here. It is a `ValueError` if the folder is a file, or has other files, or rows of
        other settings."""
        text = self.stored.read(SETTINGS_FILE)
        if text is None:
            system, root = self.stored.find()
            require_no_files(str(self), system.isfile(root), self.stored.names())
            return False
        known = json.loads(text)
        known.pop("notes", None)
        require_same_settings(str(self), "rows", known, self.key)
        return True

    def claim(self) -> None:
        """Makes the folder, and notes the settings of its rows. Raises what `is_claimed` does."""
        if not self.is_claimed():
            with self.stored.writing(SETTINGS_FILE) as file:
                content = self.key if self.notes is None else self.key | {"notes": self.notes}
                file.write(json.dumps(content, indent=1, sort_keys=True).encode())

    def left(self, videos: Sequence[ListedVideo], *, retry_errors: bool = False, prune: bool = False) -> list[Todo]:
        """The videos whose rows are not all there. Rows of a file that has changed since are removed, and rows that
        are there twice; with `retry_errors` those of videos with an error, and with `prune` those of videos that are
        not among these. Refuses a video whose key is another's."""
        facts, contents = self.facts(), {each.id: content_of(each) for each in videos}
        paths = facts["key"].map({each.id: each.source for each in videos})
        if (others := facts[paths.notna() & (paths != facts["path"])]).size:
            key, known = others.iloc[0][["key", "path"]]
            raise ValueError(
                f"The output has {known} under the key {key!r}, which {paths[others.index[0]]} would have as well: "
                "choose another --output, or rename the video."
            )
        now = facts["key"].map(contents)
        is_stale = facts.duplicated(["key", "piece"]) | now.notna() & (now != facts["content"])
        if retry_errors:
            is_stale |= facts["key"].isin(facts["key"][facts["error"].notna()])
        if prune:
            is_stale |= paths.isna()
        self._remove(facts, is_stale)
        known_pieces = facts[~is_stale].groupby("key").agg(pieces=("piece", frozenset), ends=("is_last", "any"))
        found = {key: (pieces, ends) for key, pieces, ends in known_pieces.itertuples()}
        todo = []
        for video in videos:
            pieces, ends = found.get(video.id, (frozenset(), False))
            # Only one row says that it is the last one.
            if not ends or len(pieces) <= max(pieces):
                todo.append(Todo(video, contents[video.id], pieces))
        return todo

    def facts(self) -> pd.DataFrame:
        """The columns `FACTS` of all rows, and in `part` the file of each. A part that a process was writing when it
        died is removed, and its videos count as not done."""
        columns = [*FACTS.names, "__filename"]
        try:
            table = read_rows(self.stored, columns, FACTS)
        except pa.ArrowInvalid:
            for name in row_files(self.stored):
                self._remove_if_cut_off(name)
            table = read_rows(self.stored, columns, FACTS)
        return table.rename_columns([*FACTS.names, "part"]).to_pandas()

    def _remove_if_cut_off(self, name: str) -> None:
        try:
            with self.stored.open(name) as file:
                pq.read_metadata(file)
        except pa.ArrowInvalid as error:
            logger.warning(f"{self}/{name} is damaged, and its videos are done again: {error}")
            self.stored.remove(name)

    def _remove(self, facts: pd.DataFrame, is_stale: pd.Series) -> None:
        for path in facts["part"][is_stale].unique():
            name, is_kept = path.rsplit("/", 1)[-1], ~is_stale[facts["part"] == path]
            if is_kept.any():
                with self.stored.open(name) as file:
                    table = pq.read_table(file)
                self._write(table.filter(pa.array(is_kept)), name)
            else:
                self.stored.remove(name)

    def write(self, rows: Iterable[Row], part_size: int) -> None:
        """Writes a part after every `part_size` videos, and what is left at the end, also that of an error."""
        waiting: list[Row] = []
        num_videos = num_bytes = 0
        try:
            for row in rows:
                waiting.append(row)
                num_videos += row.is_last
                num_bytes += 0 if row.output is None else row.output.nbytes
                if num_videos == part_size or num_bytes >= _PART_BYTES:
                    done, waiting, num_videos, num_bytes = waiting, [], 0, 0
                    self._write(table_of(self.task, done))
        finally:
            if waiting:
                self._write(table_of(self.task, waiting))

    def _write(self, table: pa.Table, name: str | None = None) -> None:
        # A dictionary of floats, which seldom repeat, would take half of the time to read them.
        texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
        with self.stored.writing(name or f"part-{uuid4().hex}.parquet") as file:
            pq.write_table(table, file, use_dictionary=texts)


def read_detections(place: str | os.PathLike) -> dict[str, list[KeyFrame]]:
    """The key frames of each video in rows of `hf-video detect --engine`, by its path. A row is of one key frame; here
    the persons of a video get their tracks. Boxes are shares of width and height.

    Args:
        place: the folder of the rows, or its URL.

    Raises:
        ImportError: scipy, which finds the tracks, is not installed.
    """
    rows = read_rows(StoredFolder(place), ["path", "second", "persons"])
    by_time = rows.filter(rows["second"].is_valid()).sort_by([("path", "ascending"), ("second", "ascending")])
    found = {}
    for path, of_video in groupby(by_time.to_pylist(), itemgetter("path")):
        seconds, persons = zip(*((frame["second"], map(_person, frame["persons"])) for frame in of_video), strict=True)
        found[path] = with_tracks(seconds, [[*each] for each in persons])
    return found


def _person(entry: dict[str, Any]) -> Person:
    actions = dict(zip(entry["actions"], entry["action_scores"], strict=True))
    return Person(-1, entry["score"], tuple(entry[side] for side in ("x1", "y1", "x2", "y2")), actions)


def table_of(task: Task, rows: Sequence[Row]) -> pa.Table:
    """The rows as they are written."""
    schema = pa.schema([*FACTS, *task.columns])
    columns = []
    for todo, number, is_last, piece, output, error in rows:
        values = [None] * len(task.columns) if piece is None or output is None else task.values(piece, output)
        reason = None if error is None else reason_of(error)
        columns.append((todo.video.id, todo.video.source, todo.content, number, is_last, reason, *values))
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*columns, strict=True), schema, strict=True)]
    return pa.table(arrays, schema=schema)
