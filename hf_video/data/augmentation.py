"""Changes training clips at random, in the same way for all frames of a clip."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.overrides import TorchFunctionMode
from torchvision.transforms import v2
from transformers.image_utils import PILImageResampling, pil_torch_interpolation_mapping

from hf_video.settings import check_values

from .video_settings import ClipAugmentationSettings, RepeatedAugmentationSettings

_DIRECTIONS = re.compile(r"\b(left|right|leftwards?|rightwards?|(counter|anti)?-?clockwise)\b", re.IGNORECASE)
SCALES = (1, 0.875, 0.75, 0.66)
# Places of the crop, in quarters of the room that it leaves: (right, down).
_CORNERS_AND_CENTRE = ((0, 0), (4, 0), (0, 4), (4, 4), (2, 2))
_SIDES = ((0, 2), (4, 2), (2, 4), (2, 0))
_QUARTERS = ((1, 1), (3, 1), (1, 3), (3, 3))
_PLACES = _CORNERS_AND_CENTRE + _SIDES + _QUARTERS
# Sides that differ from the size of the result by less are not resized.
_TOLERANCE = 3
_RATIOS = (3 / 4, 4 / 3)
_GREY = (128, 128, 128)


@dataclass
class ClipAugmentation(RepeatedAugmentationSettings, ClipAugmentationSettings):
    """The augmentation of VideoMAE's and VideoMamba's fine-tuning. Everything is off by default.

    The methods are called in the order of the originals: `rand_augment` on whole frames, `crop`, `change_pixels`, and
    `erase` after the frames are normalised. The originals normalise before they crop and resize. Here bytes are
    resized, which is faster and at most one level of 255 away.

    Source: `_aug_frame` of VideoMAE's `kinetics.py` and `ssv2.py`, `rand_augment.py`, `random_erasing.py` and
    `video_transforms.py`.

    Raises:
        ValueError: a value is out of its range.
    """

    def __post_init__(self) -> None:
        check_values(self, ClipAugmentation)
        if self.multi_scale_crop and self.crop_min_area is not None:
            raise ValueError("multi_scale_crop and crop_min_area are two ways to crop: choose one of them.")

    @property
    def crops_whole_frames(self) -> bool:
        """Whether the crop chooses its own size, so that frames are not resized before it."""
        return self.multi_scale_crop or self.crop_min_area is not None

    def smallest_side(self, height: int, width: int) -> float:
        """The least height or width of a crop of whole frames."""
        if self.multi_scale_crop:
            return SCALES[-1] * min(height, width)
        return math.sqrt((self.crop_min_area or 1) * height * width * _RATIOS[0])

    def rand_augment(self, frames: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        """RandAugment of frames, uint8 (T, 3, H, W), see `rand_augment`."""
        return rand_augment(
            frames,
            self.rand_augment_num_ops,
            self.rand_augment_magnitude,
            self.rand_augment_magnitude_std,
            generator,
        )

    def crop(
        self,
        frames: torch.Tensor,
        size: tuple[int, int],
        antialias: bool,
        generator: np.random.Generator,
        resample: PILImageResampling | v2.InterpolationMode = PILImageResampling.BILINEAR,
    ) -> torch.Tensor:
        """A random part of the frames, uint8 (T, C, H, W), resized to `size` (height, width) by the filter `resample`.

        The processors of VideoMAE and VideoMamba have the bilinear filter, as their originals' crops, that of MA-LMM
        the bicubic one.
        """
        if self.multi_scale_crop:
            return multi_scale_crop(frames, size, generator)
        if self.crop_min_area is None:
            return _apply(v2.RandomCrop(size, pad_if_needed=True), frames, generator)
        crop = v2.RandomResizedCrop(
            size,
            scale=(self.crop_min_area, 1.0),
            ratio=_RATIOS,
            interpolation=pil_torch_interpolation_mapping.get(resample, resample),
            antialias=antialias,
        )
        return _apply(crop, frames, generator)

    def change_pixels(
        self, frames: torch.Tensor, generator: np.random.Generator, label: str | None = None
    ) -> torch.Tensor:
        """Flip and colour jitter of frames, uint8 (T, C, H, W); `label` is the name of their class."""
        if self.horizontal_flip and generator.random() < 0.5 and not (label and has_direction(label)):
            frames = frames.flip(-1)
        if self.color_jitter:
            jitter = v2.ColorJitter(self.color_jitter, self.color_jitter, self.color_jitter)
            frames = _apply(jitter, frames, generator)
        return frames

    def erase(self, frames: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        """Fill a rectangle of normalised frames, float (T, C, H, W), with normal noise, anew for each frame."""
        if generator.random() >= self.erasing_prob:
            return frames
        erasing = v2.RandomErasing(p=1.0, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value="random")
        # torchvision draws noise for each channel, so the channels of all frames are those of one image.
        return _apply(erasing, frames.flatten(0, 1), generator).view_as(frames)


def has_direction(label: str) -> bool:
    """Whether the name of a class says left, right or clockwise, so that a mirrored clip would belong to another."""
    return _DIRECTIONS.search(label.replace("_", " ")) is not None


@contextmanager
def torch_seeded_by(generator: np.random.Generator) -> Iterator[None]:
    """Seeds PyTorch's global CPU generator, which torchvision draws from, by `generator`; restores it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(int(generator.integers(2**63)))
        yield


def _apply(transform: v2.Transform, frames: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    with _DrawsFrom(torch.Generator().manual_seed(int(generator.integers(2**63)))):
        return transform(frames)


class _DrawsFrom(TorchFunctionMode):
    """Lets PyTorch's functions draw from `generator` in the calling thread. They draw what the global generator would
    with the same seed. But a model that draws from that one in another thread, as dropout does, is not disturbed."""

    _DRAWING = (torch.rand, torch.randint, torch.randperm, torch.Tensor.uniform_, torch.Tensor.normal_)

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._DRAWING:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)


def multi_scale_crop(frames: torch.Tensor, size: tuple[int, int], generator: np.random.Generator) -> torch.Tensor:
    """A part of the frames, uint8 (num_frames, num_channels, height, width), the same in all of them, resized
    bilinearly to a size (height, width) and smoothed against aliasing, as by Pillow.

    Height and width are each one of `SCALES` times the shorter side, at most one scale apart. Source:
    `GroupMultiScaleCrop` of VideoMAE (`transforms.py`), after TSN (https://arxiv.org/abs/1608.00859)."""
    height, width = frames.shape[-2:]
    sides = [int(min(height, width) * scale) for scale in SCALES]
    heights, widths = ([s if abs(side - s) < _TOLERANCE else side for side in sides] for s in size)
    pairs = [(h, w) for i, h in enumerate(heights) for j, w in enumerate(widths) if abs(i - j) <= 1]
    crop_height, crop_width = pairs[generator.integers(len(pairs))]
    right, down = _PLACES[generator.integers(len(_PLACES))]
    left, top = right * ((width - crop_width) // 4), down * ((height - crop_height) // 4)
    return v2.functional.resized_crop(frames, top, left, crop_height, crop_width, list(size), antialias=True)


def rand_augment(
    frames: torch.Tensor, num_ops: int, magnitude: float, magnitude_std: float, generator: np.random.Generator
) -> torch.Tensor:
    """Draws `num_ops` of `OPERATIONS`, with replacement, and applies each with probability 1/2 to all frames, uint8
    (T, 3, H, W). The magnitudes, from 0 to 10, are drawn from a normal distribution and clipped.

    The operations are Pillow's, as in the originals. So every byte is theirs; and torchvision, which has no bicubic
    affine maps, is not faster.

    Source: `rand-m{magnitude}-n{num_ops}-mstd{magnitude_std}-inc1` of `rand_augment.py` of VideoMAE, after timm's
    `auto_augment.py`; paper: https://arxiv.org/abs/1909.13719."""
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
