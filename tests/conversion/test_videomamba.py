"""Conversion of VideoMamba's classifiers through the command line, against the originals' outputs and gradients."""

import json

import pytest
import torch
from transformers import AutoModelForImageClassification, AutoModelForVideoClassification

from conversion.helpers.weight_rules import apply_rules
from conversion.videomamba import CLASSIFICATION_RULES, ENCODER_RULES, main, patch_rule
from tests.models.videomamba.videomamba_testing import record_blocks
from tests.testing.goldens import assert_float32_close, assert_gradients_close, load_golden, write_original_config

CASES = {
    "video_default": AutoModelForVideoClassification,
    "video_tubelet2": AutoModelForVideoClassification,
    "image": AutoModelForImageClassification,
}
RULES = (patch_rule(1, "centre"), *ENCODER_RULES, *CLASSIFICATION_RULES)


@pytest.fixture(scope="module", params=CASES)
def converted(request, tmp_path_factory):
    golden, folder = load_golden("videomamba", request.param), tmp_path_factory.mktemp(request.param)
    config = write_original_config(golden, folder)
    main([str(golden.folder / "checkpoint.pth"), str(folder / "model"), "--original-config", str(config)])
    pixel_values = golden.inputs["pixel_values"]
    pixel_values = pixel_values if pixel_values.ndim == 4 else pixel_values.transpose(1, 2)
    return golden, CASES[request.param].from_pretrained(folder / "model"), pixel_values


def convert(checkpoint, folder, *options):
    main([str(checkpoint), str(folder / "model"), *options])
    return AutoModelForVideoClassification.from_pretrained(folder / "model")


def video_checkpoint():
    return torch.load(load_golden("videomamba", "video_default").folder / "checkpoint.pth", weights_only=True)


def test_every_stage_equals_the_original(converted):
    golden, model, pixel_values = converted
    with torch.no_grad(), record_blocks(model.videomamba) as blocks:
        outputs = model(pixel_values, output_hidden_states=True)
        clips = pixel_values if pixel_values.ndim == 5 else pixel_values[:, None]
        tokens = model.videomamba(clips).last_hidden_state
    assert_float32_close(outputs.hidden_states[0], golden.expected["embeddings"])
    for number, residual in golden.expected_under("residual.").items():
        assert_float32_close(outputs.hidden_states[int(number)], residual)
        assert_float32_close(blocks.residuals[int(number)], residual)
    for number, mixed in golden.expected_under("hidden_states.").items():
        assert_float32_close(blocks.mixed[int(number)], mixed)
    assert_float32_close(tokens, golden.expected["final_hidden_states"])
    assert_float32_close(tokens[:, 0], golden.expected["cls_feature"])
    assert_float32_close(outputs.logits, golden.expected["logits"])


def test_loss_and_gradients_equal_the_original(converted):
    golden, model, pixel_values = converted
    model.zero_grad()
    loss = model(pixel_values, labels=golden.inputs["labels"]).loss
    loss.backward()
    torch.testing.assert_close(loss, golden.expected["loss"][0], rtol=1e-5, atol=0)
    expected = apply_rules(golden.expected_under("grad."), RULES)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert_gradients_close({name: gradients[name] for name in expected}, expected)
    for name in apply_rules(
        dict.fromkeys(golden.config["parameters_with_zero_gradient_left_out"], torch.zeros(1)), RULES
    ):
        assert not gradients[name].any(), name


@pytest.mark.parametrize("run", ["k1", "k2", "k2_mean"])
def test_inflated_image_weights_equal_the_original(tmp_path, run):
    golden = load_golden("videomamba", "image_to_video_inflate")
    config = write_original_config(golden, tmp_path, "image_kwargs")
    tubelet_size = golden.config["runs"][run]["video_kwargs"].get("kernel_size", 1)
    model = convert(
        golden.folder / "checkpoint.pth",
        tmp_path,
        *("--original-config", str(config), "--task", "video-classification", "--set", "num_frames=4"),
        *("--set", f"tubelet_size={tubelet_size}", "--set", "num_labels=7"),
        *("--inflation", "mean" if run.endswith("mean") else "centre"),
    )
    inputs = {name.removeprefix(f"{run}."): value for name, value in golden.inputs.items() if name.startswith(run)}
    expected = golden.expected_under(f"{run}.")
    model.classifier.load_state_dict({"weight": inputs["head.weight"], "bias": inputs["head.bias"]})
    with torch.no_grad():
        outputs = model(inputs["pixel_values"].transpose(1, 2), output_hidden_states=True)
    embeddings = model.videomamba.embeddings
    assert torch.equal(embeddings.patch_embeddings.projection.weight, expected["patch_embed.proj.weight"])
    assert torch.equal(embeddings.temporal_position_embeddings, expected["temporal_pos_embedding"])
    assert_float32_close(outputs.hidden_states[0], expected["embeddings"])
    assert_float32_close(outputs.logits, expected["logits"])


@pytest.mark.parametrize("baked_in", [False, True])
def test_another_resolution_and_length_equal_the_originals_loader(tmp_path, baked_in):
    golden = load_golden("videomamba", "finetune_interpolate")
    config = write_original_config(golden, tmp_path, "checkpoint_kwargs")
    model = convert(golden.folder / "checkpoint.pth", tmp_path, "--original-config", str(config))
    model.classifier = torch.nn.Linear(32, 5)
    model.classifier.load_state_dict({name: golden.inputs[f"new.head.{name}"] for name in ("weight", "bias")})
    spatial, temporal = model.videomamba.embeddings.positions((8, 4, 4))
    torch.testing.assert_close(spatial, golden.expected["pos_embed"], atol=1e-6, rtol=0)
    torch.testing.assert_close(temporal, golden.expected["temporal_pos_embedding"], atol=1e-6, rtol=0)
    if baked_in:
        model.videomamba.set_input_size(image_size=64, num_frames=8)
    pixel_values = golden.inputs["pixel_values"].transpose(1, 2)
    with torch.no_grad():
        outputs = model(pixel_values, output_hidden_states=True, interpolate_pos_encoding=not baked_in)
    assert_float32_close(outputs.hidden_states[0], golden.expected["embeddings"])
    assert_float32_close(outputs.logits, golden.expected["logits"])


def wrap_as_distributed_training(weights):
    return {"module": {f"module.backbone.{name}": value for name, value in weights.items()}, "epoch": 3}


def wrap_as_average(weights):
    return {"model": {name: value * 0 for name, value in weights.items()}, "model_ema": weights}


@pytest.mark.parametrize(
    ("wrap", "options"),
    [(wrap_as_distributed_training, []), (wrap_as_average, ["--ema"])],
)
def test_wrappers_of_training_scripts_are_understood(tmp_path, wrap, options):
    torch.save(wrap(video_checkpoint()), tmp_path / "a.pth")
    model = convert(tmp_path / "a.pth", tmp_path, *options)
    golden = load_golden("videomamba", "video_default")
    with torch.no_grad():
        logits = model(golden.inputs["pixel_values"].transpose(1, 2)).logits
    assert_float32_close(logits, golden.expected["logits"])


def _without(name):
    return lambda weights: {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("change", "config", "options", "message"),
    [
        (lambda weights: {"blocks.0.weight": torch.ones(1)}, {}, [], "not the weights of VideoMamba"),
        (_without("layers.2.mixer.D_b"), {}, [], "missing: videomamba.layers.2.mixer.backward_scan.D"),
        (lambda weights: {**weights, "extra": torch.ones(1)}, {}, [], "unknown: extra"),
        (None, {"depth": 12}, [], "depth=12, the tensors say 4"),
        (None, {"img_size": 64}, [], "img_size=64"),
        (None, {"num_class": 7}, [], "unknown keys ['num_class']"),
        (None, {}, ["--task", "pre-training"], "cannot become one for pre-training"),
        (None, {}, ["--variant", "videomamba_t16_k400_f8_res224"], "the tensors say"),
        (None, {}, ["--variant", "videomamba_x16"], "no released file 'videomamba_x16'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(tmp_path, refused, change, config, options, message):
    weights = video_checkpoint()
    torch.save(change(weights) if change else weights, tmp_path / "a.pth")
    (tmp_path / "original.json").write_text(json.dumps(config))
    words = ("--original-config", tmp_path / "original.json", *options)
    assert message in refused(main, tmp_path / "a.pth", *words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "video-classification"], "do not tell num_frames: pass `--set num_frames=VALUE`"),
        (["--set", "num_frames=4"], "with `--task video-classification --set num_frames=T`"),
    ],
)
def test_image_weights_are_inflated_on_request_alone(refused, options, message):
    assert message in refused(main, load_golden("videomamba", "image").folder / "checkpoint.pth", *options)
