"""Windows of a video as batches of a model's input; each frame is decoded and processed once."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from hf_video.processing import VideoClipProcessor
from hf_video.processing.frame_streaming import stream_frames
from hf_video.processing.video_opening import VideoReadError


class WindowBatch(NamedTuple):
    """Some windows of a video, in their order.

    Attributes:
        starts: time of the first sample of each window, in seconds after the first frame of the source.
        ends: time at which the last sample of each window that is not padding ends.
        num_real: samples of each window that are not padding.
        pixel_values: (batch_size, num_frames, num_channels, height, width), as a model takes them.
    """

    starts: list[float]
    ends: list[float]
    num_real: list[int]
    pixel_values: torch.Tensor


class _Frame:
    """A frame, and what the processor makes of it as soon as a window needs it."""

    __slots__ = ("image", "values")

    def __init__(self, image: np.ndarray):
        self.image: np.ndarray | None = image
        self.values: torch.Tensor | None = None


def window_batches(
    processor: VideoClipProcessor,
    source: str | os.PathLike,
    *,
    batch_size: int = 1,
    num_frames: int = 16,
    stride: int = 8,
    fps: float | None = None,
    frame_sampling_rate: int = 1,
    last: Literal["pad", "drop", "shift"] = "pad",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Iterator[WindowBatch]:
    """Sliding windows of a video, resized, cropped and normalised for a model.

    Each frame is decoded, processed and moved to the device once, however many windows hold it. A batch is given as
    soon as it is full; the last one may be smaller. Memory does not grow with the length of the video.

    Args:
        processor: says how a frame is resized, cropped and normalised. Its sampling of clips and its views are not
            used: a window is one clip with one crop.
        source, num_frames, stride, fps, frame_sampling_rate, last: see `sliding_windows`.
        batch_size: windows in a batch.
        device: where `pixel_values` are.
        dtype: dtype of `pixel_values`.

    Raises:
        ValueError: an option is out of range.
        VideoReadError: the video cannot be read, or is damaged. The windows before the damage have been given.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1.")
    samples = (
        (frame.seconds, _Frame(frame.image))
        for frame in stream_frames(source, fps)
        if fps is not None or frame.number % frame_sampling_rate == 0
    )
    windows = _group(samples, num_frames, stride, last)
    return _batches(processor, windows, batch_size, torch.device(device), dtype)


def _group(samples: Iterable[Any], num_frames: int, stride: int, last: str) -> Iterator[Any]:
    held: list[Any] = []
    skip, distance, covered = 0, 0.0, True
    for time, value in samples:
        if held:
            distance = time - held[-1][0]
        if len(held) == num_frames:
            yield held[0][0], time, [each for _, each in held], num_frames
            covered, skip, held = True, max(stride - num_frames, 0), held[stride:]
        if skip:
            skip -= 1
            continue
        held.append((time, value))
        covered = False
    if covered or (last == "drop" and len(held) < num_frames):
        return
    values = [each for _, each in held]
    yield held[0][0], held[-1][0] + distance, values + values[-1:] * (num_frames - len(held)), len(held)


def _batches(
    processor: VideoClipProcessor, windows: Iterable[Any], batch_size: int, device: torch.device, dtype: torch.dtype
) -> Iterator[WindowBatch]:
    waiting: list[Any] = []
    try:
        for window in windows:
            _process(processor, window[2], device, dtype)
            waiting.append(window)
            if len(waiting) == batch_size:
                yield _join(waiting)
                waiting = []
    except VideoReadError:
        if waiting:
            yield _join(waiting)
        raise
    if waiting:
        yield _join(waiting)


def _process(processor: VideoClipProcessor, frames: list[_Frame], device: torch.device, dtype: torch.dtype) -> None:
    """Processes those of the frames that no earlier window held."""
    fresh = [frame for frame in dict.fromkeys(frames) if frame.image is not None]
    if not fresh:
        return
    images = np.stack([frame.image for frame in fresh])
    values = processor(images, do_sample_frames=False, num_crops=1, return_tensors="pt")["pixel_values"][0]
    for frame, of_frame in zip(fresh, values.to(device, dtype), strict=True):
        frame.image, frame.values = None, of_frame


def _join(windows: list[Any]) -> WindowBatch:
    starts, ends, frames, num_real = map(list, zip(*windows, strict=True))
    values = torch.stack([frame.values for of_window in frames for frame in of_window])
    return WindowBatch(starts, ends, num_real, values.unflatten(0, (len(windows), -1)))
