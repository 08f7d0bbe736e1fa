"""The estimate of a training's memory, and sizes that no machine holds."""

import json
import os
import random
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import set_seed

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForVideoClassification
from hf_video.cli.main import main
from hf_video.loading import configurations
from hf_video.training import VideoTrainingArguments, add_lora
from hf_video.training.training_memory import TOLERANCE, check_memory, estimate_memory

from ..fork_server import HF_VIDEO_IMPORTS, Program, run_forked

SIZES = {"num_frames": 4, "hidden_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2}


def estimate(image_size, batch_size=2, choose_weights=lambda model: model, gradient_checkpointing=False, **sizes):
    size = {"height": image_size, "width": image_size}
    processor = VideoClipProcessor(num_frames=4, size=size, crop_size=size, do_center_crop=True)
    arguments = VideoTrainingArguments(
        output_dir="unused",
        use_cpu=True,
        per_device_train_batch_size=batch_size,
        gradient_checkpointing=gradient_checkpointing,
    )
    config = VideoViTConfig(image_size=image_size, **{**SIZES, **sizes})
    return estimate_memory(config, processor, arguments, choose_weights)


def test_tokens_are_counted_and_activations_grow_with_the_batch():
    small, large = estimate(64), estimate(64, batch_size=4)
    assert small.num_tokens == 2 * 4 * 4
    assert small.num_bytes < large.num_bytes < 2 * small.num_bytes


@pytest.mark.parametrize(
    ("name", "is_checkpointed"),
    [
        ("videovit", True),
        ("videomamba", False),
        pytest.param("videovit", False, marks=pytest.mark.slow),
        pytest.param("videomamba", True, marks=pytest.mark.slow),
    ],
)
def test_measured_peaks_lie_within_a_factor_of_two(name, is_checkpointed):
    words = [str(Path(__file__).with_name("training_peak.py")), name, str(int(is_checkpointed))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = run_forked(Program(words, environment), timeout=600, imports=HF_VIDEO_IMPORTS)[0]
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["measured"] > 150e6
    assert found["estimated"] / TOLERANCE < found["measured"] < found["estimated"] * TOLERANCE


def test_layers_that_are_computed_again_keep_their_inputs_alone():
    plain, checkpointed = (estimate(64, gradient_checkpointing=value, num_hidden_layers=12) for value in (False, True))
    more = estimate(64, gradient_checkpointing=True, num_hidden_layers=13).num_bytes - checkpointed.num_bytes
    assert checkpointed.num_tokens == plain.num_tokens
    # Weights, gradients and states of a layer of width w: 4 * 4 * (12 w^2 + ...); its input: 4 * w * tokens * clips.
    width = SIZES["hidden_size"]
    layer = VideoViTForVideoClassification(VideoViTConfig(image_size=64, **SIZES)).videovit.layers[0]
    assert more == 16 * sum(p.numel() for p in layer.parameters()) + 4 * width * checkpointed.num_tokens * 2
    assert checkpointed.num_bytes < plain.num_bytes


def test_the_estimate_draws_no_random_number():
    def draws():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()

    def choose(model):
        return add_lora(model, 2, 4)

    set_seed(3)
    expected = draws()
    set_seed(3)
    estimate(64, choose_weights=choose, hidden_dropout_prob=0.1, drop_path_rate=0.2)
    assert draws() == expected


def test_only_what_is_far_beyond_the_memory_is_refused(monkeypatch):
    needed = estimate(64)
    memory = "hf_video.training.training_memory.psutil.virtual_memory"
    monkeypatch.setattr(memory, lambda: SimpleNamespace(available=needed.num_bytes // 2 + 1))
    assert check_memory(needed, torch.device("cpu")).startswith("A clip has 32 tokens; training needs about 0.0 GiB")
    monkeypatch.setattr(memory, lambda: SimpleNamespace(available=needed.num_bytes // 2 - 1))
    with pytest.raises(ValueError, match="Take a smaller --image-size, --num-frames, --batch-size or model"):
        check_memory(needed, torch.device("cpu"))


@pytest.mark.parametrize("most_tensors", [500, pytest.param(None, marks=pytest.mark.slow)])
def test_absurd_sizes_are_answered_soon(tmp_path, capsys, monkeypatch, most_tensors):
    if most_tensors:
        monkeypatch.setattr(configurations, "MOST_TENSORS", most_tensors)
    VideoViTForVideoClassification(VideoViTConfig(image_size=32, **SIZES)).save_pretrained(tmp_path / "model")
    VideoClipProcessor(num_frames=4).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**6}))
    shutil.copy(tmp_path / "model" / "config.json", tmp_path / "video.mp4")
    start = time.monotonic()
    assert main(["predict", str(tmp_path / "video.mp4"), "--model", str(tmp_path / "model"), "--device", "cpu"]) == 2
    assert time.monotonic() - start < 120
    assert f"more than {most_tensors or 20_000:,} tensors" in capsys.readouterr().err
