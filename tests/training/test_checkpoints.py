"""A checkpoint is whole, or passed over with a reason; none without what a resumed run needs is taken."""

import json
import os
import resource
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_video.io import FULL_DISK
from hf_video.training import trainer as base_trainer
from hf_video.training.checkpoints import (
    MARK,
    best_of,
    damage_of,
    mark_complete,
    newest_complete,
    numbered_checkpoints,
    require_resumable,
)
from tests.testing import trainers
from tests.testing.trainers import RandomClips, weights_of

OPTIONS = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 3, "eval_strategy": "no"}
OPTIONS |= {"load_best_model_at_end": False, "lr_scheduler_type": "constant"}
make_trainer = partial(trainers.make_trainer, train_dataset=RandomClips(training=True), **OPTIONS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four steps with the checkpoints 2, 3 and 4, and its trainer."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    trainer = make_trainer(folder)
    trainer.train()
    trainer.save_model()
    return folder, trainer


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def truncate(file):
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
)
def test_the_newest_whole_checkpoint_is_taken(run, name):
    truncate(run / "checkpoint-4" / name)
    checkpoint, [passed] = newest_complete(run)
    assert checkpoint == run / "checkpoint-3"
    assert passed.startswith(f"checkpoint-4: {name} has {(run / 'checkpoint-4' / name).stat().st_size} bytes")


def test_a_checkpoint_of_another_trainer_is_whole_with_its_state(run):
    for mark in run.glob(f"*/{MARK}"):
        mark.unlink()
    assert newest_complete(run) == (run / "checkpoint-4", [])
    (run / "checkpoint-4" / "trainer_state.json").unlink()
    checkpoint, [passed] = newest_complete(run)
    assert checkpoint.name == "checkpoint-3" and "trainer_state.json is missing" in passed


def test_a_checkpoint_is_whole_when_all_processes_have_written_it(tmp_path, monkeypatch):
    """Its files may be whole before that: another process has not written its random numbers yet."""
    monkeypatch.setattr(base_trainer, "mark_complete", lambda checkpoint: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_trainer(tmp_path).train()
    (tmp_path / "checkpoint-1" / "rng_state.pth").unlink()
    assert newest_complete(tmp_path) == (None, ["checkpoint-1: the run ended while it was being written"])


@pytest.mark.parametrize("folder", ["run", "gone"])
def test_the_best_checkpoint_is_found_where_the_run_was_moved(run, tmp_path, folder):
    file = run / "checkpoint-4" / "trainer_state.json"
    recorded = tmp_path / folder / "checkpoint-2"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"best_model_checkpoint": str(recorded)}))
    mark_complete(run / "checkpoint-4")
    assert best_of(run / "checkpoint-4") == run / "checkpoint-2"
    trainer = make_trainer(run)
    trainer.args.load_best_model_at_end = True
    shutil.rmtree(run / "checkpoint-2")
    with pytest.raises(ValueError, match="checkpoint-2, the best checkpoint until checkpoint-4, is missing"):
        trainer.train(resume_from_checkpoint=True)


def test_resuming_by_true_takes_the_newest_whole_checkpoint(finished, run, tmp_path):
    truncate(run / "checkpoint-4" / "trainer_state.json")
    resumed = make_trainer(run)
    resumed.train(resume_from_checkpoint=True)
    torch.testing.assert_close(weights_of(resumed.model), weights_of(finished[1].model), rtol=0, atol=0)
    with pytest.raises(ValueError, match="has no complete checkpoint"):
        make_trainer(tmp_path / "none").train(resume_from_checkpoint=True)


def test_no_step_follows_the_last(finished, run):
    """Four steps are two epochs; three end inside one."""
    trainer = make_trainer(run, max_steps=3)
    trainer.train(resume_from_checkpoint=str(run / "checkpoint-3"))
    assert trainer.state.global_step == 3
    expected = load_file(run / "checkpoint-3" / "model.safetensors")
    torch.testing.assert_close(weights_of(trainer.model), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth"])
def test_a_checkpoint_without_a_state_is_refused_by_name(run, name):
    for checkpoint in numbered_checkpoints(run):
        (checkpoint / MARK).unlink()
        (checkpoint / name).unlink()
    checkpoint = newest_complete(run)[0]
    for resume in (require_resumable, lambda folder: make_trainer(run).train(resume_from_checkpoint=str(folder))):
        with pytest.raises(ValueError, match=f"{checkpoint} has no {name}.*start another run from its weights"):
            resume(checkpoint)


def test_the_mark_lists_every_file_and_follows_the_limit(finished):
    folder, trainer = finished
    assert [path.name for path in numbered_checkpoints(folder)] == ["checkpoint-4", "checkpoint-3", "checkpoint-2"]
    for checkpoint in numbered_checkpoints(folder):
        listed = json.loads((checkpoint / MARK).read_text())["files"]
        assert {*listed, MARK} == {path.name for path in checkpoint.iterdir()}
        assert damage_of(checkpoint) is None
    assert trainer.args.save_total_limit == 3


def test_a_full_disk_leaves_the_checkpoints_before(finished, run):
    """The optimizer's file is twice as large as that of the weights, and no more fits."""
    for checkpoint in numbered_checkpoints(run)[:2]:
        shutil.rmtree(checkpoint)
    weights = (run / "checkpoint-2" / "model.safetensors").stat().st_size
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(1.2 * weights), limit[1]))
    try:
        with pytest.raises(OSError, match="checkpoint-3'$") as caught:
            make_trainer(run).train(resume_from_checkpoint=str(run / "checkpoint-2"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno in FULL_DISK
    assert newest_complete(run)[0] == run / "checkpoint-2"
    resumed = make_trainer(run)
    resumed.train(resume_from_checkpoint=True)
    torch.testing.assert_close(weights_of(resumed.model), weights_of(finished[1].model), rtol=0, atol=0)
