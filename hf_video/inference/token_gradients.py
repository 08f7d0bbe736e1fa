"""Gradients on the patch tokens of a model."""

from typing import Any

import torch
from transformers import PreTrainedModel

from .patch_tokens import PatchTokens


def weigh_tokens(
    model: PreTrainedModel, patches: PatchTokens, clip: torch.Tensor, options: dict[str, Any], target: int
) -> torch.Tensor:
    """
    Evidence of patches: for each channel of a token, its gradient times how far it is from the background, as far as
    the product is positive.

    Gradients are taken at the output of the patch projection, where every model has its tokens on the grid of the
    video, whatever order, class token or scan comes behind. The background is the median of a channel over the tokens
    of the clip. Without it, patches that show nothing would count by what all tokens have in common.

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
        from captum.attr import LayerActivation, LayerGradientXActivation
    except ImportError as error:
        raise ImportError(
            f"Heat maps of {type(model).__name__} are computed with captum: pip install hf-video-models[explain]"
        ) from error

    def score(pixels: torch.Tensor) -> torch.Tensor:
        return model(**{model.main_input_name: pixels, **options}).logits.reshape(1, -1)[:, target]

    pixels = clip.detach().requires_grad_()
    projection = patches.projection
    gradients = LayerGradientXActivation(score, projection, multiply_by_inputs=False).attribute(pixels)
    tokens = LayerActivation(score, projection).attribute(pixels)
    products = gradients * (tokens - patches.background(tokens))
    return patches.on_grid(products.detach().float().clamp(min=0))
