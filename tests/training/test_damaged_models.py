"""A folder of a model with one damaged file: an error that names the file, whatever is done with the model."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_video.cli.main import main
from hf_video.loading.classifiers import load_classifier
from hf_video.loading.processors import load_processor
from hf_video.processing import VideoClipProcessor

from .tiny import make_model

CONFIG, WEIGHTS, PROCESSOR = "config.json", "model.safetensors", "video_preprocessor_config.json"
INDEX = f"{WEIGHTS}.index.json"


def fields(**changes):
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def text(content):
    return lambda path: path.write_text(content)


def cut(size):
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def tensors(change):
    def rewrite(path):
        weights = load_file(path)
        change(weights)
        save_file(weights, path, metadata={"format": "pt"})

    return rewrite


def index(content):
    def write(path):
        path.with_name(WEIGHTS).unlink()
        path.write_text(json.dumps(content))

    return write


DAMAGES = [
    (CONFIG, text("{"), CONFIG),
    (CONFIG, text("[]"), "config.json must hold one JSON object, got a list"),
    (CONFIG, text("3"), "config.json must hold one JSON object, got a int"),
    (CONFIG, fields(model_type=3), "config.json: `model_type` must be a valid string, got 3"),
    (CONFIG, fields(auto_map=3), "config.json: `auto_map` must be a valid dictionary, got 3"),
    (CONFIG, fields(quantization_config=3), "config.json: `quantization_config` must be a valid dictionary, got 3"),
    (CONFIG, fields(id2label=["a", "b"]), "config.json: `id2label` must be a valid dictionary, got ['a', 'b']"),
    (CONFIG, fields(id2label={"a": "b"}), "config.json: `id2label.a.[key]` must match"),
    (CONFIG, fields(id2label={"0": "a", "2": "b"}), "does not name 1"),
    (CONFIG, fields(id2label={}), "config.json: `id2label` names no class"),
    (CONFIG, fields(id2label={"0": "a", "1": None}), "does not name 1"),
    (CONFIG, fields(hidden_size="24"), "'hidden_size'"),
    (CONFIG, fields(layer_norm_eps=float("nan")), "`layer_norm_eps` must be above 0"),
    (WEIGHTS, cut(-100), "model.safetensors is cut off or damaged"),
    (WEIGHTS, cut(50), "model.safetensors is cut off or damaged"),
    (WEIGHTS, cut(0), "model.safetensors is cut off or damaged"),
    (WEIGHTS, lambda path: path.unlink(), WEIGHTS),
    (
        WEIGHTS,
        tensors(lambda weights: weights.update({"videovit.layers.0.mlp.fc1.bias": torch.zeros(5)})),
        "have other shapes than its config.json says: videovit.layers.0.mlp.fc1.bias (5,) instead of (32,)",
    ),
    (INDEX, index({}), "cannot be read: it is cut off or damaged"),
    (INDEX, index([]), "cannot be read: it is cut off or damaged"),
    (
        INDEX,
        index({"metadata": {}, "weight_map": {"a": 3}}),
        "cannot be read: it is cut off or damaged",
    ),
    (
        INDEX,
        index({"metadata": {}, "weight_map": {"a": "gone.safetensors"}}),
        "No such file or directory: ",
    ),
    (PROCESSOR, text("{"), f"{PROCESSOR} cannot be read as JSON"),
    (PROCESSOR, text("[]"), f"{PROCESSOR} must hold one JSON object, got a list"),
    (PROCESSOR, text("null"), f"{PROCESSOR} must hold one JSON object"),
    (PROCESSOR, fields(size=[1]), f"{PROCESSOR} has a wrong value: size=[1] must be one number of pixels"),
    (PROCESSOR, fields(image_std=0), f"{PROCESSOR} has a wrong value: image_std=0 must be above 0"),
    (PROCESSOR, fields(num_frames="8"), f"{PROCESSOR} has a wrong value: num_frames='8' must be a whole number"),
    (
        PROCESSOR,
        fields(do_normalize="yes"),
        f"{PROCESSOR} has a wrong value: do_normalize='yes' must be True or False",
    ),
    (PROCESSOR, fields(resample="sharp"), f"{PROCESSOR} has a wrong value: resample='sharp' is not a filter"),
]


@pytest.fixture
def folder(tmp_path):
    make_model().save_pretrained(tmp_path / "model")
    VideoClipProcessor(num_frames=2, size=16, crop_size=16).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGES)
def test_a_command_names_the_damaged_file(folder, capfd, file, damage, message):
    damage(folder / file)
    capfd.readouterr()
    (video := folder.parent / "video.mp4").touch()
    assert main(["predict", str(video), "--model", str(folder), "--device", "cpu"]) == 2
    said = capfd.readouterr().err
    assert message in said and "Traceback" not in said and "internal error" not in said, said
    assert str(folder) in said


def test_weights_that_are_missing_are_no_trained_model(folder, capfd):
    tensors(lambda weights: weights.pop("classifier.weight"))(folder / WEIGHTS)
    (video := folder.parent / "video.mp4").touch()
    assert main(["predict", str(video), "--model", str(folder), "--device", "cpu"]) == 2
    assert "lacks weights of VideoViTForVideoClassification (classifier.weight)" in capfd.readouterr().err
    assert load_classifier(folder, ["one", "two"]).num_labels == 2


def test_training_begins_with_another_head_but_not_with_other_layers(folder):
    assert load_classifier(folder, list("abc")).classifier.out_features == 3
    tensors(lambda weights: weights.update({"videovit.layernorm_.bias": torch.zeros(5)}))(folder / WEIGHTS)
    load_classifier(folder, list("abc"))
    tensors(lambda weights: weights.update({"fc_norm.bias": torch.zeros(5)}))(folder / WEIGHTS)
    with pytest.raises(ValueError, match=r"have other shapes than its config.json says: fc_norm.bias \(5,\)"):
        load_classifier(folder, list("abc"))


def test_an_option_of_the_caller_is_not_blamed_on_the_file(folder):
    config = make_model().config
    with pytest.raises(ValueError, match="^num_clips=0 must be a whole number"):
        load_processor(folder, config, num_clips=0)
