"""Small random VideoTextDualEncoder models and their inputs."""

import torch

from hf_video import VideoTextDualEncoderConfig, VideoTextDualEncoderModel

VISION = {
    "model_type": "videomamba",
    "image_size": 16,
    "patch_size": 8,
    "num_frames": 4,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 4,
    "projection_dim": 12,
    "last_aligned_feature": "unmixed",
}
TEXT = {
    "vocab_size": 60,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 16,
}
SIZES = {"fusion_layer": 2, "projection_dim": 8, "cls_token_id": 2, "mask_token_id": 4}


def make(vision=None, **settings) -> VideoTextDualEncoderModel:
    """A model that is not in training mode."""
    torch.manual_seed(0)
    config = VideoTextDualEncoderConfig(vision_config=vision or VISION, text_config=TEXT, **SIZES | settings)
    return VideoTextDualEncoderModel(config).eval()


def random_pairs(batch_size=4, num_frames=4) -> dict[str, torch.Tensor]:
    """Videos and texts; the second half of the texts ends in padding."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(5, 60, (batch_size, 7), generator=generator)
    input_ids[:, 0] = 2
    input_ids[batch_size // 2 :, 5:] = 0
    return {
        "pixel_values": torch.randn(batch_size, num_frames, 3, 16, 16, generator=generator),
        "input_ids": input_ids,
        "attention_mask": (input_ids != 0).long(),
    }
