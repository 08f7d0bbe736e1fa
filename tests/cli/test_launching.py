"""The commands under torchrun and accelerate launch, on a machine without an accelerator."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.testing.processes import free_port, launched, run_forked, run_fresh
from tests.testing.small_tasks import small_commands, write_small_tasks

ROOT = Path(__file__).parents[2]
# Two processes with what torchrun tells them, but without the time that it and they take for imports.
FORKED = ("forked",)
# As scripts they are torchrun and accelerate launch.
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "PORT")
# Figures of speed and memory, and of the size of an epoch.
OF_MACHINE = re.compile("second|time|wait|memory|epoch")
HF_VIDEO = "import sys; from hf_video.cli.main import main; sys.exit(main(sys.argv[1:]))"


def launch(launcher, *words):
    """Runs `hf-video WORDS`, without a launcher on one process, and returns what came of all processes."""
    if launcher in ((), FORKED):
        programs = launched(["-c", HF_VIDEO, *words], 2 if launcher else 1)
        processes = run_forked(*programs)
        code = max(abs(each.returncode) for each in processes)
        texts = ("".join(each) for each in zip(*((each.stdout, each.stderr) for each in processes), strict=True))
        return subprocess.CompletedProcess(programs[0].words, code, *texts)
    launcher = [word.replace("PORT", free_port()) for word in launcher]
    return run_fresh(*launched([*launcher, "-m", "hf_video.cli", *words]), timeout=400)[0]


@pytest.mark.slow
def test_two_processes_train_answers(questions, tmp_path):
    finished = launch(TORCHRUN, *questions, f"--output-dir={tmp_path / 'model'}")
    assert finished.returncode == 0, finished.stderr[-5000:]
    assert finished.stdout.count("try it") == finished.stdout.count("right answers") == 1
    state = json.loads((tmp_path / "model" / "checkpoint-1" / "trainer_state.json").read_text())
    assert (state["global_step"], state["train_batch_size"]) == (1, 2)


@pytest.mark.slow
def test_all_tasks_measure_the_same_on_any_number_of_processes(tmp_path):
    """Neither two nor three processes divide the seven videos, and neither do batches of two."""
    (tmp_path / "data").mkdir()
    write_small_tasks(tmp_path / "data")
    script = Path(__file__).with_name("small_commands.py")
    options = ["--learning-rate=0", "--per-device-eval-batch-size=2"]
    for number in (1, 2, 3):
        processes = run_forked(*launched([script, tmp_path / "data", tmp_path / f"{number}", *options], number))
        assert not any(each.returncode for each in processes), [each.stderr[-5000:] for each in processes]
    for task in small_commands(tmp_path / "data").keys() - {"pretraining"}:
        one, *others = (measured(tmp_path / f"{number}" / task) for number in (1, 2, 3))
        assert 7 in (one[0].get("num_key_frames"), one[0].get("num_videos"))
        for figures, answers in others:
            assert figures == pytest.approx(one[0], rel=1e-5), task
            assert answers == one[1]


def measured(folder):
    """The figures of the report and of the evaluation of a training, and its answers."""
    state = json.loads((folder / "checkpoint-1" / "trainer_state.json").read_text())
    (found,) = (entry for entry in state["log_history"] if "eval_loss" in entry)
    found |= json.loads((folder / "report" / "metrics.json").read_text())
    figures = {name: value for name, value in found.items() if isinstance(value, int | float)}
    answers = folder / "answers.json"
    return {name: value for name, value in figures.items() if not OF_MACHINE.search(name)}, (
        answers.read_text() if answers.exists() else ""
    )


def test_commands_for_one_process_are_refused_on_several(fails, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = fails("probe", "DATA", "--model", "MODEL", "--output-dir", "DIR")
    assert "hf-video probe works on one process, and a launcher started 2" in message
