"""How long the clips of a training last, and the windows of that length in rows that last much longer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from datasets import Dataset
from transformers.video_utils import VideoMetadata

from hf_video.processes import is_first_process
from hf_video.reading import VideoReadError, probe_video
from hf_video.texts import count

from .checks import MAX_OPENED, read_durations
from .dataset import VideoDataset
from .rows import DURATION, FRAMES, VideoRows, arrow_column, open_video, times_of, with_times

# What is looked at to say how long clips last.
NUM_VIDEOS, NUM_CLIPS = 100, 32


def clip_duration(clips: VideoDataset) -> float | None:
    """The seconds of a training clip, `num_frames` times [`median_frame_interval`]; None if that is unknown."""
    interval = median_frame_interval(clips)
    return None if interval is None else round(clips.task.processor.num_frames * interval, 3)


def cut_long_rows(rows: Dataset, seconds: float) -> Dataset:
    """Cuts rows with times that last at least twice as long as a clip into equal windows of about its seconds, up to
    the end of the video."""
    if not {"start", "end"} <= set(rows.column_names):
        return rows
    starts, ends = times_of(rows)
    has_times = np.isfinite(ends) | arrow_column(rows, "start").is_valid().to_numpy(zero_copy_only=False)
    # A list may have ends that its videos do not reach. If there are very many videos, it is believed.
    are_few = DURATION in rows.column_names or len(VideoRows(rows)) <= MAX_OPENED
    asked = np.flatnonzero(has_times & (np.isinf(ends) | (are_few & (ends - starts >= 2 * seconds))))
    if asked.size:
        of_video, last = rows.select(asked), np.full(len(rows), np.inf)
        durations = read_durations(of_video, skip=True)
        last[asked] = [durations[video] or np.inf for video in of_video["video"]]
        ends = np.minimum(ends, last)
    ends = np.where(np.isinf(ends), starts, ends)
    lengths = np.where(has_times, (ends - starts) / seconds, 1.0)
    counts = np.where(lengths >= 2, np.round(lengths), 1.0).astype(np.int64)
    row_of = np.repeat(np.arange(len(rows)), counts)
    if len(row_of) == len(rows):
        return rows
    place = np.arange(len(row_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = ((ends - starts) / counts)[row_of]
    times = (np.where(counts[row_of] > 1, starts[row_of] + (place + after) * width, np.nan) for after in (0, 1))
    return with_times(rows, row_of, *(each.round(3) for each in times))


def cut_splits(splits: Mapping[str, Dataset], seconds: float | None) -> dict[str, Dataset]:
    """The splits with long rows cut into clips of about so many seconds, if they are known; a printed line says so."""
    cut = {name: cut_long_rows(rows, seconds) if seconds else rows for name, rows in splits.items()}
    for name, rows in cut.items():
        if len(rows) > len(splits[name]) and is_first_process():
            print(
                f"{count(len(splits[name]), 'row')} of the {name} split became {count(len(rows), 'clip')}, because a "
                f"clip of the model lasts {seconds:g} s; --clip-duration 0 leaves rows whole.",
                flush=True,
            )
    return cut


def median_frame_interval(clips: VideoDataset) -> float | None:
    """The median over some clips, always the same, of the mean seconds between two frames; None without times."""
    generator = np.random.default_rng(0)
    num_videos = len(clips.rows)
    chosen = np.sort(generator.choice(num_videos, min(num_videos, NUM_VIDEOS), replace=False))
    intervals: list[float] = []
    for row in clips.rows.select(chosen):
        metadata = _metadata(row)
        if metadata is not None and metadata.fps:
            frames = clips.task.processor.sample_frames(metadata, num_clips=NUM_CLIPS, generator=generator)
            intervals.extend(_mean_distances(frames) / metadata.fps)
    return round(float(np.median(intervals)), 6) if intervals else None


def _metadata(row: Mapping[str, Any]) -> VideoMetadata | None:
    """Frames and rate of the segment of a row; None if the video cannot be read."""
    num_frames, duration = row.get(FRAMES), row.get(DURATION)
    if not num_frames or not duration:
        try:
            probed = probe_video(open_video(row))
        except (VideoReadError, OSError):
            return None
        num_frames, duration = probed.total_num_frames, probed.duration
    if not duration:
        return None
    fps = num_frames / duration
    start, end = row.get("start") or 0.0, row.get("end") or duration
    return VideoMetadata(total_num_frames=max(round((min(end, duration) - start) * fps), 1), fps=fps)


def _mean_distances(frames: np.ndarray) -> np.ndarray:
    """The mean distance of frames in clips (num_clips, num_frames), up to where the last comes first."""
    steps = np.argmax(frames == frames[:, -1:], axis=1)
    spans = frames[:, -1] - frames[:, 0]
    return spans[steps > 0] / steps[steps > 0]
