"""What `ClipAugmentation` does to frames, and that its draws follow the generator alone."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from transformers.image_utils import PILImageResampling

from hf_video.data import ClipAugmentation
from hf_video.data.augmentation import has_direction

FRAME = torch.arange(3 * 32 * 40, dtype=torch.int64).remainder(251).to(torch.uint8).view(3, 32, 40)
CLIP = FRAME.repeat(4, 1, 1, 1)
FULL = ClipAugmentation(
    crop_min_area=0.1, horizontal_flip=True, rand_augment_num_ops=3, color_jitter=0.4, erasing_prob=0.5
)


def augment(augmentation: ClipAugmentation, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    frames = augmentation.rand_augment(CLIP, generator)
    frames = augmentation.crop(frames, (24, 24), antialias=False, generator=generator)
    frames = augmentation.change_pixels(frames, generator)
    return augmentation.erase(frames.float(), generator)


def test_all_frames_of_a_clip_change_alike():
    for seed in range(20):
        frames = augment(dataclasses.replace(FULL, erasing_prob=0.0), seed)
        assert frames.shape == (4, 3, 24, 24)
        assert torch.equal(frames, frames[:1].expand_as(frames))


@pytest.mark.parametrize("resample", [PILImageResampling.BILINEAR, PILImageResampling.BICUBIC])
def test_a_crop_is_resized_with_the_filter_of_the_processor(resample):
    """The clip is one sharp edge, on which the filters differ: only the bicubic one overshoots."""
    clip = torch.full((2, 3, 32, 40), 60, dtype=torch.uint8)
    clip[..., 20:] = 180
    augmentation = ClipAugmentation(crop_min_area=0.5)
    values = torch.stack(
        [augmentation.crop(clip, (48, 48), False, np.random.default_rng(seed), resample) for seed in range(20)]
    )
    overshoots = bool((values > 180).any()) and bool((values < 60).any())
    assert overshoots is (resample == PILImageResampling.BICUBIC)


def global_states():
    return torch.random.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()


@pytest.mark.parametrize("crop_min_area", [None, 0.1], ids=["crop", "resized crop"])
def test_draws_follow_the_generator_and_leave_the_global_ones_alone(crop_min_area):
    """With as many clips as it takes to meet every draw: of half of the operations the sign is drawn, too."""
    augmentation, states = dataclasses.replace(FULL, crop_min_area=crop_min_area), global_states()
    first = [augment(augmentation, seed) for seed in range(20)]
    assert global_states() == states
    torch.rand(3)
    for seed, frames in enumerate(first):
        assert torch.equal(augment(augmentation, seed), frames)
        assert not torch.equal(augment(augmentation, seed + 1), frames)


def test_everything_is_off_by_default():
    frames = augment(ClipAugmentation(), 0)
    places = [
        (top, left)
        for top in range(9)
        for left in range(17)
        if torch.equal(frames[0], FRAME[:, top : top + 24, left : left + 24].float())
    ]
    assert places


@pytest.mark.parametrize(
    "options", [{"rand_augment_num_ops": 4}, {"color_jitter": 0.5}, {"horizontal_flip": True}, {"erasing_prob": 1.0}]
)
def test_each_option_changes_some_clips(options):
    augmentation = ClipAugmentation(**options)
    generator = np.random.default_rng(0)

    def change() -> torch.Tensor:
        frames = augmentation.change_pixels(augmentation.rand_augment(CLIP, generator), generator)
        return augmentation.erase(frames.float(), generator)

    assert any(not torch.equal(change(), CLIP.float()) for _ in range(20))


def test_erasing_leaves_the_rest_of_the_frame_alone():
    erased = ClipAugmentation(erasing_prob=1.0).erase(torch.zeros(2, 3, 32, 32), np.random.default_rng(3))
    hit = (erased != 0).any(1)[0]
    rows, columns = hit.any(1), hit.any(0)
    assert torch.equal(hit, rows[:, None] & columns) and 0.02 <= hit.float().mean() <= 0.35


def test_erasing_takes_one_rectangle_and_draws_its_noise_for_each_frame():
    """`_erase_cube` of VideoMAE's `random_erasing.py` in mode "pixel"."""
    erased = ClipAugmentation(erasing_prob=1.0).erase(torch.zeros(8, 3, 224, 224), np.random.default_rng(3))
    hit = (erased != 0).flatten(0, 1)
    assert torch.equal(hit, hit[:1].expand_as(hit))
    noise = erased.flatten(0, 1)[:, hit[0]]
    assert noise.mean().abs() < 0.01 and abs(noise.std() - 1) < 0.01
    assert (torch.corrcoef(noise) - torch.eye(len(noise))).abs().max() < 6 / noise.shape[1] ** 0.5


def test_erased_rectangles_have_the_areas_and_shapes_of_the_original():
    """Areas even from 2% to a third, ratios of the sides from 0.3 to 1 / 0.3, even on a logarithmic scale."""
    erasing, generator = ClipAugmentation(erasing_prob=0.25), np.random.default_rng(0)
    hits = [(erasing.erase(torch.zeros(1, 1, 224, 224), generator) != 0)[0, 0] for _ in range(2000)]
    sides = np.array([(hit.any(1).sum(), hit.any(0).sum()) for hit in hits if hit.any()], dtype=float)
    assert abs(len(sides) / len(hits) - 0.25) < 0.03
    areas, ratios = sides.prod(1) / 224**2, sides[:, 0] / sides[:, 1]
    assert 0.019 < areas.min() < 0.03 and 0.32 < areas.max() < 0.34 and abs(areas.mean() - 0.177) < 0.015
    assert 0.29 < ratios.min() < 0.33 and 3.0 < ratios.max() < 3.45 and abs(np.log(ratios).mean()) < 0.12


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("Pushing something from left to right", True),
        ("turn_left", True),
        ("Rotating it counter-clockwise", True),
        ("brightening a copyright", False),
        ("leftover food", False),
    ],
)
def test_classes_with_a_direction_are_never_mirrored(label, expected):
    assert has_direction(label) is expected
    generator = np.random.default_rng(0)
    augmentation = ClipAugmentation(horizontal_flip=True)
    mirrored = [torch.equal(augmentation.change_pixels(CLIP, generator, label), CLIP.flip(-1)) for _ in range(20)]
    assert any(mirrored) is not expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_min_area": 0.0}, "crop_min_area is 0.0; a number above 0, up to 1 is expected"),
        ({"rand_augment_magnitude": 11}, "rand_augment_magnitude is 11; a number from 0 to 10"),
        ({"erasing_prob": -0.1}, "erasing_prob is -0.1"),
        ({"num_augmentations": 0}, "num_augmentations is 0; a whole number of at least 1 is expected"),
    ],
)
def test_values_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ClipAugmentation(**options)
