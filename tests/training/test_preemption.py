"""SIGTERM with `enable_jit_checkpoint`; `tests/cli/test_many_machines.py` has it on several processes."""

import signal
from functools import partial

import pytest
import torch
from transformers import Trainer, TrainerCallback

from hf_video.training.checkpoints import newest_complete
from tests.testing import trainers
from tests.testing.trainers import LAST_WEIGHTS, RandomClips, weights_of


class Stopped(Exception):
    pass


class SigtermCallback(TrainerCallback):
    """Sends SIGTERM in the middle of a step, counted from 1."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def handler():
    """The handler of the program around the training."""

    def stop(number, frame):
        raise Stopped

    previous = signal.signal(signal.SIGTERM, stop)
    yield stop
    signal.signal(signal.SIGTERM, previous)


make_trainer = partial(trainers.make_trainer, train_dataset=RandomClips(12), **LAST_WEIGHTS)


def test_sigterm_ends_a_training_after_a_checkpoint_from_which_it_goes_on(handler, tmp_path):
    undisturbed = make_trainer(tmp_path / "undisturbed")
    undisturbed.train()

    stopped = make_trainer(tmp_path / "stopped", callbacks=[SigtermCallback(step=4)], enable_jit_checkpoint=True)
    with pytest.raises(Stopped):
        stopped.train()
    assert signal.getsignal(signal.SIGTERM) is handler
    checkpoint, _ = newest_complete(tmp_path / "stopped")
    assert checkpoint.name == "checkpoint-4" and undisturbed.state.global_step == 6

    resumed = make_trainer(tmp_path / "stopped", enable_jit_checkpoint=True)
    resumed.train(resume_from_checkpoint=True)
    torch.testing.assert_close(weights_of(resumed.model), weights_of(undisturbed.model), rtol=0, atol=0)


def test_sigterm_that_comes_after_the_last_step_is_not_lost(handler, tmp_path, monkeypatch):
    whole = Trainer.train

    def train(*args, **kwargs):
        whole(*args, **kwargs)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Trainer, "train", train)
    with pytest.raises(Stopped):
        make_trainer(tmp_path, enable_jit_checkpoint=True).train()
    assert signal.getsignal(signal.SIGTERM) is handler


def test_sigterm_stops_at_once_without_the_setting(handler, tmp_path):
    with pytest.raises(Stopped):
        make_trainer(tmp_path, callbacks=[SigtermCallback(step=4)]).train()
    assert newest_complete(tmp_path)[0] is None
