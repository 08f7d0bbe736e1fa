"""Reads the clip of a video that a model sees, with its images and their times."""

import math
import os
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from hf_video.processing import VideoClipProcessor
from hf_video.reading.sources import kind_of
from hf_video.reading.video_reading import TimedVideo, read_timed_video


class Clip(NamedTuple):
    """
    One view of a video.

    Attributes:
        pixel_values: (1, T, C, H, W) float32, as the model takes it.
        images: (T, H, W, 3) uint8, the frames as the model sees them: resized and cropped, not normalised.
        times: (T,) seconds of each frame after the first frame of the video. A short video repeats frames.
        end: seconds at which the clip ends: a step after its last frame, at most the end of what was sampled from.
        places: (H, W, 2) float32, the column and the row of the video that each pixel of an image comes from.
        video_size: height and width of the video in pixels.
    """

    pixel_values: torch.Tensor
    images: np.ndarray
    times: np.ndarray
    end: float
    places: np.ndarray
    video_size: tuple[int, int]


def read_clip(
    processor: VideoClipProcessor,
    video: Any,
    *,
    start: float | None = None,
    end: float | None = None,
    source_fps: float | None = None,
) -> Clip:
    """
    Reads the clip of a video that a processor samples: a single one, and its centre crop.

    Args:
        processor: the processor of the model.
        video: path of a video file, URL, bytes, an open file, or path of a folder of frames.
        start, end: seconds of the part to sample from; by default the whole video.
        source_fps: frames per second of a folder of frames, which has no times of its own.

    Raises:
        VideoReadError: the video cannot be read, or the part holds no frame.
        ValueError: a folder of frames comes without `source_fps`, or with `start` or `end`.
    """
    if source_fps is None and kind_of(video) == "folder":
        raise ValueError(
            f"{os.fspath(video)} has no times: give source_fps=..., the rate at which its frames were taken."
        )
    read = read_timed_video(video, partial(processor.sample_frames, num_clips=1), start=start, end=end)
    # A model takes one clip; what resizes and crops is apart from what makes numbers of bytes.
    as_images = partial(_process, processor, do_rescale=False, do_normalize=False)
    images = as_images(read.frames[0])
    height, width = read.frames.shape[2:4]
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = as_images(np.stack([columns, rows, 0 * rows], axis=-1)[None].astype(np.float32))
    times, stop = _times(read, source_fps)
    step = (times[-1] - times[0]) / (len(times) - 1) if times[-1] > times[0] else math.inf
    return Clip(
        _process(processor, images, do_resize=False, do_center_crop=False),
        images[0].movedim(1, -1).numpy(),
        times,
        min(float(times[-1]) + step, stop),
        places[0, 0, :2].movedim(0, -1).numpy(),
        (height, width),
    )


def _process(processor: VideoClipProcessor, frames: Any, **options: Any) -> torch.Tensor:
    """(1, T, C, H, W) of frames that are sampled already."""
    inputs = processor(frames, do_sample_frames=False, num_crops=1, return_tensors="pt", **options)
    return inputs[processor.model_input_names[0]]


def _times(read: TimedVideo, source_fps: float | None) -> tuple[np.ndarray, float]:
    """The seconds of each frame of a clip, and those at which the video or its part ends."""
    if source_fps is None:
        return read.seconds[0], read.end
    return np.array(read.metadata.frames_indices) / source_fps, read.metadata.total_num_frames / source_fps
