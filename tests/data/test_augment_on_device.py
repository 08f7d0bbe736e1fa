"""Clips that are changed on the device have the distribution of those that are changed while they are read."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset
from torchvision.transforms import v2

from hf_video.data import (
    ClipAugmentation,
    ClipMixing,
    ClipTask,
    FrameTask,
    MixingCollator,
    VideoDataset,
    augment_batch,
)
from hf_video.data.augmentation import OPERATIONS, DrawsFrom
from hf_video.processing import VideoClipProcessor
from tests.testing.videos import encode_video, make_frames

from .test_augmentation import PICTURE, as_frames

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
    blank, generators = torch.zeros(2, 3, 64, 64), [np.random.default_rng(seed) for seed in (0, 1)]

    def erase_later(generator):
        return augmentation.draw(blank, None, False, generator, 2, torch.clone)[1]

    moments = []
    for erase in (
        partial(augmentation.erase, blank, generators[0]),
        lambda: erase_later(generators[1])[-1](blank.clone()),
    ):
        frames = [erase() for _ in range(3000)]
        hits = [(each != 0).any(0).any(0) for each in frames if each.any()]
        areas = torch.tensor([hit.float().mean() for hit in hits])
        places = torch.tensor([hit.nonzero().float().mean(0).tolist() for hit in hits]) / 64
        values = torch.cat([each[each != 0][:50] for each in frames])
        moments.append(
            torch.tensor(
                [len(hits) / len(frames), areas.mean(), areas.std(), *places.mean(0), *places.std(0)]
                + [values.mean(), values.std()]
            )
        )
        last = next(each for each in frames if each.any())
        assert not torch.equal(last[0], last[1])
    torch.testing.assert_close(moments[0], moments[1], atol=0.03, rtol=0)


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
    with pytest.raises(ValueError, match="transform"):
        ClipTask(VideoClipProcessor(), augmentation=augmentation, transform=lambda frames, generator: frames)
