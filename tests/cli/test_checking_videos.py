"""Which videos are opened before a training: each once among all processes, a sample of many, none of a manifest."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_video.cli.main import main
from hf_video.data import checks, load_video_dataset
from hf_video.data.checks import readable_videos
from hf_video.data.trained_data import describe_data
from hf_video.training.data import load_data
from tests.testing.processes import launched, run_forked

from .conftest import TINY_MODEL, TINY_RUN

# Checks the data as a training does, and writes what this process opened and what it was told.
CHECK = """
import json, os, sys
from pathlib import Path
from accelerate import PartialState
from hf_video.data.checks import readable_videos
from hf_video.data import ClipTask, VideoDataset, checks, load_video_dataset
from hf_video.processing import VideoClipProcessor

PartialState(cpu=True)
inspect, opened = checks.inspect_video, []
checks.inspect_video = lambda video, *more: opened.append(video["video"]) or inspect(video, *more)
data, broken = readable_videos(load_video_dataset(sys.argv[1]), "skip")
first = opened[:]
opened.clear()
task = ClipTask(VideoClipProcessor(num_frames=2))
clips = VideoDataset(data["test"], task, training=False, on_error="skip").drop_broken()
found = {"opened": first, "broken": broken, "decoded": opened, "kept": clips.rows["video"][:]}
Path(sys.argv[2], os.environ["RANK"] + ".json").write_text(json.dumps(found))
"""


@pytest.fixture
def data(digits, tmp_path):
    """A copy of the digits with a broken video in each split."""
    folder = shutil.copytree(digits, tmp_path / "data")
    for split in ("train", "test"):
        min((folder / split).rglob("*.mp4")).write_bytes(b"no video")
    return folder


@pytest.fixture
def opened(monkeypatch):
    """The videos that this process reads to check them."""
    inspect, found = checks.inspect_video, []
    monkeypatch.setattr(
        checks, "inspect_video", lambda video, *more: found.append(video["video"]) or inspect(video, *more)
    )
    return found


@pytest.mark.slow
def test_processes_share_the_work_and_the_answers(data, tmp_path):
    ended = run_forked(*launched(["-c", CHECK, data, tmp_path], 2))
    assert [each.returncode for each in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    videos, tests = (sorted(map(str, folder.rglob("*.mp4"))) for folder in (data, data / "test"))
    assert sorted(first["opened"] + second["opened"]) == videos and len(first["opened"]) == len(videos) // 2
    assert sorted(first["decoded"] + second["decoded"]) == tests[1:] and first["decoded"] and second["decoded"]
    assert (first["broken"], first["kept"]) == (second["broken"], second["kept"]) and first["kept"] == tests[1:]
    _, alone = readable_videos(load_video_dataset(data), "skip")
    assert first["broken"] == alone and len(alone) == 2


def test_many_videos_are_sampled_and_a_sentence_says_so(data, opened, monkeypatch, caplog):
    monkeypatch.setattr("hf_video.data.checks.MAX_OPENED", 10)
    readable_videos(load_video_dataset(data), "skip")
    assert len({*opened}) == len(opened) == 10
    assert "There are 32 videos, and 10 of them, drawn at random, are opened" in caplog.text
    assert "`hf-video inspect DATA --output videos.parquet`" in caplog.text
    readable_videos(load_video_dataset(data), "skip")
    assert opened[:10] == opened[10:]


def test_none_of_a_manifest_is_opened(data, opened, tmp_path, capsys, caplog):
    manifest = tmp_path / "videos.parquet"
    assert main(["inspect", str(data), "--output", str(manifest), "--num-workers", "1"]) == 1
    assert f"manifest  {manifest}" in capsys.readouterr().out and len(opened) == 32
    opened.clear()
    splits, broken = readable_videos(load_video_dataset(manifest), "error")
    assert not opened and not broken and "30 rows" in caplog.text
    assert {name: len(split) for name, split in splits.items()} == {"train": 23, "test": 7}


def test_a_manifest_is_its_data_for_other_commands(digits, trained, tmp_path):
    manifest = tmp_path / "videos.parquet"
    assert main(["inspect", str(digits), "--output", str(manifest), "--num-workers", "1"]) == 0
    described = [describe_data("", load_data(str(source), None), []) for source in (digits, manifest)]
    assert described[0] == described[1]
    words = ["--model", str(trained), "--device", "cpu", "--output", str(tmp_path / "features")]
    assert main(["extract", str(manifest), *words]) == 0
    assert len([*(tmp_path / "features").rglob("train/*/*.npy")]) == 24


def test_a_training_on_rows_with_bytes(digits, tmp_path):
    (tmp_path / "rows").mkdir()
    for split in ("train", "test"):
        videos = sorted((digits / split).rglob("*.mp4"))
        columns = {"path": [video.name for video in videos], "label": [video.parent.name for video in videos]}
        table = pa.table(columns | {"bytes": [video.read_bytes() for video in videos]})
        pq.write_table(table, tmp_path / "rows" / f"{split}.parquet")
    words = ["--output-dir", str(tmp_path / "out"), *TINY_MODEL, *TINY_RUN, "--max-steps=2"]
    assert main(["train", str(tmp_path / "rows"), *words]) == 0
    assert json.loads((tmp_path / "out" / "report" / "metrics.json").read_text())["num_videos"] == 8
    assert main(["evaluate", str(tmp_path / "rows" / "test.parquet"), "--model", str(tmp_path / "out")]) == 0
