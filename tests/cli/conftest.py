import pytest

from hf_video.cli.main import main
from hf_video.data import write_moving_digits

TINY_MODEL = ["--num-frames", "4", "--image-size", "32", "--hidden-size", "24", "--num-hidden-layers", "1"]
TINY_RUN = ["--num-attention-heads", "2", "--epochs", "2", "--batch-size", "16", "--device", "cpu"]


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """Videos in train/ and test/, eight classes of three and one."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    return write_moving_digits(folder, train_per_class=3, test_per_class=1, num_frames=8, image_size=32)


@pytest.fixture(scope="session")
def trained(digits, tmp_path_factory):
    """The output folder of a finished `hf-video train`."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    assert main(["train", str(digits), "--output-dir", str(folder), *TINY_MODEL, *TINY_RUN]) == 0
    return folder


@pytest.fixture
def fails(capsys):
    """Runs a command that must end with exit code 2 and a message without a traceback; returns the message."""

    def run(*words):
        assert main([str(word) for word in words]) == 2
        message = capsys.readouterr().err
        assert "Traceback" not in message
        return message

    return run
