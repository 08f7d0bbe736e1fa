"""If some videos are broken, a run goes on, names them, and learns as well as without them."""

import json
import shutil

import numpy as np
import pytest

from hf_video.cli.main import main
from hf_video.reading import VideoReadError
from hf_video.training.callbacks import EpochLineCallback
from tests.testing.videos import damage_frame, encode_video, make_frames

from ..data.broken_videos import spread_broken_videos
from .conftest import TINY_MODEL

RUN = ["--num-attention-heads", "2", "--batch-size", "8", "--epochs", "2", "--device", "cpu", "--learning-rate=0.01"]


@pytest.fixture(scope="module")
def brightness(tmp_path_factory):
    """100 videos of two classes, dark and bright, 6 of which are broken, each in its own way."""
    folder = tmp_path_factory.mktemp("brightness")
    generator = np.random.default_rng(0)
    for split, count in (("train", 39), ("test", 8)):
        for name, level in (("dark", 60), ("bright", 160)):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                frames = generator.integers(level, level + 40, (4, 32, 32), dtype=np.uint8)
                encode_video(folder / split / name / f"{number:03d}.mp4", frames, fps=4)
    broken = spread_broken_videos(folder / ".broken", [folder / "train" / "dark", folder / "train" / "bright"])
    return folder, broken


def test_the_run_ends_the_report_names_each_and_accuracy_stays(brightness, tmp_path, capsys):
    folder, broken = brightness
    words = ["train", str(folder), "--output-dir", str(tmp_path / "out"), *TINY_MODEL, *RUN, "--on-error", "skip"]
    assert main(words) == 0
    metrics = json.loads((tmp_path / "out" / "report" / "metrics.json").read_text())
    named = " ".join(metrics["broken_videos"])
    assert len(metrics["broken_videos"]) == len(broken) == 6
    assert all(str(path) in named for path in broken)
    assert metrics["top1_accuracy"] == 1.0
    out = capsys.readouterr().out
    assert "6 videos could not be read:" in out and all(str(path) in out for path in broken)
    report = (tmp_path / "out" / "report" / "report.md").read_text()
    assert all(path.name in report for path in broken)


@pytest.fixture
def damaged(digits, tmp_path):
    """A copy of the digits, and the path of a video in it that opens but has no whole frame behind the first."""
    folder = shutil.copytree(digits, tmp_path / "data")
    broken = min((folder / "train").rglob("*.mp4"))
    for frame in range(1, 8):
        shutil.move(damage_frame(broken, frame), broken)
    return folder, broken


def test_what_a_worker_raises_is_a_message_without_its_traceback(damaged, tmp_path, fails):
    folder, broken = damaged
    words = ["--output-dir", tmp_path / "out", *TINY_MODEL, *RUN, "--on-error", "error", "--num-workers", "1"]
    message = fails("train", folder, *words)
    assert f"hf-video: error: {broken}" in message and "worker process" not in message
    assert "nothing of the training is kept. --on-error skip" in message


def test_a_checkpoint_outlives_a_video_that_breaks_off_later(digits, tmp_path, fails, monkeypatch):
    def fail(*args, **kwargs):
        raise VideoReadError("a.mp4 is damaged.")

    monkeypatch.setattr(EpochLineCallback, "on_save", fail)
    message = fails("train", digits, "--output-dir", tmp_path / "out", *TINY_MODEL, *RUN)
    (kept,) = (tmp_path / "out").glob("checkpoint-*")
    assert f"a.mp4 is damaged. {kept} is kept; run the same command with --resume" in message
    assert "--on-error skip" in message


def test_evaluation_goes_on_where_all_of_a_batch_break_off(digits, tmp_path, says):
    shutil.copytree(digits, tmp_path / "data")
    broken = max((tmp_path / "data" / "test").rglob("*.mp4"))
    for frame in range(1, 8):
        shutil.move(damage_frame(broken, frame), broken)
    words = ["train", str(tmp_path / "data"), "--output-dir", str(tmp_path / "out"), *TINY_MODEL, *RUN]
    words += ["--epochs", "1", "--on-error", "skip", "--per-device-eval-batch-size=1"]
    assert f"1 video could not be read:\n  {broken}" in says(*words)


@pytest.mark.parametrize("task", ["classification", "frames"])
def test_a_row_outside_of_its_video_ends_a_training_before_it_begins(tmp_path, fails, task):
    for name in "abcd":
        encode_video(tmp_path / f"{name}.mp4", make_frames(20, 32, 32), fps=10)
    rows = [f"{name}.mp4,{start},{start + 1},{label}" for name in "abcd" for start, label in enumerate("xy")]
    (tmp_path / "list.csv").write_text("\n".join(["path,start,end,label", *rows, "a.mp4,2:51,2:58,y"]))
    message = fails("train", tmp_path / "list.csv", "--task", task, "--output-dir", tmp_path / "out")
    assert "02:51.00 to 02:58.00 (y)" in message and "--on-error skip" in message
    assert not (tmp_path / "out").exists()


def test_a_split_without_a_readable_video(digits, tmp_path, fails):
    shutil.copytree(digits, tmp_path / "data")
    for path in (tmp_path / "data" / "test").rglob("*.mp4"):
        path.write_bytes(b"")
    words = ["train", tmp_path / "data", "--output-dir", tmp_path / "out", *TINY_MODEL, *RUN, "--on-error", "skip"]
    assert "No row of the test split can be read" in fails(*words)
    assert not (tmp_path / "out").exists()
