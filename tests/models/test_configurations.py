"""What holds for the configurations of all families."""

import inspect
import math
from dataclasses import fields
from typing import get_args

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import InstructBlipQFormerConfig, InstructBlipVisionConfig, PreTrainedModel

import hf_video
from hf_video import MemoryBankQFormerConfig, VideoMambaConfig, VideoViTConfig
from hf_video.auto import CLASSES

CONFIGURATIONS = (VideoViTConfig, VideoMambaConfig, MemoryBankQFormerConfig)


def numbers_of(config_class):
    """The fields that take a float."""
    return [field.name for field in fields(config_class) if float in (field.type, *get_args(field.type))]


@pytest.mark.parametrize("name", [each.class_name for each in CLASSES if hasattr(hf_video, each.class_name)])
def test_a_model_is_made_from_its_configuration_alone(name):
    model_class = getattr(hf_video, name)
    if issubclass(model_class, PreTrainedModel):
        assert list(inspect.signature(model_class).parameters) == ["config"]


@pytest.mark.parametrize(
    ("config_class", "name"),
    [(config_class, name) for config_class in CONFIGURATIONS for name in numbers_of(config_class)],
)
def test_every_number_is_finite(config_class, name):
    """Comparisons do not find NaN."""
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(StrictDataclassError, match=rf"`{name}` must be finite, got {value}\."):
            config_class(**{name: value})


def test_norms_and_factors_are_among_the_numbers():
    assert {"layer_norm_eps", "head_norm_eps", "qk_scale", "layer_scale_init_value"} <= set(numbers_of(VideoViTConfig))
    assert {"layer_norm_eps", "expand", "time_step_floor"} <= set(numbers_of(VideoMambaConfig))
    assert {"vision_layer_norm_eps", "classifier_dropout"} <= set(numbers_of(MemoryBankQFormerConfig))


@pytest.mark.parametrize(
    ("config_class", "options", "message"),
    [
        (VideoViTConfig, {"image_std": [0.5, math.nan, 0.5]}, "`image_std` must be finite"),
        (VideoViTConfig, {"image_mean": [math.inf, 0.5, 0.5]}, "`image_mean` must be finite"),
        (VideoViTConfig, {"image_std": [0.5, 0.0, 0.5]}, "the latter above 0"),
        (VideoViTConfig, {"image_std": [0.5, -0.5, 0.5]}, "the latter above 0"),
        (VideoViTConfig, {"image_std": [0.5]}, "must have as many values as each other"),
        (VideoViTConfig, {"initializer_range": -0.02}, "`initializer_range` must be above 0, got -0.02"),
        (VideoViTConfig, {"layer_norm_eps": -1e-6}, "`layer_norm_eps` must be above 0, got -1e-06"),
        (VideoMambaConfig, {"layer_norm_eps": 0.0}, "`layer_norm_eps` must be above 0, got 0.0"),
        (VideoMambaConfig, {"initializer_range": -0.02}, "`initializer_range` must be above 0, got -0.02"),
        (
            MemoryBankQFormerConfig,
            {"vision_layer_norm_eps": -1.0},
            "`vision_layer_norm_eps` must be above 0, got -1.0",
        ),
        (MemoryBankQFormerConfig, {"initializer_range": -1.0}, "`initializer_range` must be at least 0, got -1.0"),
        (
            MemoryBankQFormerConfig,
            {"qformer_config": InstructBlipQFormerConfig(layer_norm_eps=math.nan)},
            "`qformer_config.layer_norm_eps` must be finite",
        ),
        (
            MemoryBankQFormerConfig,
            {"vision_config": InstructBlipVisionConfig(layer_norm_eps=math.nan)},
            "`vision_config.layer_norm_eps` must be finite",
        ),
    ],
)
def test_other_numbers_that_no_model_can_have(config_class, options, message):
    with pytest.raises(StrictDataclassError, match=message):
        config_class(**options)
