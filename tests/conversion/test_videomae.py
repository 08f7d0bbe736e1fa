"""Conversion of VideoMAE checkpoints through the command line, against the originals' outputs and gradients."""

import json

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForVideoClassification

from conversion.helpers.weight_rules import apply_rules
from conversion.videomae import RULES, main
from tests.testing.goldens import (
    assert_float32_close,
    assert_float64_close,
    assert_gradients_close,
    load_golden,
    write_original_config,
)

FINE_TUNED = [
    "videomae_finetune",
    "videomae_finetune_gradients",
    "videomae_finetune_learnable_pos_layerscale",
    "videomae_v2_finetune",
    "videomae_v2_finetune_cos_attn",
]


@pytest.fixture(scope="module")
def convert(tmp_path_factory):
    """Convert a case with its original configuration and return the folder."""
    folders = {}

    def convert_case(case):
        if case not in folders:
            golden = load_golden("videovit", case)
            folder = tmp_path_factory.mktemp(case)
            config = write_original_config(golden, folder)
            main([str(golden.folder / "checkpoint.pth"), str(folder / "model"), "--original-config", str(config)])
            folders[case] = golden, folder / "model"
        return folders[case]

    return convert_case


@pytest.mark.parametrize(("case", "attention"), [*((case, "sdpa") for case in FINE_TUNED), (FINE_TUNED[-1], "eager")])
def test_fine_tuned_model_equals_the_original(convert, case, attention):
    golden, folder = convert(case)
    model = AutoModelForVideoClassification.from_pretrained(folder, attn_implementation=attention)
    pixel_values = golden.inputs["pixel_values"].transpose(1, 2)
    with torch.no_grad():
        outputs = model(pixel_values, output_hidden_states=True)
        double = model.double()(pixel_values.double()).logits
        model.classifier = torch.nn.Identity()
        double_pooled = model(pixel_values.double()).logits
    assert_float32_close(outputs.logits, golden.expected["logits"])
    for number, hidden_states in golden.expected_under("hidden_states.").items():
        assert_float32_close(outputs.hidden_states[int(number)], hidden_states)
    if "float64.logits" in golden.expected:
        assert_float64_close(double, golden.expected["float64.logits"])
        assert_float64_close(double_pooled, golden.expected["float64.pooled"])


def test_losses_and_gradients_equal_the_original(convert):
    golden, folder = convert("videomae_finetune_gradients")
    model = AutoModelForVideoClassification.from_pretrained(folder)
    pixel_values, labels = golden.inputs["pixel_values"].transpose(1, 2), golden.inputs["labels"]
    outputs = model(pixel_values, labels=labels)
    outputs.loss.backward()
    torch.testing.assert_close(outputs.loss, golden.expected["loss"], rtol=1e-5, atol=0)
    smoothed = F.cross_entropy(outputs.logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(smoothed, golden.expected["loss_label_smoothing_0.1"], rtol=1e-5, atol=0)
    soft = F.cross_entropy(outputs.logits, golden.inputs["soft_labels"])
    torch.testing.assert_close(soft, golden.expected["loss_soft_target"], rtol=1e-5, atol=0)

    expected = apply_rules(golden.expected_under("grad."), RULES)
    assert_gradients_close({name: parameter.grad for name, parameter in model.named_parameters()}, expected)
    double_loss = model.double()(pixel_values.double(), labels=labels).loss
    assert_float64_close(double_loss, golden.expected["float64.loss"])


def test_learned_positions_get_no_gradient_where_the_original_detaches_them(convert):
    golden, folder = convert("videomae_finetune_learnable_pos_layerscale")
    model = AutoModelForVideoClassification.from_pretrained(folder)
    model(golden.inputs["pixel_values"].transpose(1, 2)).logits.sum().backward()
    assert model.videovit.embeddings.position_embeddings.weight.grad is None
    assert model.videovit.embeddings.patch_embeddings.projection.weight.grad is not None


def test_sizes_come_from_the_tensors(tmp_path):
    golden = load_golden("videovit", "videomae_finetune")
    config = tmp_path / "original.json"
    config.write_text(json.dumps({"num_heads": 4, "img_size": 48, "all_frames": 8}))
    main([str(golden.folder / "checkpoint.pth"), str(tmp_path / "model"), "--original-config", str(config)])
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        assert_float32_close(model(golden.inputs["pixel_values"].transpose(1, 2)).logits, golden.expected["logits"])


def test_names_of_compiled_and_distributed_training_are_understood(tmp_path):
    golden = load_golden("videovit", "videomae_finetune")
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=True)["module"]
    torch.save({"model": {f"_orig_mod.module.{k}": v.half() for k, v in weights.items()}}, tmp_path / "a.pth")
    config = write_original_config(golden, tmp_path)
    main([str(tmp_path / "a.pth"), str(tmp_path / "model"), "--original-config", str(config)])
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.float32
    with torch.no_grad():
        logits = model(golden.inputs["pixel_values"].transpose(1, 2)).logits
    torch.testing.assert_close(logits, golden.expected["logits"], atol=2e-2, rtol=0)


class Unsafe:
    """What a stranger's pickle could hold."""


def _without(name):
    return lambda weights: {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no file"),
        (lambda weights: {"model": weights, "other": Unsafe()}, "could run code"),
        (lambda weights: {"model": {"layers.0.weight": torch.ones(2)}}, "VideoMAE-like"),
        (_without("blocks.1.mlp.fc2.weight"), "missing: videovit.layers.1.mlp.fc2.weight"),
        (lambda weights: {**weights, "extra.weight": torch.ones(1)}, "unknown: extra.weight"),
        (lambda weights: {**weights, "blocks.1.norm1.bias": torch.ones(2)}, "of another shape"),
    ],
)
def test_a_wrong_checkpoint_is_refused_and_nothing_written(tmp_path, refused, content, message):
    golden = load_golden("videovit", "videomae_finetune")
    checkpoint = tmp_path / "checkpoint.pth"
    if content is not None:
        torch.save(content(torch.load(golden.folder / "checkpoint.pth", weights_only=True)["module"]), checkpoint)
    assert message in refused(main, checkpoint, "--original-config", write_original_config(golden, tmp_path))


def test_a_cut_off_checkpoint_is_refused(tmp_path, refused):
    golden = load_golden("videovit", "videomae_finetune")
    (tmp_path / "cut.pth").write_bytes((golden.folder / "checkpoint.pth").read_bytes()[:5000])
    assert "cut off" in refused(main, tmp_path / "cut.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"<!DOCTYPE html><html>Virus scan warning</html>", "web page"), (b"\0\0\0 ftypisom" * 9, "no checkpoint")],
)
def test_a_file_that_pytorch_has_not_written_is_refused(content, message, tmp_path, refused):
    (tmp_path / "checkpoint.pth").write_bytes(content)
    assert message in refused(main, tmp_path / "checkpoint.pth")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_heads": 4, "embed_dim": 96}, "embed_dim=96, the tensors say 48"),
        ({"num_heads": 4, "num_class": 7}, "unknown keys ['num_class']"),
        ({}, "do not tell num_attention_heads: pass `--set num_attention_heads=VALUE`"),
        (None, "original.json cannot be read as JSON"),
    ],
)
def test_a_wrong_configuration_is_refused_and_nothing_written(tmp_path, refused, config, message):
    golden = load_golden("videovit", "videomae_finetune")
    file = tmp_path / "original.json"
    file.write_text("{" if config is None else json.dumps(config))
    assert message in refused(main, golden.folder / "checkpoint.pth", "--original-config", file)


def test_a_used_output_folder_is_left_alone(tmp_path, capsys):
    golden = load_golden("videovit", "videomae_finetune")
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(SystemExit):
        main([str(golden.folder / "checkpoint.pth"), str(tmp_path)])
    assert "not an empty folder" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 1
