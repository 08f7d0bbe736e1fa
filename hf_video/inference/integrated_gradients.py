"""Integrated gradients of the patches of a clip."""

from typing import Any

import torch
from transformers import PreTrainedModel

from .class_score import class_score
from .patch_grid import PatchGrid

_NUM_STEPS = 8


def weigh_patches(
    model: PreTrainedModel, patches: PatchGrid, clip: torch.Tensor, options: dict[str, Any], target: int
) -> torch.Tensor:
    """
    Evidence of patches: the integrated gradients of their pixels from a blank clip, as far as their sum is positive.

    Equation 1 of Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks" (ICML 2017). The blank clip has
    the median of each colour channel over the clip. All values, before negative ones are set to 0, add up to the score
    of the clip less that of the blank one, up to the error of 8 steps. A patch becomes a token by an affine map, so
    the sum over its pixels is that over the channels of its token. The pixels have their places, whatever order, class
    token or scan comes behind.

    A patch that looks like the blank clip has no evidence, whatever the model has learned. Where a video shows one
    thing before an even background, any model's map is on that thing; what has been learned decides which of its
    places and moments count.

    It costs 8 passes forward and back, one at a time.

    Args:
        model: a classifier in evaluation mode.
        patches: of `find_patch_grid`.
        clip: (1, num_frames, num_channels, height, width).
        options: further inputs of the model.
        target: number of the output.

    Returns:
        (1, t, h, w) float32, at least 0.

    Raises:
        ImportError: captum is not installed.
        ValueError: the model leaves out patches, or gives no gradients.
    """
    try:
        from captum.attr import IntegratedGradients
    except ImportError as error:
        raise ImportError(
            f"Heat maps of {type(model).__name__} are computed with captum: pip install 'hf-video-models[explain]'"
        ) from error
    if getattr(model.config, "run_length_threshold", None) is not None:
        raise ValueError(
            f"{type(model).__name__} leaves out patches, and heat maps need all of them. Set "
            "`config.run_length_threshold` to None."
        )

    def score(pixels: torch.Tensor) -> torch.Tensor:
        return class_score(model(**{model.main_input_name: pixels, **options}).logits, target)

    colors = clip.float().transpose(1, 2).flatten(2).median(-1).values.to(clip.dtype)
    blank = colors[:, None, :, None, None].expand_as(clip)
    products = IntegratedGradients(score).attribute(clip.detach(), blank, n_steps=_NUM_STEPS, internal_batch_size=1)
    return patches.sum_pixels(products.detach().float()).clamp(min=0)
