"""A task of a user's own, as CONTRIBUTING has it: from a table to a report and a card."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from hf_video.cli.main import main
from hf_video.hub.publishing import stage
from hf_video.processing import VideoClipProcessor
from hf_video.training import train
from hf_video.training.task import TASKS
from tests.cli.flags import read
from tests.testing.small_tasks import small_commands, write_small_tasks
from tests.testing.trainers import make_model
from tests.testing.videos import encode_video, make_frames

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def numbers_task(monkeypatch):
    source = re.search(r"^```python\n# numbers_task\.py\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[1]
    module = ModuleType("numbers_task")
    monkeypatch.setitem(sys.modules, "numbers_task", module)
    exec(compile(source, "numbers_task.py", "exec"), vars(module))
    yield module
    del TASKS["numbers"]


@pytest.fixture
def data(tmp_path):
    for name in "abcd":
        encode_video(tmp_path / f"{name}.mp4", make_frames(8, 16, 16))
    for split in ("train", "validation"):
        rows = "".join(f"../{name}.mp4,{number}\n" for number, name in enumerate("abcd"))
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{split}.csv").write_text(f"video,number\n{rows}")
    make_model().save_pretrained(tmp_path / "model")
    VideoClipProcessor(num_frames=2, size=16, crop_size=16).save_pretrained(tmp_path / "model")
    return tmp_path


def test_a_task_is_trained_measured_resumed_and_published(numbers_task, data, capsys):
    model, out = data / "model", data / "out"
    words = ["train", str(data / "data"), "--task", "numbers", "--model", str(model), "--output-dir", str(out)]
    words += ["--batch-size", "2", "--device", "cpu", "--epochs"]
    assert main([*words, "1"]) == 0
    assert "mean squared error" in capsys.readouterr().out
    assert main([*words, "2", "--resume"]) == 0
    metrics = json.loads((out / "report" / "metrics.json").read_text())
    assert metrics["num_videos"] == 4 and metrics["epochs"] == 2
    assert {"mse", "mae", "r2"} <= metrics.keys()
    stage(out, data / "repository", "alice/numbers", api=None)
    assert f"| mean squared error | {metrics['mse']:.4g}" in (data / "repository" / "README.md").read_text()


@pytest.fixture(scope="module")
def small_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    write_small_tasks(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "frames", "detection", "retrieval", "answers", "pretraining"])
def test_a_compiled_model_is_trained_and_measured_as_one_that_is_not(task, small_data, tmp_path):
    found = []
    for name, more in {"plain": [], "compiled": ["--torch-compile", "--torch-compile-backend=eager"]}.items():
        trainer, metrics = train(read([*small_commands(small_data)[task], f"--output-dir={tmp_path / name}", *more]))
        losses = [entry[key] for entry in trainer.state.log_history for key in ("loss", "eval_loss") if key in entry]
        found.append((losses, load_file(tmp_path / name / "model.safetensors")))
        assert metrics["num_videos" if "num_videos" in metrics else "num_key_frames"]
    (losses, weights), (expected, plain) = found[1], found[0]
    assert losses == pytest.approx(expected, rel=1e-4) and losses
    torch.testing.assert_close(weights, plain, rtol=0, atol=1e-4)


def test_what_a_task_does_not_have_is_refused(numbers_task, data):
    settings = {"data": str(data / "data"), "output_dir": str(data / "out")}
    with pytest.raises(ValueError, match="num_queries"):
        numbers_task.TrainNumbersSettings(**settings, num_queries=3)
    with pytest.raises(ValueError, match="mse, mae, r2 or loss"):
        sys.modules["hf_video.training"].train(
            numbers_task.TrainNumbersSettings(**settings, metric_for_best_model="f1_50")
        )
    assert not (data / "out").exists()
