"""Teachers and experiment trackers of a training run, from the command line."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForVideoClassification, AutoVideoProcessor

from hf_video.cli.main import main

from .conftest import TINY_MODEL, TINY_RUN

STUDENT = [*TINY_MODEL, "--hidden-size", "16", *TINY_RUN]


def train(digits, folder, *words):
    return main(["train", str(digits), "--output-dir", str(folder), *words])


def test_a_narrow_student_learns_features_is_resumed_and_saved_without_the_projection(digits, trained, tmp_path):
    words = [f"--distillation-teacher={trained}", "--distillation-target=features_mse", "--no-load-best-model-at-end"]
    assert train(digits, tmp_path / "whole", *STUDENT, *words) == 0
    kept = load_file(tmp_path / "whole" / "checkpoint-1" / "model.safetensors")
    assert kept["distillation_projection.weight"].shape == (24, 16)
    saved = load_file(tmp_path / "whole" / "model.safetensors")
    assert set(saved) == set(AutoModelForVideoClassification.from_pretrained(tmp_path / "whole").state_dict())
    facts = json.loads((tmp_path / "whole" / "training_facts.json").read_text())["distillation"]
    assert facts["teacher"]["name"] == trained.name and facts["target"] == "features_mse"

    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoint-2")
    (tmp_path / "part" / "model.safetensors").unlink()
    assert train(digits, tmp_path / "part", "--resume") == 0
    torch.testing.assert_close(load_file(tmp_path / "part" / "model.safetensors"), saved, rtol=0, atol=0)


def test_a_teacher_that_does_not_fit_is_named_before_anything_is_written(digits, trained, tmp_path, fails):
    data = tmp_path / "data"
    for name in ("left-up", "up-left"):
        shutil.copytree(digits / "train" / name, data / name.upper())
    command = ("train", data, "--output-dir", tmp_path / "out", *STUDENT)
    message = fails(*command, f"--distillation-teacher={trained}")
    assert "The teacher does not know 2 of 2 classes, such as 'LEFT-UP'" in message

    shutil.copytree(trained, tmp_path / "teacher")
    processor = AutoVideoProcessor.from_pretrained(trained)
    processor.image_mean = [0.5, 0.5, 0.5]
    processor.save_pretrained(tmp_path / "teacher")
    command = ("train", digits, *command[2:])
    message = fails(*command, f"--distillation-teacher={tmp_path / 'teacher'}")
    assert "wants image_mean=(0.5, 0.5, 0.5), the student gets" in message
    message = fails(*command, f"--distillation-teacher={trained}", "--distillation-weight=2")
    assert "--distillation-weight is 2; a number above 0, up to 1" in message
    message = fails(*command, "--distillation-target=tokens")
    assert "--distillation-target is 'tokens'; logits, features_cosine or features_mse is expected" in message
    assert not (tmp_path / "out").exists()


def test_a_run_is_recorded_for_tensorboard(digits, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    assert train(digits, tmp_path / "out", *TINY_MODEL, *TINY_RUN, "--max-steps=1", "--report-to=tensorboard") == 0
    assert list((tmp_path / "out" / "runs").glob("*/events.out.tfevents.*"))


def test_a_tracker_that_is_not_installed_is_named_before_anything_is_written(digits, tmp_path, fails, monkeypatch):
    from transformers.integrations import integration_utils

    monkeypatch.setattr(integration_utils, "is_trackio_available", lambda: False)
    message = fails("train", digits, "--output-dir", tmp_path / "out", *TINY_MODEL, *TINY_RUN, "--report-to=trackio")
    assert "report_to=trackio needs a package that is not installed: pip install trackio." in message
    assert not (tmp_path / "out").exists()
