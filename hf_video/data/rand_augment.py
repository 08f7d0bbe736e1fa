"""RandAugment as the video models were trained with it: timm's operations, the same ones for all frames of a clip."""

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

_GREY = (128, 128, 128)


def rand_augment(
    frames: torch.Tensor, num_ops: int, magnitude: float, magnitude_std: float, generator: np.random.Generator
) -> torch.Tensor:
    """
    Draw `num_ops` of `OPERATIONS`, with replacement, and apply each with probability 1/2 to all frames.

    The operations are Pillow's, as in the originals. So every byte is theirs; and torchvision, which has no bicubic
    affine maps, is not faster.

    Source: `rand-m{magnitude}-n{num_ops}-mstd{magnitude_std}-inc1` of `rand_augment.py` of VideoMAE, after timm's
    `auto_augment.py`; paper: https://arxiv.org/abs/1909.13719.

    Args:
        frames: uint8 (T, 3, H, W).
        num_ops: Operations to draw.
        magnitude: Mean magnitude, from 0 to 10.
        magnitude_std: Standard deviation of the magnitude of each operation; what is drawn is clipped to [0, 10].
        generator: Draws everything.

    Returns:
        uint8 (T, 3, H, W); `frames` itself if no operation is applied.
    """
    drawn = []
    for name in generator.choice(list(OPERATIONS), num_ops):
        if generator.random() < 0.5:
            level = np.clip(generator.normal(magnitude, magnitude_std), 0, 10) / 10
            drawn.append((OPERATIONS[name], float(level * generator.choice([-1, 1]))))
    if not drawn:
        return frames
    images = [Image.fromarray(frame) for frame in frames.permute(0, 2, 3, 1).contiguous().numpy()]
    for operation, level in drawn:
        images = [operation(image, level) for image in images]
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)


def _solarize_add(image: Image.Image, level: float) -> Image.Image:
    added = int(110 * abs(level))
    return image.point([min(255, value + added) if value < 128 else value for value in range(256)] * 3)


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    """The pixel (x, y) becomes that at (ax + by + c, dx + ey + f) for the matrix a, b, c, d, e, f."""
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BICUBIC, fillcolor=_GREY
    )


# Each takes an image and a level from -1 to 1: the magnitude over 10, and the direction. At 0 it changes nothing,
# but for the first three, which have no strength, and posterize, which keeps 4 bits then. At 1 it keeps one, the least
# that Pillow allows.
OPERATIONS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "AutoContrast": lambda image, level: ImageOps.autocontrast(image),
    "Equalize": lambda image, level: ImageOps.equalize(image),
    "Invert": lambda image, level: ImageOps.invert(image),
    "Rotate": lambda image, level: image.rotate(30 * level, resample=Image.Resampling.BICUBIC, fillcolor=_GREY),
    "PosterizeIncreasing": lambda image, level: ImageOps.posterize(image, max(4 - int(4 * abs(level)), 1)),
    "SolarizeIncreasing": lambda image, level: ImageOps.solarize(image, 256 - int(256 * abs(level))),
    "SolarizeAdd": _solarize_add,
    "ColorIncreasing": lambda image, level: ImageEnhance.Color(image).enhance(1 + 0.9 * level),
    "ContrastIncreasing": lambda image, level: ImageEnhance.Contrast(image).enhance(1 + 0.9 * level),
    "BrightnessIncreasing": lambda image, level: ImageEnhance.Brightness(image).enhance(1 + 0.9 * level),
    "SharpnessIncreasing": lambda image, level: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * level),
    "ShearX": lambda image, level: _affine(image, 1, 0.3 * level, 0, 0, 1, 0),
    "ShearY": lambda image, level: _affine(image, 1, 0, 0, 0.3 * level, 1, 0),
    "TranslateXRel": lambda image, level: _affine(image, 1, 0, 0.45 * level * image.width, 0, 1, 0),
    "TranslateYRel": lambda image, level: _affine(image, 1, 0, 0, 0, 1, 0.45 * level * image.height),
}
