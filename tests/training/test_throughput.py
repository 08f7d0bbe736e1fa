"""Scalars of steps beside the losses; a training that waits for videos says how long it takes, and what helps."""

import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from hf_video.data.kept_frames import KeptFrames
from hf_video.training import throughput
from hf_video.training.report import throughput_of
from hf_video.training.throughput import THROUGHPUT_SCALARS, ThroughputCallback
from tests.testing.trainers import make_trainer


def told(monkeypatch, capsys, waited, computed, kept=None, num_steps=40, max_steps=1000, num_workers=0, begin=0):
    """What is printed in steps that wait and compute for so many seconds, of which ten are an epoch. A resumed run
    has had some to `begin` with."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(throughput, "available_cores", lambda: 8)
    callback = ThroughputCallback()
    callback.kept = kept or KeptFrames([])
    state = SimpleNamespace(global_step=begin, max_steps=max_steps, epoch=begin / 10, is_world_process_zero=True)
    args = SimpleNamespace(dataloader_num_workers=num_workers, world_size=2)
    callback.on_train_begin(args, state, None)

    def batches(seconds):
        clock.now += seconds
        yield {"pixel_values": torch.zeros(4, 1, 3, 2, 2)}

    for step in range(num_steps):
        list(callback.watch(batches(waited(step) if callable(waited) else waited)))
        clock.now += computed
        state.global_step, state.epoch = begin + step + 1, (begin + step + 1) / 10
        callback.on_step_end(args, state, None)
        if state.epoch.is_integer():
            clock.now += 100
    callback.on_train_end(args, state, None)
    return capsys.readouterr().out


def test_what_waits_for_videos_is_told_after_twenty_steps_and_at_the_end(monkeypatch, capsys):
    first, last = told(monkeypatch, capsys, waited=9, computed=1).splitlines()
    assert first.startswith("0.4 clips a second in each process, 90% of the time waiting for videos.")
    assert "The other 980 steps will take about 2 h 43 min;" in first
    assert "--num-workers 7" in first and "ffmpeg" in first and "--kept-frames-gib" not in first
    assert last == "In all: 0.4 clips a second in each process, 90% of the time waiting for videos."
    line = told(monkeypatch, capsys, 9, 1, KeptFrames([], gib_needed=5.2), num_workers=2)
    assert "--kept-frames-gib 6" in line and "--num-workers" not in line


def test_a_long_training_is_estimated_also_if_it_seldom_waits(monkeypatch, capsys):
    first, _ = told(monkeypatch, capsys, waited=4, computed=6).splitlines()
    assert first.endswith(" The other 980 steps will take about 2 h 43 min; --epochs sets their number.")
    assert "The other" not in told(monkeypatch, capsys, waited=9, computed=1, max_steps=40)


class Keeping(KeptFrames):
    """A fifth is decoded until it is asked for the `decoded_after`th time."""

    decoded_after = 1000

    def __str__(self):
        return "Some frames are kept."

    def share_decoded(self):
        self.decoded_after -= 1
        return 0.2 if self.decoded_after > 0 else 1.0


def test_where_frames_are_kept_the_steps_that_decode_do_not_count(monkeypatch, capsys):
    first, last = told(monkeypatch, capsys, lambda step: 9 if step < 10 else 0, 1, Keeping([])).splitlines()
    assert ", 0% of the time" in first and ", 69% of the time" in last
    assert "970 steps" in told(monkeypatch, capsys, 9, 1, Keeping([]))
    # Resumed at the end of an epoch, and in the middle of one, which leaves clips to the next.
    for begin, decoding in ((30, range(10)), (25, range(15))):
        waits = [9 if step in decoding else 0 for step in range(40)]
        resumed = told(monkeypatch, capsys, waits.__getitem__, 1, Keeping([]), begin=begin)
        assert ", 0% of the time" in resumed.splitlines()[0]
    kept = Keeping([])
    kept.decoded_after = 3
    first, _ = told(monkeypatch, capsys, lambda step: 900 if step < 3 else 9, 1, kept).splitlines()
    assert "The other 977 steps will take about 2 h 43 min;" in first


def test_a_long_decoding_tells_its_rest_before_the_first_step(monkeypatch, capsys):
    waits = []
    monkeypatch.setattr(throughput, "Timer", lambda *given: waits.append(given) or MagicMock())
    kept = Keeping([])
    told(monkeypatch, capsys, 9, 1, kept, num_steps=0)
    ((seconds, tell, given),) = waits
    tell(*given)
    assert seconds == 60 and "20% of the frames to keep are decoded; the others will take about 4 min." in (
        capsys.readouterr().out
    )
    kept.share_decoded = lambda: 0.9
    tell(*given)
    assert not capsys.readouterr().out


def test_every_training_loss_comes_with_the_scalars_and_nothing_else_does(tmp_path):
    trainer = make_trainer(tmp_path, logging_steps=1)
    begin = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - begin
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 4
    # Each step takes 4 clips, and all steps less time than the whole. A single step may be slow.
    assert sum(4 / entry["clips_per_second"] for entry in losses) < seconds
    for entry in losses:
        assert 0 < entry["data_wait_fraction"] < 1
        assert 0.05 < entry["peak_memory_gib"] < 1000
    *others, last = [entry for entry in trainer.state.log_history if "loss" not in entry]
    assert others and not any(name in entry for entry in others for name in THROUGHPUT_SCALARS)
    # The end has the figures of the whole, as the report.
    each = [4 / entry["clips_per_second"] for entry in losses]
    assert last["clips_per_second"] == pytest.approx(4 * len(each) / sum(each))
    assert throughput_of(trainer.state.log_history) == {name: last[name] for name in THROUGHPUT_SCALARS}


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
