"""The vision tower: which one a configuration asks for, and what it makes of many frames."""

import inspect

import torch
from torch import nn
from transformers import AutoModel, InstructBlipVisionConfig, InstructBlipVisionModel
from transformers.modeling_utils import PreTrainedModel

from .configuration_memory_bank_qformer import MemoryBankQFormerConfig

# Frames that the vision tower takes at once, so that its memory does not grow with the video.
FRAMES_PER_TOWER_PASS = 32


def make_vision_model(config: MemoryBankQFormerConfig) -> PreTrainedModel | None:
    """The vision tower; of EVA-ViT the states before its last norm, whose place our own norm takes."""
    if isinstance(config.vision_config, InstructBlipVisionConfig):
        vision_model = InstructBlipVisionModel._from_config(config.vision_config)
        vision_model.post_layernorm = nn.Identity()
        return vision_model
    return None if config.vision_config is None else AutoModel.from_config(config.vision_config)


def check_size(config: MemoryBankQFormerConfig, pixel_values: torch.Tensor) -> None:
    """Raise `ValueError` for frames of another size than the tower's, to which EVA-ViT would add wrong positions."""
    image_size = getattr(config.vision_config, "image_size", None)
    expected = (image_size, image_size) if isinstance(image_size, int) else image_size
    size = tuple(pixel_values.shape[-2:])
    if expected is not None and size != tuple(expected):
        raise ValueError(
            f"The frames have the size {size}, the vision tower has positions for {tuple(expected)}: resize them, or "
            "leave `interpolate_pos_encoding` true."
        )


def encode_frames(
    vision_model: nn.Module,
    config: MemoryBankQFormerConfig,
    pixel_values: torch.Tensor,
    interpolate_pos_encoding: bool | None,
) -> torch.Tensor:
    """
    The tower's states `(batch_size, num_frames, num_tokens, hidden_size)` of `pixel_values` `(batch_size, num_frames,
    num_channels, height, width)`. Position embeddings follow frames of another size unless `interpolate_pos_encoding`
    is false, where the tower knows that option.

    Raises:
        ValueError: for pixels of another shape, or of another size where position embeddings must not follow.
    """
    if pixel_values.ndim != 5:
        raise ValueError(
            "`pixel_values` must be (batch_size, num_frames, num_channels, height, width), got "
            f"{tuple(pixel_values.shape)}."
        )
    options = {"return_dict": True}
    if "interpolate_pos_encoding" in inspect.signature(vision_model.forward).parameters:
        options["interpolate_pos_encoding"] = interpolate_pos_encoding is None or bool(interpolate_pos_encoding)
        if not options["interpolate_pos_encoding"]:
            check_size(config, pixel_values)
    is_video_encoder = hasattr(config.vision_config, "tubelet_size")
    states = [
        vision_model(chunk[:, None] if is_video_encoder else chunk, **options).last_hidden_state
        for chunk in pixel_values.flatten(0, 1).split(FRAMES_PER_TOWER_PASS)
    ]
    return torch.cat(states).unflatten(0, pixel_values.shape[:2])
