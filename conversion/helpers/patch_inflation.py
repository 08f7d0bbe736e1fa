"""
Inflates the patch embeddings of images over time.

Source of the two inflations: "Quo Vadis, Action Recognition?" (arXiv 1705.07750, section 2.4; mean) and ViViT (arXiv
2103.15691, section 3.4; centre).
"""

import torch
from einops import repeat


def inflate_patches(kernel: torch.Tensor, tubelet_size: int, inflation: str) -> torch.Tensor:
    """
    A kernel that gives a still video the tokens of its image.

    Args:
        kernel: `(hidden_size, num_channels, patch_height, patch_width)`.
        tubelet_size: frames of a patch.
        inflation: `"mean"` shares the weights out over the frames; anything else gives all to the middle frame.

    Returns:
        `torch.Tensor`: `(hidden_size, num_channels, tubelet_size, patch_height, patch_width)`.
    """
    if inflation == "mean":
        return repeat(kernel / tubelet_size, "d c h w -> d c t h w", t=tubelet_size)
    inflated = kernel.new_zeros(*kernel.shape[:2], tubelet_size, *kernel.shape[2:])
    inflated[:, :, tubelet_size // 2] = kernel
    return inflated
