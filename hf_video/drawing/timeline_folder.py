"""The folder of a timeline: segments as JSON, CSV and WebVTT, scores over time, a picture. It grows with the video."""

import csv
import importlib.util
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_video.inference.segments import ScoredWindow, Segment, SegmentFinder
from hf_video.io import naming_disk_errors, replace_file, replace_text
from hf_video.processing import VideoClipProcessor

from .texts import clock, one_line
from .timeline_picture import ScoreTable, Thumbnails, draw_timeline, save_figure

_COLUMNS = ("label", "start", "end", "score", "class_id")
logger = logging.getLogger(__name__)

# The segments are written last: with them a timeline is complete.
MARK = "segments.json"
_OTHER_FILES = ("segments.csv", "segments.vtt", "scores.parquet", "timeline.png")


class SegmentTable:
    """A CSV file of segments that grows while they are found, so that whatever ends the program leaves those before.
    The file must not exist; a failed write names it."""

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
    """Writes the segments of a video in the layout of ActivityNet's predictions: `{"version", "results": {VIDEO:
    [{"label", "score", "segment": [start, end]}]}, "external_data": details}`."""
    results = {video: [segment_entry(segment) for segment in segments]}
    content = {"version": "VERSION 1.3", "results": results, "external_data": details or {}}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    # A file name may have bytes that are no UTF-8. Python's escapes for them are those of JSON.
    replace_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8"))


def write_webvtt(path: str | os.PathLike, segments: Sequence[Segment], notes: Sequence[str] = ()) -> None:
    """Writes segments, in the order in which they begin, as subtitles, which players show over the video; the notes
    are comments at the start."""
    # An arrow would end a comment, and a blank line would end a cue.
    blocks = ["WEBVTT", *(f"NOTE {one_line(note).replace('-->', '->')}" for note in notes)]
    for segment in segments:
        start, end = round(segment.start * 1000), round(segment.end * 1000)
        text = one_line(segment.label).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        cue = f"{_cue_time(start)} --> {_cue_time(max(end, start + 1))}"
        blocks.append(f"{cue}\n{text} ({segment.score:.0%})")
    replace_text(path, "\n\n".join(blocks) + "\n")


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


class TimelineFolder:
    """
    Writes a timeline into a folder: `segments.csv` and `scores.parquet` while windows come, and at the end
    `segments.json`, `segments.vtt` and, with matplotlib, `timeline.png`. Until then memory does not grow with the
    video.

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
        self._num_windows = 0
        self._thumbnails = Thumbnails()
        self._is_new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._segments = SegmentTable(self.folder / "segments.csv")
        try:
            self._scores = ScoreTable(self.folder / "scores.parquet", self.class_names)
        except Exception:
            self.remove()
            raise

    def add_window(self, window: ScoredWindow) -> None:
        """Keeps the scores of a window, and now and then a picture."""
        self._scores.add(window.start, window.end, window.scores)
        self.end = window.end
        self._num_windows += 1
        if self._thumbnails.wants_next():
            middle = len(window.clip) // 2
            self._thumbnails.add((window.start + window.end) / 2, _to_picture(window.clip[middle], self._processor))

    def add_segment(self, segment: Segment) -> None:
        """Keeps a segment."""
        self._segments.add(segment)

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
        segments = self._segments.close()
        steps = (
            partial(write_segment_table, self.folder / "segments.csv", segments),
            partial(write_webvtt, self.folder / "segments.vtt", segments, notes),
            partial(self._scores.close, details),
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
        self._segments.close()
        for name in (MARK, *_OTHER_FILES):
            (self.folder / name).unlink(missing_ok=True)
        for path in self.folder.glob(".scores.parquet.*.partial"):
            path.unlink()
        if self._is_new:
            with suppress(OSError):  # the user has put a file into it
                self.folder.rmdir()

    def _draw(self, segments: list[Segment], ending: str | None) -> None:
        if not self._num_windows:
            return
        if importlib.util.find_spec("matplotlib") is None:
            logger.warning("There is no timeline.png: matplotlib is missing (pip install 'hf-video-models[demo]').")
            return
        scores, pictures = self.folder / "scores.parquet", self._thumbnails.pictures
        figure = draw_timeline(self.video, segments, self.class_names, scores, pictures, ending)
        replace_file(self.folder / "timeline.png", partial(save_figure, figure))


def _to_picture(frame: torch.Tensor, processor: VideoClipProcessor) -> np.ndarray:
    """(height, width, 3) uint8 for a frame (num_channels, height, width) as a model takes it."""
    picture = frame.float().movedim(0, -1).cpu().numpy()
    if processor.do_normalize:
        picture = picture * np.array(processor.image_std) + np.array(processor.image_mean)
    return np.round(picture.clip(0, 1) * 255).astype(np.uint8)
