import time
from types import SimpleNamespace

import pytest
import torch

from hf_video.training import VideoTrainer
from hf_video.training.arguments import VideoTrainingArguments
from hf_video.training.callbacks import THROUGHPUT_SCALARS, ThroughputCallback
from tests.testing.trainers import RandomClips, make_arguments, make_model

ONE_STEP = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}


def losses(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def test_every_training_loss_comes_with_the_scalars_and_nothing_else_does(tmp_path):
    trainer = VideoTrainer(
        model=make_model(),
        args=make_arguments(tmp_path, logging_steps=1),
        train_dataset=RandomClips(),
        eval_dataset=RandomClips(),
    )
    begin = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - begin
    assert len(losses(trainer)) == 4
    # Each step takes 4 clips, and all steps less time than the whole. A single step may be slow.
    assert sum(4 / entry["clips_per_second"] for entry in losses(trainer)) < seconds
    for entry in losses(trainer):
        assert 0 < entry["data_wait_fraction"] < 1
        assert 0.05 < entry["peak_memory_gib"] < 1000
    others = [entry for entry in trainer.state.log_history if "loss" not in entry]
    assert others and not any(name in entry for entry in others for name in THROUGHPUT_SCALARS)


def test_time_between_steps_does_not_count(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 10.0, 20.0, 20.5, 21.0, 22.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    callback, batches = ThroughputCallback(), iter([{"pixel_values": torch.zeros(4, 1, 3, 2, 2)}] * 2)
    next(callback.watch(batches))  # asked for at 0, waited for from 1 to 3
    callback.on_step_end(None, None, None)  # 10
    next(callback.watch(batches))  # asked for at 20, waited for from 20.5 to 21
    callback.on_step_end(None, None, None)  # 22
    scalars = callback.collect(SimpleNamespace(world_size=3, device=torch.device("cpu")))
    assert scalars["clips_per_second"] == 3 * 8 / 12
    assert scalars["data_wait_fraction"] == 2.5 / 12


def test_several_trackers_are_separated_by_commas(tmp_path, monkeypatch):
    from transformers.integrations import integration_utils

    for name in ("tensorboard", "trackio"):
        monkeypatch.setattr(integration_utils, f"is_{name}_available", lambda: True)
    assert VideoTrainingArguments(str(tmp_path), report_to="tensorboard,trackio").report_to == [
        "tensorboard",
        "trackio",
    ]
    assert VideoTrainingArguments(str(tmp_path)).report_to == []


def test_a_tracker_that_is_unknown_or_not_installed_is_named(tmp_path, monkeypatch):
    from transformers.integrations import integration_utils

    monkeypatch.setattr(integration_utils, "is_trackio_available", lambda: False)
    with pytest.raises(ImportError, match="report_to=trackio needs a package that is not installed: pip install trac"):
        VideoTrainingArguments(str(tmp_path), report_to="trackio")
    with pytest.raises(ValueError, match="'tensorbord' is not an experiment tracker.* Did you mean tensorboard?"):
        VideoTrainingArguments(str(tmp_path), report_to="tensorbord")
