"""Tensors that cannot be weights and settings that cannot be any are refused by name, and nothing is written."""

import json

import pytest
import torch

from conversion import videomae, videomamba
from conversion.helpers.checkpoint import ConversionError, find_weights, read_checkpoint, strip_prefixes
from conversion.helpers.command import labels_of_original
from conversion.helpers.memory_bank_qformer import load_pretrained
from conversion.helpers.weight_rules import apply_rules, rename
from hf_video.models.videovit import VideoViTForVideoClassification
from tests.testing.goldens import load_golden, write_original_config
from tests.testing.trainers import make_model

NAME = "blocks.1.mlp.fc1.weight"


def with_value(value):
    def change(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[1] = value
        return tensor

    return change


WRONG = {
    "NaN": (with_value(float("nan")), "has 1 of 9216 values that are NaN or infinite"),
    "beyond float32": (lambda tensor: tensor.double() * 1e300, "has 9216 of 9216 values that are NaN or infinite"),
    "whole numbers": (lambda tensor: tensor.to(torch.int8), "is of torch.int8 and torch.strided, which no weight is"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_tensor_that_is_no_weight_is_refused_by_name(tmp_path, refused, wrong):
    golden = load_golden("videovit", "videomae_finetune")
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=True)["module"]
    change, message = WRONG[wrong]
    torch.save(weights | {NAME: change(weights[NAME])}, tmp_path / "wrong.pth")
    said = refused(videomae.main, tmp_path / "wrong.pth", "--original-config", write_original_config(golden, tmp_path))
    assert f"The tensor {NAME} {message}" in said, said


def test_what_no_model_takes_may_be_anything(tmp_path):
    """A decoder that is dropped may have diverged, and a counter is a whole number."""
    golden = load_golden("videovit", "videomae_pretrain")
    weights = find_weights(read_checkpoint(golden.folder / "checkpoint.pth"), ["model", "module"])
    weights["decoder.norm.weight"] = torch.full_like(weights["decoder.norm.weight"], torch.nan)
    weights["decoder.blocks.0.num_batches"] = torch.tensor(3)
    torch.save({"model": weights}, tmp_path / "checkpoint.pth")
    config = write_original_config(golden, tmp_path)
    words = [str(tmp_path / "checkpoint.pth"), str(tmp_path / "model"), "--original-config", str(config)]
    videomae.main([*words, "--task", "video-classification"])
    VideoViTForVideoClassification.from_pretrained(tmp_path / "model")


def test_two_tensors_for_one_place_are_refused():
    one = torch.ones(1)
    with pytest.raises(ConversionError, match="The tensor module.a is a second one named a: keep one of them"):
        strip_prefixes({"a": one, "module.a": one}, ["module."])
    with pytest.raises(ConversionError, match="The tensor y.a is a second one for b: keep one of them"):
        apply_rules({"x.a": one, "y.a": one}, [rename("[xy].a", "b")])


def test_weights_that_transformers_loads_are_checked(tmp_path):
    model = make_model()
    torch.nn.init.constant_(model.classifier.bias, torch.inf)
    model.save_pretrained(tmp_path)
    with pytest.raises(ConversionError, match=f"The tensor classifier.bias of {tmp_path} has 2 of 2 values"):
        load_pretrained(VideoViTForVideoClassification, str(tmp_path))


def test_a_gap_in_the_layers_is_refused_before_layers_are_made_for_it(tmp_path, refused):
    golden = load_golden("videovit", "videomae_finetune")
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=True)["module"]
    far = {name.replace(".0.", ".99999999."): tensor for name, tensor in weights.items() if ".0." in name}
    torch.save(weights | far, tmp_path / "far.pth")
    config = write_original_config(golden, tmp_path)
    assert "but none of layer " in refused(videomae.main, tmp_path / "far.pth", "--original-config", config)


def test_names_that_leave_classes_out_are_refused():
    with pytest.raises(ConversionError, match="`id2label`"):
        labels_of_original({"id2label": {"0": "a", "2": "b"}}, 3)


@pytest.mark.parametrize(
    ("main", "case", "wrong", "message"),
    [
        (videomae.main, "videomae_finetune", {"drop_rate": float("inf")}, "`hidden_dropout_prob` must be"),
        (videomae.main, "videomae_finetune", {"mlp_ratio": "4"}, "says mlp_ratio='4', the tensors say otherwise"),
        (videomae.main, "videomae_finetune", {"qkv_bias": "yes"}, "says qkv_bias='yes', the tensors say True"),
        (videomamba.main, "image", {"norm_epsilon": -1e-5}, "`layer_norm_eps` must be above 0, got -1e-05"),
        (videomamba.main, "image", {"ssm_cfg": {"expand": "2"}}, "says ssm_cfg.expand='2', the tensors say 2"),
    ],
)
def test_a_setting_of_the_original_that_can_be_none_is_named(tmp_path, refused, main, case, wrong, message):
    golden = load_golden("videovit" if main is videomae.main else "videomamba", case)
    config = write_original_config(golden, tmp_path)
    config.write_text(json.dumps(json.loads(config.read_text()) | wrong))
    assert message in refused(main, golden.folder / "checkpoint.pth", "--original-config", config)
