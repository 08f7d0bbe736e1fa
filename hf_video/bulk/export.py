"""A folder with one file a video, and a summary of them: arrays of features, or persons as JSON or CSV."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.format import write_array_header_1_0

from hf_video.inference.detection import WRITERS, read_persons, thresholds_of
from hf_video.inference.windows import Piece
from hf_video.io import read_own_json, replace_text, replacing_file
from hf_video.loading.class_names import class_names_of
from hf_video.output_folders import RunLock
from hf_video.reading import VideoReadError, probe_video
from hf_video.reading.sources import kind_of

from . import run as running
from .run import Row, Todo
from .tasks import Task, Windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.data.video_listing import ListedVideo
    from hf_video.inference.inference_settings import DetectSettings
    from hf_video.processing import VideoDetectionProcessor

ANNOTATED = ".annotated.mp4"
# A run that is killed does again what it did after the last summary.
_SECONDS_OF_SUMMARY = 10

Record = dict[str, Any]
# Writes the files of a video from its pieces, and gives what there is to say of it.
Write = Callable[["ListedVideo", Iterator[tuple[Piece, np.ndarray]], Sequence[Path]], Record]
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


class VideoFiles:
    """A folder with files `FOLDER/ID.SUFFIX` of each video, which follow from a key, and a summary. Its `videos` has
    by the id of a video its `source`, and `content` or `error`; `head` gives what the summary says besides."""

    def __init__(self, folder: Path, summary: str, suffixes: Sequence[str], task: Task, form: str):
        self.folder, self.summary, self.suffixes, self.task = folder, folder / summary, suffixes, task
        self.key: Record = json.loads(json.dumps(task.key | {"format": form}))
        self.videos = dict[str, Record]()
        self.head: Callable[[], Record] = dict
        if (known := read_own_json(self.summary)) is None:
            running.require_no_files(str(folder), folder.is_file(), [path.name for path in folder.glob("*")])
        else:
            running.require_same_settings(str(folder), task.quantity, known.get("key", {}), self.key)
            self.videos = known["videos"]

    def fill(
        self, model: PreTrainedModel, videos: Sequence[ListedVideo], batch_size: int, write: Write
    ) -> dict[str, Record]:
        """Writes the files of videos that are not there, and the summary, also after an error. Gives what there is to
        say of the videos that were read, by id."""
        found: dict[str, Record] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = self.task.quantity, str(self.folder), len(videos), lambda: self._left(videos)
        with RunLock() as lock, running.telling_what_is_kept(*kept):
            lock.take(self.folder)
            todo = self._left(videos)
            written = self._write_summary()
            try:
                for each, rows in running.by_video(running.run(self.task, model, todo, batch_size, total=len(videos))):
                    video, content, _ = each
                    record = found[video.id] = write_video(write, video, rows, self._paths(video))
                    if "error" in record and content is None and video.id in self.videos:
                        continue  # it is out of reach, and its files stay
                    self.videos[video.id] = record | ({} if "error" in record else {"content": content})
                    for path in self._paths(video) if "error" in record else ():
                        path.unlink(missing_ok=True)
                    if time.monotonic() - written > _SECONDS_OF_SUMMARY:
                        written = self._write_summary()
            finally:
                self._write_summary()
        return found

    def _paths(self, video: ListedVideo) -> list[Path]:
        return [self.folder / f"{video.id}{suffix}" for suffix in self.suffixes]

    def _left(self, videos: Sequence[ListedVideo]) -> list[Todo]:
        """The videos without files, or with those of another content. Refuses a video whose files are another's."""
        todo = []
        for video in videos:
            record, content = self.videos.get(video.id, {}), running.content_of(video)
            if (known := record.get("source", video.source)) != video.source:
                raise ValueError(
                    f"{self.folder} has {self.task.quantity} of {known} under the name {video.id!r}, which "
                    f"{video.source} would overwrite: choose another folder, or rename the video."
                )
            is_there = "error" not in record and all(path.is_file() for path in self._paths(video))
            if not is_there or record.get("content") != content:
                todo.append(Todo(video, content))
        return todo

    def _write_summary(self) -> float:
        content = self.head() | {"videos": dict(sorted(self.videos.items())), "key": self.key}
        replace_text(self.summary, json.dumps(content) + "\n")
        return time.monotonic()


def write_video(write: Write, video: ListedVideo, rows: Iterator[Row], paths: Sequence[Path]) -> Record:
    """What `write` says of a video and its files, or the `error` of one that cannot be read."""

    def pieces() -> Iterator[tuple[Piece, np.ndarray]]:
        for row in rows:
            if row.error is not None:
                raise VideoReadError(running.reason_of(row.error))
            if row.piece is not None and row.output is not None:
                yield row.piece, row.output

    paths[0].parent.mkdir(parents=True, exist_ok=True)
    try:
        return {"source": video.source} | write(video, pieces(), paths)
    except VideoReadError as error:
        return {"source": video.source, "error": running.reason_of(error)}


def extract_to_folder(
    task: Task, model: PreTrainedModel, videos: Sequence[ListedVideo], folder: Path, windows: Windows, batch_size: int
) -> dict[str, Record]:
    """Writes the features of the windows of videos, `FOLDER/ID.npy` for the video `ID`, and `FOLDER/features.json`
    with what code for temporal localisation asks for (`feat_stride` and `num_frames` of a window in frames,
    `default_fps`, `input_dim`, `file_ext`), the settings, and of each video what is returned: its `source`, `file`,
    `num_windows`, `fps`, and `starts` and `ends` of the windows in seconds, or an `error`. With `fps`, frames are
    counted at this rate."""
    fps, shape = windows["fps"], task.key["shape"]
    factor = windows["frame_sampling_rate"] if fps is None else 1
    files = VideoFiles(folder, "features.json", [".npy"], task, "npy")

    def head() -> Record:
        rates = {record["fps"] for record in files.videos.values() if record.get("num_windows")}
        sizes = {"feat_stride": windows["stride"] * factor, "num_frames": windows["num_frames"] * factor}
        sizes["default_fps"] = (rates.pop() if len(rates) == 1 else None) if fps is None else fps
        return sizes | {"input_dim": shape[-1], "file_ext": ".npy"}

    def write(video: ListedVideo, pieces: Iterator[tuple[Piece, np.ndarray]], paths: Sequence[Path]) -> Record:
        times = list[tuple[float, float]]()
        header: Record = {"descr": "<f4", "fortran_order": False, "shape": (0, *shape)}
        # One batch is in memory: the header, with room for any number of windows, is written once more at the end.
        with replacing_file(paths[0]) as unfinished, open(unfinished, "wb") as file:
            write_array_header_1_0(file, header)
            for piece, output in pieces:
                file.write(np.ascontiguousarray(output, dtype="<f4").data)
                times.append((piece.start, piece.end))
            file.seek(0)
            write_array_header_1_0(file, header | {"shape": (len(times), *shape)})
        of_folder = windows["source_fps"] if kind_of(video.source) == "folder" else None
        rate = fps or of_folder or probe_video(video.open()).fps
        starts, ends = [start for start, _ in times], [end for _, end in times]
        record = {"file": paths[0].relative_to(folder).as_posix(), "fps": rate and round(rate, 6)}
        return record | {"num_windows": len(times), "starts": starts, "ends": ends}

    files.head = head
    found = files.fill(model, videos, batch_size, write)
    return {video.id: found.get(video.id) or files.videos[video.id] for video in videos}


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

    def write(video: ListedVideo, pieces: Iterator[tuple[Piece, np.ndarray]], paths: Sequence[Path]) -> Record:
        read, metadata = list(pieces), probe_video(video.open())
        seconds, outputs = [piece.start for piece, _ in read], [output for _, output in read]
        size = (metadata.height, metadata.width)
        frames = read_persons(seconds, outputs, class_names, size=size, **thresholds)
        if annotate is not None:
            rate = processor.fps if kind_of(video.source) == "folder" else None
            with replacing_file(paths[1]) as unfinished:
                annotate(video.open(), unfinished, frames, source_fps=rate)
        replace_text(paths[0], WRITERS[suffixes[0]](video.source, size, frames))
        counts = {"num_key_frames": len(frames), "num_persons": sum(len(each.persons) for each in frames)}
        return counts | {"highest": max(float(each[:, 0].max()) for each in outputs)}

    if output.suffix == suffixes[0] and not output.is_dir():
        (video,), paths = videos, [output.with_suffix(suffix) for suffix in suffixes]
        rows = running.run(task, model, [Todo(video)], settings.batch_size)
        found = {video.id: write_video(write, video, rows, paths)}
    else:
        files = VideoFiles(output, ".detections.json", suffixes, task, settings.format)
        found = files.fill(model, videos, settings.batch_size, write)
    done = [record for record in found.values() if "error" not in record]
    errors = [(record["source"], record["error"]) for record in found.values() if "error" in record]
    return DetectionResult(
        place=str(output),
        num_videos=len(videos) - len(errors),
        num_new=len(done),
        num_key_frames=sum(record["num_key_frames"] for record in done),
        num_persons=sum(record["num_persons"] for record in done),
        highest=max((record["highest"] for record in done), default=0.0),
        person_threshold=thresholds["person_threshold"],
        errors=errors,
    )
