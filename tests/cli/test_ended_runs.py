"""A run that a signal or a full disk ends, resumed or started again, gives the bits of an undisturbed run."""

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_video.cli.main import main
from hf_video.demo import write_moving_digits
from hf_video.training.checkpoints import newest_complete
from tests.testing.processes import launched, run_forked
from tests.testing.small_tasks import small_commands, write_small_tasks

from .conftest import TINY_MODEL
from .ended_command import OF_CHECKPOINT, ending

ROOT = Path(__file__).parents[2]
EXIT_CODES = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 143, "SIGINT": 130, "full_disk": 2}


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Both commands on one epoch of one step after another: three checkpoints, of which two are kept."""
    folder = tmp_path_factory.mktemp("data")
    digits = write_moving_digits(folder / "digits", train_per_class=2, test_per_class=1, num_frames=8, image_size=32)
    write_small_tasks(folder)
    common = ["--max-steps=3", "--save-strategy=steps", "--save-steps=1", "--eval-strategy=no"]
    # The rate of other schedules ends at 0, where one step more would not show.
    common += ["--no-load-best-model-at-end", "--lr-scheduler-type=constant"]
    train = ["train", str(digits), *TINY_MODEL, "--num-attention-heads", "2", "--batch-size", "4", "--device", "cpu"]
    answers = [*small_commands(folder)["answers"], "--batch-size=1", "--num-beams=1"]
    return {"train": [*train, *common], "train-answers": [*answers, *common]}


@pytest.fixture(scope="module")
def undisturbed(commands, tmp_path_factory):
    """The weights and files of the run that is left alone, by its command."""
    found = {}

    def run(command):
        if command not in found:
            folder = tmp_path_factory.mktemp(command) / "out"
            assert main([*commands[command], f"--output-dir={folder}"]) == 0
            found[command] = folder
        return found[command]

    return run


def end(moment, how, words, number):
    if how == "SIGKILL":
        command = [Path(__file__).with_name("ended_command.py"), moment, how, number, 0, *words]
        return run_forked(*launched(command))[0].returncode
    with ending(moment, how, number):
        return main(words)


# Quick ones of SIGKILL and SIGTERM are in `test_resume_auto.py`.
SLOW = [
    ("train", "before the mark", "SIGKILL"),
    ("train", "a checkpoint begins", "SIGTERM"),
    ("train", "first file is moved", "full_disk"),
    ("train", "the result is written", "SIGINT"),
    ("train-answers", "weights of a checkpoint", "full_disk"),
    ("train-answers", "after the mark", "SIGINT"),
    ("train-answers", "weights are moved", "SIGKILL"),
]
ROWS = [
    ("train", "states of a checkpoint", "full_disk"),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW),
]


@pytest.mark.parametrize(("command", "moment", "how"), ROWS)
def test_an_ended_run_has_the_bits_of_one_left_alone(commands, undisturbed, tmp_path, capsys, command, moment, how):
    out = tmp_path / "out"
    words = [*commands[command], f"--output-dir={out}"]
    number = 2 if moment in OF_CHECKPOINT else 1
    assert end(moment, how, words, number) == EXIT_CODES[how], capsys.readouterr().err
    message = capsys.readouterr().err
    kept, _ = newest_complete(out)
    assert (
        kept is not None and kept.name == f"checkpoint-{2 if moment == 'after the mark' else 1 if number == 2 else 3}"
    )
    if how != "SIGKILL":
        assert f"{kept} is kept; run the same command with --resume" in message and "Traceback" not in message
        assert not list(out.rglob("*.partial")) and not (out / ".hf-video.lock").exists()
    if how == "full_disk":
        assert "could not be written (No space left on device)" in message
    assert main([*words, "--resume"]) == 0
    expected = undisturbed(command)
    torch.testing.assert_close(
        load_file(out / "model.safetensors"), load_file(expected / "model.safetensors"), rtol=0, atol=0
    )
    names = [{path.relative_to(folder) for path in folder.rglob("*")} for folder in (out, expected)]
    assert names[0] == names[1]
