"""Small random VideoMamba models and inputs."""

import contextlib
from typing import NamedTuple

import torch

from hf_video import VideoMambaConfig

SIZES = {
    "image_size": 32,
    "patch_size": 8,
    "num_frames": 4,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "state_size": 4,
    "projection_dim": 12,
    "num_labels": 5,
}


def tiny_config(**settings) -> VideoMambaConfig:
    return VideoMambaConfig(**{**SIZES, **settings})


def make(model_class, **settings):
    torch.manual_seed(0)
    return model_class(tiny_config(**settings)).eval()


def random_clips(config: VideoMambaConfig, batch_size: int = 2, **sizes) -> torch.Tensor:
    height, width = sizes.get("image_size", config.image_shape)
    shape = (batch_size, sizes.get("num_frames", config.num_frames), config.num_channels, height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Blocks(NamedTuple):
    """What enters the norm of every block, and what its mixer gives."""

    residuals: list[torch.Tensor]
    mixed: list[torch.Tensor]


@contextlib.contextmanager
def record_blocks(model):
    """Record the two tensors that the originals' blocks return, of one forward."""
    blocks, handles = Blocks([], []), []
    for layer in model.layers:
        handles.append(layer.norm.register_forward_pre_hook(lambda _, inputs: blocks.residuals.append(inputs[0])))
        handles.append(layer.mixer.register_forward_hook(lambda _, inputs, output: blocks.mixed.append(output[0])))
    yield blocks
    for handle in handles:
        handle.remove()
