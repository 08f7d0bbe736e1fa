"""What a run decides by itself, and prints, before its first step."""

from types import SimpleNamespace

import pytest
import torch

from hf_video.output_folders import RunLock
from hf_video.training import TrainFrameSettings, TrainSettings, train
from hf_video.training.run import RunPlan, _describe_step
from hf_video.training.values import Named


@pytest.mark.parametrize(
    ("given", "device", "expected"),
    [
        ({}, "cuda", True),
        ({}, "cpu", False),
        ({"bf16": False}, "cuda", False),
        ({"bf16": True}, "cpu", True),
        ({"fp16": True}, "cuda", False),
    ],
)
def test_bfloat16_is_the_default_of_a_gpu_that_has_it(monkeypatch, given, device, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    plan = SimpleNamespace(chosen=TrainSettings(data="d", output_dir="o", **given))
    assert RunPlan._is_bfloat16(plan, torch.device(device)) is expected


def test_what_processes_cannot_share_is_refused_before_the_data_are_read(monkeypatch, tmp_path):
    (tmp_path / "no_videos").mkdir()
    places = {"data": str(tmp_path / "no_videos"), "output_dir": str(tmp_path / "out"), "device": "cpu"}
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="lora_rank needs whole weights on every process: leave it out with fsdp"):
        train(TrainSettings(**places, lora_rank=2))


def test_the_batch_of_all_processes_is_named_with_its_learning_rate():
    args = SimpleNamespace(
        train_batch_size=4, world_size=8, gradient_accumulation_steps=2, learning_rate=2.5e-4, bf16=True, fp16=False
    )
    expected = "Each step: 64 clips (4 a process x 8 processes x 2 accumulated), learning rate 0.00025, bfloat16."
    assert _describe_step(args) == expected


@pytest.mark.parametrize(
    ("num_clips", "named", "resume", "expected"),
    [
        (300, {}, None, 20),
        (500, {}, None, 16),
        (9000, {}, None, 10),
        (9000, {}, "auto", 10),
        (9000, {}, "must", 20),
        (9000, {"num_train_epochs": 20.0}, None, 20),
        (9000, {"max_steps": 5}, None, 20),
        (9000, {"model": "another"}, None, 20),
    ],
)
def test_many_clips_take_fewer_epochs_of_the_bundled_model(num_clips, named, resume, expected):
    settings = TrainFrameSettings(data="d", output_dir="o", resume=resume)
    chosen = SimpleNamespace(model=named.get("model", "start"), num_train_epochs=20.0)
    plan = RunPlan(settings, chosen, Named(named, {}), None, None, "", RunLock())
    arguments = SimpleNamespace(num_train_epochs=20.0)
    plan.limit_epochs(arguments, num_clips, enough_clips=8000)
    assert arguments.num_train_epochs == chosen.num_train_epochs == expected
