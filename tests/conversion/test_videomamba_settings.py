"""Whatever the original VideoMamba's constructors take: converted, and equal to its formulas in float64."""

import json

import pytest
import torch
from transformers import (
    AutoModelForImageClassification,
    AutoModelForPreTraining,
    AutoModelForVideoClassification,
    AutoVideoProcessor,
)

from conversion.helpers.videomamba import ARGUMENTS, find_factor
from conversion.videomamba import main
from tests.testing.goldens import assert_float32_close, assert_float64_close, load_golden

from .videomamba_original import Original, pair, random_weights

TINY = {"depth": 2, "embed_dim": 32, "num_classes": 5}
VIDEO = {**TINY, "img_size": 32, "num_frames": 2}
PRE_TRAINING = {"depth": 3, "embed_dim": 32, "img_size": [32, 48], "num_frames": 2, "clip_output_dim": 12}


def convert(folder, kwargs, *options):
    weights = random_weights(**kwargs)
    torch.save(weights, folder / "a.pth")
    (folder / "original.json").write_text(json.dumps(kwargs))
    main([str(folder / "a.pth"), str(folder / "model"), "--original-config", str(folder / "original.json"), *options])
    return Original(weights, **kwargs)


def random_pixels(kwargs):
    """As the original takes them: channels before frames."""
    shape = (2, kwargs.get("channels", 3), kwargs.get("num_frames", 1), *pair(kwargs["img_size"]))
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("case", ["video_default", "video_tubelet2", "image"])
def test_the_formulas_are_those_of_the_original(case):
    golden = load_golden("videomamba", case)
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=False)
    pixels = golden.inputs["pixel_values"]
    original = Original(weights.get("model", weights), **golden.config["kwargs"])
    logits = original.logits(pixels if pixels.ndim == 5 else pixels[:, :, None])
    assert_float32_close(logits.float(), golden.expected["logits"])


@pytest.mark.parametrize("case", ["pretrain_masked", "pretrain_masked_two_layers"])
def test_the_formulas_of_pre_training_are_those_of_the_original(case):
    golden = load_golden("videomamba", case)
    weights = torch.load(golden.folder / "checkpoint.pth", weights_only=True)
    original = Original(weights, **golden.config["kwargs"])
    features = original.aligned(golden.inputs["pixel_values"], golden.inputs["mask"][:, 1:].bool())
    assert_float32_close(features.float().transpose(0, 1), golden.expected["x_clip"])


@pytest.mark.parametrize(
    "change",
    [
        {"img_size": [64, 48], "patch_size": [8, 16]},
        {"num_frames": 5, "kernel_size": 2},
        {"ssm_cfg": {"d_state": 1, "d_conv": 2, "dt_rank": 5, "expand": 1.3, "bias": True, "conv_bias": False}},
        {"ssm_cfg": {"use_fast_path": False}, "bimamba": False, "channels": 1, "num_classes": 0, "depth": 1},
        {"rms_norm": False, "norm_epsilon": 1e-2, "fused_add_norm": False, "residual_in_fp32": False},
    ],
    ids=str,
)
def test_videos(tmp_path, change):
    kwargs = {**VIDEO, **change}
    original, pixels = convert(tmp_path, kwargs), random_pixels(kwargs)
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "model").double()
    with torch.no_grad():
        assert_float64_close(model(pixels.transpose(1, 2)).logits, original.logits(pixels))


@pytest.mark.parametrize(
    "change",
    [
        {"img_size": [40, 56], "patch_size": [16, 8], "stride": 8},
        {"img_size": [48, 32], "patch_size": 32, "num_classes": 0},
    ],
    ids=str,
)
def test_images(tmp_path, change):
    kwargs = {**TINY, **change}
    original, pixels = convert(tmp_path, kwargs), random_pixels(kwargs)
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "model").double()
    with torch.no_grad():
        assert_float64_close(model(pixels[:, :, 0]).logits, original.logits(pixels))


def test_images_of_any_size_are_inflated(tmp_path):
    """While the table over time is zero, every frame has the tokens that the image model gives it."""
    kwargs = {**TINY, "img_size": [40, 56], "patch_size": [16, 8], "stride": 8}
    original = convert(tmp_path, kwargs, "--task", "video-classification", "--set", "num_frames=2")
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "model").double()
    pixels = random_pixels({**kwargs, "num_frames": 2})
    frames = [original.embed(frame) for frame in pixels.split(1, dim=2)]
    expected = torch.cat([frames[0], frames[1][:, 1:]], dim=1)
    with torch.no_grad():
        assert_float64_close(model.videomamba.embeddings(pixels.transpose(1, 2)), expected)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"clip_norm_type": "none", "clip_return_layer": 2, "fused_add_norm": False},
        {"ssm_cfg": {"d_state": 3}, "rms_norm": False, "kernel_size": 2, "num_frames": 4},
    ],
    ids=str,
)
def test_pre_training(tmp_path, change):
    kwargs = {**PRE_TRAINING, **change}
    original, pixels = convert(tmp_path, kwargs), random_pixels(kwargs)
    model = AutoModelForPreTraining.from_pretrained(tmp_path / "model").double()
    mask = torch.stack([torch.arange(12) % 3 == 0, torch.arange(12) % 3 == 1])
    with torch.no_grad():
        logits = model(pixels.transpose(1, 2), mask).logits
    # The table of positions is one of float32 numbers, as it is in the original.
    assert_float64_close(logits, original.aligned(pixels, mask), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({"use_checkpoint": True, "checkpoint_num": 1}, 1),
        ({"use_checkpoint": True}, None),
        ({"checkpoint_num": 1}, None),
    ],
)
def test_layers_that_the_original_recomputes(tmp_path, change, layers):
    convert(tmp_path, {**VIDEO, **change})
    config = AutoModelForVideoClassification.from_pretrained(tmp_path / "model").config
    assert config.gradient_checkpointing_layers == layers


def test_null_is_an_argument_that_is_not_given(tmp_path):
    torch.save(random_weights(**VIDEO), tmp_path / "a.pth")
    for name, value in {"empty": {}, "null": dict.fromkeys(ARGUMENTS) | {"ssm_cfg": {"expand": None}}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
        paths = [str(tmp_path / file) for file in ("a.pth", name, f"{name}.json")]
        main([*paths[:2], "--original-config", paths[2]])
    assert (tmp_path / "null" / "config.json").read_text() == (tmp_path / "empty" / "config.json").read_text()


def test_the_width_of_a_mixer_is_found_whatever_it_is_a_multiple_of():
    for width in (24, 49, 192, 193):
        for inner in range(1, 3 * width):
            assert int(find_factor(inner, width) * width) == inner


def test_crops_fit_into_frames_of_any_aspect(tmp_path):
    kwargs = {**VIDEO, "img_size": [48, 64]}
    convert(tmp_path, kwargs)
    processor = AutoVideoProcessor.from_pretrained(tmp_path / "model")
    for size in ((90, 40), (40, 90), (64, 64)):
        clip = torch.full((8, 3, *size), 255, dtype=torch.uint8)
        pixels = processor(clip, return_tensors="pt")["pixel_values"]
        assert pixels.shape == (1, 2, 3, 48, 64)
        assert (pixels == pixels[:, :1, :, :1, :1]).all(), "padding would show"


@pytest.mark.parametrize(
    ("kwargs", "config", "message"),
    [
        ({**VIDEO, "img_size": [32, 48]}, {}, "do not tell image_size: pass `--set image_size=VALUE`"),
        ({**VIDEO, "img_size": [32, 48]}, {"img_size": [48, 48]}, "3 x 3 patches"),
        ({**VIDEO, "ssm_cfg": {"expand": 1.3}}, {"ssm_cfg": {"expand": 1.5}}, "expand=1.5, the tensors say 1.28125"),
    ],
)
def test_contradictions_are_named(tmp_path, refused, kwargs, config, message):
    torch.save(random_weights(**kwargs), tmp_path / "a.pth")
    (tmp_path / "original.json").write_text(json.dumps(config))
    assert message in refused(main, tmp_path / "a.pth", "--original-config", tmp_path / "original.json")


def test_a_size_that_is_no_square_is_set(tmp_path):
    torch.save(random_weights(**VIDEO | {"img_size": [32, 48]}), tmp_path / "a.pth")
    main([str(tmp_path / "a.pth"), str(tmp_path / "model"), "--set", "image_size=[32, 48]"])
    assert AutoModelForVideoClassification.from_pretrained(tmp_path / "model").config.image_size == [32, 48]
