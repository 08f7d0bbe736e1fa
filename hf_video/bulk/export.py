"""A folder with one file a video, and a summary of them: arrays of features, or persons as JSON or CSV."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.format import write_array_header_1_0

from hf_video.inference.detection import as_csv, as_json, read_persons, thresholds_of
from hf_video.io import read_own_json, replace_text, replacing_file
from hf_video.loading.class_names import class_names_of
from hf_video.output_folders import RunLock
from hf_video.reading import VideoReadError, probe_video
from hf_video.reading.sources import kind_of

from .run import Row, Todo, by_video, content_of, run, telling_what_is_kept
from .settings_kept import reason_of, require_no_files, require_same_settings
from .tasks import Task, Windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.data.video_listing import ListedVideo
    from hf_video.inference.inference_settings import DetectSettings
    from hf_video.processing import VideoDetectionProcessor

SUMMARY_FILE = "features.json"
WRITERS = {".json": as_json, ".csv": as_csv}
ANNOTATED = ".annotated.mp4"
# A run that is killed does again what it did after the last summary.
_SECONDS_OF_SUMMARY = 10

Record = dict[str, Any]
# Writes a video, as `hf_video.drawing.annotate_detections`.
Annotate = Callable[..., object]


class DetectionResult(NamedTuple):
    """What a run has found, in the file or folder `place`: the videos without an error, old and new; the new ones, and
    their key frames and persons; the highest score of a person before the threshold, 0 if there is none; the
    threshold; and (video, reason) of the videos that failed."""

    place: str
    num_videos: int
    num_new: int
    num_key_frames: int
    num_persons: int
    highest: float
    person_threshold: float
    errors: list[tuple[str, str]]


class _NoFile(Exception):
    """Leaves a file unwritten."""


class VideoFiles:
    """A folder with files `FOLDER/ID.SUFFIX` of each video, which follow from a key, and a summary. Its `videos` has
    by the id of a video its `source`, and `content` or `error`."""

    def __init__(self, folder: Path, summary: str, suffixes: Sequence[str], task: Task, more: Record):
        self.folder, self.summary, self.suffixes, self.contents = folder, folder / summary, suffixes, task.quantity
        self.key: Record = json.loads(json.dumps(task.key | more))
        self.videos, self.failed, self._written = dict[str, Record](), dict[str, Record](), 0.0
        self.head: Callable[[], Record] = dict
        known = read_own_json(self.summary)
        if isinstance(known, dict) and isinstance(known.get("videos"), dict):
            require_same_settings(str(folder), self.contents, known.get("key", {}), self.key)
            self.videos = known["videos"]
        else:
            require_no_files(str(folder), folder.is_file(), [path.name for path in folder.glob("*")])

    def paths(self, video: ListedVideo) -> list[Path]:
        return [self.folder / f"{video.id}{suffix}" for suffix in self.suffixes]

    def left(self, videos: Sequence[ListedVideo]) -> list[Todo]:
        """The videos without files, or with those of another content. Refuses a video whose files are another's."""
        todo = []
        for video in videos:
            record, content = self.videos.get(video.id, {}), content_of(video)
            if (known := record.get("source", video.source)) != video.source:
                raise ValueError(
                    f"{self.folder} has {self.contents} of {known} under the name {video.id!r}, which {video.source} "
                    "would overwrite: choose another folder, or rename the video."
                )
            is_there = "error" not in record and all(path.is_file() for path in self.paths(video))
            if not is_there or record.get("content") != content:
                todo.append(Todo(video, content))
        return todo

    @contextmanager
    def writing(self, videos: Sequence[ListedVideo]) -> Iterator[list[Todo]]:
        """Gives the videos that are left, and writes the summary after the block, however it ends."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with RunLock() as lock:
            lock.take(self.folder)
            with telling_what_is_kept(self.contents, str(self.folder), len(videos), lambda: self.left(videos)):
                todo = self.left(videos)
                try:
                    self._write_summary()
                    yield todo
                finally:
                    self._write_summary()

    def note(self, todo: Todo, found: Record) -> None:
        """A video is done, or has an `error` and no files; those of one that is out of reach stay."""
        video = todo.video
        record: Record = {"source": video.source} | found
        if "error" in record:
            self.failed[video.id] = record
            if todo.content is None and video.id in self.videos:
                return
            for path in self.paths(video):
                path.unlink(missing_ok=True)
        else:
            record = record | {"content": todo.content}
        self.videos[video.id] = record
        if time.monotonic() - self._written > _SECONDS_OF_SUMMARY:
            self._write_summary()

    def _write_summary(self) -> None:
        # A line for each video: with `indent`, each of its times would have one.
        body = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(self.videos.items())
        )
        texts = {name: json.dumps(value) for name, value in self.head().items()}
        texts |= {"videos": f"{{\n{body}\n }}", "key": json.dumps(self.key)}
        lines = ",\n".join(f" {json.dumps(name)}: {value}" for name, value in texts.items())
        replace_text(self.summary, f"{{\n{lines}\n}}\n")
        self._written = time.monotonic()


def extract_to_folder(
    task: Task, model: PreTrainedModel, videos: Sequence[ListedVideo], folder: Path, windows: Windows, batch_size: int
) -> dict[str, Record]:
    """Writes the features of the windows of videos, `FOLDER/ID.npy` for the video `ID`, and `FOLDER/features.json`.

    The summary has what code for temporal localisation asks for: `feat_stride` and `num_frames` of a window in frames,
    `default_fps`, `input_dim` and `file_ext`; the settings; and for each video its `source`, `file`, `num_windows`,
    `fps`, and `starts` and `ends` of the windows in seconds. With `fps`, frames are counted at this rate. A video that
    cannot be read to its end has an `error` instead, and no file.

    Returns:
        What the summary says about each of these videos, by id.
    """
    fps, shape = windows["fps"], task.key["shape"]
    factor = windows["frame_sampling_rate"] if fps is None else 1
    files = VideoFiles(folder, SUMMARY_FILE, [".npy"], task, {"format": "npy"})

    def head() -> Record:
        rates = {record["fps"] for record in files.videos.values() if record.get("num_windows")}
        sizes = {"feat_stride": windows["stride"] * factor, "num_frames": windows["num_frames"] * factor}
        sizes["default_fps"] = (rates.pop() if len(rates) == 1 else None) if fps is None else fps
        return sizes | {"input_dim": shape[-1], "file_ext": ".npy"}

    files.head = head
    with files.writing(videos) as todo:
        rows = run(task, model, todo, batch_size, total=len(videos))
        for each, of_video in by_video(rows):
            (path,) = files.paths(each.video)
            record = _write_npy(path, of_video, shape)
            if "error" not in record:
                of_folder = windows["source_fps"] if kind_of(each.video.source) == "folder" else None
                rate = fps or of_folder or probe_video(each.video.open()).fps
                record = {"file": path.relative_to(folder).as_posix(), "fps": rate and round(rate, 6)} | record
            files.note(each, record)
    return {video.id: files.failed.get(video.id) or files.videos[video.id] for video in videos}


def _write_npy(path: Path, rows: Iterable[Row], shape: Sequence[int]) -> Record:
    """An array (num_windows, *shape) float32 of the windows of a video, as `numpy.load` reads it. Memory holds one
    batch."""
    times: list[tuple[float, float]] = []
    header: Record = {"descr": "<f4", "fortran_order": False, "shape": (0, *shape)}
    path.parent.mkdir(parents=True, exist_ok=True)
    error = None
    with suppress(_NoFile), replacing_file(path) as unfinished, open(unfinished, "wb") as file:
        write_array_header_1_0(file, header)
        for row in rows:
            error = error or row.error
            if error is None and row.piece is not None and row.output is not None:
                file.write(np.ascontiguousarray(row.output, dtype="<f4").data)
                times.append((row.piece.start, row.piece.end))
        if error is not None:
            raise _NoFile
        # NumPy leaves room in a header for any number of rows.
        file.seek(0)
        write_array_header_1_0(file, header | {"shape": (len(times), *shape)})
    if error is not None:
        return {"error": reason_of(error)}
    return {"num_windows": len(times), "starts": [start for start, _ in times], "ends": [end for _, end in times]}


def detect_to_files(
    task: Task,
    model: PreTrainedModel,
    processor: VideoDetectionProcessor,
    videos: Sequence[ListedVideo],
    output: Path,
    suffixes: Sequence[str],
    settings: DetectSettings,
    annotate: Annotate | None,
) -> DetectionResult:
    """Writes the persons of each video into a file of a folder, or those of one video into a file."""
    class_names, thresholds = class_names_of(model.config), thresholds_of(processor, settings)
    num_key_frames, num_persons, highest, num_new = 0, 0, 0.0, 0
    errors: list[tuple[str, str]] = []

    def write(todo: Todo, rows: Sequence[Row], paths: Sequence[Path]) -> Record:
        nonlocal num_key_frames, num_persons, highest, num_new
        video = todo.video
        try:
            if failed := [row.error for row in rows if row.error is not None]:
                raise failed[0]
            metadata, outputs = probe_video(video.open()), [row.output for row in rows if row.output is not None]
            seconds = [row.piece.start for row in rows if row.piece is not None]
            size = (metadata.height, metadata.width)
            frames = read_persons(seconds, outputs, class_names, size=size, **thresholds)
            paths[0].parent.mkdir(parents=True, exist_ok=True)
            if annotate is not None:
                rate = processor.fps if kind_of(video.source) == "folder" else None
                with replacing_file(paths[1]) as unfinished:
                    annotate(video.open(), unfinished, frames, source_fps=rate)
        except Exception as error:
            if not failed and not isinstance(error, VideoReadError):
                raise
            errors.append((video.source, reason_of(error)))
            return {"error": reason_of(error)}
        replace_text(paths[0], WRITERS[suffixes[0]](video.source, size, frames))
        num_new, num_key_frames = num_new + 1, num_key_frames + len(frames)
        num_persons += sum(len(each.persons) for each in frames)
        highest = max(highest, *(float(each[:, 0].max()) for each in outputs))
        return {}

    def rows_of(todo: Sequence[Todo]) -> Iterator[tuple[Todo, list[Row]]]:
        rows = run(task, model, todo, settings.batch_size, total=len(videos))
        return ((each, list(of_video)) for each, of_video in by_video(rows))

    if output.suffix == suffixes[0] and not output.is_dir():
        for each, rows in rows_of([Todo(videos[0])]):
            write(each, rows, [output.with_suffix(suffix) for suffix in suffixes])
    else:
        files = VideoFiles(output, ".detections.json", suffixes, task, {"format": settings.format})
        with files.writing(videos) as todo:
            for each, rows in rows_of(todo):
                files.note(each, write(each, rows, files.paths(each.video)))
    found = num_new, num_key_frames, num_persons, highest, thresholds["person_threshold"]
    return DetectionResult(str(output), len(videos) - len(errors), *found, errors)
