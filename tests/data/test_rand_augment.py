"""RandAugment against its source: the operations at given levels, what it does on average, and its place."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import v2

from hf_video.data import ClipAugmentation, ClipDataset
from hf_video.data import augmentation as module
from hf_video.data.augmentation import OPERATIONS, rand_augment
from hf_video.processing import VideoClipProcessor

# A smooth picture of nearly all levels.
PICTURE = Image.fromarray(np.random.default_rng(0).integers(20, 230, (6, 8, 3), dtype=np.uint8)).resize(
    (64, 48), Image.Resampling.BICUBIC
)
AFFINE = {"resample": Image.Resampling.BICUBIC, "fillcolor": (128, 128, 128)}
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def shifted(image, matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, **AFFINE)


def added(image, amount):
    pixels = np.asarray(image).astype(int)
    return Image.fromarray(np.where(pixels < 128, np.minimum(pixels + amount, 255), pixels).astype(np.uint8))


# Pillow's calls with the arguments that `rand_augment.py` of VideoMAE computes: at magnitude 7.4 in the positive
# direction, and at magnitude 3 in the negative one.
ORIGINAL = {
    "AutoContrast": [lambda image: ImageOps.autocontrast(image)] * 2,
    "Equalize": [lambda image: ImageOps.equalize(image)] * 2,
    "Invert": [lambda image: Image.fromarray(255 - np.asarray(image))] * 2,
    "Rotate": [lambda image: image.rotate(22.2, **AFFINE), lambda image: image.rotate(-9.0, **AFFINE)],
    "PosterizeIncreasing": [
        lambda image: Image.fromarray(np.asarray(image) & 0b11000000),
        lambda image: Image.fromarray(np.asarray(image) & 0b11100000),
    ],
    "SolarizeIncreasing": [lambda image: ImageOps.solarize(image, 67), lambda image: ImageOps.solarize(image, 180)],
    "SolarizeAdd": [lambda image: added(image, 81), lambda image: added(image, 33)],
    "ColorIncreasing": [
        lambda image: ImageEnhance.Color(image).enhance(1.666),
        lambda image: ImageEnhance.Color(image).enhance(0.73),
    ],
    "ContrastIncreasing": [
        lambda image: ImageEnhance.Contrast(image).enhance(1.666),
        lambda image: ImageEnhance.Contrast(image).enhance(0.73),
    ],
    "BrightnessIncreasing": [
        lambda image: ImageEnhance.Brightness(image).enhance(1.666),
        lambda image: ImageEnhance.Brightness(image).enhance(0.73),
    ],
    "SharpnessIncreasing": [
        lambda image: ImageEnhance.Sharpness(image).enhance(1.666),
        lambda image: ImageEnhance.Sharpness(image).enhance(0.73),
    ],
    "ShearX": [
        lambda image: shifted(image, (1, 0.222, 0, 0, 1, 0)),
        lambda image: shifted(image, (1, -0.09, 0, 0, 1, 0)),
    ],
    "ShearY": [
        lambda image: shifted(image, (1, 0, 0, 0.222, 1, 0)),
        lambda image: shifted(image, (1, 0, 0, -0.09, 1, 0)),
    ],
    # 0.333 and 0.135 of 64 and 48 pixels.
    "TranslateXRel": [
        lambda image: shifted(image, (1, 0, 21.312, 0, 1, 0)),
        lambda image: shifted(image, (1, 0, -8.64, 0, 1, 0)),
    ],
    "TranslateYRel": [
        lambda image: shifted(image, (1, 0, 0, 0, 1, 15.984)),
        lambda image: shifted(image, (1, 0, 0, 0, 1, -6.48)),
    ],
}


def difference(first, second):
    return np.abs(np.asarray(first).astype(int) - np.asarray(second).astype(int))


def as_frames(*images):
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", ORIGINAL)
def test_each_operation_is_that_of_the_original(name):
    for expected, level in zip(ORIGINAL[name], (0.74, -0.3), strict=True):
        assert difference(expected(PICTURE), PICTURE).any()
        assert difference(OPERATIONS[name](PICTURE, level), expected(PICTURE)).max() <= 1


def test_there_are_the_fifteen_operations_and_none_fails_at_the_ends():
    assert list(OPERATIONS) == list(ORIGINAL)
    for operation in OPERATIONS.values():
        for level in (-1.0, 0.0, 1.0):
            assert operation(PICTURE, level).size == PICTURE.size


# What `rand_augment_transform(config, {"interpolation": BICUBIC})` of timm 1.0.31 does to PICTURE in 20,000 draws, for
# the configs "rand-m7-n4-mstd0.5-inc1" and "rand-m5-n2-mstd0.25-inc1": mean and deviation of the mean change of its
# pixels, and the share of draws that leave it unchanged.
@pytest.mark.parametrize(
    ("settings", "change", "deviation", "unchanged"),
    [((4, 7.0, 0.5), 50.85, 26.30, 0.0633), ((2, 5.0, 0.25), 29.98, 26.92, 0.2489)],
)
def test_changes_are_as_strong_and_as_frequent_as_those_of_timm(settings, change, deviation, unchanged):
    generator, frames, draws = np.random.default_rng(1), as_frames(PICTURE), 3000
    changes = [(rand_augment(frames, *settings, generator).int() - frames.int()).abs() for _ in range(draws)]
    means = torch.stack([each.float().mean() for each in changes])
    print(f"mean change {means.mean():.1f}, unchanged {(means == 0).float().mean():.1%}")
    assert abs(means.mean().item() - change) < 3 * deviation / draws**0.5
    assert abs((means == 0).float().mean().item() - unchanged) < 3 * (unchanged / draws) ** 0.5
    assert means.std().item() == pytest.approx(deviation, rel=0.05)


def test_the_frames_of_a_clip_get_the_same_operations():
    other = PICTURE.transpose(Image.Transpose.ROTATE_180)
    for seed in range(20):
        both = rand_augment(as_frames(PICTURE, other), 4, 7.0, 0.5, np.random.default_rng(seed))
        for frame, image in zip(both, (PICTURE, other), strict=True):
            alone = rand_augment(as_frames(image), 4, 7.0, 0.5, np.random.default_rng(seed))
            assert torch.equal(frame, alone[0])


def test_a_training_view_is_made_in_the_order_of_the_original(tmp_path, monkeypatch):
    """`_aug_frame` of VideoMAE's `kinetics.py`: RandAugment of whole frames, normalisation, crop, flip."""
    originals = [PICTURE, PICTURE.transpose(Image.Transpose.ROTATE_180)]
    for number, image in enumerate(originals):
        image.save(tmp_path / f"{number}.png")
    applied, crops = [], []

    def logged(name, operation):
        return lambda image, level: (applied.append((name, level)), operation(image, level))[1]

    monkeypatch.setattr(module, "OPERATIONS", {name: logged(name, run) for name, run in OPERATIONS.items()})
    make_params = v2.RandomResizedCrop.make_params
    monkeypatch.setattr(
        v2.RandomResizedCrop, "make_params", lambda self, x: (crops.append(make_params(self, x)), crops[-1])[1]
    )
    processor = VideoClipProcessor(num_frames=2, sampling_strategy="uniform", size=24, crop_size=24)
    augmentation = ClipAugmentation(crop_min_area=0.08, horizontal_flip=True, rand_augment_num_ops=4)
    rows = Dataset.from_list([{"video": str(tmp_path)}])
    dataset = ClipDataset(rows, processor, training=True, augmentation=augmentation)
    flips, names = set(), set()
    for epoch in range(30):
        dataset.set_epoch(epoch)
        found = dataset[0]["pixel_values"][0]
        images = originals
        for name, level in applied[:: len(images)]:
            images = [OPERATIONS[name](image, level) for image in images]
        whole = (as_frames(*images) / 255 - MEAN[:, None, None]) / STD[:, None, None]
        top, left, height, width = (crops[-1][key] for key in ("top", "left", "height", "width"))
        crop = whole[..., top : top + height, left : left + width]
        expected = F.interpolate(crop, size=(24, 24), mode="bilinear", align_corners=False)
        # The crop resizes bytes, in fixed point where the machine can: up to one level away.
        levels = [(view - found) * STD[:, None, None] * 255 for view in (expected, expected.flip(-1))]
        matches = [bool(error.abs().max() < 1.01) for error in levels]
        assert any(matches)
        flips.add(matches[1])
        names.update(name for name, _ in applied)
        applied.clear()
    assert flips == {False, True} and len(names) > 10
