"""`hf-video train` on two machines. Each is an agent of torchrun with one worker, and they meet on the loopback."""

import json

import numpy as np
import pytest

from hf_video.cli.main import main
from hf_video.data import write_moving_digits
from hf_video.training.checkpoints import newest_complete

from ..torchrun_agents import Agents
from .conftest import TINY_MODEL

NUM_STEPS, STEPS_PER_EPOCH = 40, 5
GLOBAL_BATCH_SIZE = 6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """32 videos to train on and 8 held out: five batches, and two videos that fill none."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=5, test_per_class=1, num_frames=8, image_size=32)


def train_words(data, folder, *, num_processes, num_steps=NUM_STEPS):
    """The words of a training, which has the same batches on any number of processes."""
    words = ["train", data, "--output-dir", folder, *TINY_MODEL, "--num-attention-heads", "2", "disable_tqdm=true"]
    words += ["--batch-size", GLOBAL_BATCH_SIZE // num_processes, "dataloader_drop_last=true", "logging_steps=1"]
    words += ["eval_strategy=no", "load_best_model_at_end=false", "save_strategy=steps"]
    return [str(word) for word in [*words, f"max_steps={num_steps}", f"save_steps={num_steps // 4}"]]


def losses_of(folder):
    """The losses of all steps, as the last checkpoint has them."""
    checkpoint, _ = newest_complete(folder)
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """The output folder of two machines that nothing happens to."""
    root = tmp_path_factory.mktemp("undisturbed")
    words = ["-m", "hf_video.cli", *train_words(data, root / "model", num_processes=2)]
    with Agents(words, root / "logs", steps_per_epoch=STEPS_PER_EPOCH) as agents:
        assert agents.wait() == [0, 0], agents.said()
        assert agents.steps() == list(range(1, NUM_STEPS + 1))
    return root / "model"


@pytest.mark.slow
def test_two_machines_train_as_one_process_on_the_same_batches(data, undisturbed, tmp_path):
    assert main(train_words(data, tmp_path / "model", num_processes=1)) == 0
    losses = losses_of(undisturbed)
    assert len(losses) == len(set(losses)) == NUM_STEPS
    np.testing.assert_allclose(losses, losses_of(tmp_path / "model"), rtol=0, atol=1e-6)
