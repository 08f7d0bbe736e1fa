"""Features of the windows of many videos, in a folder: one file for each video, and `features.json` about all of them.

Whenever a run is ended, the next one continues it: a video is encoded once, and all files come out the same.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_video.data.video_listing import ListedVideo
from hf_video.inference.clip_features import Pooling, choose_features
from hf_video.inference.feature_key import feature_key, video_identity
from hf_video.inference.window_batching import choose_windows, window_batches
from hf_video.inference.window_features import WindowFeatures, feature_shape, stream_window_features
from hf_video.io import naming_disk_errors, read_own_json, replace_file, replace_text
from hf_video.processing import VideoClipProcessor
from hf_video.reading.frame_streaming import StreamedFrame
from hf_video.reading.sources import describe, kind_of
from hf_video.reading.streams import open_frames
from hf_video.settings import few

from .feature_files import WRITERS, FileFormat

SUMMARY_FILE = "features.json"
# The videos that a run has finished, one a line, until it writes the summary.
JOURNAL_FILE = ".features.jsonl"

Record = dict[str, Any]


class _UnreadableVideo(Exception):
    """Has the error of a video as its cause."""


def extract_to_folder(
    model: PreTrainedModel,
    processor: VideoClipProcessor,
    videos: Sequence[ListedVideo],
    folder: str | os.PathLike,
    *,
    file_format: FileFormat = "npy",
    pooling: Pooling | None = None,
    layer: int | None = None,
    num_frames: int | None = None,
    stride: int | None = None,
    fps: float | None = None,
    frame_sampling_rate: float | None = None,
    last: str = "pad",
    source_fps: float | None = None,
    batch_size: int = 8,
    progress: bool = True,
) -> dict[str, Record]:
    """Writes the features of the windows of videos, `FOLDER/ID.npy` for the video `ID`, and `FOLDER/features.json`.

    The summary has what code for temporal localisation asks for: `feat_stride` and `num_frames` of a window in frames,
    `default_fps`, `input_dim` and `file_ext`; the settings; and for each video of `videos` its `source`, `file`,
    `num_windows`, `fps`, and `starts` and `ends` of the windows in seconds, `start_frames` and `end_frames` in frames.
    Frames are those of the video, or with `fps` those of the video at this rate. A video that cannot be read to its
    end has an `error` in place of all this, and no file.

    A folder holds the features of one model, processor and choice of settings. Videos may be added to it. A finished
    video is not computed again, unless its file has changed.

    Args:
        model: a video classifier or the base of one; put into evaluation mode.
        processor: prepares the frames.
        videos: from `list_videos`.
        folder: made if it does not exist.
        file_format: "npy", "safetensors" or "parquet"; see `feature_files`.
        pooling, layer: which features, see `FeatureSettings`; by default what the head sees.
        num_frames, stride, fps, frame_sampling_rate, last: the windows, see `window_batches`.
        source_fps: rate of folders of frames.
        batch_size: windows in one forward pass.
        progress: shows a progress bar.

    Returns:
        What the summary says about each of these videos, by id.

    Raises:
        ValueError: an option is out of range, the model does not take such windows, or the folder has other files, or
            features of other settings, or those of another video of the same name.
        OSError: writing failed.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    settings = choose_features(model, pooling, layer)
    windows = choose_windows(
        processor, num_frames=num_frames, stride=stride, fps=fps, frame_sampling_rate=frame_sampling_rate
    ) | {"last": last}
    # A wrong option shows before a video is read.
    window_batches(processor, (), batch_size=batch_size, source_fps=source_fps or 1, **windows)
    shape = feature_shape(model, processor, settings, windows["num_frames"])
    key = feature_key(
        model, processor, format=file_format, **settings._asdict(), **windows, source_fps=source_fps, shape=shape
    )
    records = _Records(Path(folder), key)
    records.check_sources(videos)
    failed: dict[str, Record] = {}
    bar = tqdm(videos, desc="Features", unit="video", disable=not progress)
    try:
        for video in bar:
            identity = _identify(video)
            if records.has(video, identity):
                continue
            path = records.path_of(video)
            is_frame_folder = kind_of(video.source) == "folder"
            frames = _TimedFrames(video.open(), source_fps if is_frame_folder else None)
            batches = stream_window_features(
                model, processor, frames, settings=settings, batch_size=batch_size, **windows
            )
            try:
                times = _write(path, video.id, file_format, shape, batches)
            except _UnreadableVideo as failure:
                # Features of what it was before are not those of what it is. A source that is not there may come back.
                if identity[1] is not None:
                    path.unlink(missing_ok=True)
                cause = failure.__cause__
                failed[video.id] = {"source": video.source, "error": str(cause) or type(cause).__name__}
                continue
            records.add(video, identity, _describe(times, frames.times, windows["fps"]))
    except KeyboardInterrupt as interrupt:
        records.save(failed)
        done = sum(video.id in records.videos for video in videos)
        raise type(interrupt)(
            f"The features of {done} of {len(videos)} videos are kept in {folder}; the same command continues."
        ) from None
    records.save(failed)
    return {video.id: failed.get(video.id) or records.videos[video.id] for video in videos}


def _write(
    path: Path, video: str, file_format: FileFormat, shape: Sequence[int], batches: Iterator[WindowFeatures]
) -> list[WindowFeatures]:
    """Writes the features, and returns the batches without them.

    Raises:
        _UnreadableVideo: the video, or its features.
        OSError: writing failed.
    """
    times = []

    def write(partial: Path) -> None:
        with WRITERS[file_format](partial, video, shape) as append:
            for batch in _readable(batches):
                append(batch)
                times.append(batch._replace(features=batch.features[:0]))

    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, write)
    return times


def _readable(batches: Iterator[WindowFeatures]) -> Iterator[WindowFeatures]:
    """The batches. Raises `_UnreadableVideo` from any of their errors, of which no complete list exists."""
    while True:
        try:
            batch = next(batches, None)
            if batch is not None and not np.isfinite(batch.features).all():
                raise ValueError(f"The features of the windows from {batch.starts[0]:g} s are not finite.")
        except (MemoryError, torch.OutOfMemoryError):
            # The machine is too small for a batch, of the next video as well.
            raise
        except Exception as error:
            raise _UnreadableVideo from error
        if batch is None:
            return
        yield batch


class _TimedFrames:
    """The frames of a source, opened when they are asked for. Their times are kept."""

    def __init__(self, source: Any, source_fps: float | None):
        self.name = describe(source)
        self.times: list[float] = []
        self._source, self._source_fps = source, source_fps

    def __iter__(self) -> Iterator[StreamedFrame]:
        for frame in open_frames(self._source, self._source_fps):
            self.times.append(frame.seconds)
            yield frame


def _describe(batches: Sequence[WindowFeatures], frame_times: Sequence[float], fps: float | None) -> Record:
    """Number, rate and times of the windows of a video. Without a rate of samples, frames are counted: those of a
    variable rate do not follow from their times."""
    starts, ends = ([time for batch in batches for time in getattr(batch, name)] for name in ("starts", "ends"))
    rate = _mean_rate(frame_times) if fps is None else fps
    start_frames, end_frames = (
        [bisect_left(frame_times, time) if fps is None else round(time * fps) for time in times]
        for times in (starts, ends)
    )
    return {
        "num_windows": len(starts),
        "fps": rate,
        "starts": starts,
        "ends": ends,
        "start_frames": start_frames,
        "end_frames": end_frames,
    }


def _mean_rate(frame_times: Sequence[float]) -> float | None:
    """Frames per second, to six decimals; None for a single frame."""
    if len(frame_times) < 2:
        return None
    return round((len(frame_times) - 1) / (frame_times[-1] - frame_times[0]), 6)


def _identify(video: ListedVideo) -> list[Any]:
    """What changes with a video; a new object for one that is not there, which reading will report."""
    try:
        return video_identity(video.source, video.sha256)
    except OSError:
        return [video.source, None]


def require_feature_folder(folder: Path) -> None:
    """Refuses a folder for features that has other files.

    Raises:
        ValueError: it is a file, or has files and no summary of features.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a folder is expected.")
    found = sorted(path.name for path in folder.glob("*") if not path.name.startswith("."))
    if found and _read_summary(folder) is None:
        raise ValueError(f"{folder} has other files ({few(found)}): choose another folder for the features.")


def _read_summary(folder: Path) -> Record | None:
    summary = read_own_json(folder / SUMMARY_FILE)
    is_ours = isinstance(summary, dict) and all(isinstance(summary.get(name), dict) for name in ("key", "videos"))
    return summary if is_ours else None


class _Records:
    """What is known about the finished videos of a folder: the summary, and after it the journal.

    Raises:
        ValueError: the folder has files and no summary, or one of other settings.
    """

    def __init__(self, folder: Path, key: Record):
        self.folder, self.key = folder, key
        self.videos: dict[str, Record] = {}
        require_feature_folder(folder)
        if summary := _read_summary(folder):
            self._require_same(summary["key"])
            self.videos = {name: record for name, record in summary["videos"].items() if "error" not in record}
            self.videos |= self._read_journal()
        folder.mkdir(parents=True, exist_ok=True)
        self.save({})

    def path_of(self, video: ListedVideo) -> Path:
        return self.folder / f"{video.id}.{self.key['format']}"

    def has(self, video: ListedVideo, identity: list[Any]) -> bool:
        record = self.videos.get(video.id)
        return record is not None and record["identity"] == identity and self.path_of(video).is_file()

    def check_sources(self, videos: Sequence[ListedVideo]) -> None:
        """Refuses videos that have the id of another one."""
        for video in videos:
            known = self.videos.get(video.id, {}).get("source", video.source)
            if known != video.source:
                raise ValueError(
                    f"{self.folder} has features of {known} under the name {video.id!r}, which {video.source} would "
                    "overwrite: choose another folder, or rename the video."
                )

    def add(self, video: ListedVideo, identity: list[Any], facts: Record) -> None:
        """Notes a finished video, on the disk as well."""
        file = self.path_of(video).relative_to(self.folder).as_posix()
        record = {"source": video.source, "file": file, **facts, "identity": identity}
        self.videos[video.id] = record
        path = self.folder / JOURNAL_FILE
        with naming_disk_errors(path), open(path, "a", encoding="utf-8") as journal:
            print(json.dumps([video.id, record]), file=journal, flush=True)
            os.fsync(journal.fileno())

    def save(self, failed: Mapping[str, Record]) -> None:
        """Writes the summary."""
        key = self.key
        # Features of a video that is out of reach at the moment stay.
        lost = {name: row for name, row in failed.items() if not (self.folder / f"{name}.{key['format']}").is_file()}
        videos = self.videos | lost
        by_frames = key["fps"] is None
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
        (self.folder / JOURNAL_FILE).unlink(missing_ok=True)

    def _require_same(self, known: Record) -> None:
        differing = [name for name in self.key if known.get(name) != self.key[name]]
        if differing:
            told = "; ".join(
                f"{name} {known.get(name)!r}, not {self.key[name]!r}"
                if not isinstance(self.key[name], dict) and name != "weights"
                else f"other {name}"
                for name in differing
            )
            raise ValueError(
                f"{self.folder} has features of other settings ({told}), which are never mixed: choose another "
                "folder, or the same settings."
            )

    def _read_journal(self) -> dict[str, Record]:
        """The videos since the last summary. The line that a killed run was writing is left out."""
        found: dict[str, Record] = {}
        with suppress(FileNotFoundError, ValueError):
            for line in (self.folder / JOURNAL_FILE).read_text(encoding="utf-8", errors="replace").splitlines():
                name, record = json.loads(line)
                found[name] = record
        return found
