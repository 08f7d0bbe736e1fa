"""Tensors that cannot be weights and settings that cannot be any are refused by name, and nothing is written."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from conversion import hf_videomae, videomae, videomamba
from conversion.helpers.checkpoint import ConversionError, find_weights, read_checkpoint, strip_prefixes
from conversion.helpers.command import names_of_original
from conversion.helpers.memory_bank_qformer import load_pretrained
from conversion.helpers.weight_rules import FLOAT_DTYPES, apply_rules, rename
from conversion.malmm import read_original
from hf_video.models.videovit import VideoViTForVideoClassification
from tests.goldens import load_golden, write_original_config
from tests.training.tiny import make_model

NAME = "blocks.1.mlp.fc1.weight"


def quantize(tensor):
    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


def with_value(value):
    def change(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[1] = value
        return tensor

    return change


WRONG = {
    "NaN": (with_value(float("nan")), "has 1 of 9216 values that are NaN or infinite"),
    "infinite": (with_value(float("-inf")), "has 1 of 9216 values that are NaN or infinite"),
    "beyond float32": (lambda tensor: tensor.double() * 1e300, "has 9216 of 9216 values that are NaN or infinite"),
    "meta": (lambda tensor: tensor.to("meta"), "is on the meta device"),
    "sparse": (torch.Tensor.to_sparse, "is of torch.sparse_coo, which no weight is"),
    "compressed": (torch.Tensor.to_sparse_csr, "is of torch.sparse_csr, which no weight is"),
    "quantised": (quantize, "is of torch.qint8, which no weight is"),
} | {
    str(dtype): (lambda tensor, dtype=dtype: tensor.to(dtype), f"is of {dtype}, which no weight is")
    for dtype in (torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)
}


@pytest.fixture
def refused(tmp_path, capsys):
    """Runs the `main` of a source, which must end with exit code 2 and leave no file; returns the message."""

    def run(main, checkpoint, *options):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(SystemExit) as exit_info:
            main([str(checkpoint), str(tmp_path / "model"), *map(str, options)])
        assert exit_info.value.code == 2
        assert sorted(tmp_path.iterdir()) == before
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("wrong", WRONG)
def test_a_tensor_that_is_no_weight_is_refused_by_name(tmp_path, refused, wrong):
    golden = load_golden("videovit", "videomae_finetune")
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=True)["module"]
    change, message = WRONG[wrong]
    torch.save(weights | {NAME: change(weights[NAME])}, tmp_path / "wrong.pth")
    said = refused(videomae.main, tmp_path / "wrong.pth", "--original-config", write_original_config(golden, tmp_path))
    assert f"The tensor {NAME} {message}" in said, said


@pytest.mark.parametrize("wrong", ["NaN", "torch.int8"])
def test_the_tensors_of_a_transformers_folder_are_checked_as_well(tmp_path, refused, wrong):
    folder = load_golden("videovit", "hf_videomae_classification").folder
    weights, name = load_file(folder / "model.safetensors"), "videomae.encoder.layer.0.intermediate.dense.weight"
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "config.json").write_bytes((folder / "config.json").read_bytes())
    change, _ = WRONG[wrong]
    save_file(weights | {name: change(weights[name])}, tmp_path / "original" / "model.safetensors")
    assert f"The tensor {name} " in refused(hf_videomae.main, tmp_path / "original")


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


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_every_width_of_floats_is_a_weight(dtype):
    weights = {"a": torch.ones(2, dtype=dtype)}
    assert apply_rules(weights, [rename("a", "b")])["b"].dtype == dtype


def test_two_tensors_for_one_place_are_refused():
    one = torch.ones(1)
    with pytest.raises(ConversionError, match="The tensors a and module.a are both a: keep one of them"):
        strip_prefixes({"a": one, "module.a": one}, ["module."])
    with pytest.raises(ConversionError, match="The tensor y.a is a second one for b: keep one of them"):
        apply_rules({"x.a": one, "y.a": one}, [rename("[xy].a", "b")])


def test_weights_that_transformers_loads_are_checked(tmp_path):
    model = make_model()
    torch.nn.init.constant_(model.classifier.bias, torch.inf)
    model.save_pretrained(tmp_path)
    with pytest.raises(ConversionError, match=f"The tensor classifier.bias of {tmp_path} has 2 of 2 values"):
        load_pretrained(VideoViTForVideoClassification, str(tmp_path))


@pytest.mark.parametrize(
    ("id2label", "message"),
    [
        ({"0": "a", "2": "b"}, "`id2label` must name the classes 0, 1, 2, ... in an object"),
        ({"zero": "a", "one": "b"}, "`id2label` must name the classes 0, 1, 2, ... in an object"),
        (["a", "b"], "`id2label` must name the classes 0, 1, 2, ... in an object"),
        ({"0": "a", "1": None}, "`id2label` has no name for the classes 1"),
    ],
)
def test_names_that_leave_classes_out_are_refused(id2label, message):
    with pytest.raises(ConversionError, match=message):
        names_of_original({"id2label": id2label})


@pytest.mark.parametrize("section", ["model_kwargs", "bert_config", "llm_config"])
def test_a_section_of_an_original_configuration_is_an_object(tmp_path, section):
    file = tmp_path / "original.json"
    file.write_text(json.dumps({"model_kwargs": {"memory_bank_length": 2}} | {section: [3]}))
    with pytest.raises(ConversionError, match=rf"original.json: {section} must be a dict, got \[3\]"):
        read_original(file)


@pytest.mark.parametrize(
    ("main", "case", "wrong", "message"),
    [
        (videomae.main, "videomae_finetune", {"qk_scale": float("nan")}, "qk_scale must be a finite number"),
        (videomae.main, "videomae_finetune", {"drop_rate": float("inf")}, "drop_rate must be a finite number"),
        (videomae.main, "videomae_finetune", {"img_size": [32, float("nan")]}, "img_size.1 must be a finite number"),
        (videomae.main, "videomae_finetune", {"mlp_ratio": "4"}, "mlp_ratio must be a number, got '4'"),
        (videomae.main, "videomae_finetune", {"drop_rate": True}, "drop_rate must be a number, got True"),
        (videomae.main, "videomae_finetune", {"all_frames": {}}, "all_frames must be a number, got {}"),
        (videomae.main, "videomae_finetune", {"qkv_bias": "yes"}, "qkv_bias must be true or false, got 'yes'"),
        (videomae.main, "videomae_finetune", {"qk_scale": "small"}, "'qk_scale'"),
        (videomae.main, "videomae_finetune", {"qk_scale": -1}, "`qk_scale` must be above 0, got -1"),
        (videomamba.main, "image", {"norm_epsilon": float("nan")}, "norm_epsilon must be a finite number"),
        (videomamba.main, "image", {"norm_epsilon": -1e-5}, "`layer_norm_eps` must be above 0, got -1e-05"),
        (videomamba.main, "image", {"ssm_cfg": {"expand": float("inf")}}, "ssm_cfg.expand must be a finite number"),
        (videomae.main, "videomae_finetune", {"mlp_ratio": [4]}, "mlp_ratio must be a number, got [4]"),
        (videomae.main, "videomae_finetune", {"img_size": [[32], [32]]}, "img_size must be a number"),
        (videomamba.main, "image", {"ssm_cfg": 3}, "`ssm_cfg` must be a dict, got 3"),
        (videomamba.main, "image", {"ssm_cfg": {"expand": "2"}}, "`ssm_cfg.expand` must be a number, got '2'"),
        (
            videomamba.main,
            "image",
            {"stride": [0, 16]},
            "Sizes are above 0: one number or height and width, got [0, 16]",
        ),
        (videomamba.main, "image", {"img_size": 32.5}, "Sizes are above 0: one number or height and width, got 32.5"),
        (videomamba.main, "image", {"clip_norm_type": 2}, "clip_norm_type must be a str, got 2"),
    ],
)
def test_a_setting_of_the_original_that_can_be_none_is_named(tmp_path, refused, main, case, wrong, message):
    golden = load_golden("videovit" if main is videomae.main else "videomamba", case)
    config = write_original_config(golden, tmp_path)
    config.write_text(json.dumps(json.loads(config.read_text()) | wrong))
    assert message in refused(main, golden.folder / "checkpoint.pth", "--original-config", config)
