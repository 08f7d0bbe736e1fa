"""The norm after the last block: one configuration builds the same encoder in every class."""

import json

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForVideoClassification,
    BertConfig,
    VisionEncoderDecoderConfig,
)

from hf_video import (
    MemoryBankQFormerConfig,
    VideoViTBackbone,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
)

from .videovit_testing import random_clips, tiny_config

NORMALISING = [VideoViTForPreTraining, VideoViTBackbone]


def make(model_class, **settings):
    torch.manual_seed(0)
    model = model_class(tiny_config(**settings)).eval()
    if model.base_model.layernorm is not None:
        torch.nn.init.normal_(model.base_model.layernorm.weight)
    return model


def save(model, folder, open_norm):
    """Save a model, with `open_norm` as folders were written whose configuration leaves the norm to the class."""
    model.save_pretrained(folder)
    if open_norm:
        config = json.loads((folder / "config.json").read_text()) | {"use_final_norm": None}
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def tokens_of(model, clips):
    with torch.no_grad():
        return model.base_model(clips).last_hidden_state


@pytest.mark.parametrize("open_norm", [False, True])
# `AutoBackbone.from_pretrained` of Transformers takes no folders.
@pytest.mark.parametrize("loading_class", [AutoModel, VideoViTBackbone, AutoModelForPreTraining])
@pytest.mark.parametrize("model_class", NORMALISING)
def test_every_class_loads_the_same_encoder(tmp_path, model_class, loading_class, open_norm):
    model = make(model_class)
    folder = save(model, tmp_path / "first", open_norm)
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


@pytest.mark.parametrize("open_norm", [False, True])
@pytest.mark.parametrize("use_mean_pooling", [False, True])
def test_a_classifier_of_a_pre_trained_encoder_normalises_as_one_from_scratch(tmp_path, use_mean_pooling, open_norm):
    """VideoMAE fine-tunes the mean over tokens with `fc_norm` alone: the encoder's final norm is left behind."""
    pretrained = make(VideoViTForPreTraining, use_mean_pooling=use_mean_pooling)
    folder = save(pretrained, tmp_path / "pretrained", open_norm)
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


@pytest.mark.parametrize("model_class", NORMALISING)
def test_an_encoder_inside_another_model_has_no_norm_that_it_was_saved_without(tmp_path, model_class):
    """Saved with its configuration as its folder had it; `AutoModel` had built it without the norm."""
    encoder = json.loads(
        (save(make(model_class, tubelet_size=1), tmp_path / "encoder", True) / "config.json").read_text()
    )
    VisionEncoderDecoderConfig(encoder=encoder, decoder=BertConfig().to_dict()).save_pretrained(tmp_path / "text")
    MemoryBankQFormerConfig(vision_config=encoder).save_pretrained(tmp_path / "answers")
    for nested in (
        AutoConfig.from_pretrained(tmp_path / "text").encoder,
        AutoConfig.from_pretrained(tmp_path / "answers").vision_config,
    ):
        assert AutoModel.from_config(nested).layernorm is None
