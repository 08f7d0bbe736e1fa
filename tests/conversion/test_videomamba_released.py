"""Every tensor of every full-size VideoMamba has its place, and every released file's name is understood."""

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoImageProcessor

from conversion import videomamba
from conversion.helpers.videomamba import encoder_fields, read_variant
from conversion.helpers.weight_rules import apply_rules, load_converted
from hf_video import (
    VideoMambaConfig,
    VideoMambaForImageClassification,
    VideoMambaForPreTraining,
    VideoMambaForVideoClassification,
)
from hf_video.loading.released import released_models
from tests.testing.goldens import FIXTURES

MODELS = json.loads((FIXTURES / "videomamba" / "full_size_keys.json").read_text())["models"]
CLASSES = {
    videomamba.VIDEO: (VideoMambaForVideoClassification, videomamba.CLASSIFICATION_RULES),
    videomamba.IMAGE: (VideoMambaForImageClassification, videomamba.CLASSIFICATION_RULES),
    videomamba.PRE_TRAINING: (VideoMambaForPreTraining, videomamba.PRE_TRAINING_RULES),
}


def meta_weights(name):
    return {key: torch.empty(shape, device="meta") for key, shape in MODELS[name]["state_dict"].items()}


@pytest.mark.parametrize("name", MODELS)
def test_full_size_models(name):
    entry, weights = MODELS[name], meta_weights(name)
    task, (fields, alignment) = videomamba.task_of(weights), encoder_fields({}, weights, is_file=False)
    config = fields | alignment | {"use_temporal_position_embeddings": task != videomamba.IMAGE}
    model_class, rules = CLASSES[task]
    with torch.device("meta"):
        model = model_class(VideoMambaConfig(**config))
    patches = videomamba.patch_rule(1, "centre")
    load_converted(model, apply_rules(weights, (patches, *videomamba.ENCODER_RULES, *rules)))
    assert sum(parameter.numel() for parameter in model.parameters()) == entry["num_parameters"]
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.ndim != 5) == sum(
        value.numel() for value in weights.values() if value.ndim < 4
    )


@pytest.mark.parametrize(("size", "millions"), [("tiny", 7.03), ("small", 25.57), ("middle", 73.88)])
def test_presets_have_the_published_sizes(size, millions):
    with torch.device("meta"):
        model = VideoMambaForVideoClassification(VideoMambaConfig.preset(size, num_labels=400))
    assert round(model.num_parameters() / 1e6, 2) == millions
    with pytest.raises(ValueError, match="no VideoMamba of size 'large'"):
        VideoMambaConfig.preset("large")


@pytest.mark.parametrize(
    ("variant", "model", "strategy"),
    [
        ("videomamba_t16_k400_f8_res224", "videomamba_tiny_video_f8_res224_c400", "sparse"),
        ("videomamba_m16_k400_mask_ft_f8_res224", "videomamba_middle_video_f8_res224_c400", "sparse"),
        ("videomamba_m16_ssv2_mask_pt_f8_res224", "videomamba_middle_mask_pretrain_f8_res224", "uniform"),
        ("videomamba_b16_in1k_res224", "videomamba_base_image_res224_c1000", "sparse"),
    ],
)
def test_a_released_name_agrees_with_its_tensors(variant, model, strategy):
    entry = MODELS[model]
    fields, _ = encoder_fields(read_variant(variant), meta_weights(model), is_file=False)
    assert (fields["hidden_size"], fields["num_hidden_layers"]) == (entry["embed_dim"], entry["depth"])
    assert videomamba.make_processor(VideoMambaConfig(), videomamba.VIDEO, variant).sampling_strategy == strategy


def test_every_released_file_is_listed_with_what_its_name_says():
    variants = [name for name in released_models() if name.startswith("videomamba_")]
    assert len(variants) == 61
    sizes = {name: read_variant(name) for name in variants}
    assert sizes["videomamba_s16_k400_f64_res224to384"] == {
        "embed_dim": 384,
        "depth": 24,
        "patch_size": 16,
        "img_size": 384,
        "num_frames": 64,
        "num_classes": 400,
    }
    assert sizes["videomamba_t16_in1k_res224to448to576"]["img_size"] == 576
    assert "num_frames" not in sizes["videomamba_m16_breakfast_mask_ft_f64_res224"]
    assert sizes["videomamba_m16_coin_mask_ft_f64_res224"]["num_classes"] == 180


def test_the_image_processor_equals_the_original(tmp_path):
    """Within one grey level."""
    case = load_file(FIXTURES / "videomamba" / "image_preprocessing.safetensors")
    config = VideoMambaConfig(image_size=40, num_frames=1)
    videomamba.make_processor(config, videomamba.IMAGE, None).save_pretrained(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    image = case["image"].permute(2, 0, 1)
    for each in (image, image.permute(1, 2, 0).numpy(), Image.fromarray(case["image"].numpy())):
        found = processor(each, return_tensors="pt")["pixel_values"][0]
        torch.testing.assert_close(found, case["image_eval"], atol=1.01 / 255 / 0.224, rtol=0)
