"""A teacher of a training run, from the command line."""

import json
import shutil

from transformers import AutoModelForVideoClassification, AutoVideoProcessor

from hf_video.cli.main import main

from .conftest import TINY_MODEL, TINY_RUN

STUDENT = [*TINY_MODEL, "--hidden-size", "16", *TINY_RUN]


def test_a_narrow_student_learns_from_a_teacher_and_is_saved_without_it(digits, trained, tmp_path):
    out = tmp_path / "out"
    words = [*STUDENT, f"--distillation-teacher={trained}", "--distillation-weight=0.7", "--max-steps=1"]
    assert main(["train", str(digits), "--output-dir", str(out), *words]) == 0
    assert AutoModelForVideoClassification.from_pretrained(out).config.hidden_size == 16
    facts = json.loads((out / "training_facts.json").read_text())["distillation"]
    assert facts["teacher"]["name"] == trained.name and facts["weight"] == 0.7


def test_a_teacher_that_does_not_fit_is_named_before_anything_is_written(digits, trained, tmp_path, fails):
    shutil.copytree(trained, tmp_path / "teacher")
    processor = AutoVideoProcessor.from_pretrained(trained)
    processor.image_mean = [0.5, 0.5, 0.5]
    processor.save_pretrained(tmp_path / "teacher")
    words = [*STUDENT, f"--distillation-teacher={tmp_path / 'teacher'}"]
    message = fails("train", digits, "--output-dir", tmp_path / "out", *words)
    assert "wants image_mean=0.5, 0.5, 0.5, the student gets" in message
    assert not (tmp_path / "out").exists()
