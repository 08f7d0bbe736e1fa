"""Conversion of Transformers' VideoMAE folders."""

import json

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForPreTraining,
    AutoModelForVideoClassification,
    VideoMAEConfig,
    VideoMAEForVideoClassification,
)
from transformers.models.videomae.modeling_videomae import VideoMAESelfAttention

from conversion.hf_videomae import main
from tests.testing.goldens import assert_float32_close, assert_float64_close, load_golden


def convert(source, folder):
    main([str(source), str(folder)])
    return folder


def test_classifier_equals_transformers(tmp_path):
    golden = load_golden("videovit", "hf_videomae_classification")
    model = AutoModelForVideoClassification.from_pretrained(convert(golden.folder, tmp_path / "model"))
    inputs = golden.inputs
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
        double = model.double()(inputs["pixel_values"].double()).logits
    assert_float32_close(outputs.logits, golden.expected["logits"])
    torch.testing.assert_close(outputs.loss, golden.expected["loss"], rtol=1e-5, atol=0)
    for number, hidden_states in golden.expected_under("hidden_states.").items():
        assert_float32_close(outputs.hidden_states[int(number)], hidden_states)
    assert_float64_close(double, golden.expected["float64.logits"])


def test_pre_training_equals_transformers(tmp_path):
    golden = load_golden("videovit", "hf_videomae_pretraining")
    model = AutoModelForPreTraining.from_pretrained(convert(golden.folder, tmp_path / "model"))
    pixel_values, mask = golden.inputs["pixel_values"], golden.inputs["bool_masked_pos"]
    with torch.no_grad():
        outputs = model(pixel_values, bool_masked_pos=mask)
        encoded = model.videovit(pixel_values, mask).last_hidden_state
        double = model.double()(pixel_values.double(), bool_masked_pos=mask)
    assert_float32_close(outputs.logits, golden.expected["logits"])
    assert_float32_close(encoded, golden.expected["last_hidden_state"])
    torch.testing.assert_close(outputs.loss, golden.expected["loss"], rtol=1e-5, atol=0)
    assert_float64_close(double.logits[:, :4], golden.expected["float64.logits_head"])
    torch.testing.assert_close(double.loss, golden.expected["float64.loss"], atol=1e-7, rtol=0)


def test_both_names_of_the_biases_are_understood(tmp_path):
    golden = load_golden("videovit", "hf_videomae_classification")
    config = json.loads((golden.folder / "config.json").read_text())
    config["qkv_bias"] = config.pop("qv_bias")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.json").write_text(json.dumps(config))
    weights = load_file(golden.folder / "model.safetensors")
    renamed = {k.replace("q_bias", "query.bias").replace("v_bias", "value.bias"): v for k, v in weights.items()}
    assert renamed.keys() != weights.keys()
    save_file(renamed, tmp_path / "new" / "model.safetensors")
    model = AutoModelForVideoClassification.from_pretrained(convert(tmp_path / "new", tmp_path / "model"))
    with torch.no_grad():
        assert_float32_close(model(golden.inputs["pixel_values"]).logits, golden.expected["logits"])


def test_biases_of_the_keys_are_kept(tmp_path):
    torch.manual_seed(0)
    sizes = {"num_frames": 4, "image_size": 16, "patch_size": 8, "hidden_size": 36, "num_attention_heads": 3}
    config = VideoMAEConfig(**sizes, num_hidden_layers=2, intermediate_size=48)
    source = VideoMAEForVideoClassification(config).eval()
    for module in source.modules():
        if isinstance(module, VideoMAESelfAttention):
            module.key = torch.nn.Linear(module.key.in_features, module.key.out_features)
    for parameter in source.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    source.save_pretrained(tmp_path / "source")
    model = AutoModelForVideoClassification.from_pretrained(convert(tmp_path / "source", tmp_path / "model"))
    assert model.num_parameters() == source.num_parameters()
    pixel_values = torch.randn(2, 4, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(pixel_values).logits, source(pixel_values).logits, atol=1e-5, rtol=1e-4)


def test_another_model_is_refused(tmp_path, refused):
    (tmp_path / "other").mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "other" / "model.safetensors")
    (tmp_path / "other" / "config.json").write_text('{"model_type": "vivit"}')
    assert "got 'vivit'" in refused(main, tmp_path / "other")
