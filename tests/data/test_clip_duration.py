"""How long clips last, and the windows in rows that last longer."""

import json

import numpy as np
import pytest
from datasets import Dataset, Features, Value
from PIL import Image

from hf_video import VideoClipProcessor
from hf_video.cli.main import main
from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.data import clip_duration as module
from hf_video.data.clip_duration import clip_duration, cut_long_rows, median_frame_interval
from tests.testing.videos import encode_video, make_frames

SIZE = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
TINY = ["--num-frames", "4", "--image-size", "32", "--hidden-size", "24", "--num-hidden-layers", "1"]
TINY += ["--num-attention-heads", "2", "--epochs", "1", "--batch-size", "16", "--device", "cpu"]


def rows_of(*segments):
    kinds = Features(
        {"video": Value("string"), "label": Value("int64"), "start": Value("float64"), "end": Value("float64")}
    )
    rows = [{"video": "a.mp4", "label": number, "start": s, "end": e} for number, (s, e) in enumerate(segments)]
    return Dataset.from_list(rows, kinds)


def segments_of(rows):
    return [*zip(rows["label"], rows["start"], rows["end"], strict=True)]


def test_rows_of_twice_a_clip_are_shared_out_into_windows():
    rows = rows_of((1.0, 4.9), (5.0, 10.0), (None, None), (None, 4.0))
    expected = [(0, 1.0, 4.9), (1, 5.0, 7.5), (1, 7.5, 10.0), (2, None, None), (3, 0.0, 2.0), (3, 2.0, 4.0)]
    assert segments_of(cut_long_rows(rows, 2.0)) == expected
    assert cut_long_rows(rows, 3.0) is rows


@pytest.mark.parametrize("end", [None, 60.0])
def test_a_row_that_ends_with_its_video_or_after_it_is_cut_up_to_there(tmp_path, end):
    encode_video(tmp_path / "a.mp4", make_frames(60), fps=10)
    rows = rows_of((2.0, end)).map(lambda row: {"video": str(tmp_path / "a.mp4")})
    assert segments_of(cut_long_rows(rows, 2.0)) == [(0, 2.0, 4.0), (0, 4.0, 6.0)]


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Recordings of 24 s in three splits. Each has rows of 1 s, and one of 12 s."""
    folder = tmp_path_factory.mktemp("recording")
    for split in ("train", "validation", "test"):
        encode_video(folder / f"{split}.mp4", make_frames(240, 32, 32), fps=10)
        rows = [f"{split}.mp4,{'xy'[second % 2]},{second},{second + 1}" for second in range(6)]
        rows.append(f"{split}.mp4,y,12,24")
        (folder / f"{split}.csv").write_text("\n".join(["path,label,start,end", *rows]))
    return folder


def test_long_rows_are_trained_and_measured_in_windows(recording, tmp_path, capsys):
    words = ["train", str(recording), *TINY, "--save-strategy=steps", "--save-steps=1", "--no-load-best-model-at-end"]
    assert main([*words, "--output-dir", str(tmp_path / "cut"), "--max-steps=1"]) == 0
    printed = capsys.readouterr().out
    assert "7 rows of the train split became 17 clips, because a clip of the model lasts 1.067 s" in printed
    assert "on 17 test clips of 1 video" in printed
    report = json.loads((tmp_path / "cut" / "report" / "metrics.json").read_text())
    assert (
        (report["num_videos"], report["num_clips"]) == (report["training_videos"], report["training_clips"]) == (1, 17)
    )
    facts = json.loads((tmp_path / "cut" / "training_facts.json").read_text())
    assert (facts["data"]["train"]["num_videos"], facts["data"]["train"]["num_clips"]) == (1, 17)
    # What goes on, and what measures the model, has the same windows.
    assert main([*words, "--output-dir", str(tmp_path / "cut"), "--max-steps=2", "--resume"]) == 0
    assert "became 17 clips" in capsys.readouterr().out
    evaluation = ["evaluate", str(recording), "--model", str(tmp_path / "cut"), "--device=cpu"]
    assert main([*evaluation, "--output", str(tmp_path / "measured.json")]) == 0
    measured = json.loads((tmp_path / "measured.json").read_text())
    assert (measured["num_clips"], measured["known_videos"]) == (17, {"train": 0})

    assert main([*words, "--output-dir", str(tmp_path / "whole"), "--max-steps=1", "--clip-duration=0"]) == 0
    assert "on 7 test clips of 1 video" in capsys.readouterr().out


def test_a_published_recipe_leaves_rows_whole(recording, tmp_path, capsys):
    model = tmp_path / "start"
    assert main(["train", str(recording), *TINY, "--output-dir", str(model), "--max-steps=1"]) == 0
    recipe = ["--recipe", "videomae_base_kinetics400", "--model", str(model), "--max-steps=1", "--device=cpu"]
    recipe += ["--batch-size=4", "--num-clips=1", "--num-crops=1", "--num-frames=4", "--image-size=32"]
    assert main(["train", str(recording), *recipe, "--output-dir", str(tmp_path / "published")]) == 0
    assert "on 7 test clips of 1 video" in capsys.readouterr().out


def write_videos(folder, lengths, fps=25):
    for number, length in enumerate(lengths):
        (folder / "ab"[number % 2]).mkdir(exist_ok=True)
        encode_video(folder / "ab"[number % 2] / f"{number}.mp4", make_frames(length), fps=fps)
    return folder


def clips(data, num_frames=8, **options):
    processor = VideoClipProcessor(num_frames=num_frames, **{"sampling_strategy": "uniform"} | SIZE | options)
    return VideoDataset(load_video_dataset(data)["train"], ClipTask(processor), training=True)


def test_a_clip_lasts_as_long_as_its_frames(tmp_path):
    data = write_videos(tmp_path, [24] * 6, fps=50)
    assert clip_duration(clips(data)) == pytest.approx(8 * 3 / 50, abs=1e-3)
    assert clip_duration(clips(data, num_frames=1)) is None


def test_clips_that_span_the_video(tmp_path):
    data = write_videos(tmp_path, [24] * 6, fps=50)
    assert median_frame_interval(clips(data)) == pytest.approx(3 / 50, abs=1e-6)


def test_clips_of_a_distance_also_where_they_repeat_the_last_frame(tmp_path):
    data = write_videos(tmp_path, [5, 12, 40])
    assert median_frame_interval(clips(data, sampling_strategy="dense", frame_sampling_rate=2)) == 2 / 25
    assert median_frame_interval(clips(data, sampling_strategy="dense", fps=5)) == 1 / 5
    # Training spreads a strided clip of 8 frames over the whole of its 16 or 40 frames.
    strided = median_frame_interval(clips(data, sampling_strategy="strided", frame_sampling_rate=2))
    assert strided == pytest.approx(15 / 7 / 25, rel=0.05)
    strided = median_frame_interval(clips(data, sampling_strategy="strided", fps=5))
    assert strided == pytest.approx(39 / 7 / 25, rel=0.05)


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
