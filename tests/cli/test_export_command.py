"""`hf-video export` as a user runs it: what it prints, and what it refuses."""

import onnxruntime
import pytest
import torch
from transformers import ViTImageProcessor

from hf_video import VideoViTConfig, VideoViTForImageClassification
from tests.hub.conftest import TINY_CLASSIFIERS, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "my_model"
    for each in make_model("VideoViT", ["a", "b"]):
        each.save_pretrained(folder)
    return folder


def test_the_words_of_the_readme(model, tmp_path, says):
    out = says("export", model, tmp_path / "my_onnx", "--num-frames", "8")
    assert f"onnx {tmp_path / 'my_onnx' / 'model.onnx'}\npixel_values (batch, 8, 3, 32, 32) -> logits\n" in out
    session = onnxruntime.InferenceSession(tmp_path / "my_onnx" / "model.onnx")
    assert session.get_inputs()[0].shape[1:] == [8, 3, 32, 32]
    assert session.get_modelmeta().custom_metadata_map["labels"] == '["a", "b"]'


def test_what_is_refused(model, tmp_path, fails):
    new = tmp_path / "new"
    assert f"OUT {model} is not empty" in fails("export", model, model)
    assert "foo" in fails("export", model, new, "--to", "foo")
    assert not new.exists()


def test_images_have_the_size_that_the_processor_gives(tmp_path, says):
    """The classifier is saved in bfloat16."""
    config = VideoViTConfig(**TINY_CLASSIFIERS["VideoViT"] | {"num_frames": 1, "tubelet_size": 1})
    VideoViTForImageClassification(config).bfloat16().save_pretrained(tmp_path / "images")
    ViTImageProcessor(size={"height": 48, "width": 64}).save_pretrained(tmp_path / "images")
    assert "\npixel_values (batch, 3, 48, 64) -> logits\n" in says(
        "export", tmp_path / "images", tmp_path / "out", "--to", "torch-export"
    )
    (logits,) = torch.export.load(tmp_path / "out" / "model.pt2").module()(torch.zeros(4, 3, 48, 64))
    assert logits.shape == (4, 2)


def test_a_folder_of_adapters_is_refused(tmp_path, fails):
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "adapter_config.json").write_text("{}")
    message = fails("export", tmp_path / "adapters", tmp_path / "out")
    assert "adapters holds adapters of PEFT, not a whole model: save what their `merge_and_unload` gives" in message
    assert not (tmp_path / "out").exists()
