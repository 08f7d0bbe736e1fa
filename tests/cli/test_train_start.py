"""`hf-video train` without `--model`: the bundled model, or random weights."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForVideoClassification

from hf_video.cli.main import main
from hf_video.hub.model_card import read_facts
from hf_video.loading.released import SHIPPED, start_sha256
from hf_video.training import TrainSettings
from hf_video.training.classification import ClassificationTask
from hf_video.training.values import choose_values

from .conftest import TINY_MODEL, TINY_RUN
from .ended_command import ending

SHORT = ["--epochs", "1", "--batch-size", "16", "--device", "cpu"]


@pytest.fixture
def tiny_start(trained, tmp_path, monkeypatch):
    """A tiny model in place of the bundled model."""
    folder = shutil.copytree(trained, tmp_path / "a start", ignore=shutil.ignore_patterns("checkpoint-*", "report"))
    monkeypatch.setattr("hf_video.loading.released.START_FOLDER", folder)
    return folder


def test_another_way_to_crop_replaces_that_of_the_start():
    settings = TrainSettings(data="videos", output_dir="out", multi_scale_crop=True)
    assert choose_values(settings, model="start").crop_min_area is None
    assert choose_values(TrainSettings(data="videos", output_dir="out"), model="start").crop_min_area == 0.5


def options_of(folder):
    return json.loads((folder / "train_options.json").read_text())


def test_few_clips_begin_with_the_start(digits, tiny_start, tmp_path, says):
    out = tmp_path / "out"
    said = says("train", digits, "--output-dir", out, *SHORT)
    assert "Model: the bundled model, because there are 24 clips, at most 1,000." in said
    assert "knows motion" in said and "`hf-video models`" in said and "scratch for random weights" in said
    assert AutoModelForVideoClassification.from_pretrained(out).config.hidden_size == 24
    assert options_of(out)["model"] == "start"
    assert json.loads((out / "report" / "metrics.json").read_text())["model"] == "the bundled model"
    source = read_facts(out)["source"]
    assert source["name"] == "the bundled model of hf_video" and source["sha256"] == start_sha256()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (TINY_MODEL, "--num-frames is given. --model takes another:"),
        (["--model", "scratch", *TINY_MODEL], None),
    ],
)
def test_sizes_and_scratch_begin_with_random_weights(digits, tmp_path, says, words, reason):
    out = tmp_path / "out"
    command = ["train", str(digits), "--output-dir", str(out), *words, *TINY_RUN, "--max-steps", "1"]
    said = says(*command)
    assert ("Model: " in said) == (reason is not None) and (reason or "") in said
    saved = options_of(out)
    assert saved["model"] is None and saved["learning_rate"] == 1e-3
    assert json.loads((out / "report" / "metrics.json").read_text())["model"] == "VideoViT from scratch"
    assert read_facts(out)["source"] is None


def test_many_clips_begin_with_random_weights(digits, monkeypatch):
    settings = TrainSettings(data=str(digits), output_dir="out")
    assert ClassificationTask().choose_model((), choose_values(settings)).model == SHIPPED
    monkeypatch.setattr("hf_video.training.classification.MAX_CLIPS_FOR_START", 23)
    choice = ClassificationTask().choose_model((), choose_values(settings))
    assert choice.model is None and "24 clips" in choice.sentence


def test_a_resumed_run_keeps_its_start(digits, tiny_start, tmp_path, fails):
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = ["--epochs", "2", *SHORT[2:]]
    assert main(["train", str(digits), "--output-dir", str(whole), *words]) == 0
    command = ["train", str(digits), "--output-dir", str(out), *words, "--resume", "auto"]
    with ending("after the mark", "SIGINT"):
        assert main(command) == 130
    assert "--model scratch differs from the run being resumed (start)" in fails(*command, "--model", "scratch")
    assert main(command) == 0
    first, second = (AutoModelForVideoClassification.from_pretrained(path).state_dict() for path in (whole, out))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_start_that_ships_trains(digits, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["train", str(digits), "--output-dir", str(out), *SHORT, "--max-steps", "1"]) == 0
    said = capsys.readouterr()
    assert "Model: the bundled model" in said.out
    # What the start knows in place of the classes is nothing that a user has to hear of.
    assert "LOAD REPORT" not in said.err and "other classes" not in said.err


def test_several_classes_a_video_are_not_smoothed(digits, tiny_start, tmp_path, says):
    files = sorted((digits / "train").rglob("*.mp4"))
    rows = [f"{file},{file.parent.name};{'even' if number % 2 else 'odd'}" for number, file in enumerate(files)]
    (tmp_path / "train.csv").write_text("\n".join(["path,labels", *rows]))
    out = tmp_path / "out"
    says("train", tmp_path / "train.csv", "--output-dir", out, *SHORT, "--max-steps", "1")
    assert read_facts(out)["recipe"].get("label_smoothing_factor", 0.0) == 0.0
    assert AutoModelForVideoClassification.from_pretrained(out).config.problem_type == "multi_label_classification"
    says("train", digits, "--output-dir", tmp_path / "one", *SHORT, "--max-steps", "1")
    assert read_facts(tmp_path / "one")["recipe"]["label_smoothing_factor"] == 0.1
