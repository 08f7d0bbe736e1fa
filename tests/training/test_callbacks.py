"""The epoch reaches every data set; SIGTERM with `enable_jit_checkpoint`, which `tests/cli/test_many_machines.py` has
on several processes."""

import signal
from functools import partial

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from transformers import Trainer, TrainerCallback, TrainerState

from hf_video.data import collate_clips
from hf_video.training.callbacks import SetEpochCallback
from hf_video.training.checkpoints import newest_complete
from tests.testing import trainers
from tests.testing.trainers import LAST_WEIGHTS, RandomClips, labelled_clips, weights_of

make_trainer = partial(trainers.make_trainer, train_dataset=RandomClips(12), **LAST_WEIGHTS)


def test_the_epoch_reaches_data_sets_inside_of_others(tmp_path):
    clips, seen = RandomClips(), set()
    wrapped = [clips, Subset(clips, range(8)), random_split(clips, [8, 0])[0], ConcatDataset([clips])]
    for epoch, dataset in enumerate(wrapped, start=1):
        loader = DataLoader(dataset)
        SetEpochCallback().on_epoch_begin(None, TrainerState(epoch=float(epoch)), None, train_dataloader=loader)
        assert clips.epoch == epoch

    def collate(items):
        seen.update(item["sample_key"] for item in items)
        return collate_clips(items)

    nested = Subset(ConcatDataset([Subset(labelled_clips([0, 1] * 4), range(8))]), range(8))
    trainers.make_trainer(tmp_path, nested, **LAST_WEIGHTS, data_collator=collate).train()
    assert len(seen) == 2 * 8 and {epoch for _, epoch, _ in seen} == {0, 1}


class Stopped(Exception):
    pass


class SigtermCallback(TrainerCallback):
    """Sends SIGTERM in the middle of the fourth step."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 3:
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def handler():
    """The handler of the program around the training."""

    def stop(number, frame):
        raise Stopped

    previous = signal.signal(signal.SIGTERM, stop)
    yield stop
    signal.signal(signal.SIGTERM, previous)


def test_sigterm_ends_a_training_after_a_checkpoint_from_which_it_goes_on(handler, tmp_path):
    undisturbed = make_trainer(tmp_path / "undisturbed")
    undisturbed.train()
    for folder, is_held in ((tmp_path / "at once", False), (tmp_path / "stopped", True)):
        with pytest.raises(Stopped):
            make_trainer(folder, callbacks=[SigtermCallback()], enable_jit_checkpoint=is_held).train()
        assert signal.getsignal(signal.SIGTERM) is handler
        assert newest_complete(folder)[0] == (folder / "checkpoint-4" if is_held else None)
    assert undisturbed.state.global_step == 6
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
