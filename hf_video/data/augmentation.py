"""Changes training clips at random, in the same way for all frames of a clip."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import grid_sample
from torch.overrides import TorchFunctionMode
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from transformers.image_utils import PILImageResampling, pil_torch_interpolation_mapping

from hf_video.settings import check_values

from .video_settings import ClipAugmentationSettings, RepeatedAugmentationSettings

_DIRECTIONS = re.compile(r"\b(left|right|leftwards?|rightwards?|(counter|anti)?-?clockwise)\b", re.IGNORECASE)
SCALES = (1, 0.875, 0.75, 0.66)
# Places of the crop, in quarters of the room that it leaves: (right, down).
_PLACES = ((0, 0), (4, 0), (0, 4), (4, 4), (2, 2), (0, 2), (4, 2), (2, 4), (2, 0), (1, 1), (3, 1), (1, 3), (3, 3))
# Sides that differ from the size of the result by less are not resized.
_TOLERANCE = 3
_RATIOS = (3 / 4, 4 / 3)
_GREY = (128, 128, 128)
_ERASING: dict[str, Any] = {"p": 1.0, "scale": (0.02, 1 / 3), "ratio": (0.3, 1 / 0.3)}

# What was drawn for a clip, as a function of its frames (T, C, H, W), on any device.
Change = Callable[[torch.Tensor], torch.Tensor]
# Height and width.
Size = tuple[int, int]
# An image, or uint8 frames (T, 3, H, W).
Picture = TypeVar("Picture", Image.Image, torch.Tensor)


class Crop(NamedTuple):
    """The size that crops get, height and width, and how they are resized to it."""

    size: Size
    antialias: bool = False
    resample: PILImageResampling | v2.InterpolationMode = PILImageResampling.BILINEAR


@dataclass
class ClipAugmentation(RepeatedAugmentationSettings, ClipAugmentationSettings):
    """The augmentation of VideoMAE's and VideoMamba's fine-tuning. Everything is off by default.

    The methods are called in the order of the originals: `rand_augment` on whole frames, `crop`, `change_pixels`, and
    `erase` after the frames are normalised. The originals normalise before they crop and resize. Here bytes are
    resized, which is faster and at most one level of 255 away. With `augment_on="device"` the same is drawn, by
    `draw`, and done later, where the model is.

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
        """Applies drawn `OPERATIONS` of Pillow, as the originals do, to all frames, uint8 (T, 3, H, W).

        Source: `rand-m{magnitude}-n{num_ops}-mstd{magnitude_std}-inc1` of `rand_augment.py` of VideoMAE, after timm's
        `auto_augment.py`; paper: https://arxiv.org/abs/1909.13719.
        """
        drawn = self._draw_operations(generator)
        if not drawn:
            return frames
        images = [Image.fromarray(frame) for frame in frames.permute(0, 2, 3, 1).contiguous().numpy()]
        for operate in drawn:
            images = [operate(image) for image in images]
        return torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)

    def _draw_operations(self, generator: np.random.Generator) -> list[Callable]:
        drawn: list[Callable] = []
        for name in generator.choice(list(OPERATIONS), self.rand_augment_num_ops):
            if generator.random() < 0.5:
                magnitude = generator.normal(self.rand_augment_magnitude, self.rand_augment_magnitude_std)
                level = np.clip(magnitude, 0, 10) / 10
                drawn.append(partial(_operate, name=str(name), level=float(level * generator.choice([-1, 1]))))
        return drawn

    def crop(self, frames: torch.Tensor, crop: Crop, generator: np.random.Generator) -> torch.Tensor:
        """A random part of the frames, uint8 (T, C, H, W), at the size of the crop."""
        return apply_changes(frames, self._draw_crop(frames, crop, generator))

    def _draw_crop(self, frames: torch.Tensor, crop: Crop, generator: np.random.Generator) -> list[Change]:
        """A cut, and then what makes it as large as the size, if it is not."""
        size, antialias, resample = crop
        if self.multi_scale_crop:
            return _draw_scale(frames, size, generator)
        if self.crop_min_area is None:
            cut = v2.RandomCrop(size, pad_if_needed=True)
            return [partial(cut.transform, params=_draw_params(cut, frames, generator))]
        part = v2.RandomResizedCrop(size, scale=(self.crop_min_area, 1.0), ratio=_RATIOS)
        interpolation = pil_torch_interpolation_mapping.get(resample, resample)
        box = _draw_params(part, frames, generator)
        return [partial(F.crop, **box), partial(F.resize, size=size, interpolation=interpolation, antialias=antialias)]

    def change_pixels(
        self, frames: torch.Tensor, generator: np.random.Generator, label: str | None = None
    ) -> torch.Tensor:
        """Flip and colour jitter of frames, uint8 (T, C, H, W); `label` is the name of their class."""
        return apply_changes(frames, self._draw_pixels(frames, generator, label))

    def _draw_pixels(self, frames: torch.Tensor, generator: np.random.Generator, label: str | None) -> list[Change]:
        changes: list[Change] = []
        if self.horizontal_flip and generator.random() < 0.5 and not (label and has_direction(label)):
            changes.append(F.horizontal_flip)
        if self.color_jitter:
            jitter = v2.ColorJitter(self.color_jitter, self.color_jitter, self.color_jitter)
            params = _draw_params(jitter, frames, generator)
            # A tensor would be sent to the device, and back for each comparison.
            changes.append(partial(jitter.transform, params=params | {"fn_idx": params["fn_idx"].tolist()}))
        return changes

    def erase(self, frames: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        """Fill a rectangle of normalised frames, float (T, C, H, W), with normal noise, anew for each frame."""
        if generator.random() >= self.erasing_prob:
            return frames
        # torchvision draws noise for each channel, so the channels of all frames are those of one image.
        with DrawsFrom(generator):
            return v2.RandomErasing(**_ERASING, value="random")(frames.flatten(0, 1)).view_as(frames)

    def draw(
        self,
        frames: torch.Tensor,
        crop: Crop | None,
        generator: np.random.Generator,
        normalize: Change,
        label: str | None = None,
    ) -> tuple[torch.Tensor, list[Change]]:
        """What `augment_on="device"` sends of a clip: frames, which are cut already unless RandAugment must see them
        whole, and the changes that make the clip of them."""
        changes = self._draw_operations(generator)
        cuts = [] if crop is None else self._draw_crop(frames, crop, generator)
        if cuts and not changes:
            frames, cuts = cuts[0](frames).contiguous(), cuts[1:]
        changes += [*cuts, *self._draw_pixels(frames, generator, label), normalize]
        if generator.random() < self.erasing_prob:
            cropped = torch.empty(1, *(frames.shape[-2:] if crop is None else crop.size), device="meta")
            params = _draw_params(v2.RandomErasing(**_ERASING), cropped, generator)
            if params.pop("v") is not None:
                changes.append(partial(_fill_with_noise, **params, seed=int(generator.integers(2**63))))
        return frames, changes


def apply_changes(frames: torch.Tensor, changes: Iterable[Change]) -> torch.Tensor:
    """The frames after all changes, in their order."""
    return reduce(lambda changed, change: change(changed), changes, frames)


def _fill_with_noise(frames: torch.Tensor, i: int, j: int, h: int, w: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(frames.device).manual_seed(seed)
    frames[..., i : i + h, j : j + w].normal_(generator=generator)
    return frames


def has_direction(label: str) -> bool:
    """Whether the name of a class says left, right or clockwise, so that a mirrored clip would belong to another."""
    return _DIRECTIONS.search(label.replace("_", " ")) is not None


def _draw_params(transform: v2.Transform, frames: torch.Tensor, generator: np.random.Generator) -> dict[str, Any]:
    with DrawsFrom(generator):
        return transform.make_params([frames])


class DrawsFrom(TorchFunctionMode):
    """Lets PyTorch's functions draw in this thread what the global generator would, of another one, so that they do
    not disturb a model that draws from that in another thread, as dropout does."""

    _DRAWING = (
        *(torch.rand, torch.randint, torch.randperm, torch.multinomial, torch._sample_dirichlet),
        *(torch.Tensor.uniform_, torch.Tensor.normal_),
    )

    def __init__(self, generator: np.random.Generator):
        super().__init__()
        self.generator = torch.Generator().manual_seed(int(generator.integers(2**63)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}), **({"generator": self.generator} if func in self._DRAWING else {}))


def _draw_scale(frames: torch.Tensor, size: Size, generator: np.random.Generator) -> list[Change]:
    """A crop of `GroupMultiScaleCrop` of VideoMAE (`transforms.py`), after TSN (https://arxiv.org/abs/1608.00859)."""
    height, width = frames.shape[-2:]
    sides = [int(min(height, width) * scale) for scale in SCALES]
    heights, widths = ([s if abs(side - s) < _TOLERANCE else side for side in sides] for s in size)
    pairs = [(h, w) for i, h in enumerate(heights) for j, w in enumerate(widths) if abs(i - j) <= 1]
    crop_height, crop_width = pairs[generator.integers(len(pairs))]
    right, down = _PLACES[generator.integers(len(_PLACES))]
    left, top = right * ((width - crop_width) // 4), down * ((height - crop_height) // 4)
    cut = partial(F.crop, top=top, left=left, height=crop_height, width=crop_width)
    return [cut, partial(F.resize, size=list(size), antialias=True)]


def _operate(image: Picture, name: str, level: float) -> Picture:
    return OPERATIONS[name](image, level)


def _solarize(image: Picture, threshold: int) -> Picture:
    return F.solarize(image, threshold) if threshold < 256 else image


def _solarize_add(image: Picture, added: int) -> Picture:
    if isinstance(image, torch.Tensor):
        return torch.where(image < 128, image.clamp(max=255 - added) + added, image)
    return image.point([min(255, value + added) if value < 128 else value for value in range(256)] * 3)


def _rotate(image: Picture, degrees: float) -> Picture:
    if not isinstance(image, torch.Tensor):
        return image.rotate(degrees, resample=Image.Resampling.BICUBIC, fillcolor=_GREY)
    height, width = image.shape[-2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = width / 2, height / 2
    return _affine(image, cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def _affine(image: Picture, a: float, b: float, c: float, d: float, e: float, f: float) -> Picture:
    """The pixel (x, y) becomes that at (ax + by + c, dx + ey + f), found by bicubic interpolation, or grey outside."""
    if not isinstance(image, torch.Tensor):
        matrix = (a, b, c, d, e, f)
        return image.transform(
            image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BICUBIC, fillcolor=_GREY
        )
    height, width = image.shape[-2:]
    x, y = (torch.arange(side, device=image.device) + 0.5 for side in (width, height))
    y = y[:, None]
    # From -1 to 1.
    grid = torch.stack([2 / width * (a * x + b * y + c) - 1, 2 / height * (d * x + e * y + f) - 1], dim=-1)
    is_inside = ((grid >= -1) & (grid < 1)).all(dim=-1)
    found = grid_sample(image.float(), grid.expand(len(image), -1, -1, -1), "bicubic", "border", align_corners=False)
    return torch.where(is_inside, found.round().clamp(0, 255), _GREY[0]).to(torch.uint8)


def _shift(image: Picture, right: float, down: float) -> Picture:
    """Moves the picture by shares of its width and height, to the left and up."""
    height, width = F.get_size(image)
    return _affine(image, 1, 0, right * width, 0, 1, down * height)


# Each takes a picture and a level from -1 to 1: the magnitude over 10, and the direction. At 0 it changes nothing,
# but for the first three, which have no strength, and posterize, which keeps 4 bits then. At 1 it keeps one, the least
# that Pillow allows. Of images torchvision calls Pillow.
OPERATIONS: dict[str, Callable[[Any, float], Any]] = {
    "AutoContrast": lambda image, level: F.autocontrast(image),
    "Equalize": lambda image, level: F.equalize(image),
    "Invert": lambda image, level: F.invert(image),
    "Rotate": lambda image, level: _rotate(image, 30 * level),
    "PosterizeIncreasing": lambda image, level: F.posterize(image, max(4 - int(4 * abs(level)), 1)),
    "SolarizeIncreasing": lambda image, level: _solarize(image, 256 - int(256 * abs(level))),
    "SolarizeAdd": lambda image, level: _solarize_add(image, int(110 * abs(level))),
    "ColorIncreasing": lambda image, level: F.adjust_saturation(image, 1 + 0.9 * level),
    "ContrastIncreasing": lambda image, level: F.adjust_contrast(image, 1 + 0.9 * level),
    "BrightnessIncreasing": lambda image, level: F.adjust_brightness(image, 1 + 0.9 * level),
    "SharpnessIncreasing": lambda image, level: F.adjust_sharpness(image, 1 + 0.9 * level),
    "ShearX": lambda image, level: _affine(image, 1, 0.3 * level, 0, 0, 1, 0),
    "ShearY": lambda image, level: _affine(image, 1, 0, 0, 0.3 * level, 1, 0),
    "TranslateXRel": lambda image, level: _shift(image, 0.45 * level, 0),
    "TranslateYRel": lambda image, level: _shift(image, 0, 0.45 * level),
}
