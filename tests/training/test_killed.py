"""A run that is killed twice ends with the weights of one that was not, bit for bit."""

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_video.demo import write_moving_digits

from ..fork_server import HF_VIDEO_IMPORTS, Program, run_forked

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """16 videos to train on, four steps an epoch, and 8 to validate with."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=2, test_per_class=1, num_frames=8, image_size=32)


def run(digits, folder, num_workers, kind="never", step=0):
    script = str(Path(__file__).with_name("killed_run.py"))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [script, str(digits), str(folder), str(num_workers), kind, str(step)]
    return run_forked(Program(words, environment), timeout=200, imports=HF_VIDEO_IMPORTS)[0]


@pytest.fixture(scope="module")
def uninterrupted(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    finished = run(digits, folder, num_workers=0)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return load_file(folder / "model.safetensors")


# Quick ones: two processes in `tests/cli/test_resume_auto.py`, moments of a save in `tests/cli/test_ended_runs.py`.
@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_killed_in_an_epoch_and_again_during_a_save(digits, uninterrupted, tmp_path, num_workers):
    folder = tmp_path / "run"
    assert run(digits, folder, num_workers, "step", 5).returncode == -signal.SIGKILL
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["checkpoint-3"]
    assert run(digits, folder, num_workers, "save", 6).returncode == -signal.SIGKILL
    assert (folder / "checkpoint-6" / "model.safetensors").exists()
    assert not (folder / "checkpoint-6" / "trainer_state.json").exists()
    finished = run(digits, folder, num_workers)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "resumed from checkpoint-3" in finished.stdout
    torch.testing.assert_close(load_file(folder / "model.safetensors"), uninterrupted, rtol=0, atol=0)
