"""What holds for the configurations of all families."""

import inspect
import itertools
import math
from dataclasses import fields
from typing import get_args

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

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


@pytest.mark.parametrize("config_class", CONFIGURATIONS)
def test_every_number_is_finite(config_class):
    """Comparisons do not find NaN."""
    for name, value in itertools.product(numbers_of(config_class), (math.nan, math.inf)):
        with pytest.raises(StrictDataclassError, match=rf"`{name}` must be .+, got {value}\."):
            config_class(**{name: value})


@pytest.mark.parametrize(
    ("config_class", "options"),
    [
        (VideoViTConfig, {"initializer_range": 0.0}),
        (VideoViTConfig, {"layer_scale_init_value": -1}),
        (VideoViTConfig, {"position_embedding_resize": "token_count", "position_embedding_grid": [2, 3, 3]}),
        (VideoMambaConfig, {"layer_norm_eps": 0.0}),
        (VideoMambaConfig, {"hidden_act": "nonsense"}),
        (VideoMambaConfig, {"time_step_floor": -0.1}),
        (MemoryBankQFormerConfig, {"projection_dim": 0}),
        (MemoryBankQFormerConfig, {"video_token_id": -1}),
        (MemoryBankQFormerConfig, {"vision_config": "clip"}),
    ],
)
def test_what_no_model_works_with_is_refused(config_class, options):
    with pytest.raises((StrictDataclassError, ValueError), match="|".join(options)):
        config_class(**options)


@pytest.mark.parametrize("config_class", CONFIGURATIONS)
def test_another_number_of_classes_replaces_the_saved_names(config_class, tmp_path):
    config_class(id2label={0: "cat", 1: "dog"}).save_pretrained(tmp_path)
    assert config_class.from_pretrained(tmp_path).id2label == {0: "cat", 1: "dog"}
    assert config_class.from_pretrained(tmp_path, num_labels=2).id2label == {0: "cat", 1: "dog"}
    assert config_class.from_pretrained(tmp_path, num_labels=3).num_labels == 3


@pytest.mark.parametrize("config_class", [VideoViTConfig, VideoMambaConfig])
def test_models_without_layers_that_need_them(config_class):
    sizes = {"image_size": 8, "patch_size": 4, "num_frames": 2, "hidden_size": 24, "num_hidden_layers": 0}
    family = config_class.__name__.removesuffix("Config")
    needy = [f"{family}Backbone", *(["VideoMambaForPreTraining"] if family == "VideoMamba" else [])]
    for name in needy:
        with pytest.raises(ValueError, match="`num_hidden_layers` must be at least 1 in this model, got 0"):
            getattr(hf_video, name)(config_class(**sizes))


@pytest.mark.parametrize("name", ["VideoViT", "VideoMamba"])
@pytest.mark.parametrize("kind", ["Model", "ForVideoClassification", "Backbone"])
def test_a_configuration_may_ask_for_tuples(name, kind):
    sizes = {"image_size": 8, "patch_size": 4, "num_frames": 2, "hidden_size": 24, "num_hidden_layers": 1}
    config = getattr(hf_video, f"{name}Config")(**sizes, return_dict=False)
    model = getattr(hf_video, f"{name}{kind}")(config).eval()
    outputs = model(torch.zeros(1, 2, 3, 8, 8))
    assert isinstance(outputs, tuple)
    assert not isinstance(model(torch.zeros(1, 2, 3, 8, 8), return_dict=True), tuple)
