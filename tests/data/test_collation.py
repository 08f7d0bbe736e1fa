"""Joining items into a batch."""

import pytest
import torch

from hf_video.data import collate_clips


def items(num_views, **columns):
    """Three videos, filled with their number."""
    return [
        {"pixel_values": torch.full((num_views, 4, 3, 8, 8), float(video)), "labels": video, **columns}
        for video in range(3)
    ]


def test_one_view_has_no_axis():
    batch = collate_clips(items(1))
    assert batch["pixel_values"].shape == (3, 4, 3, 8, 8)
    assert batch["labels"].dtype == torch.int64 and batch["labels"].tolist() == [0, 1, 2]


def test_views_of_a_video_are_for_the_classifier_to_average():
    batch = collate_clips(items(2))
    assert batch["pixel_values"].shape == (3, 2, 4, 3, 8, 8)
    assert batch["pixel_values"][:, :, 0, 0, 0, 0].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["labels"].tolist() == [0, 1, 2]


def test_views_of_a_training_clip_are_clips_of_their_own():
    batch = collate_clips(items(2, sample_key=(0, 0, 0)))
    assert list(batch) == ["pixel_values", "labels"]
    assert batch["pixel_values"][:, 0, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert batch["labels"].tolist() == [0, 0, 1, 1, 2, 2]


def test_labels_are_optional():
    assert list(collate_clips([{"pixel_values": torch.zeros(1, 4, 3, 8, 8)}])) == ["pixel_values"]


def test_multi_label():
    clips = [{"pixel_values": torch.zeros(1, 4, 3, 8, 8), "labels": [1.0, 0.0, 1.0]} for _ in range(2)]
    labels = collate_clips(clips)["labels"]
    assert labels.shape == (2, 3) and labels.dtype == torch.float32


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "nothing to collate"),
        ([{"pixel_values": torch.zeros(1, 4, 3, n, 8)} for n in (8, 9)], r"\(1, 4, 3, 8, 8\), \(1, 4, 3, 9, 8\)"),
        ([{"pixel_values": torch.zeros(4, 3, 8, 8)}], r"\(4, 3, 8, 8\).*views, frames, channels"),
        (
            [{"pixel_values": torch.zeros(1, 4, 3, 8, 8), "labels": 0}, {"pixel_values": torch.zeros(1, 4, 3, 8, 8)}],
            "Some items have labels",
        ),
    ],
)
def test_items_that_do_not_fit(wrong, message):
    with pytest.raises(ValueError, match=message):
        collate_clips(wrong)
