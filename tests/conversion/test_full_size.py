"""Every tensor of every published full-size model has its place, without a single weight in memory."""

import json

import pytest
import torch

from conversion import stmixer, videomae, vjepa2
from conversion.helpers.checkpoint import strip_prefixes
from conversion.helpers.weight_rules import apply_rules, load_converted
from hf_video import (
    VideoViTBackbone,
    VideoViTConfig,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
)
from tests.testing.goldens import FIXTURES

MODELS = json.loads((FIXTURES / "videovit" / "full_size_keys.json").read_text())
VJEPA2 = json.loads((FIXTURES / "videovit" / "vjepa2_full_size_keys.json").read_text())
RELEASED = json.loads((FIXTURES.parents[1] / "model_cards" / "facts" / "vjepa2.json").read_text())["checkpoints"]


def meta_weights(entry):
    return {name: torch.empty(shape, device="meta") for name, shape in entry["keys"].items()}


def check(model_class, config, weights, rules, entry):
    with torch.device("meta"):
        model = model_class(VideoViTConfig(**config))
    load_converted(model, apply_rules(weights, rules))
    assert sum(parameter.numel() for parameter in model.parameters()) == entry["parameters"]


@pytest.mark.parametrize("family", ["videomae_finetune", "videomae_v2_finetune"])
def test_fine_tuned_models(family):
    for entry in MODELS[family].values():
        weights = meta_weights(entry)
        config = videomae.classifier_fields({}, weights)
        check(VideoViTForVideoClassification, config, weights, videomae.RULES, entry)
        assert entry.get("num_heads", config["num_attention_heads"]) == config["num_attention_heads"]


@pytest.mark.parametrize("family", ["videomae_pretrain", "videomae_v2_pretrain"])
def test_pre_trained_models(family):
    for entry in MODELS[family].values():
        weights = strip_prefixes(meta_weights(entry), ["encoder."])
        config = videomae.pre_training_fields({}, weights)
        check(VideoViTForPreTraining, config, weights, videomae.RULES, entry)
        assert entry["decoder_heads"] == config["decoder_num_attention_heads"]


def test_stmixer_backbone():
    entry = MODELS["stmixer_vit_b_backbone"]
    config = VideoViTConfig(use_final_norm=True).to_dict()
    check(VideoViTBackbone, config, meta_weights(entry), stmixer.BACKBONE_RULES, entry)


@pytest.mark.parametrize("row", RELEASED, ids=lambda row: row["name"])
def test_vjepa2(row):
    """A classifier has the tensors of its encoder and of its probe, and the facts count them."""
    name, pixels = row["backbone"], row["resolution"]
    entry = (
        VJEPA2["encoder_2_1"][f"{name} {pixels}"] if row["model"] == "V-JEPA 2.1" else VJEPA2["encoder"][f"{name} 256"]
    )
    weights, model_class = meta_weights(entry), VideoViTModel
    config = VideoViTConfig(**vjepa2.original_fields({}, weights))
    assert config.num_attention_heads == entry["heads"]
    converted, prefix = apply_rules(weights, vjepa2.encoder_rules(config)), "videovit."
    if "probe" in row:
        data = "SSv2" if row["num_classes"] == 174 else "Diving48"
        probe = meta_weights(VJEPA2["probe"][f"{name.removesuffix('/16')}{'-384' * (pixels == 384)} {data}"])
        config = VideoViTConfig(**config.to_dict() | vjepa2.probe_fields({}, probe, config.hidden_size))
        converted |= apply_rules(probe, vjepa2.PROBE_RULES)
        model_class, prefix = VideoViTForVideoClassification, ""
    with torch.device("meta"):
        model = model_class(config)
    load_converted(model, {name.removeprefix(prefix): tensor for name, tensor in converted.items()})
    assert sum(parameter.numel() for parameter in model.parameters()) == row["params_computed"]
