"""Measures how far apart the frames of training clips are in time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers.video_utils import VideoMetadata

from hf_video.reading import VideoReadError, probe_video

from .clip_dataset import ClipDataset
from .manifest import DURATION, FRAMES
from .video_column import open_video

NUM_VIDEOS, NUM_CLIPS = 100, 32


def median_frame_interval(clips: ClipDataset) -> float | None:
    """The seconds between two frames next to each other in a training clip: the median over clips of their mean.

    Clips are drawn as in training, `NUM_CLIPS` of each of at most `NUM_VIDEOS` videos, but not decoded: a manifest, or
    the packets of the file, say how many frames a video has and how long it lasts. The same data give the same
    result.

    Args:
        clips: the training set.

    Returns:
        Seconds; None if no video has times, as folders of frames, or a clip has one frame.

    Raises:
        ValueError: a clip does not fit into a video, and the processor repeats no frames.
    """
    generator = np.random.default_rng(0)
    num_videos = len(clips.dataset)
    chosen = np.sort(generator.choice(num_videos, min(num_videos, NUM_VIDEOS), replace=False))
    intervals: list[float] = []
    for row in clips.dataset.select(chosen):
        metadata = _metadata(row)
        if metadata is not None and metadata.fps:
            frames = clips.processor.sample_frames(metadata, num_clips=NUM_CLIPS, generator=generator)
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
    """The mean distance in frames of the clips (num_clips, num_frames) that have several frames. A clip that ends by
    repeating its last frame counts up to where that comes first."""
    steps = np.argmax(frames == frames[:, -1:], axis=1)
    spans = frames[:, -1] - frames[:, 0]
    return spans[steps > 0] / steps[steps > 0]
