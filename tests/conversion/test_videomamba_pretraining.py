"""Conversion of VideoMamba's masked pre-training, and the video classifiers and other models that start from it."""

import pytest
import torch
from transformers import AutoModelForPreTraining, AutoModelForVideoClassification

from conversion.helpers.weight_rules import apply_rules
from conversion.videomamba import ENCODER_RULES, PRE_TRAINING_RULES, main, patch_rule
from hf_video.models.videomamba.modeling_videomamba_pretraining import select_tokens
from tests.models.videomamba.videomamba_testing import record_blocks
from tests.testing.goldens import assert_float32_close, assert_gradients_close, load_golden, write_original_config

RULES = (patch_rule(1, "centre"), *ENCODER_RULES, *PRE_TRAINING_RULES)


@pytest.fixture(scope="module", params=["pretrain_masked", "pretrain_masked_two_layers"])
def converted(request, tmp_path_factory):
    golden, folder = load_golden("videomamba", request.param), tmp_path_factory.mktemp(request.param)
    config = write_original_config(golden, folder)
    main([str(golden.folder / "checkpoint.pth"), str(folder / "model"), "--original-config", str(config)])
    return golden, AutoModelForPreTraining.from_pretrained(folder / "model")


def inputs_of(golden):
    return {
        "pixel_values": golden.inputs["pixel_values"].transpose(1, 2),
        "bool_masked_pos": golden.inputs["mask"][:, 1:].bool(),
        "labels": golden.inputs["target"].transpose(0, 1),
    }


def test_every_stage_equals_the_original(converted):
    golden, model = converted
    inputs = inputs_of(golden)
    with torch.no_grad(), record_blocks(model.videomamba) as blocks:
        outputs = model(**inputs, output_hidden_states=True)
        tokens = model.videomamba(inputs["pixel_values"], inputs["bool_masked_pos"]).last_hidden_state
        aligned = torch.stack(model.aligned_features(outputs.hidden_states))
    assert_float32_close(outputs.hidden_states[0], golden.expected["visible_embeddings"])
    for number, residual in golden.expected_under("residual.").items():
        assert_float32_close(outputs.hidden_states[int(number)], residual)
    for number, mixed in golden.expected_under("hidden_states.").items():
        assert_float32_close(blocks.mixed[int(number)], mixed)
    assert_float32_close(tokens, golden.expected["final_hidden_states"])
    assert_float32_close(model.position_embeddings, golden.expected["clip_pos_embed"])
    # Positions are added between the aligned feature and its head: the original records the sum's first term.
    assert_float32_close(aligned, golden.expected["x_clip_vis"])
    assert_float32_close(outputs.logits.transpose(0, 1), golden.expected["x_clip"])
    torch.testing.assert_close(outputs.loss, golden.expected["loss"][0], rtol=1e-5, atol=0)
    assert torch.equal(outputs.mask.bool(), inputs["bool_masked_pos"])


def test_gradients_equal_the_original(converted):
    golden, model = converted
    model.zero_grad()
    model(**inputs_of(golden)).loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    expected = apply_rules(golden.expected_under("grad."), RULES)
    assert_gradients_close({name: gradients[name] for name in expected}, expected)
    for name in apply_rules(dict.fromkeys(golden.config["parameters_without_gradient"], torch.zeros(1)), RULES):
        assert gradients[name] is None, name


def test_a_classifier_starts_from_the_encoder(converted, tmp_path):
    golden, model = converted
    main(
        [str(golden.folder / "checkpoint.pth"), str(tmp_path / "model"), "--task", "video-classification"]
        + ["--set", "num_labels=6"]
    )
    classifier = AutoModelForVideoClassification.from_pretrained(tmp_path / "model")
    assert classifier.num_labels == 6
    for name, value in model.videomamba.state_dict().items():
        found = classifier.videomamba.state_dict()[name]
        assert torch.equal(found, torch.ones_like(value) if name == "norm_f.weight" else value), name


def test_the_video_encoder_of_a_multimodal_file_is_found(tmp_path):
    golden = load_golden("videomamba", "pretrain_masked")
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=True)
    file = {f"vision_encoder.{name}": value for name, value in weights.items()}
    file |= {"vision_encoder.pool_norm.weight": torch.ones(48), "text_encoder.a": torch.ones(1), "temp": torch.ones(1)}
    torch.save({"model": file}, tmp_path / "a.pth")
    main([str(tmp_path / "a.pth"), str(tmp_path / "model")])
    model = AutoModelForPreTraining.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        logits = model(**inputs_of(golden)).logits
    assert_float32_close(logits.transpose(0, 1), golden.expected["x_clip"])


def test_interpolated_inputs_get_the_table_of_their_own_length(converted):
    golden, model = converted
    clips = torch.randn(1, 6, 3, 64, 96)
    mask = torch.arange(6 * 4 * 6)[None] % 2 == 0
    outputs = model(clips, bool_masked_pos=mask, output_hidden_states=True)
    visible = torch.nn.functional.pad(~mask, (1, 0), value=True)
    table = select_tokens(model.position_table((6, 4, 6)), visible)
    feature = model.aligned_features(outputs.hidden_states)[-1]
    torch.testing.assert_close(outputs.logits[:, -1], model.decoder[-1](feature + table))
    assert table.shape[1] == 1 + 72
