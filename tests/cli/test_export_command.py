"""`hf-video export` as a user runs it: what it prints, and what it refuses."""

import re

import onnxruntime
import pytest

from hf_video.cli.main import main
from tests.hub.conftest import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "my_model"
    for each in make_model("VideoViT", ["a", "b"]):
        each.save_pretrained(folder)
    return folder


def test_the_words_of_the_readme(model, tmp_path, capsys):
    assert main(["export", str(model), str(tmp_path / "my_onnx"), "--num-frames", "8"]) == 0
    out = capsys.readouterr().out
    assert f"onnx {tmp_path / 'my_onnx' / 'model.onnx'}\npixel_values (batch, 8, 3, 32, 32) -> logits\n" in out
    session = onnxruntime.InferenceSession(tmp_path / "my_onnx" / "model.onnx")
    assert session.get_inputs()[0].shape[1:] == [8, 3, 32, 32]
    assert session.get_modelmeta().custom_metadata_map["labels"] == '["a", "b"]'


@pytest.mark.parametrize(
    "words, message",
    [
        (["{model}", "{model}"], r"OUT .* is not empty \(config.json, .*\. Choose another folder"),
        (["{model}", "{model}/config.json"], r"OUT .* is a file; a folder is expected"),
        (["{model}", "new", "--to", "foo"], "foo"),
        (["{model}", "new", "--num-frames", "0"], "num-frames"),
        (["nowhere/at/all", "new"], "nowhere/at/all: there is no such folder"),
    ],
)
def test_what_is_refused(words, message, model, tmp_path, monkeypatch, fails):
    monkeypatch.chdir(tmp_path)
    assert re.search(message, fails("export", *(word.format(model=model) for word in words)))
    assert not (tmp_path / "new").exists()
