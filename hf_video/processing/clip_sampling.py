"""Choosing which frames of a video make up its clips.

A strategy returns the indices of `num_clips` clips of `num_frames` frames each. Without a generator, these are the
clips of evaluation. With a `numpy.random.Generator`, every clip is an independent random draw, for training. The names
are those of the literature: the frames of "dense" and "strided" clips have a fixed distance, those of the others are
spread over the whole video.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

# Draws clips at random.
Generator = np.random.Generator | None


def dense_indices(total: int, num_frames: int, rate: float, num_clips: int, generator: Generator) -> np.ndarray:
    """Every `rate`-th frame from evenly spaced starts; a single clip lies in the centre (I3D). Training
    draws the start and keeps the distance; of a video that is shorter than a clip it never takes the last frame.

    Source: `VideoClsDataset` of VideoMamba (`datasets/kinetics.py`), test mode, whose training is that of "strided".
    Training is that of the pre-training of VideoMAE (`VideoMAE._get_frame_id_list` of its `kinetics.py`).
    """
    starts = _clip_starts(total - num_frames * rate, num_clips, generator)
    if generator is not None:
        total = max(total - 1, 1)
    return _strided(starts, total, num_frames, rate)


def strided_indices(total: int, num_frames: int, rate: float, num_clips: int, generator: Generator) -> np.ndarray:
    """Dense clips out of every `rate`-th frame of the video, so that all clips share one grid.

    Starts differ from `dense_indices` by less than one step. Training begins anywhere and spreads the frames from the
    first to the last of `num_frames * rate`; so their distance is slightly larger.

    Source: `VideoClsDataset` of VideoMAE (`kinetics.py`).
    """
    if generator is not None:
        return _random_spans(total, num_frames, rate, num_clips, generator)
    starts = _clip_starts(np.ceil(total / rate) - num_frames, num_clips, generator)
    return _strided(starts * rate, total, num_frames, rate)


def uniform_indices(total: int, num_frames: int, rate: float, num_clips: int, generator: Generator) -> np.ndarray:
    """One frame from each of `num_frames` equal segments: the middle for a single clip, else the position
    `clip / num_clips` inside the segment. Training draws the position.

    Source: `SSVideoClsDataset` of VideoMAE and VideoMamba (`ssv2.py`), test mode, and VideoMAE V2 for more than two
    clips. Their training is that of "tsn".
    """
    segment = total / num_frames
    if generator is not None:
        return _random_in_segments(segment * np.arange(num_frames + 1), num_clips, generator)
    offsets = np.array([segment / 2]) if num_clips == 1 else segment / num_clips * np.arange(num_clips)
    return np.floor(segment * np.arange(num_frames) + offsets[:, None])


def tsn_indices(total: int, num_frames: int, rate: float, num_clips: int, generator: Generator) -> np.ndarray:
    """As `uniform_indices`, but training draws from segments of whole numbers of frames and leaves the rest of the
    video out. Of a video with too few frames for that it repeats the first, a clip without motion.

    Source: Temporal Segment Networks (https://arxiv.org/abs/1608.00859), as in `SSVideoClsDataset` of VideoMAE and
    VideoMamba (`ssv2.py`), training mode.
    """
    if generator is None:
        return uniform_indices(total, num_frames, rate, num_clips, None)
    segment = total // num_frames
    return segment * np.arange(num_frames) + generator.integers(max(segment, 1), size=(num_clips, num_frames))


def padded_tsn_indices(total: int, num_frames: int, rate: float, num_clips: int, generator: Generator) -> np.ndarray:
    """As `tsn_indices`, but training shows all frames of a video with fewer than a clip, behind repeats of the first.

    Source: `RawFrameClsDataset` of VideoMAE V2 (`dataset/datasets.py`), training mode.
    """
    if generator is not None and total < num_frames:
        return np.tile(np.arange(total - num_frames, total).clip(0), (num_clips, 1))
    return tsn_indices(total, num_frames, rate, num_clips, generator)


def sparse_indices(total: int, num_frames: int, rate: float, num_clips: int, generator: Generator) -> np.ndarray:
    """One frame from each of `num_frames` segments of [0, total - 1], whose borders are rounded half to
    even. Clip `c` has the position `(c + 1) / (num_clips + 1)` of the segment. Training draws from border to border.

    Source: `VideoClsDataset_sparse` of VideoMamba (`datasets/kinetics_sparse.py`).
    """
    segment = (total - 1) / num_frames
    borders = np.rint(segment * np.arange(num_frames + 1))
    if generator is not None:
        return generator.integers(borders[:-1], borders[1:], size=(num_clips, num_frames), endpoint=True)
    offsets = np.floor(segment / (num_clips + 1) * np.arange(1, num_clips + 1))
    return np.minimum(borders[:-1] + offsets[:, None], total - 1)


def linspace_indices(total: int, num_frames: int, rate: float, num_clips: int, generator: Generator) -> np.ndarray:
    """Evenly spaced from the first frame to the last, rounded half to even; several clips take turns. Training draws
    one frame from each of `num_frames` segments.

    Source: `load_video` and the data sets of MA-LMM (`lavis/datasets/datasets`).
    """
    if generator is not None:
        return _random_in_segments(np.linspace(0, total, num_frames + 1), num_clips, generator)
    indices = np.rint(np.linspace(0, total - 1, num_frames * num_clips))
    return indices.reshape(num_frames, num_clips).T


def middle_indices(total: int, num_frames: int, rate: float, num_clips: int, generator: Generator) -> np.ndarray:
    """The middle frame of each of `num_frames` segments whose borders are whole numbers, rounded down; several clips
    spread over the segment. Of a video with fewer frames than that it takes all, and repeats the last. Training draws
    from the segment without its last frame or, if a segment has one frame, from the whole video without repetition.

    Source: `get_frame_indices` of VideoMamba (`video_mm/dataset/video_utils.py`), "middle" and "rand".
    """
    num_segments = min(num_frames, total)
    borders = np.linspace(0, total, num_segments + 1).astype(np.int64)
    low, high = borders[:-1], borders[1:] - 1
    if generator is None:
        indices = low + (high - low) * np.arange(1, num_clips + 1)[:, None] // (num_clips + 1)
    elif (low < high).all():
        indices = generator.integers(low, high, size=(num_clips, num_segments))
    else:
        videos = np.tile(np.arange(total), (num_clips, 1))
        indices = np.sort(generator.permuted(videos, axis=1)[:, :num_segments])
    return np.pad(indices, ((0, 0), (0, num_frames - num_segments)), mode="edge")


SAMPLING_STRATEGIES: dict[str, Callable[..., np.ndarray]] = {
    "dense": dense_indices,
    "strided": strided_indices,
    "uniform": uniform_indices,
    "tsn": tsn_indices,
    "padded_tsn": padded_tsn_indices,
    "sparse": sparse_indices,
    "linspace": linspace_indices,
    "middle": middle_indices,
}
"""The choices of frames by name. Each function gives the indices of all clips of a video."""
# The strategies that read `frame_sampling_rate`.
STRIDED_STRATEGIES = ("dense", "strided")


def sample_clip_indices(
    sampling_strategy: str,
    total_num_frames: int,
    num_frames: int,
    frame_sampling_rate: float = 1,
    num_clips: int = 1,
    *,
    repeat_last_frame: bool = True,
    generator: np.random.Generator | None = None,
) -> np.ndarray:
    """
    Indices of the frames of `num_clips` clips.

    Args:
        sampling_strategy (`str`):
            A name of `SAMPLING_STRATEGIES`.
        total_num_frames, num_frames, num_clips (`int`):
            Number of frames of the video and of a clip, and of clips.
        frame_sampling_rate (`float`, defaults to 1):
            Distance between the frames of a clip, in frames of the video; need not be a whole number. Only "dense" and
            "strided" read it; the others spread a clip over the whole video.
        repeat_last_frame (`bool`, defaults to `True`):
            Whether a video that is shorter than a clip may repeat frames (the last one if dense).
        generator (`np.random.Generator`, *optional*):
            Draws the clips at random, for training. By default the clips are those of evaluation.

    Returns:
        `np.ndarray`: (num_clips, num_frames) int64, each in [0, total_num_frames), never falling within a clip.

    Raises:
        `ValueError`: for an unknown strategy, a number that is not positive, or a video that is shorter than a clip if
            `repeat_last_frame` is off.
    """
    if sampling_strategy not in SAMPLING_STRATEGIES:
        raise ValueError(
            f"sampling_strategy={sampling_strategy!r} is unknown; choose from {list(SAMPLING_STRATEGIES)}."
        )
    layout = total_num_frames, num_frames, frame_sampling_rate, num_clips
    names = "total_num_frames", "num_frames", "frame_sampling_rate", "num_clips"
    for name, value in zip(names, layout, strict=True):
        if value <= 0:
            raise ValueError(f"{name}={value} must be positive.")
    strided = sampling_strategy in STRIDED_STRATEGIES
    span = int((num_frames - 1) * frame_sampling_rate) + 1 if strided else num_frames
    if total_num_frames < span and not repeat_last_frame:
        raise ValueError(
            f"A clip of num_frames={num_frames} spans {span} frames, but the video has only {total_num_frames}. "
            "Sample fewer frames, or set repeat_last_frame=True to repeat frames of short videos."
        )
    return SAMPLING_STRATEGIES[sampling_strategy](*layout, generator).astype(np.int64)


def sample_at_rate(
    times: np.ndarray, duration: float, fps: float, num_frames: int | None, **options: Any
) -> np.ndarray | None:
    """The frames of clips of `fps` frames a second that are nearest to their times, (num_clips, num_frames) int64, of
    a video whose frames have the `times`, rising seconds. `options` are those of [`sample_clip_indices`], which finds
    the frames of a steady video: then it is `None`."""
    mean = len(times) / duration
    if np.abs(times - np.arange(len(times)) / mean).max() <= 0.5 / mean:
        return None
    # The clips of a steady video of at least the mean rate, of which a clip takes every `step`-th frame.
    step = max(int(np.ceil(mean / fps)), 1)
    total = max(int(duration * fps * step + 1e-6), 1)
    length = num_frames or max(total // step, 1)
    steady = sample_clip_indices(total_num_frames=total, num_frames=length, frame_sampling_rate=step, **options)
    return np.searchsorted((times[1:] + times[:-1]) / 2, steady / (fps * step))


def _clip_starts(room: float, num_clips: int, generator: Generator) -> np.ndarray:
    """Starts in [0, room]: drawn, in the centre for a single clip, else evenly spaced. (num_clips,)"""
    room = max(room, 0)
    if generator is not None:
        return generator.integers(0, int(room), size=num_clips, endpoint=True)
    if num_clips == 1:
        return np.array([room // 2])
    return np.floor(np.arange(num_clips) * room / (num_clips - 1))


def _strided(starts: np.ndarray, total_num_frames: int, num_frames: int, frame_sampling_rate: float) -> np.ndarray:
    # A clip that is longer than the rest of the video repeats its own last frame, not always that of the video.
    last_step = (total_num_frames - 1 - starts) // frame_sampling_rate
    steps = np.minimum(np.arange(num_frames), last_step[:, None])
    return np.floor(starts[:, None] + steps * frame_sampling_rate)


def _random_spans(
    total_num_frames: int, num_frames: int, frame_sampling_rate: float, num_clips: int, generator: np.random.Generator
) -> np.ndarray:
    """Frames from the first to the last of a random span; of a shorter video as many as the rate allows, then its
    last frame."""
    length, steps = int(num_frames * frame_sampling_rate), num_frames
    starts = np.zeros(num_clips, dtype=np.int64)
    if total_num_frames > length:
        # The original never draws the last start.
        starts = generator.integers(total_num_frames - length, size=num_clips)
    else:
        length, steps = total_num_frames, int(total_num_frames // frame_sampling_rate)
    ends = starts + length
    spans = np.minimum(np.linspace(starts, ends, steps, axis=1), ends[:, None] - 1)
    return np.pad(spans, ((0, 0), (0, num_frames - steps)), constant_values=total_num_frames - 1)


def _random_in_segments(borders: np.ndarray, num_clips: int, generator: np.random.Generator) -> np.ndarray:
    """A random frame in [border, next border) for each segment, the border itself if there is none."""
    low = np.floor(borders[:-1]).astype(np.int64)
    high = np.maximum(np.floor(borders[1:]).astype(np.int64), low + 1)
    return generator.integers(low, high, size=(num_clips, len(low)))
