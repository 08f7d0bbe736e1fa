"""Which videos are opened before a training: each once among all processes, a sample of many, none of a manifest."""

import json
import os
import shutil

import pytest

from hf_video.cli.main import main
from hf_video.data import inspection, load_video_dataset
from hf_video.data.stored_videos import content_digest
from hf_video.training.training_data import check_same_data, describe_data, load_data, readable_videos

from ..fork_server import HF_VIDEO_IMPORTS, Program, run_forked
from ..process_group import torchrun_variables
from .conftest import TINY_MODEL, TINY_RUN

# Checks the data as a training does, and writes what this process opened and what it was told.
CHECK = """
import json, os, sys
from pathlib import Path
from accelerate import PartialState
from hf_video.training.training_data import readable_videos
from hf_video.data import ClipDataset, inspection, load_video_dataset
from hf_video.processing import VideoClipProcessor

PartialState(cpu=True)
inspect, opened = inspection.inspect_video, []
inspection.inspect_video = lambda video, *more: opened.append(video["video"]) or inspect(video, *more)
data, broken = readable_videos(load_video_dataset(sys.argv[1]), "skip")
first = opened[:]
opened.clear()
clips = ClipDataset(data["test"], VideoClipProcessor(num_frames=2), training=False, on_error="skip").drop_broken()
found = {"opened": first, "broken": broken, "decoded": opened, "kept": clips.dataset["video"][:]}
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
    inspect, found = inspection.inspect_video, []
    monkeypatch.setattr(
        inspection, "inspect_video", lambda video, *more: found.append(video["video"]) or inspect(video, *more)
    )
    return found


def test_processes_share_the_work_and_the_answers(data, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    program = ["-c", CHECK, str(data), str(tmp_path)]
    programs = (Program(program, environment | each) for each in torchrun_variables(2))
    ended = run_forked(*programs, timeout=100, imports=HF_VIDEO_IMPORTS)
    assert [each.returncode for each in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    videos, tests = (sorted(map(str, folder.rglob("*.mp4"))) for folder in (data, data / "test"))
    assert sorted(first["opened"] + second["opened"]) == videos and len(first["opened"]) == len(videos) // 2
    assert sorted(first["decoded"] + second["decoded"]) == tests[1:] and first["decoded"] and second["decoded"]
    assert (first["broken"], first["kept"]) == (second["broken"], second["kept"]) and first["kept"] == tests[1:]
    _, alone = readable_videos(load_video_dataset(data), "skip")
    assert first["broken"] == alone and len(alone) == 2


def test_many_videos_are_sampled_and_a_sentence_says_so(data, opened, monkeypatch, caplog):
    monkeypatch.setattr("hf_video.training.training_data.MAX_OPENED", 10)
    readable_videos(load_video_dataset(data), "skip")
    assert len({*opened}) == len(opened) == 10
    assert "There are 32 videos, and 10 of them, drawn at random, are opened" in caplog.text
    assert "`hf-video inspect DATA --output videos.parquet`" in caplog.text
    readable_videos(load_video_dataset(data), "skip")
    assert opened[:10] == opened[10:]


def test_of_many_videos_some_tell_whether_they_are_the_same(data, monkeypatch):
    read = []
    monkeypatch.setattr(
        "hf_video.data.stored_videos.content_digest", lambda path: read.append(path) or content_digest(path)
    )
    all_of_them = describe_data("", *load_data(str(data), None))
    assert len(read) == 32
    monkeypatch.setattr("hf_video.training.training_data.MAX_OPENED", 10)
    some = describe_data("", *load_data(str(data), None))
    assert len(read) == 32 + 8
    # A run of which all were read goes on where some are.
    check_same_data(some, all_of_them)
    check_same_data(some, some)
    shutil.copy(read[-1], read[-2])
    changed = describe_data("", *load_data(str(data), None))
    with pytest.raises(ValueError, match="another content"):
        check_same_data(changed, some)


def test_none_of_a_manifest_is_opened_and_its_errors_count(data, opened, tmp_path, capsys, caplog, fails):
    manifest = tmp_path / "videos.parquet"
    assert main(["inspect", str(data), "--output", str(manifest), "--num-workers", "1"]) == 1
    assert f"manifest  {manifest}" in capsys.readouterr().out and len(opened) == 32
    opened.clear()
    splits, broken = readable_videos(load_video_dataset(manifest), "skip")
    assert not opened and len(broken) == 2
    assert {name: len(split) for name, split in splits.items()} == {"train": 23, "test": 7}
    assert f"32 videos are not checked again: {manifest}, written 20" in caplog.text
    with pytest.raises(ValueError, match="2 videos cannot be read"):
        readable_videos(load_video_dataset(manifest), "error")
    assert not opened
    assert f"--output {manifest} exists" in fails("inspect", data, "--output", manifest)
    assert "a name that ends in .parquet" in fails("inspect", data, "--output", tmp_path / "videos.csv")


def test_a_run_on_a_manifest_is_the_run_on_its_data(data, tmp_path, capsys):
    manifest = tmp_path / "videos.parquet"
    assert main(["inspect", str(data), "--output", str(manifest)]) == 1
    described = [describe_data("", *load_data(str(source), None)) for source in (data, manifest)]
    assert described[0] == described[1]
    reports, facts = [], []
    for source in (data, manifest):
        folder = tmp_path / source.stem
        folder = folder.with_name(f"model of {folder.name}")
        words = [*TINY_MODEL, *TINY_RUN, "--on-error", "skip", "--max-steps=2"]
        assert main(["train", str(source), "--output-dir", str(folder), *words]) == 0
        reports.append(json.loads((folder / "report" / "metrics.json").read_text()))
        facts.append(json.loads((folder / "training_facts.json").read_text())["data"])
    same = [{name: report[name] for name in ("top1_accuracy", "num_videos", "split")} for report in reports]
    assert same[0] == same[1] and [len(report["broken_videos"]) for report in reports] == [2, 2]
    assert facts[0] == facts[1]


def test_other_commands_take_a_manifest(digits, trained, tmp_path, capsys, fails):
    data = shutil.copytree(digits, tmp_path / "data")
    manifest = tmp_path / "videos.parquet"
    assert main(["inspect", str(data), "--output", str(manifest)]) == 0
    capsys.readouterr()
    model = ["--model", str(trained), "--device", "cpu"]
    scores = []
    for source in (data, manifest):
        assert main(["evaluate", str(source), *model, "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["top1_accuracy"])
    assert scores[0] == scores[1]
    assert main(["extract", str(manifest), *model, "--output", str(tmp_path / "features")]) == 0
    assert len([*(tmp_path / "features" / "train").rglob("*.npy")]) == 24
    assert main(["inspect", str(manifest), "--output", str(tmp_path / "again.parquet")]) == 0
    first, second = (load_video_dataset(tmp_path / name) for name in ("videos.parquet", "again.parquet"))
    assert {name: split[:] for name, split in first.items()} == {name: split[:] for name, split in second.items()}
    min((data / "test").rglob("*.mp4")).unlink()
    assert "is listed in the manifest, but cannot be read" in fails("evaluate", manifest, *model, "--on-error", "skip")


def test_no_file_is_opened_before_the_first_step(digits, tmp_path, fails):
    data = shutil.copytree(digits, tmp_path / "data")
    assert main(["inspect", str(data), "--quick", "--output", str(tmp_path / "videos.parquet")]) == 0
    shutil.rmtree(data)
    words = ["--output-dir", tmp_path / "model", *TINY_MODEL, *TINY_RUN]
    message = fails("train", tmp_path / "videos.parquet", *words)
    assert ".mp4 is listed in the manifest, but cannot be read" in message and "hf-video inspect DATA" in message
