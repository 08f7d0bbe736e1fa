"""The seconds between the frames of training clips, from packets, manifests and segments."""

import numpy as np
import pytest
from PIL import Image

from hf_video import VideoClipProcessor
from hf_video.cli.main import main
from hf_video.data import ClipDataset, load_video_dataset
from hf_video.data import clip_dataset as module
from hf_video.data.clip_dataset import median_frame_interval
from tests.video_files import encode_video, make_frames

SIZE = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}


def write_videos(folder, lengths, fps=25):
    for number, length in enumerate(lengths):
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        encode_video(folder / "ab"[number % 2] / f"{number}.mp4", make_frames(length), fps=fps)
    return folder


def clips(data, num_frames=8, **options):
    processor = VideoClipProcessor(num_frames=num_frames, **{"sampling_strategy": "uniform"} | SIZE | options)
    return ClipDataset(load_video_dataset(data)["train"], processor, training=True)


@pytest.mark.parametrize("fps", [25, 50])
@pytest.mark.parametrize("distance", [3, 6])
def test_clips_that_span_the_video(tmp_path, distance, fps):
    data = write_videos(tmp_path, [8 * distance] * 6, fps)
    assert median_frame_interval(clips(data)) == pytest.approx(distance / fps, abs=1e-6)


@pytest.mark.parametrize("strategy", ["sparse", "linspace"])
def test_the_other_strategies_that_span_the_video(tmp_path, strategy):
    data = write_videos(tmp_path, [48] * 6)
    assert median_frame_interval(clips(data, sampling_strategy=strategy)) == pytest.approx(6 / 25, rel=0.05)


def test_clips_of_a_distance_also_where_they_repeat_the_last_frame(tmp_path):
    data = write_videos(tmp_path, [5, 12, 40])
    assert median_frame_interval(clips(data, sampling_strategy="dense", frame_sampling_rate=2)) == 2 / 25
    assert median_frame_interval(clips(data, sampling_strategy="dense", fps=5)) == 1 / 5
    # Training spreads a strided clip of 8 frames over the whole of its 16 or 40 frames.
    strided = median_frame_interval(clips(data, sampling_strategy="strided", frame_sampling_rate=2))
    assert strided == pytest.approx(15 / 7 / 25, rel=0.05)
    strided = median_frame_interval(clips(data, sampling_strategy="strided", fps=5))
    assert strided == pytest.approx(39 / 7 / 25, rel=0.05)


def test_videos_of_fewer_frames_than_a_clip_are_seen_slower(tmp_path):
    assert median_frame_interval(clips(write_videos(tmp_path, [4, 4]))) == pytest.approx(0.02, rel=0.1)


def test_the_median_counts_and_the_same_videos_give_the_same(tmp_path):
    data = clips(write_videos(tmp_path, [16, 24, 24, 24, 160]))
    found = median_frame_interval(data)
    assert found == median_frame_interval(data) == pytest.approx(3 / 25, rel=0.05)


def test_segments_count_and_not_their_videos(tmp_path):
    write_videos(tmp_path, [200, 200])
    rows = [f"{name},{name[0]},1.0,{1 + seconds}" for name in ("a/0.mp4", "b/1.mp4") for seconds in (0.96, 1.92, 2.88)]
    rows += ["a/0.mp4,a,6.08,", "b/1.mp4,b,,1.92"]
    (tmp_path / "train.csv").write_text("\n".join(["path,label,start,end", *rows]))
    assert median_frame_interval(clips(tmp_path / "train.csv")) == pytest.approx(6 / 25, rel=0.02)


def test_what_a_manifest_says_is_not_looked_up(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    data = write_videos(tmp_path / "data", [24, 24, 48])
    expected = median_frame_interval(clips(data))
    assert main(["inspect", str(data), "--output", str(tmp_path / "videos.parquet"), "--num-workers", "1"]) == 0
    monkeypatch.setattr(module, "open_video", None)
    assert median_frame_interval(clips(tmp_path / "videos.parquet")) == expected


def test_no_more_videos_are_opened_than_the_sample_has(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NUM_VIDEOS", 3)
    opened = []
    monkeypatch.setattr(module, "open_video", lambda row: opened.append(row["video"]) or row["video"])
    assert median_frame_interval(clips(write_videos(tmp_path, [24] * 7))) == pytest.approx(0.12)
    assert len(set(opened)) == 3


def test_it_is_unknown_without_times(tmp_path):
    for name in "ab":
        (tmp_path / name / "frames").mkdir(parents=True)
        for number in range(9):
            Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / name / "frames" / f"{number}.png")
    assert median_frame_interval(clips(tmp_path)) is None


def test_it_is_unknown_for_clips_of_one_frame_and_broken_videos(tmp_path):
    data = write_videos(tmp_path, [24, 24])
    assert median_frame_interval(clips(data, num_frames=1)) is None
    for video in data.glob("*/*.mp4"):
        video.write_bytes(b"no video")
    assert median_frame_interval(clips(data)) is None
