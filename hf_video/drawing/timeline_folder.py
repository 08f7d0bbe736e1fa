"""The folder of a timeline: segments as JSON, CSV and WebVTT, scores over time, a picture."""

import csv
import importlib.util
import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_video.inference.prediction import ScoredWindow
from hf_video.inference.segments import Segment, SegmentFinder
from hf_video.io import naming_disk_errors, replace_file, replace_text
from hf_video.processing import VideoClipProcessor

from .texts import clock, one_line, replace_json
from .timeline_picture import Thumbnails, draw_timeline, save_figure

_COLUMNS = ("label", "start", "end", "score", "class_id")
logger = logging.getLogger(__name__)

# The segments are written last: with them a timeline is complete.
MARK = "segments.json"
_OTHER_FILES = ("segments.csv", "segments.vtt", "scores.parquet", "timeline.png")


def segment_entry(segment: Segment) -> dict[str, Any]:
    """A segment as in ActivityNet's predictions, in milliseconds and millionths of a score."""
    times = [round(segment.start, 3), round(segment.end, 3)]
    return {"label": segment.label, "score": round(segment.score, 6), "segment": times}


def write_segments(
    path: str | os.PathLike, video: str, segments: Sequence[Segment], details: dict[str, Any] | None = None
) -> None:
    """Writes the segments of a video in the layout of ActivityNet's predictions: `{"version", "results": {VIDEO:
    [{"label", "score", "segment": [start, end]}]}, "external_data": details}`."""
    results = {video: [segment_entry(segment) for segment in segments]}
    replace_json(path, {"version": "VERSION 1.3", "results": results, "external_data": details or {}})


def write_webvtt(path: str | os.PathLike, segments: Sequence[Segment], notes: Sequence[str] = ()) -> None:
    """Writes segments, in the order in which they begin, as subtitles, which players show over the video; the notes
    are comments at the start."""
    # An arrow would end a comment, and a blank line would end a cue.
    blocks = ["WEBVTT", *(f"NOTE {one_line(note).replace('-->', '->')}" for note in notes)]
    for segment in segments:
        start = round(segment.start * 1000)
        times = (f"{clock(ticks / 1000, 3):0>12}" for ticks in (start, max(round(segment.end * 1000), start + 1)))
        text = one_line(segment.label).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{' --> '.join(times)}\n{text} ({segment.score:.0%})")
    replace_text(path, "\n\n".join(blocks) + "\n")


def _row(segment: Segment) -> tuple[str, str, str, str, int]:
    times = f"{segment.start:.3f}", f"{segment.end:.3f}", f"{segment.score:.6f}"
    return (segment.label, *times, segment.class_id)


class TimelineFolder:
    """
    Writes a timeline into a folder: `segments.csv` while windows come, and at the end `segments.json`, `segments.vtt`,
    `scores.parquet` and, with matplotlib, `timeline.png`. Until then memory holds the segments and the scores of all
    windows: a stream without an end is cut into parts of a day.

    Args:
        folder: a folder that does not exist or is empty; its parents are made.
        video: name of the video.
        finder: what finds the segments.
        processor: prepared the windows. Its normalisation is undone for the picture.

    Raises:
        OSError: there are such files, or writing failed, which leaves no file.
    """

    def __init__(
        self, folder: str | os.PathLike, video: str, finder: SegmentFinder, processor: VideoClipProcessor
    ) -> None:
        self.folder, self.video, self.class_names = Path(folder), video, finder.class_names
        self.end = 0.0
        self._processor = processor
        self._times: list[tuple[float, float]] = []
        self._scores: list[np.ndarray] = []
        self._thumbnails = Thumbnails()
        self._is_new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._segments: list[Segment] = []
        self._table = open(self.folder / "segments.csv", "x", encoding="utf-8", newline="")
        try:
            self._write_rows(_COLUMNS)
        except Exception:
            self.remove()
            raise

    def add_window(self, window: ScoredWindow) -> None:
        """Keeps the scores of a window, and now and then a picture."""
        self._times.append((window.start, window.end))
        self._scores.append(window.scores)
        self.end = window.end
        if self._thumbnails.wants_next():
            middle = len(window.clip) // 2
            self._thumbnails.add((window.start + window.end) / 2, _to_picture(window.clip[middle], self._processor))

    def add_segment(self, segment: Segment) -> None:
        """Keeps a segment, which is then in the file, whatever ends the program."""
        self._segments.append(segment)
        self._write_rows(_row(segment))

    def finish(self, details: dict[str, Any], ending: str | None = None) -> list[Segment]:
        """
        Writes what is left, and returns the segments in the order in which they begin.

        Args:
            details: what else `segments.json` is to say, such as the model.
            ending: why the timeline ends before the video does.

        Raises:
            Exception: the first that writing a file raised. The other files are written all the same.
        """
        details = {"duration": round(self.end, 3), "is_complete": ending is None, **details}
        notes = []
        if ending is not None:
            details["ended_by"] = ending
            notes = [f"The timeline ends at {clock(self.end)}, before the video does: {ending}"]
        segments = sorted(self._segments, key=lambda segment: (segment.start, segment.end))
        steps = (
            partial(self._replace_table, segments),
            partial(write_webvtt, self.folder / "segments.vtt", segments, notes),
            partial(replace_file, self.folder / "scores.parquet", partial(self._write_scores, details=details)),
            partial(self._draw, segments, ending),
            partial(write_segments, self.folder / MARK, self.video, segments, details),
        )
        errors: list[Exception] = []
        for step in steps:
            try:
                step()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return segments

    @property
    def is_complete(self) -> bool:
        """Whether the segments are kept, up to the end of the video or up to an error."""
        return (self.folder / MARK).exists()

    def remove(self) -> None:
        """Removes the files, and the folder if this object made it, so that the same command can be run again."""
        self._close_table()
        for name in (MARK, *_OTHER_FILES):
            (self.folder / name).unlink(missing_ok=True)
        if self._is_new:
            with suppress(OSError):  # the user has put a file into it
                self.folder.rmdir()

    def _write_rows(self, *rows: Sequence[Any]) -> None:
        with naming_disk_errors(self._table.name):
            csv.writer(self._table).writerows(rows)
            self._table.flush()

    def _close_table(self) -> None:
        with suppress(OSError):  # every row was flushed: an error is known already
            self._table.close()

    def _replace_table(self, segments: list[Segment]) -> None:
        """Writes the table again, in the order in which segments begin. A full disk may have torn a row."""
        self._close_table()

        def write(path: Path) -> None:
            with open(path, "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([_COLUMNS, *map(_row, segments)])

        replace_file(self.folder / "segments.csv", write)

    def _write_scores(self, path: Path, details: dict[str, Any]) -> None:
        """Writes a table with `start` and `end` of each window in seconds, and `score: NAME` for each class. The
        details are JSON in its metadata, under `hf_video`."""
        import pyarrow as pa
        from pyarrow import parquet

        names, count = ["start", "end"], Counter(self.class_names)
        # Classes of one name are told apart by their numbers.
        names += [f"score: {name}{f' (class {id})' * (count[name] > 1)}" for id, name in enumerate(self.class_names)]
        times, scores = self._windows()
        columns = [*np.ascontiguousarray(times.T), *np.ascontiguousarray(scores.T)]
        parquet.write_table(pa.table(columns, names, metadata={"hf_video": json.dumps(details)}), path)

    def _windows(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and end (num_windows, 2) float64 and scores (num_windows, num_classes) float32 of all windows."""
        scores = np.array(self._scores, np.float32).reshape(-1, len(self.class_names))
        return np.array(self._times, np.float64).reshape(-1, 2), scores

    def _draw(self, segments: list[Segment], ending: str | None) -> None:
        if not self._times:
            return
        if importlib.util.find_spec("matplotlib") is None:
            logger.warning("There is no timeline.png: matplotlib is missing (pip install 'hf-video-models[demo]').")
            return
        pictures = self._thumbnails.pictures
        figure = draw_timeline(self.video, segments, self.class_names, *self._windows(), pictures, ending)
        replace_file(self.folder / "timeline.png", partial(save_figure, figure))


def _to_picture(frame: torch.Tensor, processor: VideoClipProcessor) -> np.ndarray:
    """(height, width, 3) uint8 for a frame (num_channels, height, width) as a model takes it."""
    picture = frame.float().movedim(0, -1).cpu().numpy()
    if processor.do_normalize:
        picture = picture * np.array(processor.image_std) + np.array(processor.image_mean)
    return np.round(picture.clip(0, 1) * 255).astype(np.uint8)
