"""The files of a timeline: segments as JSON, CSV and WebVTT, and the table of scores over time."""

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hf_video.files import naming_disk_errors, replace_file, replace_text
from hf_video.inference.segments import Segment

from .drawable_text import one_line

# Rows of the table of scores that are held in memory until they are written.
_ROWS_IN_MEMORY = 1000
_COLUMNS = ("label", "start", "end", "score", "class_id")


class SegmentTable:
    """
    A CSV file of segments that grows while they are found, so that whatever ends the program leaves those before.

    Args:
        path: the file, which must not exist.

    Raises:
        OSError: the file exists, or writing failed. The error names the file.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._file = open(self.path, "x", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file)
        self._num_segments = 0
        try:
            self._write(_COLUMNS)
        except OSError:
            self.path.unlink()
            raise

    def add(self, segment: Segment) -> None:
        """Writes a segment, which is then in the file."""
        self._write(_row(segment))
        self._num_segments += 1

    def close(self) -> list[Segment]:
        """Closes the file, and returns its segments in the order in which they begin."""
        with suppress(OSError):  # every row was flushed: only one whose error is known already is left
            self._file.close()
        # A full disk may have torn a row after these.
        segments = islice(read_segment_table(self.path), self._num_segments)
        return sorted(segments, key=lambda segment: (segment.start, segment.end))

    def _write(self, row: Sequence[Any]) -> None:
        with naming_disk_errors(self.path):
            self._rows.writerow(row)
            self._file.flush()


def write_segment_table(path: str | os.PathLike, segments: Sequence[Segment]) -> None:
    """Writes all segments of a video as a [`SegmentTable`], which is replaced as a whole."""
    replace_file(path, partial(_write_rows, segments=segments))


def read_segment_table(path: str | os.PathLike) -> Iterator[Segment]:
    """The segments in a file of [`SegmentTable`]."""
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            times = (float(row[name]) for name in ("start", "end", "score"))
            yield Segment(int(row["class_id"]), row["label"], *times)


def segment_entry(segment: Segment) -> dict[str, Any]:
    """A segment as in ActivityNet's predictions, in milliseconds and millionths of a score."""
    times = [round(segment.start, 3), round(segment.end, 3)]
    return {"label": segment.label, "score": round(segment.score, 6), "segment": times}


def write_segments(
    path: str | os.PathLike, video: str, segments: Sequence[Segment], details: dict[str, Any] | None = None
) -> None:
    """
    Writes segments in the layout of ActivityNet's predictions:
    `{"version", "results": {VIDEO: [{"label", "score", "segment": [start, end]}]}, "external_data"}`.

    Args:
        path: the file, which is replaced as a whole.
        video: name of the video.
        segments: its segments.
        details: what else there is to say; it becomes `external_data`.
    """
    results = {video: [segment_entry(segment) for segment in segments]}
    content = {"version": "VERSION 1.3", "results": results, "external_data": details or {}}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    # A file name may have bytes that are no UTF-8. Python's escapes for them are those of JSON.
    replace_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8"))


def write_webvtt(path: str | os.PathLike, segments: Sequence[Segment], notes: Sequence[str] = ()) -> None:
    """
    Writes segments as subtitles, which players show over the video.

    Args:
        path: the file, which is replaced as a whole.
        segments: in the order in which they begin, as WebVTT demands.
        notes: comments at the start of the file.
    """
    # An arrow would end a comment, and a blank line would end a cue.
    blocks = ["WEBVTT", *(f"NOTE {one_line(note).replace('-->', '->')}" for note in notes)]
    for segment in segments:
        start, end = round(segment.start * 1000), round(segment.end * 1000)
        text = one_line(segment.label).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        cue = f"{_cue_time(start)} --> {_cue_time(max(end, start + 1))}"
        blocks.append(f"{cue}\n{text} ({segment.score:.0%})")
    replace_text(path, "\n\n".join(blocks) + "\n")


class ScoreTable:
    """
    A Parquet file of scores over time, written in parts: memory holds the last thousand windows. Its columns are
    `start` and `end` of a window in seconds, and `score: NAME` for each class.

    Args:
        path: the file, which must not exist. It is there after `close`.
        class_names: name of each class, in the order of the scores.

    Raises:
        OSError: writing failed. The error names the file.
    """

    def __init__(self, path: str | os.PathLike, class_names: Sequence[str]):
        import pyarrow as pa
        from pyarrow import parquet

        self.path = Path(path)
        fields = [("start", pa.float64()), ("end", pa.float64())]
        self._schema = pa.schema(fields + [(name, pa.float32()) for name in _score_columns(class_names)])
        self._unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}.rows.partial")
        self._rows: list[tuple[float, float, np.ndarray]] = []
        with naming_disk_errors(self.path):
            self._writer = parquet.ParquetWriter(self._unfinished, self._schema)

    def add(self, start: float, end: float, scores: np.ndarray) -> None:
        """Adds a window and its scores (num_classes,)."""
        self._rows.append((start, end, scores))
        if len(self._rows) == _ROWS_IN_MEMORY:
            self._write_rows()

    def close(self, details: dict[str, Any]) -> None:
        """Completes the file, with `details` as JSON in its metadata under `hf_video`."""
        try:
            self._write_rows()
            with naming_disk_errors(self.path):
                self._writer.add_key_value_metadata({"hf_video": json.dumps(details)})
                self._writer.close()
                replace_file(self.path, lambda unfinished: os.replace(self._unfinished, unfinished))
        finally:
            self._unfinished.unlink(missing_ok=True)

    def _write_rows(self) -> None:
        import pyarrow as pa

        rows, self._rows = self._rows, []
        if rows:
            starts, ends, scores = zip(*rows, strict=True)
            columns = [np.array(starts), np.array(ends), *np.stack(scores).astype(np.float32).T]
            with naming_disk_errors(self.path):
                self._writer.write_table(pa.table(columns, schema=self._schema))


def read_scores(
    path: str | os.PathLike, class_ids: Sequence[int]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The starts (num_windows,), ends (num_windows,) and scores (num_windows, len(class_ids)) in a file of
    [`ScoreTable`], a part after another."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = [file.schema_arrow.names[index] for index in (0, 1, *(index + 2 for index in class_ids))]
        for batch in file.iter_batches(_ROWS_IN_MEMORY, columns=names):
            starts, ends, *scores = (batch.column(name).to_numpy() for name in names)
            yield starts, ends, np.stack(scores, axis=1) if scores else np.empty((len(starts), 0))


def _score_columns(class_names: Sequence[str]) -> list[str]:
    """The names of the columns; classes of one name are told apart by their numbers."""
    times = Counter(class_names)
    return [
        f"score: {name}" + (f" (class {index})" if times[name] > 1 else "") for index, name in enumerate(class_names)
    ]


def _row(segment: Segment) -> tuple[str, str, str, str, int]:
    times = f"{segment.start:.3f}", f"{segment.end:.3f}", f"{segment.score:.6f}"
    return (segment.label, *times, segment.class_id)


def _write_rows(path: Path, segments: Sequence[Segment]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([_COLUMNS, *map(_row, segments)])


def _cue_time(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}.{rest:03d}"
