"""Features of clips, and of the sliding windows of a video, at any depth of a model; and all that they follow from:
the weights and the configuration of a model, its processor, settings, and the video."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import BaseVideoProcessor, PreTrainedModel

from hf_video.data.loader import iterate_ahead
from hf_video.processing import VideoClipProcessor
from hf_video.reading.sources import is_url
from hf_video.version import __version__

from .windows import choose_windows, window_batches

# Fields of a configuration that do not change the features: the classes and the origin. Nor does the head.
_OTHER_FIELDS = "id2label label2id problem_type _name_or_path transformers_version architectures".split()
_HEAD = "classifier."

Pooling = Literal["head", "mean", "cls", "none"]


class FeatureSettings(NamedTuple):
    """Which features of a clip are taken: "head" for the input of the model's head; "mean" over the tokens, "cls" for
    the first token, or "none" for all of them; and the number of the hidden state, as Transformers counts
    `hidden_states`: None takes the `last_hidden_state`."""

    pooling: Pooling
    layer: int | None = None


def choose_features(
    model: PreTrainedModel, pooling: Pooling | None = None, layer: int | None = None
) -> FeatureSettings:
    """The features to take of a model: by default the input of its head; without a head, or with `layer`, the mean. It
    is a `ValueError` if there is no such pooling, or it does not go with the model or the layer."""
    has_head = isinstance(getattr(model, "classifier", None), nn.Module) and layer is None
    pooling = pooling or ("head" if has_head else "mean")
    known = get_args(Pooling)[not has_head :]
    if pooling not in known:
        what = type(model).__name__ if layer is None else f"layer {layer}"
        raise ValueError(f"There is no pooling {pooling!r} of {what}: choose from {', '.join(known)}.")
    return FeatureSettings(pooling, layer)


@contextmanager
def seen_by_head(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """What the head of a model has seen since the block began, one tensor (batch_size, ..., hidden_size) a call."""
    seen: list[torch.Tensor] = []
    head: Any = model.classifier
    with head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].float().cpu())):
        yield seen


@torch.inference_mode()
def encode_clips(model: PreTrainedModel, pixel_values: torch.Tensor, settings: FeatureSettings) -> torch.Tensor:
    """The features of clips (batch_size, num_frames, num_channels, height, width), by a video classifier or the base
    of one in evaluation mode: (batch_size, hidden_size), or (batch_size, num_tokens, hidden_size) without pooling;
    float32, on the CPU. It is a `ValueError` if the model has no such layer, or no tokens."""
    pooling, layer = settings
    inputs = {model.main_input_name: pixel_values.to(model.device, model.dtype)}
    if pooling == "head":
        with seen_by_head(model) as seen:
            model(**inputs)
        return seen[0]
    base = model.base_model
    if layer is None:
        tokens = base(**inputs)[0]
    else:
        states = getattr(base(**inputs, output_hidden_states=True), "hidden_states", None) or ()
        if not -len(states) <= layer < len(states):
            raise ValueError(f"layer={layer} is out of range: {type(base).__name__} has {len(states)} hidden states.")
        tokens = states[layer]
    # The first layers of VideoPrism see each frame alone, and have a row for every frame.
    if tokens.ndim != 3 or len(tokens) != len(pixel_values):
        raise ValueError(f"{type(base).__name__} gives no tokens of a clip there: choose the pooling head.")
    if pooling == "cls":
        tokens = tokens[:, 0]
    tokens = tokens.float()
    return (tokens.mean(dim=1) if pooling == "mean" else tokens).cpu()


class WindowFeatures(NamedTuple):
    """Features of windows, in their order: (num_windows, hidden_size), or (num_windows, num_tokens, hidden_size)
    without pooling, float32; and when each window starts and ends, in seconds after the first frame."""

    features: np.ndarray
    starts: list[float]
    ends: list[float]


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
    """The features of all windows of a video. The next batch is read while the model computes.

    Args:
        model: a video classifier or the base of one; put into evaluation mode.
        processor: prepares the frames.
        video: see `timed_samples`.
        pooling, layer: which features, see `FeatureSettings`; by default what the head sees.
        batch_size: windows in one forward pass.
        windows: `num_frames`, `stride`, `fps`, `frame_sampling_rate`, `last` and `source_fps` of `window_batches`.

    Raises:
        ValueError: an option is out of range, or the model does not take such windows.
        VideoReadError: the video cannot be read, or is damaged.
    """
    encode = partial(encode_clips, model.eval(), settings=choose_features(model, pooling, layer))
    num_frames = choose_windows(processor, num_frames=windows.get("num_frames"))["num_frames"]
    features = [np.empty((0, *feature_shape(encode, processor, num_frames)), np.float32)]
    starts, ends = [], []
    options = {"batch_size": batch_size, "device": model.device, "dtype": model.dtype, **windows}
    for batch in iterate_ahead(window_batches(processor, video, **options)):
        features.append(encode(batch.pixel_values).numpy())
        starts += batch.starts
        ends += batch.ends
    return WindowFeatures(np.concatenate(features), starts, ends)


def feature_shape(
    encode: Callable[[torch.Tensor], torch.Tensor], processor: VideoClipProcessor, num_frames: int
) -> tuple[int, ...]:
    """The shape of what `encode` makes of a window, here of a black one. It is a `ValueError` if the model does not
    take such windows, or has no such layer."""
    black = np.zeros((num_frames, 256, 256, 3), np.uint8)
    clip = processor(black, do_sample_frames=False, num_crops=1, return_tensors="pt")[processor.model_input_names[0]]
    try:
        return tuple(encode(clip).shape[1:])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        sizes = "(frames, channels, height, width)"
        raise ValueError(f"The model cannot encode windows of {tuple(clip.shape[1:])} {sizes}: {error}") from error


def feature_key(model: PreTrainedModel, processor: BaseVideoProcessor, **settings: Any) -> dict[str, Any]:
    """All that the features of a video follow from, besides the video, as JSON holds it: features with equal keys are
    equal. These are the settings, and `model` (its class), `weights` (a digest), `config`, `processor` and `hf_video`
    (the version). The head of the model, the names of its classes and its name do not count."""
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(_HEAD)}
    facts = {
        **settings,
        "model": type(model).__name__,
        "weights": weights_digest(weights),
        "config": {name: value for name, value in model.config.to_dict().items() if name not in _OTHER_FIELDS},
        "processor": json.loads(processor.to_json_string()),
        "hf_video": __version__,
    }
    return json.loads(json.dumps(facts, sort_keys=True, default=str))


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """The SHA-256 of named tensors, their shapes and dtypes; of quantised ones, that of what they consist of."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if is_traceable_wrapper_subclass(tensor):
            parts, _ = tensor.__tensor_flatten__()
            digest.update(weights_digest({part: getattr(tensor, part) for part in parts}).encode())
        else:
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def video_identity(video: str, sha256: str | None = None) -> list[Any]:
    """Values that differ between videos, and change when the content of a file does; of a URL only the name is known.
    With `sha256` the video is stored elsewhere, and `video` is a name. It is an `OSError` if there is no such file or
    folder."""
    if sha256 is not None or is_url(video):
        return [video, sha256]
    path = Path(video)
    stats = [(file.name, file.stat()) for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    return [video, [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]]
