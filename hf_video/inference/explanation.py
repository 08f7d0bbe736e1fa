"""The clip that a model sees of a video, and what a heat map says of its frames."""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReader


class Clip(NamedTuple):
    """One view of a video: (1, T, C, H, W) float32, as the model takes it; (T, H, W, 3) uint8, the frames as the model
    sees them, resized and cropped, not normalised; (T,) seconds of each frame after the first frame of the video, some
    twice in a short video; the second at which the clip ends, a step after its last frame, at most the end of what was
    sampled from; (H, W, 2) float32, the column and the row of the video that each pixel comes from; and height and
    width of the video in pixels."""

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
    """Reads the clip of a video that a processor samples: a single one, and its centre crop.

    Args:
        processor, video: the processor of the model, and what `VideoReader` takes.
        start, end: seconds of the part to sample from; by default the whole video.
        source_fps: frames per second of a folder of frames, which has no times of its own.

    Raises:
        VideoReadError: the video cannot be read, or the part holds no frame.
        ValueError: a folder of frames comes without `source_fps`, or with `start` or `end`.
    """
    with VideoReader(video) as reader:
        times = np.append(reader.times, reader.end)
        if source_fps is not None:
            times = np.arange(len(times)) / source_fps
        elif math.isnan(reader.end):
            raise ValueError(
                f"{reader.name} is a folder of frames, which have no times: give source_fps (--source-fps), the rate "
                "at which they were taken."
            )
        segment = reader.segment(start, end)
        chosen = processor.sample_frames(reader.metadata_of(segment), num_clips=1) + segment.start
        clips = reader.read(chosen)
    times, stop = times[chosen[0]], float(times[segment.stop])
    # A model takes one clip; what resizes and crops is apart from what makes numbers of bytes.
    as_images = partial(_process, processor, do_rescale=False, do_normalize=False)
    images = as_images(clips[0])
    height, width = clips.shape[2:4]
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = as_images(np.stack([columns, rows, 0 * rows], axis=-1)[None].astype(np.float32))
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


def frame_shares(heat_map: np.ndarray) -> np.ndarray:
    """The share of the evidence, a heat map (T, H, W) of 0 or more, that lies on each frame: (T,) float64 with the sum
    1; all 0 if there is no evidence."""
    evidence = np.asarray(heat_map, dtype=np.float64).sum(axis=(1, 2))
    return evidence / (evidence.sum() or 1.0)


def top_frames(shares: np.ndarray, count: int = 3) -> list[int]:
    """The frames that counted most by their [`frame_shares`], the first one most: at most `count`, each with at least
    an even share. Of neighbours with the same share, as those of a tubelet, the first one counts."""
    # The highest of some numbers may be below their mean by a rounding error.
    even = shares.mean() * (1 - 1e-9)
    is_first = np.append(True, ~np.isclose(shares[1:], shares[:-1], rtol=1e-6, atol=0))
    ranked = np.argsort(-shares, kind="stable").tolist()
    return [frame for frame in ranked if is_first[frame] and shares[frame] > 0 and shares[frame] >= even][:count]


def describe_frames(clip: Clip, heat_map: np.ndarray) -> list[dict[str, Any]]:
    """What a heat map (T, H, W) in [0, 1] says of each frame: its time in `seconds`, its `share` of the evidence, and
    its `highest` place, column and row in pixels of the video; None where there is no evidence."""
    entries = []
    for seconds, share, heat in zip(clip.times, frame_shares(heat_map), heat_map, strict=True):
        column, row = clip.places[np.unravel_index(heat.argmax(), heat.shape)].tolist()
        highest = [round(column, 1), round(row, 1)] if share else None
        entries.append({"seconds": round(float(seconds), 3), "share": round(float(share), 6), "highest": highest})
    return entries
