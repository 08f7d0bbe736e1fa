"""`hf-video export` as a user runs it: what it prints, and what it refuses."""

import re

import onnxruntime
import pytest
import torch
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

from hf_video import VideoViTBackbone, VideoViTConfig, VideoViTForImageClassification
from hf_video.cli.main import main
from tests.hub.conftest import TINY_CLASSIFIERS, make_model


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


def test_a_backbone_is_read_from_its_folder(tmp_path, capsys):
    """In bfloat16 and without a processor; the Hub is not asked."""
    VideoViTBackbone(VideoViTConfig(**TINY_CLASSIFIERS["VideoViT"])).bfloat16().save_pretrained(tmp_path / "backbone")
    assert main(["export", str(tmp_path / "backbone"), str(tmp_path / "out"), "--to", "torch-export"]) == 0
    assert "\npixel_values (batch, 4, 3, 32, 32) -> stage1\n" in capsys.readouterr().out


def test_images_have_the_size_that_the_processor_gives(tmp_path, capsys):
    """The classifier is saved in bfloat16."""
    config = VideoViTConfig(**TINY_CLASSIFIERS["VideoViT"] | {"num_frames": 1, "tubelet_size": 1})
    VideoViTForImageClassification(config).bfloat16().save_pretrained(tmp_path / "images")
    ViTImageProcessor(size={"height": 48, "width": 64}).save_pretrained(tmp_path / "images")
    assert main(["export", str(tmp_path / "images"), str(tmp_path / "out"), "--to", "torch-export"]) == 0
    assert "\npixel_values (batch, 3, 48, 64) -> logits\n" in capsys.readouterr().out
    (logits,) = torch.export.load(tmp_path / "out" / "model.pt2").module()(torch.zeros(4, 3, 48, 64))
    assert logits.shape == (4, 2)


def test_images_of_no_known_size_are_refused(tmp_path, fails):
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic")
    ResNetForImageClassification(config).save_pretrained(tmp_path / "images")
    message = fails("export", tmp_path / "images", tmp_path / "out", "--to", "torch-export")
    assert "images does not say how large its images are: save its processor beside it." in message
    assert not (tmp_path / "out").exists()


def test_a_folder_of_adapters_is_refused(tmp_path, fails):
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "adapter_config.json").write_text("{}")
    message = fails("export", tmp_path / "adapters", tmp_path / "out")
    assert "adapters holds adapters of PEFT, not a whole model: save what their `merge_and_unload` gives" in message
    assert not (tmp_path / "out").exists()
