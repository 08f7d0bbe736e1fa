"""Training a part of a model, and an average of its weights, from the command line."""

import shutil

import pytest
import torch
from transformers import AutoModelForVideoClassification

from hf_video.cli.main import main
from hf_video.evaluation import evaluate_dataset
from hf_video.metrics import top_k_accuracy
from hf_video.training import train
from tests.cli.flags import read

from .conftest import TINY_RUN

RUN = TINY_RUN[2:]


def weights_in(folder):
    return AutoModelForVideoClassification.from_pretrained(folder).state_dict()


def changed(before, after):
    assert set(before) == set(after)
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--linear-probe"], {"classifier.weight", "classifier.bias"}),
        (["--lora-rank=2"], {"classifier", "attention", "mlp"}),
    ],
)
def test_only_the_chosen_weights_change_and_the_model_is_a_plain_one(digits, trained, tmp_path, words, expected):
    command = ["train", str(digits), "--output-dir", str(tmp_path / "out"), "--model", str(trained), *RUN, *words]
    command += ["--learning-rate=0.01", "--no-load-best-model-at-end"]
    trainer, report = train(read(command))
    moved = changed(weights_in(trained), weights_in(tmp_path / "out"))
    assert moved and all(any(part in name for part in expected) for name in moved)
    assert all(any(part in name for name in moved) for part in expected)
    # The model that is saved is the one that was measured.
    saved = AutoModelForVideoClassification.from_pretrained(tmp_path / "out")
    dataset = type(trainer.eval_dataset)
    assert report["split"] == "test" and dataset.__name__ == "VideoDataset"
    scores, labels = evaluate_dataset(saved, trainer.eval_dataset, progress=False)
    assert top_k_accuracy(scores, labels) == trainer.predict(trainer.eval_dataset).metrics["test_top1_accuracy"]
    assert (tmp_path / "out" / "adapter" / "adapter_config.json").exists() is ("--lora-rank=2" in words)


def test_a_run_with_adapters_is_resumed(digits, trained, tmp_path):
    command = ["train", str(digits), "--output-dir", str(tmp_path / "whole"), "--model", str(trained), *RUN]
    command += ["--lora-rank=2"]
    assert main(command) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoint-2")
    (tmp_path / "part" / "model.safetensors").unlink()
    assert main(["train", str(digits), "--output-dir", str(tmp_path / "part"), "--resume"]) == 0
    assert not changed(weights_in(tmp_path / "whole"), weights_in(tmp_path / "part"))


def test_lora_is_for_trained_models(digits, tmp_path, fails):
    message = fails("train", digits, "--output-dir", tmp_path / "out", "--model=scratch", "--lora-rank=4", *RUN)
    assert "lora_rank adapts a trained model: say which with --model" in message
    assert not (tmp_path / "out").exists()
