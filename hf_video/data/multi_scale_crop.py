"""The crop of VideoMAE's pre-training: a few sizes, at a few places."""

import numpy as np
import torch
from torchvision.transforms import v2

SCALES = (1, 0.875, 0.75, 0.66)
# Places of the crop, in quarters of the room that it leaves: (right, down).
_CORNERS_AND_CENTRE = ((0, 0), (4, 0), (0, 4), (4, 4), (2, 2))
_SIDES = ((0, 2), (4, 2), (2, 4), (2, 0))
_QUARTERS = ((1, 1), (3, 1), (1, 3), (3, 3))
_PLACES = _CORNERS_AND_CENTRE + _SIDES + _QUARTERS
# Sides that differ from the size of the result by less are not resized.
_TOLERANCE = 3


def multi_scale_crop(frames: torch.Tensor, size: tuple[int, int], generator: np.random.Generator) -> torch.Tensor:
    """
    A part of the frames, the same in all of them, resized bilinearly and smoothed against aliasing, as by Pillow.

    Height and width are each one of `SCALES` times the shorter side, at most one scale apart. Source:
    `GroupMultiScaleCrop` of VideoMAE (`transforms.py`), after TSN (https://arxiv.org/abs/1608.00859).

    Args:
        frames: uint8 `(num_frames, num_channels, height, width)`.
        size: height and width of the result in pixels.
        generator: source of the draws.
    """
    height, width = frames.shape[-2:]
    sides = [int(min(height, width) * scale) for scale in SCALES]
    heights, widths = ([s if abs(side - s) < _TOLERANCE else side for side in sides] for s in size)
    pairs = [(h, w) for i, h in enumerate(heights) for j, w in enumerate(widths) if abs(i - j) <= 1]
    crop_height, crop_width = pairs[generator.integers(len(pairs))]
    right, down = _PLACES[generator.integers(len(_PLACES))]
    left, top = right * ((width - crop_width) // 4), down * ((height - crop_height) // 4)
    return v2.functional.resized_crop(frames, top, left, crop_height, crop_width, list(size), antialias=True)
