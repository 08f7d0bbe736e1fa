"""Changes training clips at random, in the same way for all frames of a clip."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torchvision.transforms import v2

from .multi_scale_crop import multi_scale_crop
from .settings import ClipAugmentationSettings

_DIRECTIONS = re.compile(r"\b(left|right|leftwards?|rightwards?|(counter|anti)?-?clockwise)\b", re.IGNORECASE)

# Steps in each of timm's ten levels, so that noise on a magnitude is not rounded away.
_MAGNITUDE_STEPS = 10


@dataclass(frozen=True)
class ClipAugmentation(ClipAugmentationSettings):
    """The augmentation of VideoMAE's and VideoMamba's fine-tuning. Everything is off by default.

    RandAugment follows timm's `rand-m7-n4-mstd0.5`: each operation is applied to half of the clips, with a magnitude
    from 0 to 10 that is drawn from a normal distribution. The operations are those of torchvision. The originals
    augment whole frames; here the cropped ones are augmented, which changes them in the same way and costs less.

    Source: `rand_augment.py`, `random_erasing.py` and `video_transforms.py` of VideoMAE.

    Raises:
        ValueError: a value is out of its range.
    """

    @property
    def crops_whole_frames(self) -> bool:
        """Whether the crop chooses its own size, so that frames are not resized before it."""
        return self.multi_scale_crop or self.crop_min_area is not None

    def crop(
        self, frames: torch.Tensor, size: tuple[int, int], antialias: bool, generator: np.random.Generator
    ) -> torch.Tensor:
        """A random part of the frames, uint8 (T, C, H, W), resized to `size` (height, width)."""
        if self.multi_scale_crop:
            return multi_scale_crop(frames, size, generator)
        if self.crop_min_area is None:
            return _apply(v2.RandomCrop(size, pad_if_needed=True), frames, generator)
        crop = v2.RandomResizedCrop(size, scale=(self.crop_min_area, 1.0), ratio=(3 / 4, 4 / 3), antialias=antialias)
        return _apply(crop, frames, generator)

    def change_pixels(
        self, frames: torch.Tensor, generator: np.random.Generator, label: str | None = None
    ) -> torch.Tensor:
        """Flip, RandAugment and colour jitter of frames, uint8 (T, C, H, W); `label` is the name of their class."""
        if self.horizontal_flip and generator.random() < 0.5 and not (label and has_direction(label)):
            frames = frames.flip(-1)
        for _ in range(self.rand_augment_num_ops):
            if generator.random() < 0.5:
                noise = self.rand_augment_magnitude_std * generator.standard_normal()
                magnitude = float(np.clip(self.rand_augment_magnitude + noise, 0, 10))
                operation = v2.RandAugment(
                    num_ops=1,
                    magnitude=round(magnitude * _MAGNITUDE_STEPS),
                    num_magnitude_bins=10 * _MAGNITUDE_STEPS + 1,
                    interpolation=v2.InterpolationMode.BILINEAR,
                    fill=128,
                )
                frames = _apply(operation, frames, generator)
        if self.color_jitter:
            jitter = v2.ColorJitter(self.color_jitter, self.color_jitter, self.color_jitter)
            frames = _apply(jitter, frames, generator)
        return frames

    def erase(self, frames: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        """Fill a rectangle of normalised frames, float (T, C, H, W), with normal noise, the same in all frames."""
        if generator.random() >= self.erasing_prob:
            return frames
        erasing = v2.RandomErasing(p=1.0, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value="random")
        return _apply(erasing, frames, generator)


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
