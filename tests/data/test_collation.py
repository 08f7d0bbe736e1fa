"""Joining items into a batch."""

import pytest
import torch

from hf_video.data import collate_clips


def test_views_of_a_video_stay_together():
    items = [{"pixel_values": torch.full((2, 4, 3, 8, 8), float(video)), "labels": video} for video in range(3)]
    batch = collate_clips(items)
    assert batch["pixel_values"].shape == (6, 4, 3, 8, 8)
    assert batch["pixel_values"][:, 0, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert batch["labels"].dtype == torch.int64
    assert batch["labels"].tolist() == [0, 1, 2]


def test_labels_are_optional():
    assert list(collate_clips([{"pixel_values": torch.zeros(1, 4, 3, 8, 8)}])) == ["pixel_values"]


def test_multi_label():
    items = [{"pixel_values": torch.zeros(1, 4, 3, 8, 8), "labels": [1.0, 0.0, 1.0]} for _ in range(2)]
    labels = collate_clips(items)["labels"]
    assert labels.shape == (2, 3) and labels.dtype == torch.float32


@pytest.mark.parametrize(
    ("items", "message"),
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
def test_items_that_do_not_fit(items, message):
    with pytest.raises(ValueError, match=message):
        collate_clips(items)
