"""Conversion of VideoMAE's pre-training checkpoints, single and dual masking, and their start as classifiers."""

import json

import pytest
import torch
from transformers import AutoModelForPreTraining, AutoModelForVideoClassification

from conversion.videomae import main
from hf_video.models.videovit.masking_videovit import running_cell_mask
from tests.testing.goldens import assert_float32_close, assert_float64_close, load_golden, write_original_config

CASES = ["videomae_pretrain", "videomae_v2_pretrain"]


@pytest.fixture(scope="module", params=CASES)
def converted(request, tmp_path_factory):
    golden = load_golden("videovit", request.param)
    folder = tmp_path_factory.mktemp(request.param)
    config = write_original_config(golden, folder)
    main([str(golden.folder / "checkpoint.pth"), str(folder / "model"), "--original-config", str(config)])
    return golden, folder / "model"


def model_inputs(golden, dtype=torch.float32):
    inputs = {"pixel_values": golden.inputs["pixel_values"].transpose(1, 2).to(dtype)}
    inputs["bool_masked_pos"] = golden.inputs["mask"]
    if "decoder_mask" in golden.inputs:
        inputs["bool_decoder_masked_pos"] = golden.inputs["decoder_mask"]
    return inputs


def test_reconstruction_and_loss_equal_the_original(converted):
    golden, folder = converted
    model = AutoModelForPreTraining.from_pretrained(folder)
    inputs = model_inputs(golden)
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
        encoded = model.videovit(inputs["pixel_values"], inputs["bool_masked_pos"]).last_hidden_state
        targets = model.reconstruction_targets(inputs["pixel_values"])
    assert_float32_close(outputs.logits, golden.expected["reconstruction"])
    assert_float32_close(encoded, golden.expected["encoder_output"])
    for number, hidden_states in golden.expected_under("hidden_states.").items():
        assert_float32_close(outputs.hidden_states[int(number)], hidden_states)
    predicted = (
        ~inputs["bool_decoder_masked_pos"] if "bool_decoder_masked_pos" in inputs else inputs["bool_masked_pos"]
    )
    chosen = targets[predicted].unflatten(0, (len(targets), -1))
    assert_float32_close(chosen, golden.expected["labels"])
    torch.testing.assert_close(outputs.loss, golden.expected["loss"], rtol=1e-5, atol=0)


def test_double_precision_equals_the_original(converted):
    golden, folder = converted
    model = AutoModelForPreTraining.from_pretrained(folder).double()
    with torch.no_grad():
        outputs = model(**model_inputs(golden, torch.float64))
    assert_float64_close(outputs.logits[:, :4], golden.expected["float64.reconstruction_head"])
    assert_float64_close(outputs.loss, golden.expected["float64.loss"], atol=1e-7)


def test_losses_on_raw_pixels_and_without_decoder_mask(converted):
    golden, folder = converted
    model = AutoModelForPreTraining.from_pretrained(folder, norm_pix_loss=False)
    with torch.no_grad():
        loss = model(**model_inputs(golden)).loss
    torch.testing.assert_close(loss, golden.expected["loss_raw_pixels"], rtol=1e-5, atol=0)
    if "loss_without_decoder_mask" in golden.expected:
        model = AutoModelForPreTraining.from_pretrained(folder)
        inputs = model_inputs(golden)
        inputs.pop("bool_decoder_masked_pos")
        with torch.no_grad():
            loss = model(**inputs).loss
        torch.testing.assert_close(loss, golden.expected["loss_without_decoder_mask"], rtol=1e-5, atol=0)


def test_the_originals_decoder_masks_are_among_ours():
    golden = load_golden("videovit", "videomae_v2_pretrain")
    ours = {tuple(mask.tolist()) for mask in running_cell_mask(64, (8, 4, 4), 0.5, torch.Generator().manual_seed(0))}
    assert len(ours) == 4, "one mask for each starting cell"
    for mask in golden.inputs["decoder_mask"]:
        assert tuple(mask.tolist()) in ours


def test_arguments_that_the_original_ignores_may_be_given(tmp_path):
    golden = load_golden("videovit", "videomae_pretrain")
    config = tmp_path / "original.json"
    config.write_text(json.dumps({**golden.config["kwargs"], "in_chans": 0, "num_classes": 0}))
    main([str(golden.folder / "checkpoint.pth"), str(tmp_path / "model"), "--original-config", str(config)])
    assert AutoModelForPreTraining.from_pretrained(tmp_path / "model").config.num_channels == 3


def test_a_pretrained_checkpoint_becomes_a_classifier(tmp_path):
    golden = load_golden("videovit", "videomae_pretrain")
    config = write_original_config(golden, tmp_path)
    arguments = [str(golden.folder / "checkpoint.pth"), str(tmp_path / "model"), "--original-config", str(config)]
    main([*arguments, "--task", "video-classification", "--set", "num_labels=6"])
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "model")
    assert model.config.use_mean_pooling and model.videovit.layernorm is None
    assert torch.equal(model.fc_norm.weight, torch.ones(48)) and not model.fc_norm.bias.any()
    assert model.classifier.out_features == 6 and model.classifier.weight.abs().max() < 1e-3
    visible = ~golden.inputs["mask"]
    with torch.no_grad():
        outputs = model.videovit(golden.inputs["pixel_values"].transpose(1, 2), ~visible, output_hidden_states=True)
    assert_float32_close(outputs.hidden_states[-1], golden.expected["hidden_states.3"])


def test_a_classifier_cannot_be_pre_trained(refused):
    golden = load_golden("videovit", "videomae_finetune")
    assert "not the weights of a pre-training model" in refused(
        main, golden.folder / "checkpoint.pth", "--task", "pre-training"
    )
