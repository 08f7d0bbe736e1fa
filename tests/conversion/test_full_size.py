"""Every tensor of every published full-size model has its place, without a single weight in memory."""

import json

import pytest
import torch

from conversion import stmixer, videomae
from conversion.helpers.checkpoint import strip_prefixes
from conversion.helpers.weight_rules import apply_rules, load_converted
from hf_video import VideoViTBackbone, VideoViTConfig, VideoViTForPreTraining, VideoViTForVideoClassification
from tests.testing.goldens import FIXTURES

MODELS = json.loads((FIXTURES / "videovit" / "full_size_keys.json").read_text())


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
