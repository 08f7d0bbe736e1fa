"""`--resume auto`: one command begins a run, goes on with it wherever it was ended, and never with another run."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_video.cli.main import main
from hf_video.output_folders import LOCK_FILE
from hf_video.training.checkpoints import mark_complete, newest_complete
from tests.cli.flags import read
from tests.testing.files import files_of
from tests.testing.processes import launched, run_forked
from tests.testing.small_tasks import small_commands, write_small_tasks

from .conftest import TINY_MODEL, TINY_RUN
from .ended_command import ending

ROOT = Path(__file__).parents[2]
ENDED_COMMAND = str(Path(__file__).with_name("ended_command.py"))
# The first checkpoints, of steps 3 and 6, lie inside of epochs.
RUN = ["--max-steps=8", "--logging-steps=1", "--save-strategy=steps", "--save-steps=3", "--save-total-limit=9"]
RUN += ["--eval-strategy=no", "--no-load-best-model-at-end", "--device", "cpu", "--resume", "auto"]


@pytest.fixture(scope="module")
def commands(digits, tmp_path_factory):
    """Both commands. An epoch of two processes has 4 steps of `train`, and 2 of `train-answers`."""
    folder = tmp_path_factory.mktemp("data")
    write_small_tasks(folder)
    train = ["train", str(digits), *TINY_MODEL[:-1], "2", "--num-attention-heads", "2", "--batch-size", "2"]
    answers = [*small_commands(folder)["answers"], "--batch-size=1", "--num-beams=1"]
    # Both draw random numbers in each step: the second of the layers is dropped at times.
    train += ["--mixup-alpha=0.8", "--drop-path-rate=0.2", "--sampler=balanced", "--class-weights=balanced"]
    return {"train": [*train, *RUN], "train-answers": [*answers, *RUN]}


def run_processes(number, *words):
    """What came of the processes that run these words of Python as torchrun would start them."""
    return run_forked(*launched(words, number))


def run_command(number, words, end=("never", "SIGKILL", "1", "0")):
    """Runs a command on some processes, and ends one of them: the moment, how, which coming of the moment, rank."""
    return run_processes(number, ENDED_COMMAND, *end, *words)


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
            finished = run_command(number, [*commands[command], f"--output-dir={folder}"])
            assert not any(each.returncode for each in finished), [each.stderr[-3000:] for each in finished]
            found[command, number] = result_of(folder)
            assert len(set(found[command, number][0])) == 8
        return found[command, number]

    return run


def check_restarts(words, number, out, expected, *ends):
    """Runs a command until it is ended for the last time and is left to finish: losses and weights are those expected,
    bit for bit."""
    words = [*words, f"--output-dir={out}"]
    for end in ends:
        ended = run_command(number, words, end)
        assert ended[int(end[3])].returncode == -signal.SIGKILL, [each.stderr[-3000:] for each in ended]
    finished = run_command(number, words)
    assert not any(each.returncode for each in finished), [each.stderr[-3000:] for each in finished]
    check_equal(out, expected)


def check_equal(out, expected):
    losses, weights = result_of(out)
    assert losses == expected[0]
    torch.testing.assert_close(weights, expected[1], rtol=0, atol=0)


def at_step(number, rank=0):
    return ("a step ends", "SIGKILL", str(number), str(rank))


def test_two_processes_go_on_after_one_was_killed_in_an_epoch(commands, tmp_path):
    """The processes that go on then train once more into another folder, where nothing has happened."""
    words = commands["train"]
    ended = run_command(2, [*words, f"--output-dir={tmp_path / 'out'}"], at_step(5, rank=1))
    assert ended[1].returncode == -signal.SIGKILL, [each.stderr[-3000:] for each in ended]
    assert newest_complete(tmp_path / "out")[0].name == "checkpoint-3"
    program = "import sys; from hf_video.cli.main import main; from pathlib import Path; words = sys.argv[2:]\n"
    program += "sys.exit(any(main([*words, f'--output-dir={Path(sys.argv[1], name)}']) for name in ('out', 'whole')))"
    finished = run_processes(2, "-c", program, str(tmp_path), *words)
    assert not any(each.returncode for each in finished), [each.stderr[-3000:] for each in finished]
    check_equal(tmp_path / "out", result_of(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "train-answers"])
@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([at_step(1)], id="first step"),
        pytest.param([at_step(5), at_step(1), at_step(4)], id="three times"),
        pytest.param([("states of a checkpoint", "SIGKILL", "1", "0")], id="in the first checkpoint"),
        pytest.param([("first file is moved", "SIGKILL", "1", "0")], id="between files of the model"),
    ],
)
def test_a_run_that_is_killed_again_and_again(commands, undisturbed, tmp_path, command, ends):
    check_restarts(commands[command], 2, tmp_path / "out", undisturbed(command, 2), *ends)


def test_sigterm_saves_the_step_in_which_it_comes(commands, tmp_path, capsys):
    """With `enable_jit_checkpoint`, so that the restart loses nothing."""
    words, out = [*commands["train"], "--enable-jit-checkpoint=true"], tmp_path / "out"
    assert main([*words, f"--output-dir={tmp_path / 'whole'}"]) == 0
    with ending("a step ends", "SIGTERM", 5):
        assert main([*words, f"--output-dir={out}"]) == 143
    assert f"{out / 'checkpoint-5'} is kept; run the same command again to continue" in capsys.readouterr().err
    assert newest_complete(out)[0] == out / "checkpoint-5" and not (out / "model.safetensors").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert main([*words, f"--output-dir={out}"]) == 0
    check_equal(out, result_of(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train"])
def test_sigterm_on_one_process_saves_the_same_step_on_all(commands, undisturbed, tmp_path, command):
    out = tmp_path / "out"
    words = [*commands[command], f"--output-dir={out}", "--enable-jit-checkpoint=true"]
    ended = run_command(2, words, ("a step ends", "SIGTERM", "5", "1"))
    # What starts the processes kills those that are still there when the first one has ended.
    assert {each.returncode for each in ended} <= {143, -signal.SIGKILL}, [each.stderr[-3000:] for each in ended]
    # The first process says so. The other one may have ended it before that.
    kept = f"{out / 'checkpoint-5'} is kept; run the same command again to continue from it"
    assert (kept in ended[0].stderr or ended[0].returncode == -signal.SIGKILL) and kept not in ended[1].stderr
    assert newest_complete(out)[0] == out / "checkpoint-5" and not (out / "model.safetensors").exists()
    check_restarts(words, 2, out, undisturbed(command, 2))


def words_of(digits, folder, *more):
    return ["train", str(digits), "--output-dir", str(folder), *TINY_MODEL, *TINY_RUN, "--resume", "auto", *more]


def test_a_finished_run_ends_at_once_with_the_same_files(digits, run):
    before = files_of(run)
    assert main(words_of(digits, run)) == 0
    after = files_of(run)
    assert after.keys() == before.keys()
    weights = [path for path in before if path.endswith(".safetensors")]
    assert len(weights) == 3 and all(after[path] == before[path] for path in weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--weight-decay=0.5"], "--weight-decay 0.5 differs from the run being resumed (0.05)"),
        (["--overwrite-output-dir"], "choose one of them"),
    ],
)
def test_another_command_does_not_go_on(digits, run, fails, change, message):
    before = files_of(run)
    assert message in fails(*words_of(digits, run, *change))
    assert files_of(run) == before


def test_the_best_checkpoint_must_be_there(digits, run, fails):
    """A run that goes on without it would end with other weights."""
    state = run / "checkpoint-2" / "trainer_state.json"
    recorded = json.loads(state.read_text()) | {"best_model_checkpoint": str(run / "checkpoint-1")}
    state.write_text(json.dumps(recorded))
    mark_complete(state.parent)
    os.truncate(run / "checkpoint-1" / "model.safetensors", 10)
    before = files_of(run)
    for resume in ([], ["--resume"]):
        message = fails(*words_of(digits, run, *resume))
        assert f"{run / 'checkpoint-1'}, the best checkpoint until checkpoint-2, is missing or damaged" in message
        assert "(model.safetensors has 10 bytes of" in message and "Remove checkpoint-2 to resume from" in message
    assert files_of(run) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["DATA"], (None, "DATA")),
        (["--resume", "auto", "DATA"], ("auto", "DATA")),
        (["DATA", "--resume", "auto"], ("auto", "DATA")),
        (["--resume", "--seed", "1", "DATA"], ("must", "DATA")),
    ],
)
def test_resume_may_stand_before_the_data(words, expected):
    settings = read(["train", *words])
    assert (settings.resume, settings.data) == expected


def test_an_error_of_one_process_ends_all_and_is_said_once(digits, tmp_path):
    """The first process finds a file of the user. No other one looks, and none waits for it."""
    (tmp_path / "thesis.txt").write_text("")
    finished = run_command(2, words_of(digits, tmp_path))
    assert sum("is not empty (thesis.txt)" in each.stderr for each in finished) == 1
    assert {each.returncode for each in finished} <= {2, -signal.SIGKILL}
    assert not any("Traceback" in each.stderr or "internal error" in each.stderr for each in finished)


@pytest.mark.slow
def test_another_number_of_processes_goes_on_with_as_many_videos_a_step(commands, tmp_path):
    words = [word for word in commands["train"] if not word.startswith(("--mixup", "--drop-path"))]
    words.append(f"--output-dir={tmp_path / 'out'}")
    run_command(2, words, at_step(5))
    assert newest_complete(tmp_path / "out")[0].name == "checkpoint-3"
    (tmp_path / "out" / LOCK_FILE).unlink()
    before = files_of(tmp_path)
    for resume in (["--resume", "auto"], ["--resume"]):
        (refused,) = run_command(1, [*words, *resume])
        assert refused.returncode == 2
        assert "trains on 4 videos a step (number of processes: 2), and here a step would have 2" in refused.stderr
    assert files_of(tmp_path) == before
    assert run_command(1, [*words, "--batch-size", "4"])[0].returncode == 0
    expected = [word for word in words if "--output-dir" not in word] + [f"--output-dir={tmp_path / 'whole'}"]
    run_command(2, expected)
    (found, weights), (losses, expected) = (result_of(tmp_path / name) for name in ("out", "whole"))
    assert found == pytest.approx(losses, abs=1e-5)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)
