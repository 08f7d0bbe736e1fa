"""Cutting videos into patches, and patches into tokens."""

import math

import torch
from torch import nn

from .configuration_videovit import VideoViTConfig
from .position_embeddings_videovit import TokenGrid


def patchify(pixel_values: torch.Tensor, patch_shape: tuple[int, int, int]) -> torch.Tensor:
    """
    Cut videos into patches; frames and pixels that fill no patch are dropped.

    Args:
        pixel_values: `(batch_size, num_frames, num_channels, height, width)`.
        patch_shape: frames, rows and columns of a patch.

    Returns:
        `(batch_size, num_channels, tubelet_size, patch_height, patch_width, t, h, w)`, a view where possible.
    """
    for dim, size in zip((1, 3, 4), patch_shape, strict=True):
        pixel_values = pixel_values.narrow(dim, 0, pixel_values.shape[dim] // size * size)
    (dt, dh, dw), (batch, frames, channels, height, width) = patch_shape, pixel_values.shape
    patches = pixel_values.reshape(batch, frames // dt, dt, channels, height // dh, dh, width // dw, dw)
    return patches.permute(0, 3, 2, 5, 7, 1, 4, 6)


class VideoViTPatchEmbeddings(nn.Module):
    """Patches to tokens by one linear layer, which is the original's `Conv3d` with its stride equal to its kernel."""

    def __init__(self, config: VideoViTConfig):
        super().__init__()
        self.config = config
        self.projection = nn.Linear(config.num_channels * math.prod(config.patch_shape), config.hidden_size)

    def grid_of(self, pixel_values: torch.Tensor) -> TokenGrid:
        """Token grid (t, h, w) of an input; raises `ValueError` if its shape is not one this model can take."""
        if pixel_values.ndim != 5 or pixel_values.shape[2] != self.config.num_channels:
            raise ValueError(
                f"`pixel_values` must be (batch_size, num_frames, num_channels={self.config.num_channels}, height, "
                f"width), got {tuple(pixel_values.shape)}."
            )
        num_frames, _, height, width = pixel_values.shape[1:]
        grid = self.config.token_grid_of(num_frames, height, width)
        if min(grid) < 1:
            raise ValueError(
                f"{num_frames} frames of {height} x {width} pixels hold no patch of {self.config.patch_shape} (frames,"
                " height, width)."
            )
        return grid

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        self.grid_of(pixel_values)  # refuses a shape that does not fit
        patches = patchify(pixel_values, self.config.patch_shape).permute(0, 5, 6, 7, 1, 2, 3, 4)
        return self.projection(patches.flatten(4).flatten(1, 3))
