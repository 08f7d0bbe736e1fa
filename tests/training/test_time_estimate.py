"""A training that waits for videos says how long it will take, and what would shorten it."""

import time
from types import SimpleNamespace

import pytest

from hf_video.data.kept_frames import KeptFrames
from hf_video.training import time_estimate
from hf_video.training.time_estimate import TimeEstimateCallback


def told(monkeypatch, capsys, waited, computed, kept=None, num_steps=40, max_steps=1000, num_workers=0):
    """What is printed in steps that wait and compute for so many seconds, of which ten are an epoch."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(time_estimate, "available_cores", lambda: 8)
    callback = TimeEstimateCallback(kept or KeptFrames([]))
    state = SimpleNamespace(global_step=0, max_steps=max_steps, epoch=0.0, is_world_process_zero=True)
    args = SimpleNamespace(dataloader_num_workers=num_workers)
    callback.on_train_begin(args, state, None)
    for step in range(num_steps):
        clock.now += waited(step) if callable(waited) else waited
        callback.on_step_begin(args, state, None)
        clock.now += computed
        state.global_step, state.epoch = step + 1, (step + 1) / 10
        callback.on_step_end(args, state, None)
        if state.epoch.is_integer():
            clock.now += 100
            callback.on_evaluate(args, state, None)
    return capsys.readouterr().out


def test_what_waits_for_videos_is_told_once(monkeypatch, capsys):
    line = told(monkeypatch, capsys, waited=9, computed=1)
    assert line.count("\n") == 1
    assert "The other 990 steps will take about 2 h 45 min, 90% of it waiting for videos" in line
    assert "--num-workers 7" in line and "ffmpeg" in line and "--kept-frames-gib" not in line
    line = told(monkeypatch, capsys, 9, 1, KeptFrames([], gib_needed=5.2), num_workers=2)
    assert "--kept-frames-gib 6" in line and "--num-workers" not in line


@pytest.mark.parametrize(("waited", "computed", "max_steps"), [(4, 6, 1000), (9, 1, 40)])
def test_trainings_that_are_fast_enough_say_nothing(monkeypatch, capsys, waited, computed, max_steps):
    assert told(monkeypatch, capsys, waited, computed, max_steps=max_steps) == ""


def test_where_frames_are_kept_the_first_epoch_does_not_count(monkeypatch, capsys):
    class Keeping(KeptFrames):
        def __str__(self):
            return "Some frames are kept."

    assert told(monkeypatch, capsys, lambda step: 9 if step < 10 else 0, 1, Keeping([])) == ""
    assert "980 steps" in told(monkeypatch, capsys, 9, 1, Keeping([]))
