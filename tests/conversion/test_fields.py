"""`--set FIELD=VALUE`: what neither tensors nor the original configuration tell."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForObjectDetection, AutoModelForVideoClassification

from conversion import malmm, stmixer, videomae
from tests.testing.goldens import FIXTURES, assert_float32_close, load_golden

WRONG = {
    "num_layers=2": "expected FIELD=VALUE of a VideoViTConfig. Did you mean num_labels",
    "num_frames": "expected FIELD=VALUE",
    "backbone.num_frames=4": "expected FIELD=VALUE",
    "num_frames=many": "valid integer, .* got 'many'",
    "num_hidden_layers=9": "does not fit VideoViTForVideoClassification. missing: videovit.layers",
    "num_labels=9": r"of another shape: classifier.weight .* instead of \(9, ",
    "qkv_bias=false": "superfluous: ",
    "num_attention_heads=5": "`hidden_size` must be a multiple|num_attention_heads",
}


def convert(source, checkpoint, folder, *words):
    source.main([str(checkpoint), str(folder / "model"), *words], raises_errors=True)
    return folder / "model"


def test_the_heads_of_a_model_that_was_not_published_are_set(tmp_path):
    golden = load_golden("videovit", "videomae_finetune")
    checkpoint, heads = golden.folder / "checkpoint.pth", golden.config["kwargs"]["num_heads"]
    with pytest.raises(ValueError, match="do not tell num_attention_heads: pass `--set num_attention_heads=VALUE`"):
        convert(videomae, checkpoint, tmp_path)
    words = ["--set", f"num_attention_heads={heads}", "--set", f"image_size={golden.config['kwargs']['img_size']}"]
    words += ["--set", f"num_frames={golden.config['kwargs']['all_frames']}", "--set", "drop_path_rate=0.1"]
    model = AutoModelForVideoClassification.from_pretrained(convert(videomae, checkpoint, tmp_path, *words))
    with torch.no_grad():
        logits = model(golden.inputs["pixel_values"].transpose(1, 2)).logits
    assert_float32_close(logits, golden.expected["logits"])
    assert model.config.drop_path_rate == 0.1


@pytest.mark.parametrize("word", WRONG)
def test_what_is_no_field_or_contradicts_the_tensors_is_refused(word, tmp_path):
    checkpoint = load_golden("videovit", "videomae_finetune").folder / "checkpoint.pth"
    with pytest.raises(ValueError, match=WRONG[word]):
        convert(videomae, checkpoint, tmp_path, "--set", "num_attention_heads=3", "--set", word)
    assert not list(tmp_path.iterdir())


def test_a_configuration_inside_another_one_has_fields_too(tmp_path):
    checkpoint = FIXTURES / "stmixer" / "training_checkpoint" / "checkpoint.pth"
    words = ["--task", "action-detection", "--set", "backbone_config.num_attention_heads=2"]
    detector = AutoModelForObjectDetection.from_pretrained(convert(stmixer, checkpoint, tmp_path, *words))
    assert detector.config.backbone_config.num_attention_heads == 2


def test_the_length_of_a_memory_bank_is_set(tmp_path):
    checkpoint = load_golden("memory_bank_qformer", "full_model").folder / "checkpoint.pth"
    with pytest.raises(ValueError, match="do not tell memory_bank_length"):
        convert(malmm, checkpoint, tmp_path)
    with pytest.raises(ValueError, match="do not tell qformer_config.num_attention_heads"):
        convert(malmm, checkpoint, tmp_path, "--set", "memory_bank_length=3")
    words = ["--set", "memory_bank_length=3", "--set", "qformer_config.num_attention_heads=4"]
    config = AutoConfig.from_pretrained(convert(malmm, checkpoint, tmp_path, *words))
    assert (config.memory_bank_length, config.qformer_config.num_attention_heads) == (3, 4)


def test_a_text_is_no_number(tmp_path):
    golden, file = load_golden("videovit", "videomae_finetune"), tmp_path / "original.json"
    file.write_text(json.dumps(golden.config["kwargs"] | {"all_frames": "many"}))
    with pytest.raises(ValueError, match="all_frames='many', a number or switch is expected"):
        convert(videomae, golden.folder / "checkpoint.pth", tmp_path, "--original-config", str(file))
