"""Features of clips, and of the sliding windows of a video, at any depth of a model, pooled over tokens or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from hf_video.data.read_ahead import iterate_ahead
from hf_video.processing import VideoClipProcessor

from .window_batching import choose_windows, window_batches

Pooling = Literal["head", "mean", "cls", "none"]


class FeatureSettings(NamedTuple):
    """Which features of a clip are taken.

    Attributes:
        pooling: "head" for the input of the model's head; "mean" over the tokens, "cls" for the first token, or "none"
            for all of them.
        layer: number of the hidden state, as Transformers counts `hidden_states`: 0 is the input of the first layer,
            -1 the last one. None takes the `last_hidden_state`.
    """

    pooling: Pooling
    layer: int | None = None


@contextmanager
def watch_features(model: Any, pooling: Literal["head", "none"] = "head") -> Iterator[list[torch.Tensor]]:
    """Collects the features of every forward pass within the context, one tensor for each pass.

    Args:
        model: a classifier of Transformers with a `classifier` as its head.
        pooling: "head" for the input of the head, (num_clips, hidden_size), or "none" for the last hidden state of the
            base model, (num_clips, num_tokens, hidden_size).

    Raises:
        ValueError: the model has no `classifier`, or the pooling is another one.
    """
    found: list[torch.Tensor] = []
    if pooling not in ("head", "none"):
        raise ValueError(f"pooling is {pooling!r}; head or none is expected.")
    if not isinstance(getattr(model, "classifier", None), nn.Module):
        raise ValueError(f"{type(model).__name__} has no head `classifier`, whose input would be the features.")
    if pooling == "head":
        hook = model.classifier.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0]))
    else:
        hook = model.base_model.register_forward_hook(lambda module, inputs, outputs: found.append(outputs[0]))
    try:
        yield found
    finally:
        hook.remove()


def choose_features(
    model: PreTrainedModel, pooling: Pooling | None = None, layer: int | None = None
) -> FeatureSettings:
    """The features to take of a model: by default the input of its head; without a head, or with `layer`, the mean.

    Raises:
        ValueError: there is no such pooling, or it does not go with the model or the layer.
    """
    has_head = isinstance(getattr(model, "classifier", None), nn.Module)
    if pooling is None:
        return FeatureSettings("head" if has_head and layer is None else "mean", layer)
    others = [name for name in get_args(Pooling) if name != "head"]
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling={pooling!r} is unknown; choose from {', '.join(get_args(Pooling))}.")
    if pooling == "head" and layer is not None:
        raise ValueError(f"The head sees no layer {layer}: choose a pooling from {', '.join(others)} for it.")
    if pooling == "head" and not has_head:
        raise ValueError(
            f"{type(model).__name__} has no head `classifier`: choose a pooling from {', '.join(others)}."
        )
    return FeatureSettings(pooling, layer)


@torch.inference_mode()
def encode_clips(model: PreTrainedModel, pixel_values: torch.Tensor, settings: FeatureSettings) -> torch.Tensor:
    """The features of a batch of clips.

    Args:
        model: a video classifier or the base of one, in evaluation mode.
        pixel_values: (batch_size, num_frames, num_channels, height, width); moved to the model's device and dtype.
        settings: from `choose_features`.

    Returns:
        (batch_size, hidden_size), or (batch_size, num_tokens, hidden_size) without pooling; float32, on the CPU.

    Raises:
        ValueError: the model has no such layer, or no tokens.
    """
    inputs = {model.main_input_name: pixel_values.to(model.device, model.dtype)}
    if settings.pooling == "head":
        with watch_features(model) as found:
            model(**inputs)
        return found[0].float().cpu()
    tokens = _tokens(model, inputs, settings.layer)
    if settings.pooling == "mean":
        tokens = tokens.float().mean(dim=1)
    elif settings.pooling == "cls":
        tokens = tokens[:, 0]
    return tokens.float().cpu()


def _tokens(model: PreTrainedModel, inputs: dict[str, Any], layer: int | None) -> torch.Tensor:
    """The hidden state (batch_size, num_tokens, hidden_size) of a layer."""
    base = model.base_model
    if layer is None:
        tokens = base(**inputs)[0]
    else:
        states = getattr(base(**inputs, output_hidden_states=True), "hidden_states", None)
        if not states:
            raise ValueError(f"{type(base).__name__} gives no hidden states: leave out layer={layer}.")
        if not -len(states) <= layer < len(states):
            raise ValueError(
                f"layer={layer} is out of range: {type(base).__name__} has the hidden states 0 to {len(states) - 1}."
            )
        tokens = states[layer]
    # The first layers of VideoPrism see each frame alone, and have a row for every frame.
    (clips,) = inputs.values()
    if tokens.ndim != 3 or len(tokens) != len(clips):
        raise ValueError(
            f"{type(base).__name__} gives {tuple(tokens.shape)} for {len(clips)} clips, not (batch_size, num_tokens, "
            "hidden_size): choose the pooling head, without a layer."
        )
    return tokens


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
