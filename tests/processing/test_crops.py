"""Where the processors crop, pixel for pixel."""

import math
from itertools import product

import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

from hf_video.processing import CenterCropImageProcessor, VideoClipProcessor

UNCHANGED = {"do_sample_frames": False, "do_rescale": False, "do_normalize": False}


def pixels(processor, videos, **options):
    return processor(videos, return_tensors="pt", **options)["pixel_values"]


def crop(video, height, width, **options):
    """(T, C, height, width), or (num_crops, T, C, height, width), with the values of the video."""
    crop_size = {"height": height, "width": width}
    return pixels(VideoClipProcessor(do_resize=False, crop_size=crop_size, **UNCHANGED, **options), video)[0]


def noise(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_centre_is_that_of_torchvision(dtype):
    for height, width in product((5, 6, 7, 8, 9, 12, 15), repeat=2):
        video = noise(2, 3, height, width).to(dtype)
        for crop_height, crop_width in ((5, 5), (6, 6), (5, 8), (8, 5), (9, 9), (16, 16)):
            expected = F.center_crop(video, [crop_height, crop_width])
            assert torch.equal(crop(video, crop_height, crop_width), expected), (height, width, crop_height)


@pytest.mark.parametrize("height, width", [(32, 35), (35, 32), (33, 39), (31, 35), (29, 27)])
def test_the_centre_of_an_image_is_that_of_torchvision(height, width):
    processor = CenterCropImageProcessor(do_resize=False, do_rescale=False, do_normalize=False, crop_size=32)
    image = noise(3, height, width)
    expected = F.center_crop(image, [32, 32])
    array = image.permute(1, 2, 0).numpy()
    for given in (image, array, Image.fromarray(array)):
        assert torch.equal(pixels(processor, given)[0], expected)
    with pytest.raises(ValueError, match=r"crop_size=\{'shortest_edge': 32\} must have height and width"):
        CenterCropImageProcessor(crop_size={"shortest_edge": 32})(image)


@pytest.mark.parametrize("short, long", [(32, 35), (40, 43), (40, 46), (33, 40)])
def test_several_crops_follow_the_formula_of_the_original(short, long):
    """Along the longer side int(i * (long - size) / (n - 1)); the shorter one is centred as with a single crop."""
    for num_crops in (2, 3, 4, 5):
        wide = noise(1, 3, short, long)
        middle = F.center_crop(wide, [32, long])
        starts = [int(i * (long - 32) / (num_crops - 1)) for i in range(num_crops)]
        expected = torch.stack([middle[..., start : start + 32] for start in starts])
        assert torch.equal(crop(wide, 32, 32, num_crops=num_crops), expected)
        tall = crop(wide.transpose(-1, -2), 32, 32, num_crops=num_crops)
        assert torch.equal(tall, expected.transpose(-1, -2))


def test_several_crops_go_where_there_is_room():
    square, wide = noise(1, 3, 36, 36), noise(1, 3, 48, 64)
    assert torch.equal(crop(square, 36, 36, num_crops=3), square.expand(3, 1, 3, 36, 36))
    expected = torch.stack([square[..., 2:34, left : left + 32] for left in (0, 2, 4)])
    assert torch.equal(crop(square, 32, 32, num_crops=3), expected)
    expected = torch.stack([wide[..., top : top + 32, :] for top in (0, 8, 16)])
    assert torch.equal(crop(wide, 32, 64, num_crops=3), expected)


@pytest.mark.parametrize("height, width", [(45, 80), (80, 45), (47, 47), (31, 77), (1, 9), (9, 1)])
def test_the_longer_side_is_cut_off_to_whole_pixels(height, width):
    short, long = sorted((height, width))
    for size in (32, 33):
        processor = VideoClipProcessor(size=size, do_center_crop=False, **UNCHANGED)
        expected = [size, math.floor(size * long / short)]
        found = pixels(processor, noise(1, 3, height, width)).shape[-2:]
        assert list(found) == (expected if height <= width else expected[::-1])
