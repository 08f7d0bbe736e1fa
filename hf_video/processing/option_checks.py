"""Checks of the options of processors, before any video is read."""

import math
from numbers import Integral, Real
from typing import Any, TypeGuard

from torchvision.transforms import InterpolationMode
from transformers.image_utils import ChannelDimension, PILImageResampling, SizeDict

from .clip_sampling import SAMPLING_STRATEGIES, STRIDED_STRATEGIES

LANCZOS = (PILImageResampling.LANCZOS, InterpolationMode.LANCZOS)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number. `True` and `False` are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number. `True` and `False` are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    """Whether a value is a finite number above 0."""
    return is_number(value) and 0 < value < math.inf


def check_statistics(image_mean: Any, image_std: Any, num_channels: int | None = None) -> None:
    """
    Check that frames can be normalised by one number, or one for each channel.

    Raises:
        `ValueError`: for values that are missing or not finite, a deviation that is not above 0, and lengths that do
            not fit each other or the frames.
    """
    lengths = {num_channels} - {None}
    for name, value in {"image_mean": image_mean, "image_std": image_std}.items():
        numbers = [value] if is_number(value) else list(value) if isinstance(value, (list, tuple)) else []
        if not numbers or not all(is_number(number) and math.isfinite(number) for number in numbers):
            raise ValueError(f"{name}={value!r} must be a finite number, or one for each channel; see do_normalize.")
        lengths |= {len(numbers)} - {1}
        if name == "image_std" and min(numbers) <= 0:
            raise ValueError(f"image_std={value!r} must be above 0: frames are divided by it.")
    if len(lengths) > 1:
        frames = "" if num_channels is None else f", and the {num_channels} channels of the frames"
        raise ValueError(f"image_mean={image_mean!r} and image_std={image_std!r} must fit each other{frames}.")


def check_shapes(options: Any) -> None:
    """Raise `ValueError` for sizes that `BaseVideoProcessor` cannot read."""
    for name in ("size", "crop_size"):
        value = options.get(name)
        is_pair = isinstance(value, (list, tuple)) and len(value) == 2
        if value is not None and not (is_pair or is_whole(value) or isinstance(value, (dict, SizeDict))):
            raise ValueError(f"{name}={value!r} must be one number of pixels, (height, width) or a mapping.")


def check_options(options: dict[str, Any]) -> None:
    """Raise `ValueError` for an option of `VideoClipProcessor` that is out of range. `size` and `crop_size` are
    `SizeDict`s; those of a step that is switched off are not looked at."""
    strategy, num_crops, resample = (options[name] for name in ("sampling_strategy", "num_crops", "resample"))
    if not isinstance(strategy, str) or strategy not in SAMPLING_STRATEGIES:
        raise ValueError(f"sampling_strategy={strategy!r} is unknown; choose from {', '.join(SAMPLING_STRATEGIES)}.")
    for name in ("num_frames", "num_clips", "num_crops"):
        value = options[name]
        if not (value is None and name == "num_frames") and (not is_whole(value) or value < 1):
            raise ValueError(f"{name}={value!r} must be a whole number, at least 1.")
    for name in ("frame_sampling_rate", "fps"):
        if options[name] is not None and not is_positive(options[name]):
            raise ValueError(f"{name}={options[name]!r} must be positive and finite.")
    if options["fps"] is not None and strategy not in STRIDED_STRATEGIES:
        raise ValueError(
            f"fps={options['fps']} has no meaning for sampling_strategy={strategy!r}, whose clips span the whole "
            f"video; use one of {', '.join(STRIDED_STRATEGIES)}."
        )
    for name, step in {"size": "do_resize", "crop_size": "do_center_crop"}.items():
        sides = dict(options[name] or {}) if options[step] else {}
        if not all(is_whole(side) and int(side) >= 1 for side in sides.values()):
            raise ValueError(f"{name}={sides} must be whole numbers of pixels, at least 1.")
        if name == "crop_size" and sides and not sides.keys() >= {"height", "width"}:
            raise ValueError(f"{name}={sides} must have height and width.")
    if num_crops > 1 and not options["do_center_crop"]:
        raise ValueError(f"num_crops={num_crops} needs do_center_crop=True; without crops, use num_crops=1.")
    for name in ("data_format", "input_data_format"):
        if options[name] is not None and options[name] not in [*ChannelDimension]:
            known = ", ".join(each.value for each in ChannelDimension)
            raise ValueError(f"{name}={options[name]!r} must be one of {known}.")
    if options["do_resize"] and resample is not None:
        if isinstance(resample, bool) or resample not in [*PILImageResampling, *InterpolationMode]:
            raise ValueError(
                f"resample={resample!r} is not a filter of Pillow or torchvision; 2 is bilinear, 3 bicubic."
            )
        if resample in LANCZOS and not options["antialias"]:
            raise ValueError(f"resample={resample!r} needs antialias=True: torchvision has no other Lanczos filter.")
    if options["do_rescale"] and not is_positive(options["rescale_factor"]):
        raise ValueError(f"rescale_factor={options['rescale_factor']!r} must be a finite number above 0.")
    if options["do_normalize"]:
        check_statistics(options["image_mean"], options["image_std"])
