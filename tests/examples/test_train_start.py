"""The start is trained by one command, which can be interrupted, and what the package ships is one."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hf_video
from hf_video import VideoViTForVideoClassification
from hf_video.loading import load_processor

EXAMPLES = Path(__file__).parents[2] / "examples"
START = Path(hf_video.__file__).parent / "start"


def run(folder: Path, *words: object) -> None:
    words = [sys.executable, EXAMPLES / "train_start.py", folder, "--smoke", *words]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_it_trains_and_an_interrupted_training_goes_on(tmp_path):
    run(tmp_path)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["steps"] == 6 and 0 <= figures["object_move"] <= 1
    whole = load_file(tmp_path / "start" / "model.safetensors")
    assert {weights.dtype for weights in whole.values()} == {torch.bfloat16}
    for name in ("start", "run/checkpoint-6"):
        shutil.rmtree(tmp_path / name)
    run(tmp_path)
    resumed = load_file(tmp_path / "start" / "model.safetensors")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.fixture
def training(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("train_start")


@pytest.mark.slow
def test_the_features_of_the_shipped_start_tell_how_the_ground_moves(training):
    """A linear fit to 256 clips explains a part of the motion in others."""
    clips = training.draw_clips(352, training.HELD_OUT_SEED + 10**6, scenes=("camera",))
    model = VideoViTForVideoClassification.from_pretrained(START, dtype="float32", num_labels=0).eval()
    with torch.no_grad():
        x = model(training.normalize(clips.frames)).logits
    y = clips.values[:, list(training.VALUES).index("ground right first")]
    x = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    known, others = slice(None, 256), slice(256, None)
    fit = torch.linalg.solve(x[known].T @ x[known] + 10 * torch.eye(x.shape[1]), x[known].T @ y[known])
    explained = 1 - (x[others] @ fit - y[others]).square().mean() / y[others].var()
    assert explained > 0.2


def test_the_shipped_start_is_small_and_its_processor_fits():
    assert sum(file.stat().st_size for file in START.iterdir()) <= 6_000_000
    config = VideoViTForVideoClassification.config_class.from_pretrained(START)
    processor = load_processor(START, config)
    assert (processor.num_frames, processor.crop_size["height"]) == (config.num_frames, config.image_size)
