"""Features of clips at any depth of a model, pooled over tokens or not."""

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from .features import watch_features

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
    if tokens.ndim != 3:
        raise ValueError(
            f"{type(base).__name__} gives {tuple(tokens.shape)}, not (batch_size, num_tokens, hidden_size): choose "
            "the pooling head, without a layer."
        )
    return tokens
