"""Gradients on the patch tokens of a model."""

from typing import Any

import torch
from transformers import PreTrainedModel

from .patch_tokens import PatchTokens


def weigh_tokens(
    model: PreTrainedModel, patches: PatchTokens, clip: torch.Tensor, options: dict[str, Any], target: int
) -> torch.Tensor:
    """
    Evidence of patches: gradient times activation of each channel of a token, as far as it is positive.

    They are taken at the output of the patch projection, where every model has its tokens on the grid of the video,
    whatever order, class token or scan comes behind.

    Args:
        model: a classifier in evaluation mode.
        patches: of `find_patch_tokens`.
        clip: (1, num_frames, num_channels, height, width).
        options: further inputs of the model.
        target: number of the output.

    Returns:
        (1, t, h, w) float32, at least 0.

    Raises:
        ImportError: captum is not installed.
    """
    try:
        from captum.attr import LayerGradientXActivation
    except ImportError as error:
        raise ImportError(
            f"Heat maps of {type(model).__name__} are computed with captum: pip install hf-video-models[explain]"
        ) from error

    def score(pixels: torch.Tensor) -> torch.Tensor:
        return model(**{model.main_input_name: pixels, **options}).logits.reshape(1, -1)[:, target]

    products = LayerGradientXActivation(score, patches.projection).attribute(clip.detach().requires_grad_())
    return patches.on_grid(products.detach().float().clamp(min=0))
