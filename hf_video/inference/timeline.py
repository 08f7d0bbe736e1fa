"""Finds when a video shows which class, and writes it into a folder: `hf-video timeline` for programs. Nothing here
draws."""

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from transformers.utils import logging

from hf_video.data.annotations import write_annotations
from hf_video.data.annotations.new import SUFFIXES, write_new_annotations
from hf_video.data.folders import absolute
from hf_video.io import replace_file, replace_text
from hf_video.loading.class_names import background_of, class_names_of
from hf_video.loading.configurations import load_config
from hf_video.loading.models import load_trained_model, require_model
from hf_video.output_folders import KEEP, require_fresh
from hf_video.reading.frame_streaming import comes_live
from hf_video.reading.live_queue import LiveQueue
from hf_video.reading.sources import name_of, public_url
from hf_video.texts import clock, one_line, replace_json

from .inference_settings import TimelineSettings
from .scores import ScoredWindow, is_frame_classifier, score_frames, score_windows
from .segments import Segment, SegmentFinder, make_finder
from .windows import windows_of

logger = logging.get_logger(__name__)

# Seconds without a frame of a live stream after which a model that sees frames once begins anew.
_LONGEST_GAP = 2.0
# Frames of a live stream that may wait for the model.
_MOST_WAITING = 8
_THRESHOLDS = ("onset", "offset", "min_duration_on", "min_duration_off", "background")
# Thumbnails that are held at most, their longest side in pixels, and seconds between the first of them.
_MOST_THUMBNAILS, _LONGEST_SIDE, _FIRST_STEP = 48, 256, 0.25


class ClassChange(NamedTuple):
    """The begin or the end of a segment in a live video, or an instant, which only begins: seconds after the first
    frame; the seconds from then until it is known, None for an end at which the video ended, was stopped or had a gap;
    and the segment, as far as it is known."""

    time: float
    begins: bool
    delay: float | None
    segment: Segment


class Timeline:
    """What a video shows over time. It grows with the windows of the video, and so does `segments.csv` in its folder.

    Args:
        finder: finds the segments.
        video: name of the video.
        folder: a new or empty folder, which is made with the first window, with its parents.
        is_kept: whether segments, times, scores and thumbnails are kept. Otherwise memory does not grow with a video
            without an end, and nothing can be written or drawn.
        path: where the video is, for `segments.csv`; by default its name.

    Attributes:
        num_segments, segments: the segments in the order in which they end; after `write` in that in which they begin.
        highest: the highest score of each class, (num_classes,) float.
        end: seconds of the video that the windows reached.
        times, scores: start and end of each window in seconds, and its scores (num_classes,) float32.
        thumbnails: seconds and small pictures (height, width, 3) uint8 of frames at about even times.
        ending: why the timeline ends before the video does; None if it does not.
        live: of a live video over which no window slides, how many token frames came (`num_frames`) and were dropped
            (`num_dropped`), as the model was slower.
    """

    def __init__(
        self,
        finder: SegmentFinder,
        video: str,
        folder: str | os.PathLike | None = None,
        is_kept: bool = True,
        path: str = "",
    ) -> None:
        self.finder, self.video, self.folder = finder, video, None if folder is None else Path(folder)
        self.is_kept, self.path = is_kept, path or video
        self.num_segments, self.end, self.highest = 0, 0.0, np.zeros(len(finder.class_names))
        self.segments: list[Segment] = []
        self.times: list[tuple[float, float]] = []
        self.scores: list[np.ndarray] = []
        self.thumbnails: list[tuple[float, np.ndarray]] = []
        self.ending: str | None = None
        self.live: dict[str, int] | None = None
        self._step = _FIRST_STEP

    def watch(self, seconds: float, image: np.ndarray) -> None:
        """Keeps a small picture of a frame (height, width, 3) uint8 now and then. If there are too many, every second
        one is dropped."""
        if not self.is_kept or seconds < len(self.thumbnails) * self._step:
            return
        factor = -(-max(image.shape) // _LONGEST_SIDE)
        self.thumbnails.append((seconds, np.asarray(Image.fromarray(image).reduce(factor))))
        if len(self.thumbnails) == _MOST_THUMBNAILS:
            del self.thumbnails[1::2]
            self._step *= 2

    def add(self, window: ScoredWindow) -> list[Segment]:
        """The segments that are complete with the next window, see [`SegmentFinder.add`]. They are in the file then,
        whatever ends the program."""
        if self.folder is not None and not self.end:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_rows(self.folder / "segments.csv", [])
        closed = self.finder.add(*window[:4])
        np.maximum(self.highest, window.scores, out=self.highest)
        self.end = window.end
        if self.is_kept:
            self.times.append((window.start, window.end))
            self.scores.append(window.scores)
        return self._keep(closed)

    def finish(self) -> list[Segment]:
        """The segments that are left, after the last window."""
        return self._keep(self.finder.finish())

    def write(self, details: dict[str, Any], with_subtitles: bool = True) -> None:
        """Writes `segments.csv`, `segments.vtt`, `scores.parquet` and `segments.json`, with the details, such as the
        model."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        details, notes = {"duration": round(self.end, 3), "is_complete": self.ending is None, **details}, []
        if self.ending is not None:
            details["ended_by"] = self.ending
            notes = [f"The timeline ends at {clock(self.end)}, before the video does: {self.ending}"]
        self.segments.sort(key=lambda segment: (segment.start, segment.end))
        replace_file(self.folder / "segments.csv", partial(self._write_rows, segments=self.segments))
        write_segments(self.folder / "segments.json", self.video, self.segments, details)
        if with_subtitles:
            write_webvtt(self.folder / "segments.vtt", self.segments, notes)
        replace_file(self.folder / "scores.parquet", partial(self._write_scores, details=details))

    def _keep(self, closed: list[Segment]) -> list[Segment]:
        self.num_segments += len(closed)
        self.segments += closed if self.is_kept else []
        if self.folder is not None and closed:
            self._write_rows(self.folder / "segments.csv", closed, "a")
        return closed

    def _write_rows(self, path: Path, segments: Sequence[Segment], mode: str = "w") -> None:
        with open(path, mode, encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            if mode == "w":
                table.writerow(("path", *Segment._fields))
            for label, start, end, score, class_id in segments:
                table.writerow((self.path, label, f"{start:.3f}", f"{end:.3f}", f"{score:.6f}", class_id))

    def _write_scores(self, path: Path, details: dict[str, Any]) -> None:
        """Writes a table with `start` and `end` of each window in seconds, and `score: NAME` for each class. The
        details are JSON in its metadata, under `hf_video`."""
        import pyarrow as pa
        from pyarrow import parquet

        classes = self.finder.class_names
        names, count = ["start", "end"], Counter(classes)
        # Classes of one name are told apart by their numbers.
        names += [f"score: {name}{f' (class {id})' * (count[name] > 1)}" for id, name in enumerate(classes)]
        times = np.array(self.times, np.float64).reshape(-1, 2)
        scores = np.array(self.scores, np.float32).reshape(-1, len(classes))
        columns = [*np.ascontiguousarray(times.T), *np.ascontiguousarray(scores.T)]
        parquet.write_table(pa.table(columns, names, metadata={"hf_video": json.dumps(details)}), path)


def make_timeline(
    settings: TimelineSettings,
    tell: Callable[[Any], object] = lambda found: None,
    until_stopped: Callable[[Iterator[ScoredWindow]], Iterable[ScoredWindow]] = iter,
    draw: Callable[[Timeline], object] = lambda timeline: None,
    is_kept: bool = True,
) -> Timeline:
    """Finds when a video shows which class, and writes the files of `hf-video timeline`, but for the pictures.

    Args:
        settings: those of the command.
        tell: is called with each segment as soon as it is complete. Of a live video over which no window slides, it is
            called with each [`ClassChange`] instead.
        until_stopped: gives the windows up to the moment when a user stops them.
        draw: adds pictures to the folder, after the other files: see [`draw_timeline`][hf_video.drawing.draw_timeline]
            and [`annotate_video`][hf_video.drawing.annotate_video].
        is_kept: see [`Timeline`]. Without it, memory does not grow with the video; the folder needs it.

    Raises:
        ValueError, OSError, ImportError: a setting cannot be used, there is no such model or address, or the video is
            damaged: then after all files are written.
    """
    if settings.output is not None:
        require_fresh(Path(settings.output), KEEP, option="--output")
    is_project = settings.annotations is not None or settings.format in SUFFIXES
    if is_project and not (settings.output and Path(settings.video).is_file()):
        raise ValueError("--annotations and --format of a tool need --output DIR, and a video file on this machine.")
    if settings.annotations is not None:
        with TemporaryDirectory() as folder:  # what cannot be written is refused before the model is loaded
            config = load_config(require_model(settings.model))
            background = background_of(config) if settings.background is None else settings.background
            classes = (name for name in class_names_of(config) if name not in background)
            _write_project(settings, [Segment(name, 0.0, 0.1) for name in classes], Path(folder))
    is_live = comes_live(settings.video)
    computing = {"device": settings.device, "dtype": settings.dtype}
    model, processor = load_trained_model(settings.model, part="any classifier", **computing)
    thresholds = {name: getattr(settings, name) for name in _THRESHOLDS}
    finder, of_frames = make_finder(model, **thresholds), is_frame_classifier(model)
    windows = windows_of(settings, processor, of_frames)
    if of_frames:
        windows["longest_gap"] = settings.longest_gap or (_LONGEST_GAP if is_live else None)
    elif settings.longest_gap is not None:
        raise ValueError(
            f"--longest-gap {settings.longest_gap:g} is for classifiers of frames; {settings.model} is one of clips: "
            "leave it out."
        )
    elif (unseen := windows["stride"] - windows["num_frames"]) > 0:
        logger.warning(
            f"{unseen} of every {windows['stride']} samples are in no window; a border among them is estimated from "
            "the windows around it. Choose a --stride of at most --window to look at all of them."
        )
    queue: LiveQueue | None = LiveQueue(_MOST_WAITING) if is_live and of_frames else None
    path = public_url(absolute(settings.video))
    found = Timeline(finder, name_of(settings.video), settings.output, is_kept, path)
    options = {"batch_size": settings.batch_size or (1 if is_live else 8), "watch": found.watch, **windows}
    score = partial(score_frames, queue=queue) if of_frames else score_windows
    scored = score(model, processor, settings.video, **options)
    begun, failure = set[tuple[int, float]](), list[Exception]()
    found.ending = "a signal stopped it"

    def watched() -> Iterator[ScoredWindow]:
        yield from scored
        found.ending = None

    def give(closed: list[Segment], is_cut: bool) -> None:
        for each in closed if queue is None else _changes(closed, finder, begun, queue, is_cut):
            tell(each)

    try:
        for window in until_stopped(watched()):
            give(found.add(window), window.begins_anew)
        give(found.finish(), is_cut=True)
    # Such as damage of the video: what was found is told and kept first.
    except Exception as error:
        if not found.end:
            raise
        failure.append(error)
        found.ending = str(error) or type(error).__name__
        with suppress(BrokenPipeError):
            give(found.finish(), is_cut=True)
    if found.ending is not None and not found.end:
        return found
    details = {"model": settings.model, **thresholds, "background": finder.background, **windows}
    if queue is not None:
        details["live"] = found.live = {"num_frames": queue.num_items, "num_dropped": queue.num_dropped}
    found.write(details, with_subtitles=settings.format == "vtt")
    if found.folder is not None:
        _write_project(settings, found.segments, found.folder)
    draw(found)
    if failure:
        raise failure[0]
    return found


def _write_project(settings: TimelineSettings, segments: Sequence[Segment], folder: Path) -> None:
    """Writes a copy of the annotation file, or a new one. Without a segment there is nothing to add."""
    video = Path(settings.video).absolute()
    rows = [{"media": str(video), "class": each.label, **each._asdict()} for each in segments]
    if rows and settings.annotations is not None:
        source = Path(settings.annotations)
        write_annotations(source, rows, folder / source.name, video.parent)
    if rows and settings.format in SUFFIXES:
        write_new_annotations(settings.format, rows, folder / f"segments{SUFFIXES[settings.format]}")


def _changes(
    closed: list[Segment], finder: SegmentFinder, begun: set[tuple[int, float]], queue: LiveQueue, is_cut: bool
) -> list[ClassChange]:
    """The begins and ends that are known after a window, in their order, from the segments that it completed, and
    those of which a begin was told. `is_cut` says that they ended as the video did, or had a gap."""
    found = list[ClassChange]()
    for segment in [*closed, *finder.open_segments]:
        key = segment.class_id, segment.start
        if key not in begun:
            found.append(ClassChange(segment.start, True, queue.seconds - segment.start, segment))
            begun.add(key)
        if segment in closed and not segment.is_point:
            delay = None if is_cut else queue.seconds - segment.end
            found.append(ClassChange(segment.end, False, delay, segment))
        if segment in closed:
            begun.discard(key)
    # At one moment a class ends before another begins.
    return sorted(found, key=lambda change: change[:2])


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
        end = max(round(segment.shown_until * 1000), start + 1)
        times = (f"{clock(ticks / 1000, 3):0>12}" for ticks in (start, end))
        text = one_line(segment.label).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{' --> '.join(times)}\n{text} ({segment.score:.0%})")
    replace_text(path, "\n\n".join(blocks) + "\n")
