"""The crop of VideoMAE's pre-training against Pillow and the places that the original lists."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from hf_video.data import ClipAugmentation, ClipDataset, load_unlabelled_videos
from hf_video.data.augmentation import multi_scale_crop
from hf_video.processing import VideoClipProcessor

from ..video_files import encode_video, make_frames


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


@pytest.mark.parametrize(("width", "height"), [(64, 48), (33, 50)])
def test_the_crops_are_those_of_the_original(width, height):
    """Smooth frames, whose crops differ, resized by Pillow as in the original; both round, so one level is allowed."""
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
        frames = multi_scale_crop(frame.repeat(2, 1, 1, 1), (size, size), np.random.default_rng(seed))
        assert frames.dtype == torch.uint8 and torch.equal(frames[0], frames[1])
        distance = np.abs(stored - frames[0].permute(1, 2, 0).numpy()).max(axis=(1, 2, 3))
        assert distance.min() <= 1
        drawn[names[distance.argmin()]] += 1
    assert len(drawn) > 0.6 * len(crops)


def test_a_data_set_draws_such_crops(tmp_path):
    encode_video(tmp_path / "a.mp4", make_frames(4))
    rows = load_unlabelled_videos(tmp_path)["train"]
    processor = VideoClipProcessor(
        num_frames=2, size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}, do_center_crop=True
    )
    dataset = ClipDataset(rows, processor, training=True, augmentation=ClipAugmentation(multi_scale_crop=True))
    assert dataset[0]["pixel_values"].shape == (1, 2, 3, 24, 24)
    assert torch.equal(dataset[0]["pixel_values"], dataset[0]["pixel_values"])
    without = VideoClipProcessor(num_frames=2, do_center_crop=False)
    with pytest.raises(ValueError, match="multi_scale_crop needs a size to crop to"):
        ClipDataset(rows, without, training=True, augmentation=ClipAugmentation(multi_scale_crop=True))
