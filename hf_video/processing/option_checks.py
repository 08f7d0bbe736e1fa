"""Checks of the options of processors, before any video is read."""

import math
from numbers import Integral, Real
from typing import Any

from torchvision.transforms import InterpolationMode
from transformers.image_utils import ChannelDimension, PILImageResampling, SizeDict

from .clip_sampling import SAMPLING_STRATEGIES, STRIDED_STRATEGIES


def require(name: str, value: Any, is_right: Any, expected: str) -> None:
    """Raise `ValueError` for an option that is not right."""
    if not is_right:
        raise ValueError(f"{name}={value!r} must be {expected}.")


def is_number(value: Any) -> bool:
    """Whether a value is a finite number. `True` and `False` are not."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def require_count(name: str, value: Any) -> None:
    is_whole = isinstance(value, Integral) and is_number(value)
    require(name, value, is_whole and int(value) >= 1, "a whole number, at least 1")


def require_positive(name: str, value: Any) -> None:
    require(name, value, is_number(value) and value > 0, "positive and finite")


def check_statistics(image_mean: Any, image_std: Any, num_channels: int | None = None) -> None:
    """Raise `ValueError` if frames cannot be normalised by these numbers: one, or one for each channel, finite and, of
    deviations, above 0. Their lengths must fit each other and the frames."""
    lengths = {num_channels} - {None}
    for name, value in {"image_mean": image_mean, "image_std": image_std}.items():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        is_right = numbers and all(map(is_number, numbers))
        require(name, value, is_right, "a finite number, or one for each channel; see do_normalize")
        require(name, value, name == "image_mean" or min(numbers) > 0, "above 0: frames are divided by it")
        lengths |= {len(numbers)} - {1}
    if len(lengths) > 1:
        frames = "" if num_channels is None else f", and the {num_channels} channels of the frames"
        raise ValueError(f"image_mean={image_mean!r} and image_std={image_std!r} must fit each other{frames}.")


def check_shapes(options: Any) -> None:
    """Raise `ValueError` for sizes that `BaseVideoProcessor` cannot read."""
    for name in ("size", "crop_size"):
        value = options.get(name)
        is_pair = isinstance(value, (list, tuple)) and len(value) == 2
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        is_right = value is None or is_pair or is_whole or isinstance(value, (dict, SizeDict))
        require(name, value, is_right, "one number of pixels, (height, width) or a mapping")


def check_options(options: dict[str, Any]) -> None:
    """Raise `ValueError` for an option of `VideoClipProcessor` that is out of range. `size` and `crop_size` are
    `SizeDict`s; those of a step that is switched off are not looked at."""
    strategy, fps, resample = (options[name] for name in ("sampling_strategy", "fps", "resample"))
    require("sampling_strategy", strategy, strategy in [*SAMPLING_STRATEGIES], f"one of {[*SAMPLING_STRATEGIES]}")
    if options["num_frames"] is not None:
        require_count("num_frames", options["num_frames"])
    for name in ("frame_sampling_rate", "fps"):
        if options[name] is not None:
            require_positive(name, options[name])
    whole_video = f"None for sampling_strategy={strategy!r}, whose clips span the whole video"
    require("fps", fps, fps is None or strategy in STRIDED_STRATEGIES, whole_video)
    for name, step in {"size": "do_resize", "crop_size": "do_center_crop"}.items():
        sides = dict(options[name] or {}) if options[step] else {}
        for side, value in sides.items():
            require_count(f"{side} of {name}", value)
        has_both = name == "size" or not sides or sides.keys() >= {"height", "width"}
        require(name, sides, has_both, "one with height and width")
    for name in ("num_clips", "num_crops"):
        require_count(name, options[name])
    has_crops = options["num_crops"] == 1 or options["do_center_crop"]
    require("num_crops", options["num_crops"], has_crops, "1 without do_center_crop")
    for name in ("data_format", "input_data_format"):
        known = [each.value for each in ChannelDimension]
        require(name, options[name], options[name] in [None, *ChannelDimension], f"one of {known}")
    if options["do_resize"] and resample is not None:
        is_filter = not isinstance(resample, bool) and resample in [*PILImageResampling, *InterpolationMode]
        require("resample", resample, is_filter, "a filter of Pillow or torchvision; 2 is bilinear, 3 bicubic")
        is_smooth = resample in (PILImageResampling.LANCZOS, InterpolationMode.LANCZOS)
        require("antialias", options["antialias"], options["antialias"] or not is_smooth, "True for Lanczos")
    if options["do_rescale"]:
        require_positive("rescale_factor", options["rescale_factor"])
    if options["do_normalize"]:
        check_statistics(options["image_mean"], options["image_std"])
