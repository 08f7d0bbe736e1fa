"""Items of a `VideoDataset`: fixed views for evaluation, reproducible random ones for training."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from torch.utils.data import DataLoader

from hf_video import VideoClipProcessor
from hf_video.data import ClipAugmentation, ClipTask, VideoDataset, collate_clips
from tests.testing.videos import encode_video


@pytest.fixture(scope="module")
def ramp(tmp_path_factory):
    """Two seconds of 24 frames, 48 x 32 pixels, the n-th of brightness 10 * n."""
    path = tmp_path_factory.mktemp("videos") / "ramp.mp4"
    encode_video(path, np.tile(np.arange(0, 240, 10, dtype=np.uint8)[:, None, None], (1, 32, 48)), fps=12)
    return str(path)


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    """A folder of three frames, 48 x 32 pixels, whose red is the row and whose green is the column of a pixel."""
    folder = tmp_path_factory.mktemp("chart")
    rows, columns = np.indices((32, 48), dtype=np.uint8)
    for number in range(3):
        Image.fromarray(np.stack([rows, columns, np.zeros_like(rows)], axis=-1)).save(folder / f"{number}.png")
    return str(folder)


def make_processor(**options) -> VideoClipProcessor:
    defaults = {"num_frames": 4, "sampling_strategy": "uniform", "size": {"shortest_edge": 32}, "crop_size": 24}
    return VideoClipProcessor(**(defaults | options))


def plain_processor(**options) -> VideoClipProcessor:
    """Gives pixels as they are in the video, 0 to 255."""
    return make_processor(do_rescale=False, do_normalize=False, **options)


def rows(video: str, count: int = 1, **columns) -> Dataset:
    return Dataset.from_list([{"video": video, "label": number, **columns} for number in range(count)])


@pytest.mark.parametrize("views", [{}, {"num_clips": 2, "num_crops": 3}, {"fps": 6, "sampling_strategy": "dense"}])
def test_evaluation_gives_the_views_of_the_processor(ramp, views):
    processor = make_processor(**views)
    item = VideoDataset(rows(ramp), ClipTask(processor), training=False)[0]
    assert item["labels"] == 0
    views = processor.num_clips * processor.num_crops
    assert item["pixel_values"].shape == (views, 4, 3, 24, 24)
    expected = processor(ramp, return_tensors="pt")["pixel_values"]
    assert torch.equal(item["pixel_values"], expected[0] if views > 1 else expected)


def test_training_normalises_as_the_processor_does(ramp):
    processor = make_processor(num_frames=24)  # every frame of the video, so that nothing but the crop is drawn
    training, evaluation = (VideoDataset(rows(ramp), ClipTask(processor), training=flag)[0] for flag in (True, False))
    torch.testing.assert_close(training["pixel_values"], evaluation["pixel_values"])


def test_draws_depend_on_seed_epoch_and_index_alone(ramp):
    def draw(seed: int, epoch: int, index: int) -> torch.Tensor:
        dataset = VideoDataset(rows(ramp, count=2), ClipTask(make_processor()), training=True, seed=seed)
        dataset.set_epoch(epoch)
        return dataset[index]["pixel_values"]

    first = draw(0, 0, 0)
    assert torch.equal(first, draw(0, 0, 0))
    assert torch.equal(draw(0, 0, 1), draw(0, 0, -1))
    # A row that is drawn again in an epoch gives another clip of the same video.
    assert torch.equal(first, draw(0, 0, (0, 0)))
    for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, (0, 1))):
        assert not torch.equal(first, draw(*other))


def test_persistent_workers_follow_the_epoch(ramp):
    dataset = VideoDataset(rows(ramp, count=4), ClipTask(make_processor()), training=True)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True, collate_fn=collate_clips)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        expected = torch.cat([dataset[index]["pixel_values"] for index in range(4)])
        assert torch.equal(torch.cat([batch["pixel_values"] for batch in loader]), expected)


def test_training_draws_all_over_a_segment_and_never_outside(ramp):
    dataset = VideoDataset(rows(ramp, start=1.0, end=2.0), ClipTask(plain_processor(num_frames=3)), training=True)
    drawn = set()
    for epoch in range(40):
        dataset.set_epoch(epoch)
        brightness = dataset[0]["pixel_values"].float().mean((0, 2, 3, 4)) / 10
        assert (brightness.diff() > 0.5).all()
        drawn.update(brightness.round().int().tolist())
    assert drawn == set(range(12, 24))


def test_one_random_crop_for_all_frames(chart):
    dataset = VideoDataset(rows(chart), ClipTask(plain_processor()), training=True)
    corners = set()
    for epoch in range(60):
        dataset.set_epoch(epoch)
        frames = dataset[0]["pixel_values"][0]
        top, left = frames[0, :2, 0, 0].int().tolist()
        assert (frames[:, 0] == torch.arange(top, top + 24)[:, None]).all()
        assert (frames[:, 1] == torch.arange(left, left + 24)).all()
        corners.add((top, left))
    assert {top for top, _ in corners} == set(range(32 - 24 + 1))
    lefts = {left for _, left in corners}
    assert min(lefts) <= 2 and max(lefts) >= 22 and len(lefts) > 15


def test_horizontal_flip_is_off_by_default(chart):
    def orientations(**options) -> set[bool]:
        dataset = VideoDataset(rows(chart), ClipTask(plain_processor(), **options), training=True)
        found = set()
        for epoch in range(20):
            dataset.set_epoch(epoch)
            green = dataset[0]["pixel_values"][0, :, 1]
            found.add(bool((green.diff(dim=-1) == -1).all()))
        return found

    assert orientations() == {False}
    assert orientations(augmentation=ClipAugmentation(horizontal_flip=True)) == {False, True}


def test_wrong_arguments(ramp):
    with pytest.raises(ValueError, match="video"):
        VideoDataset(Dataset.from_dict({"path": [ramp]}), ClipTask(make_processor()), training=False)
