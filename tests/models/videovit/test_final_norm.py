"""The norm after the last block: one configuration builds the same encoder in every class."""

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForVideoClassification,
)

from hf_video import (
    VideoViTBackbone,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
)

from . import videovit_testing
from .videovit_testing import random_clips, tiny_config

NORMALISING = [VideoViTForPreTraining, VideoViTBackbone]


def make(model_class, **settings):
    model = videovit_testing.make(model_class, **settings)
    if model.base_model.layernorm is not None:
        torch.nn.init.normal_(model.base_model.layernorm.weight)
    return model


def tokens_of(model, clips):
    with torch.no_grad():
        return model.base_model(clips).last_hidden_state


# `AutoBackbone.from_pretrained` of Transformers takes no folders.
@pytest.mark.parametrize(
    ("model_class", "loading_class"),
    [
        (VideoViTForPreTraining, AutoModel),
        (VideoViTForPreTraining, VideoViTBackbone),
        (VideoViTBackbone, AutoModelForPreTraining),
    ],
)
def test_every_class_loads_the_same_encoder(tmp_path, model_class, loading_class):
    model = make(model_class)
    folder = tmp_path / "first"
    model.save_pretrained(folder)
    clips = random_clips(model.config)
    loaded, info = loading_class.from_pretrained(folder, output_loading_info=True)
    assert not [name for name in info["unexpected_keys"] if name.startswith("videovit.")]
    assert not [name for name in info["missing_keys"] if "decoder" not in name and name != "mask_token"]
    torch.testing.assert_close(tokens_of(loaded, clips), tokens_of(model, clips))
    loaded.save_pretrained(tmp_path / "second")
    again = AutoModel.from_pretrained(tmp_path / "second")
    torch.testing.assert_close(tokens_of(again, clips), tokens_of(model, clips))
    built = VideoViTModel(AutoConfig.from_pretrained(folder))
    assert built.state_dict().keys() == again.state_dict().keys()


@pytest.mark.parametrize("use_mean_pooling", [False, True])
def test_a_classifier_of_a_pre_trained_encoder_normalises_as_one_from_scratch(tmp_path, use_mean_pooling):
    """VideoMAE fine-tunes the mean over tokens with `fc_norm` alone: the encoder's final norm is left behind."""
    pretrained = make(VideoViTForPreTraining, use_mean_pooling=use_mean_pooling)
    folder = tmp_path / "pretrained"
    pretrained.save_pretrained(folder)
    classifier = AutoModelForVideoClassification.from_pretrained(folder)
    scratch = make(VideoViTForVideoClassification, use_mean_pooling=use_mean_pooling)
    assert classifier.state_dict().keys() == scratch.state_dict().keys()
    assert (classifier.videovit.layernorm is None) == use_mean_pooling
    shared = pretrained.videovit.state_dict().keys() & scratch.videovit.state_dict().keys()
    scratch.videovit.load_state_dict({name: pretrained.videovit.state_dict()[name] for name in shared})
    clips = random_clips(scratch.config)
    torch.testing.assert_close(tokens_of(classifier, clips), tokens_of(scratch, clips))
    classifier.save_pretrained(tmp_path / "classifier")
    for auto_class in (AutoModel, AutoModelForVideoClassification):
        reloaded = auto_class.from_pretrained(tmp_path / "classifier")
        torch.testing.assert_close(tokens_of(reloaded, clips), tokens_of(scratch, clips))
    back = AutoModelForPreTraining.from_pretrained(tmp_path / "classifier")
    assert back.videovit.layernorm is not None, "pre-training goes on with a final norm"


@pytest.mark.parametrize("model_class", NORMALISING)
@pytest.mark.parametrize("use_final_norm", [False, True])
def test_what_the_configuration_says_holds_in_every_class(tmp_path, model_class, use_final_norm):
    model = make(model_class, use_final_norm=use_final_norm)
    model.save_pretrained(tmp_path)
    for loaded in (model, AutoModel.from_pretrained(tmp_path), VideoViTBackbone.from_pretrained(tmp_path)):
        assert (loaded.base_model.layernorm is not None) == use_final_norm


@pytest.mark.parametrize("model_class", NORMALISING)
def test_a_configuration_that_is_shared_stays_as_it_is(model_class):
    config = tiny_config()
    before = config.to_dict()
    model = model_class(config)
    assert config.to_dict() == before and model.config.use_final_norm
    assert VideoViTForVideoClassification(config).videovit.layernorm is None
