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
from transformers.image_utils import PILImageResampling, pil_torch_interpolation_mapping

from .multi_scale_crop import multi_scale_crop
from .rand_augment import rand_augment
from .settings import ClipAugmentationSettings

_DIRECTIONS = re.compile(r"\b(left|right|leftwards?|rightwards?|(counter|anti)?-?clockwise)\b", re.IGNORECASE)


@dataclass(frozen=True)
class ClipAugmentation(ClipAugmentationSettings):
    """The augmentation of VideoMAE's and VideoMamba's fine-tuning. Everything is off by default.

    The methods are called in the order of the originals: `rand_augment` on whole frames, `crop`, `change_pixels`, and
    `erase` after the frames are normalised. The originals normalise before they crop and resize. Here bytes are
    resized, which is faster and at most one level of 255 away.

    Source: `_aug_frame` of VideoMAE's `kinetics.py` and `ssv2.py`, `rand_augment.py`, `random_erasing.py` and
    `video_transforms.py`.

    Raises:
        ValueError: a value is out of its range.
    """

    @property
    def crops_whole_frames(self) -> bool:
        """Whether the crop chooses its own size, so that frames are not resized before it."""
        return self.multi_scale_crop or self.crop_min_area is not None

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
            ratio=(3 / 4, 4 / 3),
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
