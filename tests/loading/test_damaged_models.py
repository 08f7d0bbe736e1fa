"""A folder of a model with one damaged file: an error that names the file, whatever is done with the model."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_video.cli.errors import explain
from hf_video.loading.heads import load_classifier, load_trained_classifier
from hf_video.loading.processors import load_processor
from hf_video.processing import VideoClipProcessor
from tests.testing.trainers import make_model

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
    (CONFIG, text("[]"), "must hold one JSON object"),
    (CONFIG, fields(model_type=3), "`model_type`"),
    (CONFIG, fields(id2label=["a", "b"]), "`id2label`"),
    (CONFIG, fields(id2label={"0": "a", "2": "b"}), "does not name 1"),
    (CONFIG, fields(id2label={}), "`id2label` names no class"),
    (CONFIG, fields(hidden_size="24"), "'hidden_size'"),
    (WEIGHTS, cut(-100), "is cut off or damaged"),
    (WEIGHTS, cut(0), "is cut off or damaged"),
    (WEIGHTS, lambda path: path.unlink(), WEIGHTS),
    (
        WEIGHTS,
        tensors(lambda weights: weights.update({"videovit.layers.0.mlp.fc1.bias": torch.zeros(5)})),
        "videovit.layers.0.mlp.fc1.bias (5,) instead of (32,)",
    ),
    (INDEX, index({}), "is cut off or damaged"),
    (INDEX, index({"metadata": {}, "weight_map": {"a": "gone.safetensors"}}), "No such file or directory: "),
    (PROCESSOR, text("{"), "cannot be read as JSON"),
    (PROCESSOR, fields(size=[1]), "size=[1]"),
    (PROCESSOR, fields(image_std=0), "image_std=0"),
]


@pytest.fixture
def folder(tmp_path):
    make_model().save_pretrained(tmp_path / "model")
    VideoClipProcessor(num_frames=2, size=16, crop_size=16).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGES)
def test_the_damaged_file_is_named(folder, file, damage, message):
    damage(folder / file)
    with pytest.raises(Exception) as caught:
        load_processor(folder, load_trained_classifier(folder).config)
    # What is no error of a user has no sentence.
    said = explain(caught.value)
    assert said is not None and message in said and str(folder) in said


def test_weights_that_are_missing_are_no_trained_model(folder):
    tensors(lambda weights: weights.pop("classifier.weight"))(folder / WEIGHTS)
    with pytest.raises(ValueError, match=r"lacks weights of VideoViTForVideoClassification \(classifier.weight\)"):
        load_trained_classifier(folder)
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
