import math

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from hf_video.processing.uint8_resize import resize_bilinear

# Height and width before and after: smaller, larger, larger and smaller, of a pixel.
SIZES = [(30, 43, 17, 25), (45, 16, 9, 20), (33, 7, 16, 9), (13, 18, 31, 44), (9, 30, 25, 11), (1, 9, 16, 20)]
SIZES += [(7, 1, 20, 16)]


def test_halving_averages_four_pixels_and_nothing_changes_nothing():
    video = torch.randint(0, 256, (2, 3, 10, 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    blocks = video.reshape(2, 3, 5, 2, 7, 2).int().sum(dim=(3, 5))
    assert torch.equal(resize_bilinear(video, 5, 7), ((blocks + 2) // 4).to(torch.uint8))
    assert resize_bilinear(video, 10, 14) is video


@pytest.mark.parametrize("height, width", [(17, 23), (1, 1), (40, 90), (100, 3)])
def test_is_within_a_grey_level_of_exact_arithmetic(height, width):
    video = torch.randint(0, 256, (2, 3, 30, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    exact = F.resize(video.double(), [height, width], antialias=False)
    resized = resize_bilinear(video, height, width)
    assert resized.dtype == torch.uint8 and resized.shape == (2, 3, height, width)
    assert (resized - exact).abs().max() < 1


def opencv_value(column, row, channel, height, width):
    """One value of `cv2.resize`, by the scalar formulas of its `HResizeLinear` and `VResizeLinear`."""

    def neighbours(index, size, new_size):
        position = np.float32((index + 0.5) * (size / new_size) - 0.5)
        low = math.floor(position)
        return low, position - np.float32(low)

    def weights(fraction):
        return int(np.rint((np.float32(1) - fraction) * 2048)), int(np.rint(fraction * 2048))

    def horizontal(line):
        low, fraction = neighbours(column, len(line), width)
        if low < 0 or low >= len(line) - 1:
            return int(line[0 if low < 0 else -1]) * 2048
        first, second = weights(fraction)
        return int(line[low]) * first + int(line[low + 1]) * second

    low, fraction = neighbours(row, len(channel), height)
    lines = [horizontal(channel[min(max(y, 0), len(channel) - 1)]) for y in (low, low + 1)]
    first, second = weights(fraction)
    return ((((lines[0] >> 4) * first) >> 16) + (((lines[1] >> 4) * second) >> 16) + 2) >> 2


@pytest.mark.parametrize("height, width, new_height, new_width", SIZES)
def test_follows_the_formulas_of_opencv(height, width, new_height, new_width):
    channel = np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)
    expected = [
        [opencv_value(column, row, channel, new_height, new_width) for column in range(new_width)]
        for row in range(new_height)
    ]
    assert resize_bilinear(torch.from_numpy(channel)[None], new_height, new_width)[0].tolist() == expected
