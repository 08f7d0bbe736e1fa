"""A sink with one file for each video, and `features.json` about all of them: the features of its windows.

Whenever a run is ended, the next one continues it: a video is encoded once, and all files come out the same.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.format import write_array_header_1_0
from transformers import PreTrainedModel

from hf_video.data.video_listing import ListedVideo
from hf_video.inference.features import video_identity
from hf_video.io import read_own_json, replace_text, replacing_file
from hf_video.processing import VideoClipProcessor
from hf_video.reading.frame_streaming import StreamedFrame, stream_frames
from hf_video.reading.sources import describe, kind_of

from .batches import Times, Video, VideoOutputs
from .runner import LocalEngine, Part, PartResult, Sink, require_no_files, require_same_settings, run
from .tasks import ExtractTask, Task

SUMMARY_FILE = "features.json"
# What the summary will say of a video is in a hidden file beside its features, until a run writes the summary.
RECORD_FILE = ".{}.json"

Record = dict[str, Any]

FileFormat = Literal["npy", "parquet"]
# Takes the times and features (num_windows, ...) of the next windows.
Append = Callable[[Times, np.ndarray], None]


@contextmanager
def write_npy(path: Path, video: str, shape: Sequence[int]) -> Iterator[Append]:
    """An array (num_windows, *shape) float32, as `numpy.load` reads it. Memory holds one batch."""
    header: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (0, *shape)}

    def append(times: Times, features: np.ndarray) -> None:
        file.write(np.ascontiguousarray(features, dtype="<f4").data)
        header["shape"] = (header["shape"][0] + len(features), *shape)

    with open(path, "wb") as file:
        write_array_header_1_0(file, header)
        yield append
        # NumPy leaves room in a header for any number of rows.
        file.seek(0)
        write_array_header_1_0(file, header)


@contextmanager
def write_parquet(path: Path, video: str, shape: Sequence[int]) -> Iterator[Append]:
    """A row for each window: `video`, `start`, `end` and `feature`, in the types of `datasets`, which reads a thousand
    rows at a time. Memory holds one batch."""
    from datasets import Array2D, Dataset, Features, List, Value
    from pyarrow.parquet import ParquetWriter

    feature = List(Value("float32"), length=shape[0]) if len(shape) == 1 else Array2D(tuple(shape), "float32")
    columns = Features(
        {"video": Value("string"), "start": Value("float64"), "end": Value("float64"), "feature": feature}
    )

    def append(times: Times, features: np.ndarray) -> None:
        starts, ends = map(list, zip(*times, strict=True))
        rows = {"video": [video] * len(times), "start": starts, "end": ends, "feature": list(features)}
        writer.write_table(Dataset.from_dict(rows, features=columns).with_format("arrow")[:])

    with ParquetWriter(path, columns.arrow_schema) as writer:
        yield append


WRITERS: dict[FileFormat, Callable[[Path, str, Sequence[int]], AbstractContextManager[Append]]] = {
    "npy": write_npy,
    "parquet": write_parquet,
}


def extract_to_folder(
    model: PreTrainedModel,
    processor: VideoClipProcessor,
    videos: Sequence[ListedVideo],
    folder: str | os.PathLike,
    *,
    file_format: FileFormat = "npy",
    batch_size: int = 8,
    progress: bool = True,
    **options: Any,
) -> dict[str, Record]:
    """Writes the features of the windows of videos, `FOLDER/ID.npy` for the video `ID`, and `FOLDER/features.json`.

    The summary has what code for temporal localisation asks for: `feat_stride` and `num_frames` of a window in frames,
    `default_fps`, `input_dim` and `file_ext`; the settings; and for each video of `videos` its `source`, `file`,
    `num_windows`, `fps`, and `starts` and `ends` of the windows in seconds, `start_frames` and `end_frames` in frames.
    With `fps`, frames are counted at this rate. A video that cannot be read to its end has an `error` instead, and no
    file.

    A folder holds the features of one model, processor and choice of settings. Videos may be added to it. A finished
    video is not computed again, unless its file has changed.

    Args:
        model: a video classifier or the base of one; put into evaluation mode.
        processor: prepares the frames.
        videos: from `list_videos`.
        folder: made if it does not exist.
        file_format: "npy" or "parquet"; see `WRITERS`.
        batch_size: windows in one forward pass.
        progress: shows a progress bar.
        options: which features of which windows: `pooling`, `layer`, `num_frames`, `stride`, `fps`,
            `frame_sampling_rate`, `last` and `source_fps` of `ExtractTask`.

    Returns:
        What the summary says about each of these videos, by id.

    Raises:
        ValueError: an option is out of range, the model does not take such windows, or the folder has other files, or
            features of other settings, or those of another video of the same name.
        OSError: writing failed.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    task = ExtractTask(model, processor, **options)
    sink = FeatureFolder(folder, task, task.key(model), file_format)
    run(task, videos, sink, LocalEngine(model, batch_size), progress=progress)
    return {video.id: sink.failed.get(video.id) or sink.videos[video.id] for video in videos}


class _UnreadableVideo(Exception):
    """Leaves a file unwritten."""


class FeatureFolder(Sink):
    """A folder with a file for each video, `FOLDER/ID.npy`, and a summary. A part is one video.

    Args:
        folder: made if it does not exist.
        task: computes the features.
        key: all that they follow from, besides the video, see `Task.key`.
        file_format: "npy" or "parquet"; see `WRITERS`.

    Attributes:
        videos: what the summary says about each finished video, by id.
        failed: what it says about each video that failed in this run.
    """

    contents = "features"

    def __init__(self, folder: str | os.PathLike, task: ExtractTask, key: Record, file_format: FileFormat = "npy"):
        self.folder, self.place = Path(folder), os.fspath(folder)
        self.shape, self.source_fps = task.shape, task.source_fps
        key = {name: value for name, value in key.items() if name != "task"}
        self.key = json.loads(json.dumps(key | {"format": file_format}, sort_keys=True))
        self.videos: dict[str, Record] = {}
        self.failed: dict[str, Record] = {}
        self._planned: dict[str, _TimedVideo] = {}

    def claim(self) -> None:
        """Makes the folder. Raises `ValueError` if it has files and no summary, or one of other settings."""
        if summary := require_feature_folder(self.folder):
            require_same_settings(self, summary["key"], self.key)
            self.videos = {name: record for name, record in summary["videos"].items() if "error" not in record}
            self.videos |= {record.pop("id"): record for record in map(read_own_json, self._record_files()) if record}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.close()

    def plan(self, videos: Sequence[Video]) -> list[Part]:
        self._planned = {}
        for video in videos:
            record, timed = self.videos.get(video.id, {}), _TimedVideo(video, self.source_fps)
            if (known := record.get("source", video.source)) != video.source:
                raise ValueError(
                    f"{self.folder} has features of {known} under the name {video.id!r}, which {video.source} would "
                    "overwrite: choose another folder, or rename the video."
                )
            if record.get("identity") != timed.identity or not self._path_of(video.id).is_file():
                self._planned[video.id] = timed
        return [Part(name, [video]) for name, video in self._planned.items()]

    def write(self, task: Task, part: Part, outputs: Iterator[VideoOutputs]) -> Record | None:
        """The record of the video, which is then on the disk as well; None if it failed, and then it has no file."""
        video: Any = part.videos[0]
        of_video, path = next(outputs), self._path_of(video.id)
        windows: Times = []
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(_UnreadableVideo), replacing_file(path) as unfinished:
            with WRITERS[self.key["format"]](unfinished, video.id, self.shape) as append:
                for times, features in of_video:
                    append(times, features)
                    windows += times
            if of_video.error is not None:
                raise _UnreadableVideo
        if of_video.error is None:
            record = {"source": video.source, "file": path.relative_to(self.folder).as_posix()}
            record |= video.describe(windows, self.key["fps"]) | {"identity": video.identity}
            replace_text(path.with_name(RECORD_FILE.format(path.name)), json.dumps({"id": video.id} | record))
            return record
        # The features of the old content do not fit a changed file. A source that is not there may come back.
        if video.identity[1] is not None:
            path.unlink(missing_ok=True)
        return None

    def _path_of(self, name: str) -> Path:
        return self.folder / f"{name}.{self.key['format']}"

    def note(self, result: PartResult) -> None:
        if result.written is not None:
            self.videos[result.part] = result.written
        else:
            video = self._planned[result.part]
            self.failed[video.id] = {"source": video.source, "error": result.errors[0][1]}

    def close(self) -> None:
        """Writes the summary."""
        key, by_frames = self.key, self.key["fps"] is None
        # Features of a video that is out of reach at the moment stay.
        videos = self.videos | {name: row for name, row in self.failed.items() if not self._path_of(name).is_file()}
        rates = {record["fps"] for record in self.videos.values() if record["num_windows"]}
        factor = key["frame_sampling_rate"] if by_frames else 1
        head = {
            "feat_stride": key["stride"] * factor,
            "num_frames": key["num_frames"] * factor,
            "default_fps": (rates.pop() if len(rates) == 1 else None) if by_frames else key["fps"],
            "input_dim": key["shape"][-1],
            "file_ext": f".{key['format']}",
        }
        # A line for each video: with `indent`, each of its times would have one.
        body = ",\n".join(f"  {json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(videos.items()))
        texts = {name: json.dumps(value) for name, value in head.items()}
        texts |= {"videos": f"{{\n{body}\n }}", "key": json.dumps(key)}
        text = "{\n" + ",\n".join(f" {json.dumps(name)}: {value}" for name, value in texts.items()) + "\n}\n"
        replace_text(self.folder / SUMMARY_FILE, text)
        for path in self._record_files():
            path.unlink()

    def _record_files(self) -> list[Path]:
        return list(self.folder.rglob(RECORD_FILE.format(f"*.{self.key['format']}")))


def require_feature_folder(folder: Path) -> Record | None:
    """The summary of a folder for features; None for a new one. It is a `ValueError` if it is a file, or has files and
    no summary of features."""
    summary = read_own_json(folder / SUMMARY_FILE)
    if isinstance(summary, dict) and all(isinstance(summary.get(name), dict) for name in ("key", "videos")):
        return summary
    names = sorted(path.name for path in folder.glob("*") if not path.name.startswith("."))
    require_no_files(str(folder), folder.is_file(), names)
    return None


class _TimedVideo:
    """A video that keeps the times of its frames while it is read.

    Attributes:
        identity: what changes with the video; None in second place for one that is not there, which reading reports.
    """

    def __init__(self, video: Video, source_fps: float | None):
        self.video, self.id, self.source = video, video.id, video.source
        self.source_fps = source_fps if kind_of(video.source) == "folder" else None
        self._frames: Any = None
        self._times: list[float] = []
        try:
            self.identity = video_identity(video.source, getattr(video, "sha256", None))
        except OSError:
            self.identity = [video.source, None]

    def open(self) -> "_TimedVideo":
        self._frames = self.video.open()
        self.name = describe(self._frames)
        return self

    def __iter__(self) -> Iterator[StreamedFrame]:
        for frame in stream_frames(self._frames, source_fps=self.source_fps):
            self._times.append(frame.seconds)
            yield frame

    def describe(self, windows: Times, fps: float | None) -> Record:
        """Number, rate and times of its windows. Without a rate of samples, frames are counted: those of a variable
        rate do not follow from their times. The times of frames are then forgotten."""
        frame_times, self._times, self._frames = self._times, [], None
        record: Record = {"num_windows": len(windows), "fps": fps}
        if fps is None and len(frame_times) > 1:
            record["fps"] = round((len(frame_times) - 1) / (frame_times[-1] - frame_times[0]), 6)
        times = {name: [window[place] for window in windows] for place, name in enumerate(("start", "end"))}
        record |= {f"{name}s": seconds for name, seconds in times.items()}
        for name, seconds in times.items():
            record[f"{name}_frames"] = [
                bisect_left(frame_times, t) if fps is None else round(t * fps) for t in seconds
            ]
        return record
