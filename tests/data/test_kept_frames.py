"""Frames that a training keeps: the bits of files where whole frames are resized, decoded once, within a bound."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from hf_video.data import ClipAugmentation, ClipTask, FrameTask, VideoDataset
from hf_video.data.kept_frames import keeping_frames
from hf_video.processing import VideoClipProcessor
from hf_video.reading import VideoReader, VideoReadError
from hf_video.reading.frame_streaming import stream_frames
from tests.testing.videos import damage_frame, encode_video, make_frames

PROCESSOR = VideoClipProcessor(num_frames=4, frame_sampling_rate=2, size={"shortest_edge": 24}, crop_size=20)
MPEG4 = {"codec": "mpeg4", "codec_options": {}}


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Four seconds of 96 x 128 pixels that are decoded from their start, the same with a key frame each second, and a
    video whose rows FFmpeg pads."""
    folder = tmp_path_factory.mktemp("videos")
    frames = make_frames(40, 96, 128)
    encode_video(folder / "counted.avi", frames, fps=10, **MPEG4)
    encode_video(folder / "padded.avi", frames[:, :, :120], fps=10, **MPEG4)
    encode_video(folder / "sought.mp4", frames, fps=10, codec_options={"preset": "ultrafast", "g": "10"})
    return folder


def clips_of(folder, task=None, training=True, names=("counted.avi", "sought.mp4"), **options):
    rows = [{"video": str(folder / name), "label": 0, "start": at, "end": at + 2} for name in names for at in (0, 2)]
    return VideoDataset(Dataset.from_list(rows), task or ClipTask(PROCESSOR), training=training, **options)


def items_of(clips, epochs=2):
    found = []
    for epoch in range(epochs):
        clips.set_epoch(epoch)
        found += [clips[index]["pixel_values"] for index in range(len(clips))]
    return found


def are_equal(first, second):
    return len(first) == len(second) and all(map(torch.equal, first, second))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"antialias": True},
        {"resample": 3, "size": {"height": 24, "width": 30}, "do_center_crop": False},
        {"size": {"height": 96, "width": 120}, "do_center_crop": False},
    ],
)
def test_resized_frames_have_the_bits_of_the_files(videos, tmp_path, options, training):
    processor = VideoClipProcessor(**PROCESSOR.to_dict() | options)
    clips = clips_of(videos, ClipTask(processor), training, ("counted.avi", "sought.mp4", "padded.avi"))
    expected = items_of(clips)
    with keeping_frames([clips], tmp_path / "kept", 1, 20) as kept:
        assert all(video.file and video.size[0] == processor.size.get("height", 24) for video in kept.videos)
        assert are_equal(items_of(clips), expected)


def test_clips_of_labelled_frames_have_the_bits_of_the_files(videos, tmp_path):
    columns = {"video": str(videos / "counted.avi"), "num_frames": 4, "frame_labels": [0, 1]}
    rows = Dataset.from_list([columns | {"start": start, "end": start + 1} for start in (0.0, 1.0, 2.5)])
    clips = VideoDataset(rows, FrameTask(PROCESSOR, ["a", "b"], fps=4), training=True)
    expected = items_of(clips)
    with keeping_frames([clips], tmp_path / "kept", 1, 20) as kept:
        # Frames are asked for at the same times in every epoch.
        assert len(kept.videos[0].numbers) == 12
        assert are_equal(items_of(clips), expected)


def test_an_epoch_after_the_first_reads_no_video(videos, tmp_path):
    shutil.copytree(videos, tmp_path / "copies")
    clips, held_out = clips_of(tmp_path / "copies"), clips_of(tmp_path / "copies", training=False)
    before = clips.task, held_out.task
    with keeping_frames([clips, None, held_out], tmp_path / "kept", 1, 20) as kept:
        assert "96 frames of 2 videos" in str(kept)
        items_of(clips, 1)
        scored = items_of(held_out, 1)
        shutil.rmtree(tmp_path / "copies")
        assert len(items_of(clips, 4)) == 16 and are_equal(items_of(held_out, 1), scored)
        # The task of the training set is also used to evaluate on it.
        with pytest.raises(VideoReadError):
            VideoDataset(clips.rows, clips.task, training=False)[0]
    assert (clips.task, held_out.task) == before and not (tmp_path / "kept").exists()


def test_the_share_that_is_decoded_counts_unfinished_files_and_no_evaluation(videos, tmp_path):
    clips = clips_of(videos)
    with keeping_frames([clips, clips_of(videos, training=False)], tmp_path / "kept", 1, 20) as kept:
        first, second = (video for video in kept.videos if video.training)
        assert kept.share_decoded() == 0
        first.file.with_suffix(".unfinished").write_bytes(bytes(first.num_bytes // 2))
        assert kept.share_decoded() == first.num_bytes // 2 / (first.num_bytes + second.num_bytes)
        items_of(clips, epochs=1)
        assert kept.share_decoded() == 1


def test_crops_that_choose_their_size_are_the_same_from_files_and_from_what_is_kept(videos, tmp_path):
    clips = clips_of(videos, ClipTask(PROCESSOR, augmentation=ClipAugmentation(crop_min_area=0.5)))
    with keeping_frames([clips], tmp_path / "kept", 1, 20) as kept:
        assert kept.videos[0].size == (29, 38)
        expected = items_of(clips)
    for bound in (1e-9, 40 * 29 * 38 * 3 / 2**30):
        with keeping_frames([clips], tmp_path / "kept", bound, 20) as kept:
            assert sum(video.file is not None for video in kept.videos) == (bound > 1e-6)
            assert kept.gib_needed > 0 and are_equal(items_of(clips), expected)
    with keeping_frames([clips], tmp_path / "kept", 0, 20) as kept:
        assert not kept.videos and not are_equal(items_of(clips), expected)


def test_a_kept_size_has_the_pixels_of_the_smallest_crop():
    def size(processor=PROCESSOR, height=600, width=800, **options):
        return ClipTask(processor, augmentation=ClipAugmentation(**options)).kept_size(height, width, True)

    assert size() == (24, 32)
    # A crop of half of the frame that is 3/4 as wide as high.
    height, width = size(crop_min_area=0.5)
    assert 20 <= (height * width * 0.5 * 0.75) ** 0.5 < 20.5
    assert size(multi_scale_crop=True)[0] == 31
    assert size(crop_min_area=0.5, height=24, width=30) == (24, 30)
    assert size(VideoClipProcessor(do_resize=False, do_center_crop=False)) == (600, 800)


def test_what_is_read_once_is_not_kept(videos, tmp_path):
    clips = clips_of(videos, names=["sought.mp4"])
    with keeping_frames([clips], tmp_path / "kept", 1, 1) as kept:
        assert str(kept) == "" and kept.gib_needed == 0
    with keeping_frames([clips], tmp_path / "kept", 1, 9) as kept:
        assert str(kept)


def test_a_video_with_damage_is_read_as_before(videos, tmp_path):
    path = Path(damage_frame(shutil.copy(videos / "sought.mp4", tmp_path / "copy.mp4"), 24))
    clips = clips_of(tmp_path, names=[path.name], on_error="skip", training=False)
    expected = [item is None for item in clips]
    assert expected == [False, True]
    with keeping_frames([clips], tmp_path / "kept", 1, 20):
        assert [item is None for item in clips] == expected and clips.broken_videos() == [str(path)]


def test_worker_processes_share_what_is_kept(videos, tmp_path):
    clips = clips_of(videos)
    expected = torch.cat(items_of(clips, 1))
    with keeping_frames([clips], tmp_path / "kept", 1, 20):
        loader = DataLoader(clips, batch_size=1, num_workers=2, collate_fn=clips.task.collate)
        assert torch.equal(torch.cat([batch["pixel_values"] for batch in loader]), expected)
        assert len(list((tmp_path / "kept").glob("*.rgb"))) == 2


def test_key_frames_say_how_much_is_decoded(videos):
    with VideoReader(str(videos / "counted.avi")) as counted, VideoReader(str(videos / "sought.mp4")) as sought:
        assert counted.key_frames.tolist() == [0]
        assert sought.key_frames.tolist() == [0, 10, 20, 30]
    for name in ("counted.avi", "sought.mp4"):
        with VideoReader(str(videos / name)) as reader:
            streamed = np.stack([frame.image for frame in stream_frames(str(videos / name))])
            assert np.array_equal(reader.read(range(40)), streamed)
