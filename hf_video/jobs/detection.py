"""Finds the people of videos at key frames, and what they do: `hf-video detect` for programs."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from transformers import PreTrainedModel

from hf_video.data.key_frames import key_frame_times
from hf_video.data.video_listing import list_videos
from hf_video.inference.detection import KeyFrame, Person, detect_clips, read_persons, resized_clip
from hf_video.inference.features import feature_key
from hf_video.inference.inference_settings import DetectSettings
from hf_video.io import read_own_json, replace_text, replacing_file
from hf_video.loading.class_names import class_names_of
from hf_video.loading.models import load_action_detector
from hf_video.output_folders import RunLock, check_output_file
from hf_video.processing import VideoDetectionProcessor
from hf_video.reading import VideoReadError, probe_video
from hf_video.reading.sources import kind_of

from .batches import Video, VideoOutputs, reason_of
from .bulk import BulkResult, check_engine, run_in_bulk
from .runner import LocalEngine, Part, Sink, require_no_files, require_same_settings, run
from .tasks import Piece, Task

SETTINGS_FILE = ".detections.json"
FILE_SUFFIXES = (".json", ".csv")
ANNOTATED = ".annotated.mp4"
CSV_COLUMNS = ("video", "second", "track", "score", "x1", "y1", "x2", "y2", "action", "action_score")

# Writes a video, as `hf_video.drawing.annotate_detections`.
Annotate = Callable[..., object]


class DetectionResult(NamedTuple):
    """What a run has found.

    Attributes:
        place: the file or folder that was written.
        num_videos: the videos without an error, old and new.
        num_new: the videos of this run without an error.
        num_key_frames, num_persons: what there is in the videos of this run.
        highest: the highest score of a person in this run, before the threshold; 0 if there is none.
        person_threshold: the smallest score of a person.
        errors: (video, reason) of the videos that failed.
    """

    place: str
    num_videos: int
    num_new: int
    num_key_frames: int
    num_persons: int
    highest: float
    person_threshold: float
    errors: list[tuple[str, str]]


class DetectTask(Task):
    """The persons at the key frames of a video: a row a person with `second`, `track`, `score`, the box as shares of
    width and height, and the names and scores of its actions. A video without a person has one row of nulls.

    Args:
        processor: prepares the clips.
        class_names: the actions.
        seconds: times of the key frames; by default all multiples of `every`.
        every: seconds from one key frame to the next.
        person_threshold: smallest score of a person; by default the processor's.
        action_threshold: smallest score of an action.
    """

    name, quantity = "detect", "detections"

    def __init__(
        self,
        processor: VideoDetectionProcessor,
        class_names: Sequence[str],
        *,
        seconds: Sequence[float] | None = None,
        every: float = 1.0,
        person_threshold: float | None = None,
        action_threshold: float = 0.5,
    ):
        self.processor, self.class_names = processor, tuple(class_names)
        self.seconds, self.every = None if not seconds else sorted(set(seconds)), every
        self.person_threshold = processor.person_threshold if person_threshold is None else person_threshold
        self.action_threshold = action_threshold

    def key(self, model: PreTrainedModel) -> dict[str, Any]:
        names = ("class_names", "seconds", "every", "person_threshold", "action_threshold")
        return {"task": self.name} | feature_key(
            model, self.processor, **{name: getattr(self, name) for name in names}
        )

    @property
    def columns(self) -> pa.Schema:
        places = [(name, pa.float32()) for name in ("score", "x1", "y1", "x2", "y2")]
        actions = [("actions", pa.list_(pa.string())), ("action_scores", pa.list_(pa.float32()))]
        return pa.schema([("second", pa.float64()), ("track", pa.int64()), *places, *actions])

    def read(self, source: Any) -> Iterator[Piece]:
        for second in self.seconds or key_frame_times(source, self.processor, self.every):
            yield Piece(resized_clip(self.processor, source, second), second, second)

    def encode(self, model: PreTrainedModel, pixel_values: torch.Tensor) -> np.ndarray:
        return detect_clips(model, self.processor, pixel_values)

    def find_persons(
        self, times: Sequence[tuple[float, float]], outputs: Sequence[np.ndarray], size: tuple[float, float] = (1, 1)
    ) -> list[KeyFrame]:
        """The key frames of a video whose frames have a height and width of `size`."""
        return read_persons(
            [second for second, _ in times],
            outputs,
            self.class_names,
            size=size,
            person_threshold=self.person_threshold,
            action_threshold=self.action_threshold,
        )

    def describe(self, times: Sequence[tuple[float, float]], outputs: Sequence[np.ndarray]) -> dict[str, pa.Array]:
        rows = [
            (frame.second, each.track, each.score, *each.box, list(each.actions), list(each.actions.values()))
            for frame in self.find_persons(times, outputs)
            for each in frame.persons
        ] or [(None,) * len(self.columns)]
        return {
            field.name: pa.array(values, field.type)
            for field, values in zip(self.columns, zip(*rows, strict=True), strict=True)
        }


class DetectionFiles(Sink):
    """A JSON or CSV file for each video: `FOLDER/ID.json` for the video `ID`, or one file for one video. A part is one
    video.

    Args:
        output: the folder, or a file that ends with .json or .csv.
        task: finds the persons.
        key: all that they follow from, besides the video, see `Task.key`.
        file_format: "json" or "csv", for a folder.
        annotate: writes `FOLDER/ID.annotated.mp4`.

    Attributes:
        errors: (video, reason) of the videos that failed.
        num_new, num_key_frames, num_persons, highest: see `DetectionResult`.
    """

    contents = "detections"

    def __init__(
        self,
        output: Path,
        task: DetectTask,
        key: dict[str, Any],
        file_format: str = "json",
        annotate: Annotate | None = None,
    ):
        self.output, self.place, self.task, self.annotate = output, str(output), task, annotate
        self.is_kept = self.is_folder = output.is_dir() or output.suffix not in FILE_SUFFIXES
        self.suffix = f".{file_format}" if self.is_folder else output.suffix
        self.key = key | {"format": file_format}
        self.errors: list[tuple[str, str]] = []
        self.num_new = self.num_key_frames = self.num_persons = 0
        self.highest = 0.0

    def claim(self) -> None:
        """Makes the folder. Raises `ValueError` if it has other files, or detections of other settings."""
        if not self.is_folder:
            return
        known = read_own_json(self.output / SETTINGS_FILE)
        if known is not None:
            require_same_settings(self, known, json.loads(json.dumps(self.key)))
            return
        names = sorted(path.name for path in self.output.glob("*") if not path.name.startswith("."))
        require_no_files(self.place, self.output.is_file(), names)
        self.output.mkdir(parents=True, exist_ok=True)
        replace_text(self.output / SETTINGS_FILE, json.dumps(self.key, indent=1) + "\n")

    def files_of(self, video: Video) -> list[Path]:
        """The files of a video. The first one is written last."""
        name = self.output / video.id if self.is_folder else self.output.with_suffix("")
        suffixes = [self.suffix, ANNOTATED] if self.annotate else [self.suffix]
        return [name.with_name(name.name + suffix) for suffix in suffixes]

    def plan(self, videos: Sequence[Video]) -> list[Part]:
        return [Part(each.id, [each]) for each in videos if not self._is_done(each)]

    def _is_done(self, video: Video) -> bool:
        """Whether the files of a video were written after it. Those of another video under its name raise
        `ValueError`."""
        files = self.files_of(video)
        if not all(file.is_file() for file in files):
            return False
        named = _video_of(files[0])
        if named is not None and _as_utf8(named) != _as_utf8(video.source):
            raise ValueError(
                f"{files[0]} has the persons of {named}, and {video.source} would have the same file: choose another "
                "--output, or name a folder that holds both."
            )
        is_local = kind_of(video.source) == "path" and os.path.isfile(video.source)
        return not is_local or os.path.getmtime(video.source) <= min(file.stat().st_mtime for file in files)

    def write(self, task: Task, part: Part, outputs: Iterator[VideoOutputs]) -> None:
        of_video, video = next(outputs), part.videos[0]
        times, rows = of_video.gather()
        if of_video.error is not None:
            self.errors.append((video.source, reason_of(of_video.error)))
            return
        file, *annotated = self.files_of(video)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            metadata = probe_video(video.open())
            key_frames = self.task.find_persons(times, rows, (metadata.height, metadata.width))
            if self.annotate is not None:
                rate = self.task.processor.fps if kind_of(video.source) == "folder" else None
                with replacing_file(annotated[0]) as unfinished:
                    self.annotate(video.open(), unfinished, key_frames, source_fps=rate)
        except VideoReadError as error:
            self.errors.append((video.source, reason_of(error)))
            return
        entry = {"video": video.source, "width": metadata.width, "height": metadata.height}
        replace_text(file, _as_csv(video.source, key_frames) if self.suffix == ".csv" else _as_json(entry, key_frames))
        self.num_new += 1
        self.num_key_frames += len(key_frames)
        self.num_persons += sum(len(each.persons) for each in key_frames)
        self.highest = max(self.highest, max(float(of_frame[:, 0].max()) for of_frame in rows))

    def result(self, num_videos: int) -> DetectionResult:
        """What a run over so many videos has found."""
        num_done = num_videos - len(self.errors)
        found = self.num_key_frames, self.num_persons, self.highest, self.task.person_threshold
        return DetectionResult(self.place, num_done, self.num_new, *found, self.errors)


def _video_of(file: Path) -> str | None:
    """The video that a file of detections is of; None if there are no persons in a table."""
    if file.suffix != ".csv":
        found = read_own_json(file)
        return found.get("video") if isinstance(found, dict) else None
    with open(file, encoding="utf-8", newline="") as opened:
        return next(csv.DictReader(opened), {}).get("video")


def _as_utf8(name: str) -> str:
    """The name of a file for a table; it may have bytes that are not UTF-8."""
    return name.encode(errors="backslashreplace").decode()


def _as_json(entry: dict[str, Any], key_frames: Sequence[KeyFrame]) -> str:
    """A JSON object with the facts of a video and its key frames, a line each."""
    frames = [
        json.dumps({"second": frame.second, "persons": [_rounded(each)._asdict() for each in frame.persons]})
        for frame in key_frames
    ]
    lines = ",\n  ".join(frames)
    return f'{json.dumps(entry)[:-1]}, "key_frames": [\n  {lines}\n]}}\n'


def _as_csv(video: str, key_frames: Sequence[KeyFrame]) -> str:
    """A table with a row for each action of a person; one without an action has one row."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    video = _as_utf8(video)
    for frame in key_frames:
        for each in map(_rounded, frame.persons):
            for action, score in each.actions.items() or [("", "")]:
                table.writerow([video, frame.second, each.track, each.score, *each.box, action, score])
    return text.getvalue()


def _rounded(person: Person) -> Person:
    """The person with the decimals that say something: hundredths of a pixel, and scores as in AVA's files."""
    actions = {name: round(score, 5) for name, score in person.actions.items()}
    return Person(person.track, round(person.score, 5), tuple(round(value, 2) for value in person.box), actions)


def detect(settings: DetectSettings, annotate: Annotate | None = None) -> DetectionResult | BulkResult:
    """Finds the people of videos and their actions, as `hf-video detect`. A video that fails has an error, and the
    others go on. With a folder, the same call continues after an interruption.

    Args:
        settings: the videos, the model, the file or folder, and what differs from the defaults.
        annotate: also writes a video with what was found, such as [`hf_video.drawing.annotate_detections`].

    Returns:
        What was found; or with an engine what the folder of rows holds.

    Raises:
        ValueError, OSError: a setting cannot be used, there is no such model, or something else is at the output.
        ImportError: scipy, which finds the tracks, is not installed.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    check_engine(settings)
    if find_spec("scipy") is None:
        raise ImportError("hf-video detect needs scipy: pip install 'hf-video-models[detection]'")
    output, is_bulk = Path(settings.output).expanduser().absolute(), settings.engine is not None
    is_file = output.suffix in FILE_SUFFIXES and not output.is_dir()
    if is_bulk and (annotate or is_file or "format" in settings.given):
        raise ValueError("With --engine rows are written as Parquet into a folder, without --annotate and --format.")
    if is_file and "format" in settings.given:
        raise ValueError(f"--format {settings.format} has no effect: the suffix of --output {output} says the format.")
    if settings.seconds and "every" in settings.given:
        raise ValueError(f"--every {settings.every:g} has no effect with --seconds: leave out one of them.")
    videos = list_videos(settings.videos, settings.video_root)
    if is_file:
        if len(videos) > 1:
            raise ValueError(f"--output {output} is a file for one video, not {len(videos)}: name a folder.")
        for path in (output, output.with_suffix(ANNOTATED)) if annotate else (output,):
            check_output_file("output", str(path))
    device = "cpu" if settings.engine == "ray" else settings.device
    model, processor = load_action_detector(settings.model, device=device, dtype=settings.dtype)
    task = DetectTask(
        processor,
        class_names_of(model.config),
        seconds=settings.seconds,
        every=settings.every,
        person_threshold=settings.person_threshold,
        action_threshold=settings.action_threshold,
    )
    if is_bulk:
        return run_in_bulk(settings, videos, task, model)
    sink = DetectionFiles(output, task, task.key(model), settings.format, annotate)
    # The lock is a file of the folder, which must be fit for it.
    sink.claim()
    with RunLock() as lock:
        if sink.is_folder:
            lock.take(output)
        run(task, videos, sink, LocalEngine(model, settings.batch_size))
    return sink.result(len(videos))
