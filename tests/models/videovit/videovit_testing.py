"""Small random VideoViT models and inputs."""

import torch

from hf_video import VideoViTConfig

SIZES = {
    "image_size": 32,
    "patch_size": 8,
    "num_frames": 8,
    "tubelet_size": 2,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "decoder_hidden_size": 24,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 32,
    "num_labels": 5,
}
VJEPA2 = {
    **{"position_embedding_type": "rope", "rope_layout": "vjepa2", "rope_theta": 10000.0, "key_bias": True},
    **{"use_mean_pooling": False, "use_final_norm": True},
}
VJEPA2_1 = VJEPA2 | {
    **{"rope_layout": "vjepa2_1", "rope_grid_size": 4, "intermediate_norm_layers": [0]},
    **{"use_modality_embeddings": True, "use_image_patch_embeddings": True},
}
ATTENTIVE = VJEPA2 | {
    **{"pooler_type": "attentive", "pooler_num_hidden_layers": 1, "pooler_num_attention_heads": 2},
    "head_norm_eps": 1e-5,
}


def tiny_config(**settings) -> VideoViTConfig:
    return VideoViTConfig(**{**SIZES, **settings})


def make(model_class, **settings):
    """A random model that is not in training mode."""
    torch.manual_seed(0)
    return model_class(tiny_config(**settings)).eval()


def random_clips(config: VideoViTConfig, batch_size: int = 2, **sizes) -> torch.Tensor:
    height, width = sizes.get("image_size", config.image_shape)
    shape = (batch_size, sizes.get("num_frames", config.num_frames), config.num_channels, height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
