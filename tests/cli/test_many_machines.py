"""`hf-video train` on two machines. Each is an agent of torchrun with one worker, and they meet on the loopback."""

import json
import os
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hf_video.cli.main import main
from hf_video.demo import write_moving_digits
from hf_video.training.checkpoints import newest_complete
from tests.testing.processes import Program, free_port, run_forked
from tests.testing.torchrun_agents import ENVIRONMENT, Agents, agent_options

from .conftest import TINY_MODEL

NUM_STEPS, STEPS_PER_EPOCH, SAVE_STEPS = 40, 5, 10
GLOBAL_BATCH_SIZE = 6
HF_VIDEO = ("-m", "hf_video.cli")
# What torchrun runs in a fork of its own process, which has imported PyTorch. The first worker of rank 0 dies while it
# writes its second checkpoint.
DYING_ONCE = """
import os, sys
from contextlib import nullcontext
from hf_video.cli.main import main
from tests.cli.ended_command import ending

with ending("before the mark", "SIGKILL", 2) if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else nullcontext():
    if code := main(sys.argv[1:]):
        sys.exit(code)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """32 videos to train on and 8 held out: five batches, and two videos that fill none."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=5, test_per_class=1, num_frames=8, image_size=32)


def train_words(data, folder, *, num_processes, num_steps=NUM_STEPS, save_steps=SAVE_STEPS):
    """The words of a training, which has the same batches on any number of processes."""
    words = ["train", data, "--output-dir", folder, "--resume", "auto", *TINY_MODEL, "--num-attention-heads", "2"]
    words += [f"--batch-size={GLOBAL_BATCH_SIZE // num_processes}", f"--max-steps={num_steps}", "--logging-steps=1"]
    words += [f"--save-steps={save_steps}", "--save-strategy=steps", "--eval-strategy=no"]
    words += ["--no-load-best-model-at-end", "--dataloader-drop-last=true", "--disable-tqdm"]
    return [str(word) for word in words]


def losses_of(folder):
    """The losses of all steps, as the last checkpoint has them."""
    checkpoint, _ = newest_complete(folder)
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def assert_same_bits(folder, expected):
    assert losses_of(folder) == losses_of(expected)
    torch.testing.assert_close(weights_of(folder), weights_of(expected), rtol=0, atol=0)


@pytest.mark.slow
def test_two_machines_train_as_one_process_although_a_worker_is_killed(data, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(DYING_ONCE)
    num_steps, save_steps = 8, 3
    words = train_words(data, tmp_path / "two", num_processes=2, num_steps=num_steps, save_steps=save_steps)
    port = free_port()
    agents = [
        Program(
            ["-c", "import sys; from torch.distributed.run import main; main(sys.argv[1:])"]
            + agent_options(number, port, max_restarts=2)
            + ["--start-method=fork", "--run-path", str(script), *words],
            os.environ | ENVIRONMENT,
        )
        for number in range(2)
    ]
    for agent in run_forked(*agents, timeout=120):
        assert agent.returncode == 0, agent.stderr[-5000:]
    assert main(train_words(data, tmp_path / "one", num_processes=1, num_steps=num_steps, save_steps=save_steps)) == 0
    losses = losses_of(tmp_path / "two")
    assert len(losses) == len(set(losses)) == num_steps
    np.testing.assert_allclose(losses, losses_of(tmp_path / "one"), rtol=0, atol=1e-6)
    torch.testing.assert_close(weights_of(tmp_path / "two"), weights_of(tmp_path / "one"), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """The output folder of two machines that nothing happens to."""
    root = tmp_path_factory.mktemp("undisturbed")
    words = train_words(data, root / "model", num_processes=2)
    with Agents([*HF_VIDEO, *words], root / "logs", steps_per_epoch=STEPS_PER_EPOCH) as agents:
        assert agents.wait() == [0, 0], agents.said()
        assert agents.steps() == list(range(1, NUM_STEPS + 1))
    return root / "model"


@pytest.mark.slow
def test_after_the_loss_of_the_host_everything_is_started_again(data, undisturbed, tmp_path):
    """The machine at which the agents meet is lost. The other agents end, whatever restarts they have left."""
    command, port = [*HF_VIDEO, *train_words(data, tmp_path / "model", num_processes=2)], free_port()
    options = {"steps_per_epoch": STEPS_PER_EPOCH, "max_restarts": 3, "port": port}
    with Agents(command, tmp_path / "first", **options) as agents:
        agents.wait_for_step(13)
        agents.kill_machine(0)
        assert agents.wait()[1] == 1, agents.said()
    with Agents(command, tmp_path / "second", **options) as agents:
        assert agents.wait() == [0, 0], agents.said()
        assert agents.steps()[0] in (11, 21)
    assert_same_bits(tmp_path / "model", undisturbed)


@pytest.mark.slow
def test_the_queue_ends_both_machines_and_starts_them_again(data, undisturbed, tmp_path):
    """It gives notice by SIGTERM, which does not reach all machines at the same moment."""
    words = [*train_words(data, tmp_path / "model", num_processes=2), "--enable-jit-checkpoint=true"]
    with Agents([*HF_VIDEO, *words], tmp_path / "first", steps_per_epoch=STEPS_PER_EPOCH) as agents:
        agents.wait_for_step(13)
        for agent in agents.agents:
            agent.terminate()
            time.sleep(0.05)
        assert agents.wait(timeout=60) == [1, 1], agents.said()
        last = agents.steps()[-1]
        assert 13 <= last < NUM_STEPS and f"checkpoint-{last} is kept" in agents.said(), agents.said()
    with Agents([*HF_VIDEO, *words], tmp_path / "second", steps_per_epoch=STEPS_PER_EPOCH) as agents:
        assert agents.wait() == [0, 0], agents.said()
        assert agents.steps()[0] == last + 1
    assert_same_bits(tmp_path / "model", undisturbed)
