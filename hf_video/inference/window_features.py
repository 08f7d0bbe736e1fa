"""Features of the sliding windows of a video."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_video.data.read_ahead import iterate_ahead
from hf_video.processing import VideoClipProcessor

from .clip_features import FeatureSettings, Pooling, choose_features, encode_clips
from .window_batching import choose_windows, window_batches


class WindowFeatures(NamedTuple):
    """Features of windows, in their order.

    Attributes:
        features: (num_windows, hidden_size), or (num_windows, num_tokens, hidden_size) without pooling; float32.
        starts, ends: times of each window in seconds after the first frame, see `Window`.
        num_real: samples of each window that are not padding.
    """

    features: np.ndarray
    starts: list[float]
    ends: list[float]
    num_real: list[int]


def extract_window_features(
    model: PreTrainedModel,
    processor: VideoClipProcessor,
    video: Any,
    *,
    pooling: Pooling | None = None,
    layer: int | None = None,
    batch_size: int = 8,
    **windows: Any,
) -> WindowFeatures:
    """The features of all windows of a video.

    Args:
        model: a video classifier or the base of one; put into evaluation mode.
        processor: prepares the frames.
        video: see `sliding_windows`.
        pooling, layer: which features, see `FeatureSettings`; by default what the head sees.
        batch_size: windows in one forward pass.
        windows: `num_frames`, `stride`, `fps`, `frame_sampling_rate`, `last` and `source_fps` of `window_batches`.

    Raises:
        ValueError: an option is out of range, or the model does not take such windows.
        VideoReadError: the video cannot be read, or is damaged.
    """
    settings = choose_features(model, pooling, layer)
    num_frames = choose_windows(processor, num_frames=windows.get("num_frames"))["num_frames"]
    shape = feature_shape(model, processor, settings, num_frames)
    batches = list(
        stream_window_features(model, processor, video, settings=settings, batch_size=batch_size, **windows)
    )
    features = np.concatenate([np.empty((0, *shape), np.float32), *(batch.features for batch in batches)])
    starts, ends, num_real = [], [], []
    for batch in batches:
        starts += batch.starts
        ends += batch.ends
        num_real += batch.num_real
    return WindowFeatures(features, starts, ends, num_real)


def stream_window_features(
    model: PreTrainedModel,
    processor: VideoClipProcessor,
    video: Any,
    *,
    settings: FeatureSettings,
    batch_size: int = 8,
    **windows: Any,
) -> Iterator[WindowFeatures]:
    """The features of the windows of a video, batch by batch, so that memory does not grow with its length. The next
    batch is read while the model computes. The arguments are those of `extract_window_features`."""
    model.eval()
    batches = window_batches(
        processor, video, batch_size=batch_size, device=model.device, dtype=model.dtype, **windows
    )
    for batch in iterate_ahead(batches):
        features = encode_clips(model, batch.pixel_values, settings)
        yield WindowFeatures(features.numpy(), batch.starts, batch.ends, batch.num_real)


def feature_shape(
    model: PreTrainedModel, processor: VideoClipProcessor, settings: FeatureSettings, num_frames: int
) -> tuple[int, ...]:
    """The shape of the features of a window, from a black one that passes through the model.

    Raises:
        ValueError: the model does not take such windows, or has no such layer.
    """
    model.eval()
    black = np.zeros((num_frames, 256, 256, 3), np.uint8)
    clip = processor(black, do_sample_frames=False, num_crops=1, return_tensors="pt")[processor.model_input_names[0]]
    try:
        return tuple(encode_clips(model, clip, settings).shape[1:])
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ValueError(
            f"{type(model).__name__} cannot encode windows of {tuple(clip.shape[1:])} (frames, channels, height, "
            f"width): {error}"
        ) from error
