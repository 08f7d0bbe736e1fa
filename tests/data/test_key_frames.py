"""Clips around key frames of real videos, with their boxes."""

import numpy as np
import pytest
import torch
from PIL import Image

from hf_video.data import BoxTask, VideoDataset, load_detections, read_key_frame_clip
from hf_video.processing import VideoDetectionProcessor
from hf_video.reading import VideoReadError
from tests.testing.videos import decode_everything, encode_video, make_frames

from .detection_files import OWN, write_annotations, write_videos


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_annotations(write_videos(tmp_path_factory.mktemp("detections")), train=OWN)


@pytest.fixture(scope="module")
def processor():
    """Clips of 4 frames, 0.1 seconds apart, whose third is the key frame."""
    return VideoDetectionProcessor(num_frames=4, frame_sampling_rate=3, size={"shortest_edge": 32})


@pytest.fixture(scope="module")
def rows(folder):
    return load_detections(folder)["train"]


@pytest.mark.parametrize(
    ("name", "second", "numbers"),
    [
        ("a.mp4", 1.0, [24, 27, 30, 33]),
        ("a.mp4", 0, [0, 0, 0, 3]),
        ("a.mp4", 2.95, [82, 85, 88, 89]),
        ("b.mp4", 1, [12, 13, 15, 16]),
    ],
)
def test_a_clip_has_the_frames_that_its_times_show(name, second, numbers, folder, processor):
    clip = read_key_frame_clip(folder / name, second, processor)
    assert np.array_equal(clip, decode_everything(folder / name)[numbers])


def test_times_count_where_the_rate_varies(processor, tmp_path):
    frames = make_frames(4)
    path = encode_video(tmp_path / "slow.mp4", frames, fps=10, times=[0, 4, 10, 20])
    clip = read_key_frame_clip(path, 1.0, processor)
    assert np.array_equal(clip, decode_everything(path)[[1, 1, 2, 2]])


def test_frames_of_a_folder_count_at_the_rate_of_the_processor(processor, tmp_path):
    frames = make_frames(40)
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / f"{number}.png")
    assert np.array_equal(read_key_frame_clip(tmp_path, 1, processor), frames[[24, 27, 30, 33]])


@pytest.mark.parametrize("second", [-0.5, 3, 900])
def test_a_second_outside_of_the_video_is_told(second, folder, processor):
    with pytest.raises(VideoReadError, match=rf"a.mp4 has no key frame at {second:g} s: it lasts 3.000 s"):
        read_key_frame_clip(folder / "a.mp4", second, processor)


def test_an_item_has_the_boxes_of_its_key_frame(rows, processor):
    item = VideoDataset(rows, BoxTask(processor), training=False)[0]
    assert item["pixel_values"].shape == (4, 3, 32, 64)
    assert item["original_sizes"].tolist() == [32, 43]
    boxes = torch.tensor([[0.1, 0.2, 0.5, 0.9], [0.6, 0.2, 0.9, 0.9]]) * torch.tensor([64, 48, 64, 48]) * 32 / 48
    torch.testing.assert_close(item["labels"]["boxes"], boxes)
    assert item["labels"]["class_labels"].tolist() == [[1, 0, 1], [0, 0, 0]]
    assert item["labels"]["image_id"] == 0


def test_training_clips_are_resized_and_mirrored_by_their_key(rows, processor):
    def items_of(index, seed=0):
        clips = VideoDataset(rows, BoxTask(processor), training=True, seed=seed)
        for epoch in range(16):
            clips.set_epoch(epoch)
            yield clips[index]

    drawn, again = list(items_of(1)), list(items_of(1))
    for item, same in zip(drawn, again, strict=True):
        assert torch.equal(item["pixel_values"], same["pixel_values"])
    sizes = {tuple(item["original_sizes"].tolist()) for item in drawn}
    assert sizes == {(32, 43), (40, 53)}
    other = list(items_of(1, seed=1))
    assert any(a["pixel_values"].shape != b["pixel_values"].shape for a, b in zip(drawn, other, strict=True))
    lefts = {round(float(item["labels"]["boxes"][0, 0]), 3) for item in items_of(0)}
    # The box from 4.27 to 21.33 of 43 columns, mirrored and not, and the same at 40 rows.
    assert lefts == {4.267, 20.667, 5.333, 25.333}


def test_a_clip_whose_action_names_a_direction_is_not_mirrored(rows, processor):
    clips = VideoDataset(rows, BoxTask(processor, scales=[1]), training=True)
    expected = VideoDataset(rows, BoxTask(processor), training=False)[2]["pixel_values"]
    for epoch in range(8):
        clips.set_epoch(epoch)
        assert torch.equal(clips[2]["pixel_values"], expected)


def test_a_batch_is_padded_to_its_largest_clip(rows, processor):
    clips = VideoDataset(rows, BoxTask(processor), training=False)
    batch = clips.task.collate([clips[0], None, clips[2]])
    assert batch["pixel_values"].shape == (2, 4, 3, 32, 64)
    assert batch["original_sizes"].tolist() == [[32, 43], [32, 32]]
    assert not batch["pixel_values"][1, ..., 32:].any()
    assert [each["image_id"].item() for each in batch["labels"]] == [0, 2]
    with pytest.raises(ValueError, match="nothing to collate"):
        clips.task.collate([None])


def test_a_key_frame_beyond_the_end_is_an_unreadable_video(folder, processor, tmp_path):
    write_annotations(tmp_path, train=OWN + "b.mp4,7,0,0,1,1,walk,1\n")
    rows = load_detections(tmp_path, video_root=folder)["train"]
    with pytest.raises(VideoReadError, match=r"b.mp4 has no key frame at 7 s: it lasts 2.000 s.*900 for AVA"):
        VideoDataset(rows, BoxTask(processor), training=False)[3]
    skipping = VideoDataset(rows, BoxTask(processor), training=True, on_error="skip")
    assert skipping[3] is None and skipping.broken_videos() == [str(folder / "b.mp4")]
    assert VideoDataset(rows, BoxTask(processor), training=True, on_error="replace")[3] is not None
