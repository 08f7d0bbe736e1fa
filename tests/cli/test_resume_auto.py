"""`--resume auto`: one command begins a run, goes on with it wherever it was ended, and never with another run."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ..fork_server import Program, run_forked
from ..models.memory_bank_qformer.watching_testing import tiny_pair
from ..process_group import torchrun_variables
from ..video_files import encode_video, make_frames
from .conftest import TINY_MODEL
from .test_output_folder import files_of, hold  # noqa: F401

ROOT = Path(__file__).parents[2]
ENDED_COMMAND = str(Path(__file__).with_name("ended_command.py"))
# Steps and checkpoints lie across the ends of epochs, and the last step is inside of one.
RUN = ["max_steps=8", "logging_steps=1", "save_strategy=steps", "save_steps=3", "save_total_limit=9"]
RUN += ["eval_strategy=no", "load_best_model_at_end=false", "--device", "cpu", "--resume", "auto"]


@pytest.fixture(scope="module")
def commands(digits, tmp_path_factory):
    """Both commands, with 6 steps an epoch for `train` and 2 for `train-answers`."""
    folder = tmp_path_factory.mktemp("data")
    rows = []
    for number in range(4):
        encode_video(folder / f"{number}.mp4", make_frames(8))
        rows.append({"video": f"{number}.mp4", "question": "which", "answer": "one"})
    (folder / "answers").mkdir()
    for name, number in (("train", 4), ("test", 1)):
        (folder / "answers" / f"{name}.json").write_text(json.dumps(rows[:number]))
    for each in tiny_pair():
        each.save_pretrained(folder / "model")
    train = ["train", str(digits), *TINY_MODEL, "--num-attention-heads", "2", "--batch-size", "2", "mixup_alpha=0.8"]
    answers = ["train-answers", str(folder / "answers"), f"model={folder / 'model'}", f"video_root={folder}"]
    answers += ["batch_size=1", "num_frames=2", "num_beams=1", "max_new_tokens=2"]
    return {"train": [*train, "drop_path_rate=0.2", *RUN], "train-answers": [*answers, *RUN]}


def run_processes(number, *words):
    """What came of the processes that run these words of Python as torchrun would start them."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    variables = torchrun_variables(number) if number > 1 else [{}]
    return run_forked(*(Program(list(words), environment | each) for each in variables), timeout=300)


def run_command(number, words, ending=("never", "SIGKILL", "1", "0")):
    """Runs a command on some processes, and ends one of them: at which moment, how, at its which coming, which rank."""
    return run_processes(number, ENDED_COMMAND, *ending, *words)


def result_of(folder):
    """The losses of all steps, and the weights."""
    history = json.loads((folder / "checkpoint-8" / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry], load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def undisturbed(commands, tmp_path_factory):
    """Losses and weights of a run that is left alone, by command and number of processes."""
    found = {}

    def run(command, number):
        if (command, number) not in found:
            folder = tmp_path_factory.mktemp(command) / "out"
            finished = run_command(number, [*commands[command], f"output_dir={folder}"])
            assert not any(each.returncode for each in finished), [each.stderr[-3000:] for each in finished]
            found[command, number] = result_of(folder)
            assert len(set(found[command, number][0])) == 8
        return found[command, number]

    return run


def check_restarts(words, number, out, expected, *endings):
    """Runs a command until it is ended for the last time and is left to finish: losses and weights are those expected,
    bit for bit."""
    words = [*words, f"output_dir={out}"]
    for ending in endings:
        ended = run_command(number, words, ending)
        assert ended[int(ending[3])].returncode == -signal.SIGKILL, [each.stderr[-3000:] for each in ended]
    finished = run_command(number, words)
    assert not any(each.returncode for each in finished), [each.stderr[-3000:] for each in finished]
    losses, weights = result_of(out)
    assert losses == expected[0]
    torch.testing.assert_close(weights, expected[1], rtol=0, atol=0)


def at_step(number, rank=0):
    return ("a step ends", "SIGKILL", str(number), str(rank))


def test_two_processes_go_on_after_one_was_killed_in_an_epoch(commands, undisturbed, tmp_path):
    check_restarts(commands["train"], 2, tmp_path / "out", undisturbed("train", 2), at_step(5, rank=1))


IN_CHECKPOINT = ("a checkpoint begins", "weights of a checkpoint", "states of a checkpoint", "before the mark")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "train-answers"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    "endings",
    [
        pytest.param([at_step(1)], id="first step"),
        pytest.param([at_step(2), at_step(5)], id="before and behind the first checkpoint"),
        pytest.param([at_step(5), at_step(1), at_step(4)], id="three times"),
        *(pytest.param([(moment, "SIGKILL", "1", "0")], id=f"first, {moment}") for moment in IN_CHECKPOINT),
        *(pytest.param([(moment, "SIGKILL", "2", "0")], id=f"second, {moment}") for moment in IN_CHECKPOINT),
        pytest.param([("first file is moved", "SIGKILL", "1", "0")], id="between files of the model"),
        pytest.param([("the result is written", "SIGKILL", "1", "0")], id="before the result"),
    ],
)
def test_a_run_that_is_killed_again_and_again(commands, undisturbed, tmp_path, command, number, endings):
    check_restarts(commands[command], number, tmp_path / "out", undisturbed(command, number), *endings)
