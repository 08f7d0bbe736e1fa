"""The mean and the standard deviation that frames are normalised by."""

import math
from typing import Any

from .option_numbers import is_number


def check_statistics(image_mean: Any, image_std: Any, num_channels: int | None = None) -> None:
    """
    Check that frames can be normalised.

    Args:
        image_mean: one number, or one for each channel.
        image_std: the same, each above 0.
        num_channels: number of channels of the frames, if it is known.

    Raises:
        `ValueError`: for values that are missing or not finite, a deviation that is not above 0, and lengths that do
            not fit each other or the frames.
    """
    values = {"image_mean": image_mean, "image_std": image_std}
    lengths = {num_channels} - {None}
    for name, value in values.items():
        numbers = [value] if is_number(value) else list(value) if isinstance(value, (list, tuple)) else []
        if not numbers or not all(is_number(number) and math.isfinite(number) for number in numbers):
            raise ValueError(f"{name}={value!r} must be a finite number, or one for each channel; see do_normalize.")
        lengths |= {len(numbers)} - {1}
        if name == "image_std" and min(numbers) <= 0:
            raise ValueError(f"image_std={value!r} must be above 0: frames are divided by it.")
    if len(lengths) > 1:
        frames = "" if num_channels is None else f", and the {num_channels} channels of the frames"
        raise ValueError(f"image_mean={image_mean!r} and image_std={image_std!r} must fit each other{frames}.")
