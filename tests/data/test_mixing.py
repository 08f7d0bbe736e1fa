"""Clips become batches; MixUp and CutMix of the clips of a batch, and their soft targets."""

import pytest
import torch

from hf_video.data import ClipMixing, MixingCollator, collate_clips


def three_items(num_views, **columns):
    """Three videos, filled with their number."""
    return [
        {"pixel_values": torch.full((num_views, 4, 3, 8, 8), float(video)), "labels": video, **columns}
        for video in range(3)
    ]


def test_one_view_has_no_axis():
    batch = collate_clips(three_items(1))
    assert batch["pixel_values"].shape == (3, 4, 3, 8, 8)
    assert batch["labels"].dtype == torch.int64 and batch["labels"].tolist() == [0, 1, 2]


def test_views_of_a_video_are_for_the_classifier_to_average():
    batch = collate_clips(three_items(2))
    assert batch["pixel_values"].shape == (3, 2, 4, 3, 8, 8)
    assert batch["pixel_values"][:, :, 0, 0, 0, 0].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["labels"].tolist() == [0, 1, 2]


def test_views_of_a_training_clip_are_clips_of_their_own():
    batch = collate_clips(three_items(2, sample_key=(0, 0, 0)))
    assert list(batch) == ["pixel_values", "labels"]
    assert batch["pixel_values"][:, 0, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert batch["labels"].tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ([{"pixel_values": torch.zeros(1, 4, 3, n, 8)} for n in (8, 9)], r"\(1, 4, 3, 8, 8\), \(1, 4, 3, 9, 8\)"),
        ([{"pixel_values": torch.zeros(4, 3, 8, 8)}], r"\(4, 3, 8, 8\)"),
    ],
)
def test_items_that_do_not_fit(wrong, named):
    with pytest.raises(ValueError, match=named):
        collate_clips(wrong)


NUM_CLASSES = 3


def items(count=4, num_views=1, epoch=0):
    """Clip n is filled with the number n, of class n % 3."""
    return [
        {
            "pixel_values": torch.full((num_views, 2, 3, 8, 8), float(number)),
            "labels": number % NUM_CLASSES,
            "sample_key": (0, epoch, number),
        }
        for number in range(count)
    ]


def test_mixup_blends_neighbours_and_their_targets_with_one_weight():
    batch = MixingCollator(ClipMixing(mixup_alpha=0.8), NUM_CLASSES)(items(3))
    weight = batch["labels"].diagonal()
    assert (weight == weight[0]).all() and 0 < weight[0] < 1
    expected = weight[0] * torch.arange(3) + (1 - weight[0]) * torch.arange(3).roll(1)
    torch.testing.assert_close(batch["pixel_values"], expected.view(3, 1, 1, 1, 1).expand(3, 2, 3, 8, 8))
    torch.testing.assert_close(batch["labels"].sum(1), torch.ones(3))


def test_cutmix_pastes_one_box_into_all_frames_and_its_area_is_the_weight():
    for epoch in range(10):
        batch = MixingCollator(ClipMixing(cutmix_alpha=1.0), NUM_CLASSES)(items(3, epoch=epoch))
        clips = batch["pixel_values"]
        own = clips == torch.arange(3).view(3, 1, 1, 1, 1)
        assert torch.equal(own, own[:1, :1, :1].expand_as(own))
        torch.testing.assert_close(own.float().mean((1, 2, 3, 4)), batch["labels"].diagonal())


def test_draws_follow_the_samples_of_the_batch_and_nothing_else():
    collate = MixingCollator(ClipMixing(mixup_alpha=0.8, cutmix_alpha=1.0), NUM_CLASSES)
    torch.manual_seed(1)
    first = collate(items())
    torch.manual_seed(2)
    again = collate(items())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["labels"], collate(items(epoch=1))["labels"])


def test_label_smoothing_comes_before_mixing():
    batch = MixingCollator(ClipMixing(mixup_alpha=0.8), 4, label_smoothing=0.2)(items(1))
    torch.testing.assert_close(batch["labels"], torch.tensor([[0.85, 0.05, 0.05, 0.05]]))


def test_multi_label_targets_are_mixed_as_they_are():
    batch = [item | {"labels": [1.0, float(number), 0.0]} for number, item in enumerate(items(2))]
    labels = MixingCollator(ClipMixing(mixup_alpha=0.8), NUM_CLASSES)(batch)["labels"]
    torch.testing.assert_close(labels[:, 0], torch.ones(2))
    torch.testing.assert_close(labels[:, 1].sum(), torch.tensor(1.0))
    with pytest.raises(ValueError, match="label_smoothing=0.1 is for class ids"):
        MixingCollator(ClipMixing(mixup_alpha=0.8), NUM_CLASSES, label_smoothing=0.1)(batch)


def test_wrong_values_are_named():
    with pytest.raises(ValueError, match="mixup_alpha is -1"):
        ClipMixing(mixup_alpha=-1)
    with pytest.raises(ValueError, match="labels"):
        unlabelled = [{"pixel_values": torch.zeros(1, 2, 3, 8, 8), "sample_key": (0, 0, 0)}]
        MixingCollator(ClipMixing(mixup_alpha=1), NUM_CLASSES)(unlabelled)
