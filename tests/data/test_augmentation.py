"""What `ClipAugmentation` does to frames, and that its draws follow the generator alone."""

import dataclasses
import pickle
import random
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import v2
from transformers.image_utils import PILImageResampling

from hf_video.data import (
    ClipAugmentation,
    ClipMixing,
    ClipTask,
    FrameTask,
    MixingCollator,
    VideoDataset,
    augment_batch,
)
from hf_video.data import augmentation as module
from hf_video.data.augmentation import OPERATIONS, Crop, DrawsFrom, has_direction
from hf_video.processing import VideoClipProcessor
from tests.testing.videos import encode_video, make_frames

FRAME = torch.arange(3 * 32 * 40, dtype=torch.int64).remainder(251).to(torch.uint8).view(3, 32, 40)
CLIP = FRAME.repeat(4, 1, 1, 1)
FULL = ClipAugmentation(
    crop_min_area=0.1, horizontal_flip=True, rand_augment_num_ops=3, color_jitter=0.4, erasing_prob=0.5
)


def augment(augmentation: ClipAugmentation, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    frames = augmentation.rand_augment(CLIP, generator)
    frames = augmentation.crop(frames, Crop((24, 24)), generator)
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
        [augmentation.crop(clip, Crop((48, 48), False, resample), np.random.default_rng(seed)) for seed in range(20)]
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


def test_values_out_of_range_are_named():
    for name, value in {"crop_min_area": 0.0, "rand_augment_magnitude": 11, "num_augmentations": 0}.items():
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            ClipAugmentation(**{name: value})


def places_of_the_original(width, height, size):
    """(left, top, width, height) by `GroupMultiScaleCrop` of VideoMAE: 10 pairs of sides, 13 places of each."""
    sides = [int(min(width, height) * scale) for scale in (1, 0.875, 0.75, 0.66)]
    sides = [size if abs(side - size) < 3 else side for side in sides]
    found = []
    for row, high in enumerate(sides):
        for column, wide in enumerate(sides):
            if abs(row - column) <= 1:
                x, y = (width - wide) // 4, (height - high) // 4
                corners = [(0, 0), (4 * x, 0), (0, 4 * y), (4 * x, 4 * y), (2 * x, 2 * y)]
                edges = [(0, 2 * y), (4 * x, 2 * y), (2 * x, 4 * y), (2 * x, 0)]
                quarters = [(x, y), (3 * x, y), (x, 3 * y), (3 * x, 3 * y)]
                found += [(left, top, wide, high) for left, top in corners + edges + quarters]
    assert len(found) == 130
    return found


def test_the_crops_are_those_of_the_original():
    """Smooth frames, whose crops differ, resized by Pillow as in the original; both round, so one level is allowed."""
    width, height = 33, 50
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    frame = torch.stack([rows * 4, columns * 3, (rows + columns) * 2]).to(torch.uint8)
    image, size = Image.fromarray(frame.permute(1, 2, 0).numpy()), 32
    crops = {}
    for left, top, wide, high in places_of_the_original(width, height, size):
        box = image.crop((left, top, left + wide, top + high)).resize((size, size), Image.BILINEAR)
        crops[left, top, wide, high] = np.asarray(box, np.int64)
    names, stored = list(crops), np.stack(list(crops.values()))
    drawn = Counter()
    for seed in range(300):
        crop, clip = ClipAugmentation(multi_scale_crop=True).crop, frame.repeat(2, 1, 1, 1)
        frames = crop(clip, Crop((size, size)), np.random.default_rng(seed))
        assert frames.dtype == torch.uint8 and torch.equal(frames[0], frames[1])
        distance = np.abs(stored - frames[0].permute(1, 2, 0).numpy()).max(axis=(1, 2, 3))
        assert distance.min() <= 1
        drawn[names[distance.argmin()]] += 1
    assert len(drawn) > 0.6 * len(crops)


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
    dataset = VideoDataset(rows, ClipTask(processor, augmentation=augmentation), training=True)
    flips, names = set(), set()
    for epoch in range(12):
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
    assert flips == {False, True} and len(names) > 8


SIZE = {"num_frames": 4, "sampling_strategy": "uniform", "size": 40, "crop_size": 32}
CROPS = {"crop": {}, "resized": {"crop_min_area": 0.1}, "multi_scale": {"multi_scale_crop": True}}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Videos of two sizes."""
    folder = tmp_path_factory.mktemp("videos")
    sizes = {"wide.mp4": (48, 80), "high.mp4": (96, 64)}
    videos = [encode_video(folder / name, make_frames(10, *size), fps=10) for name, size in sizes.items()]
    return Dataset.from_list([{"video": video, "label": number} for number, video in enumerate(videos)])


def batches(rows, epochs=10, collate=None, **options):
    """Of each epoch, the batch of clips that are changed on the CPU and that of clips changed afterwards."""
    datasets = []
    for place in ("cpu", "device"):
        augmentation = ClipAugmentation(augment_on=place, **options)
        task = ClipTask(VideoClipProcessor(**SIZE), ["a", "b"], augmentation=augmentation)
        datasets.append(VideoDataset(rows, task, training=True))
    for epoch in range(epochs):
        found = []
        for dataset in datasets:
            dataset.set_epoch(epoch)
            items = [dataset[0], dataset[1]]
            batch = (collate or dataset.task.collate)(items)
            # As from a worker process.
            found.append(augment_batch(pickle.loads(pickle.dumps(batch))))
        yield found


@pytest.mark.parametrize("crop", CROPS)
def test_crops_flips_and_mixing_are_the_same(rows, crop):
    mixing = MixingCollator(ClipMixing(mixup_alpha=0.8, cutmix_alpha=1.0, mixing_prob=0.8), 2)
    options = CROPS[crop] | {"horizontal_flip": True, "num_augmentations": 2}
    for here, there in batches(rows, collate=mixing, **options):
        assert here.keys() == there.keys() and here["pixel_values"].shape == (4, 4, 3, 32, 32)
        assert all(torch.equal(here[name], there[name]) for name in here)


def test_colours_and_rand_augment_are_the_same_but_for_rounding(rows):
    options = {"crop_min_area": 0.5, "color_jitter": 0.4, "rand_augment_num_ops": 3}
    for here, there in batches(rows, epochs=20, **options):
        difference = (here["pixel_values"] - there["pixel_values"]).abs()
        # Of values with a standard deviation of one. Bicubic filters differ at edges.
        assert difference.mean() < 0.1
        torch.testing.assert_close(
            *(each["pixel_values"].mean((1, 2, 3, 4)) for each in (here, there)), atol=0.05, rtol=0
        )


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_does_the_same_to_frames_as_to_images(name):
    for level in (-1.0, -0.37, 0.0, 0.002, 0.74, 1.0):
        expected = as_frames(OPERATIONS[name](PICTURE, level)).int()
        found = OPERATIONS[name](as_frames(PICTURE), level)
        difference = (found - expected).abs().float()
        assert found.dtype == torch.uint8 and difference.mean() < 1 and difference.quantile(0.98) <= 4


def test_rectangles_of_noise_have_the_same_areas_places_and_values():
    augmentation = ClipAugmentation(erasing_prob=0.5)
    blank, generators = torch.zeros(2, 3, 32, 32), [np.random.default_rng(seed) for seed in (0, 1)]

    def erase_later(generator):
        return augmentation.draw(blank, None, generator, torch.clone)[1]

    moments = []
    for erase in (
        partial(augmentation.erase, blank, generators[0]),
        lambda: erase_later(generators[1])[-1](blank.clone()),
    ):
        frames = [erase() for _ in range(800)]
        hits = [(each != 0).any(0).any(0) for each in frames if each.any()]
        areas = torch.tensor([hit.float().mean() for hit in hits])
        places = torch.tensor([hit.nonzero().float().mean(0).tolist() for hit in hits]) / 32
        values = torch.cat([each[each != 0][:50] for each in frames])
        moments.append(
            torch.tensor(
                [len(hits) / len(frames), areas.mean(), areas.std(), *places.mean(0), *places.std(0)]
                + [values.mean(), values.std()]
            )
        )
        last = next(each for each in frames if each.any())
        assert not torch.equal(last[0], last[1])
    torch.testing.assert_close(moments[0], moments[1], atol=0.05, rtol=0)


def original_view(clip, generator, processor):
    """A view as the classes of torchvision draw and make it in one call."""

    def apply(transform, frames):
        with DrawsFrom(generator):
            return transform(frames)

    frames = torch.from_numpy(clip).permute(0, 3, 1, 2)
    frames = apply(v2.RandomResizedCrop(32, scale=(0.1, 1.0), antialias=False), frames)
    frames = frames.flip(-1) if generator.random() < 0.5 else frames
    frames = apply(v2.ColorJitter(0.4, 0.4, 0.4), frames)
    frames = processor(frames, do_sample_frames=False, do_resize=False, return_tensors="pt")["pixel_values"][0]
    if generator.random() >= 0.5:
        return frames
    erasing = v2.RandomErasing(p=1.0, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value="random")
    return apply(erasing, frames.flatten(0, 1)).view_as(frames)


def test_clips_that_are_changed_on_the_cpu_are_those_of_torchvision_bit_for_bit():
    processor = VideoClipProcessor(**SIZE)
    options = {"crop_min_area": 0.1, "horizontal_flip": True, "color_jitter": 0.4, "erasing_prob": 0.5}
    task = ClipTask(processor, augmentation=ClipAugmentation(**options))
    clip = np.random.default_rng(0).integers(0, 256, (4, 48, 80, 3), dtype=np.uint8)
    for seed in range(20):
        drawn, expected = (np.random.default_rng(seed) for _ in range(2))
        assert torch.equal(task._draw_view(clip, drawn, "")[0], original_view(clip, expected, processor))
        assert drawn.random() == expected.random()


def test_frames_travel_as_bytes_and_are_cut_unless_rand_augment_must_see_them(rows):
    def frames_of(**options):
        augmentation = ClipAugmentation(augment_on="device", crop_min_area=0.1, **options)
        task = ClipTask(VideoClipProcessor(**SIZE), ["a", "b"], augmentation=augmentation)
        dataset, found = VideoDataset(rows, task, training=True), []
        for epoch in range(10):
            dataset.set_epoch(epoch)
            found += dataset[0]["pixel_values"]
        return found

    cut, whole = frames_of(), frames_of(rand_augment_num_ops=8)
    assert {each.dtype for each in cut + whole} == {torch.uint8}
    assert all(each[0, 0].numel() < 48 * 80 for each in cut) and len({each.shape for each in cut}) > 5
    assert {each.shape for each in whole} == {(4, 3, 48, 80)}


def test_clips_with_labels_of_frames_are_padded_after_they_are_changed(rows):
    clips = [{"start": 0.0, "num_frames": count, "frame_labels": [0] * (count // 2)} for count in (4, 2)]
    clips = Dataset.from_list([{"video": rows[0]["video"], **clip} for clip in clips])
    found = []
    for place in ("cpu", "device"):
        task = FrameTask(
            VideoClipProcessor(**SIZE),
            ["a"],
            fps=10,
            augmentation=ClipAugmentation(crop_min_area=0.1, augment_on=place),
        )
        dataset = VideoDataset(clips, task, training=True)
        found.append(augment_batch(task.collate([dataset[0], dataset[1]])))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_what_cannot_be_done_on_the_device_is_refused():
    augmentation = ClipAugmentation(augment_on="device")
    with pytest.raises(ValueError, match="augment_on=device needs a size to crop to"):
        ClipTask(VideoClipProcessor(size=40, do_center_crop=False), augmentation=augmentation)
