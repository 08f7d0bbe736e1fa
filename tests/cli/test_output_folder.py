"""The folder of a run: one run writes it, files of a user stay, and the advice of the commands agrees."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_video.cli.main import main
from hf_video.output_folders import LOCK_FILE, RunLock
from tests.testing.files import files_of

from .conftest import TINY_MODEL, TINY_RUN

ROOT = Path(__file__).parents[2]
HOLDER = """
import os, sys, time
from pathlib import Path
from hf_video.output_folders import RunLock
lock = RunLock()
lock.take(Path(sys.argv[1]))
if sys.argv[2] == "child" and os.fork() == 0:  # as a process that reads videos, which outlives its parent for a while
    time.sleep(2)
    os._exit(0)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def hold():
    """Starts a process that holds the lock of a folder."""
    processes = []

    def start(folder, kind="alone"):
        command = [sys.executable, "-c", HOLDER, str(folder), kind]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_second_run_in_a_folder_is_refused(digits, run, tmp_path, hold, fails):
    process = hold(run)
    before = files_of(tmp_path)
    who = f"{run} is being written by process {process.pid} on {socket.gethostname()}"
    for words in (["--resume"], [], ["--overwrite-output-dir"]):
        assert who in fails("train", digits, "--output-dir", run, *words)
    assert who in fails("train-answers", digits, "--model=m", f"--output-dir={run}", "--resume")
    assert files_of(tmp_path) == before


def test_a_lock_dies_with_its_process(tmp_path, hold):
    process = hold(tmp_path, "child")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / LOCK_FILE).exists()
    started = time.monotonic()
    with RunLock() as lock:
        lock.take(tmp_path)
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK_FILE).exists() and time.monotonic() - started < 10


def test_files_of_a_user_are_never_replaced(digits, tmp_path, fails):
    mine = tmp_path / "mine" / "train_options.json"
    mine.parent.mkdir()
    mine.write_text('{"train": "the 9:15 to Basel", "words": 3}')
    message = fails("train", digits, "--output-dir", mine.parent)
    assert "is not empty (train_options.json)" in message and "--overwrite-output-dir" in message
    assert "--resume" not in message and "Basel" in mine.read_text()


def test_a_run_that_ended_in_its_first_checkpoint_is_started_again(digits, trained, tmp_path, fails, capsys):
    """It is not resumed, and both ways of starting it say the same."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("train_options.json", "training_facts.json", "trained_videos.json"):
        shutil.copy(trained / name, out)
    shutil.copytree(trained / "checkpoint-1", out / "checkpoint-1")
    (out / "checkpoint-1" / "complete.json").unlink()
    (out / "checkpoint-1" / "trainer_state.json").write_text("")
    (out / ".train_options.json.17.partial").write_text("half")
    words = ("train", digits, "--output-dir", out)
    message = fails(*words, "--resume")
    assert "has no complete checkpoint (checkpoint-1: trainer_state.json has 0 bytes" in message
    assert message.endswith("Leave --resume out.\n")
    assert main([*map(str, words), *TINY_MODEL, *TINY_RUN]) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in trained.iterdir())


def test_a_run_whose_checkpoints_are_damaged_is_not_started_again_over_them(digits, run, fails):
    for file in run.glob("checkpoint-*/model.safetensors"):
        os.truncate(file, 100)
    before = files_of(run)
    message = fails("train", digits, "--output-dir", run, "--resume")
    assert "has no complete checkpoint (checkpoint-2: model.safetensors has 100 bytes of" in message
    assert message.endswith("Leave --resume out, and choose another folder or rename this one.\n")
    message = fails("train", digits, "--output-dir", run)
    assert "is not empty" in message and "--resume" not in message and files_of(run) == before


def test_no_token_is_in_the_files_of_a_run(digits, tmp_path):
    token = "hf_thisIsASecretOfOneUser"
    words = [*TINY_MODEL, *TINY_RUN, f"--hub-token={token}", "--max-steps=1"]
    assert main(["train", str(digits), "--output-dir", str(tmp_path / "out"), *words]) == 0
    files = files_of(tmp_path)
    assert "out/train_options.json" in files
    assert not [path for path, content in files.items() if token.encode() in content]


def refuse(*arguments, **options):
    raise ValueError("no trainer today")


@pytest.mark.parametrize("begins", ["in a new folder", "where a run was left"])
def test_a_start_that_is_refused_leaves_nothing(begins, digits, tmp_path, monkeypatch, fails):
    folder = tmp_path / "run"
    if begins != "in a new folder":
        folder.mkdir()
    if begins == "where a run was left":
        (folder / LOCK_FILE).touch()
    monkeypatch.setattr("hf_video.training.classification.ClassificationTask.trainer", refuse)
    assert "no trainer today" in fails("train", digits, "--output-dir", folder, *TINY_MODEL, *TINY_RUN)
    assert not folder.exists() if begins == "in a new folder" else files_of(folder) == {}
