import dataclasses
import shutil
import signal
from pathlib import Path

import pytest

from hf_video.cli.main import COMMANDS, main
from hf_video.demo import write_moving_digits
from tests.testing.small_tasks import small_commands, write_small_tasks
from tests.testing.undrawn_reports import undrawn_reports

__all__ = ["undrawn_reports"]

TINY_MODEL = ["--num-frames", "4", "--image-size", "32", "--hidden-size", "24", "--num-hidden-layers", "1"]
TINY_RUN = ["--num-attention-heads", "2", "--epochs", "2", "--batch-size", "16", "--device", "cpu"]


@pytest.fixture(scope="session")
def trained(digits, tmp_path_factory):
    """The output folder of a finished `hf-video train`."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    assert main(["train", str(digits), "--output-dir", str(folder), *TINY_MODEL, *TINY_RUN]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of `trained`, to change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="session")
def few(tmp_path_factory):
    """Videos of eight classes, two for training and one to test each."""
    folder = tmp_path_factory.mktemp("few") / "digits"
    return write_moving_digits(folder, train_per_class=2, test_per_class=1, num_frames=8, image_size=32)


@pytest.fixture
def heard_ctrl_c():
    """SIGINT is ignored in a process that a shell starts in the background."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def questions(tmp_path):
    """The words of a training on questions about four videos, which is measured on seven."""
    write_small_tasks(tmp_path)
    return small_commands(tmp_path)["answers"]


@pytest.fixture
def env_runs(monkeypatch):
    """Gives `hf-video env` another function to run."""

    def replace(run):
        changed = [dataclasses.replace(each, run=run) if each.name == "env" else each for each in COMMANDS]
        monkeypatch.setattr("hf_video.cli.main.COMMANDS", changed)

    return replace


@pytest.fixture
def ends(env_runs, capsys):
    """Runs `hf-video env` with another body, or an error to raise; returns the exit code and the text on stderr."""

    def run(body):
        def raises(settings):
            raise body

        env_runs(raises if isinstance(body, BaseException) else lambda settings: body())
        return main(["env"]), capsys.readouterr().err

    return run


@pytest.fixture
def says(capsys):
    """Runs a command that must end with exit code 0; returns what was printed on stdout."""

    def run(*words):
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def fails(capsys):
    """Runs a command that must end with exit code 2 and a message without a traceback; returns the message."""

    def run(*words):
        assert main([str(word) for word in words]) == 2
        message = capsys.readouterr().err
        assert "Traceback" not in message
        return message

    return run
