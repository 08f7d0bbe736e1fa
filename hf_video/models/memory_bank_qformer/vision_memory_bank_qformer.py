"""The vision tower: which one a configuration asks for, and what it makes of many frames."""

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


def encode_frames(
    vision_model: nn.Module, config: MemoryBankQFormerConfig, pixel_values: torch.Tensor, interpolate: bool
) -> torch.Tensor:
    """
    The tower's states `(batch_size, num_frames, num_tokens, hidden_size)` of `pixel_values` `(batch_size, num_frames,
    num_channels, height, width)`, with its position embeddings interpolated on request.

    Raises:
        ValueError: for pixels of another shape.
    """
    if pixel_values.ndim != 5:
        raise ValueError(
            "`pixel_values` must be (batch_size, num_frames, num_channels, height, width), got "
            f"{tuple(pixel_values.shape)}."
        )
    options = {"return_dict": True} | ({"interpolate_pos_encoding": True} if interpolate else {})
    is_video_encoder = hasattr(config.vision_config, "tubelet_size")
    states = [
        vision_model(chunk[:, None] if is_video_encoder else chunk, **options).last_hidden_state
        for chunk in pixel_values.flatten(0, 1).split(FRAMES_PER_TOWER_PASS)
    ]
    return torch.cat(states).unflatten(0, pixel_values.shape[:2])
