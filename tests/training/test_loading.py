import logging

import pytest
import torch

from hf_video.loading.class_names import class_names_of
from hf_video.loading.classifiers import load_classifier
from hf_video.loading.clip_size import set_input_size
from hf_video.loading.processors import load_processor
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.processing import VideoClipProcessor

NAMES = ["clap", "jump", "wave"]


@pytest.fixture
def saved(tmp_path):
    config = VideoViTConfig(
        image_size=32,
        num_frames=4,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        id2label=dict(enumerate(NAMES)),
    )
    model = VideoViTForVideoClassification(config)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model", model


def test_the_head_is_kept_for_the_same_classes(saved, caplog):
    folder, model = saved
    loaded = load_classifier(folder, NAMES)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert not [record for record in caplog.records if record.name == "hf_video.loading.classifiers"]


@pytest.mark.parametrize("names", [["clap", "jump", "run"], ["clap", "run"]])
def test_other_classes_get_a_head_of_their_own(saved, names, caplog):
    folder, model = saved
    with caplog.at_level(logging.WARNING, logger="hf_video.loading.classifiers"):
        loaded = load_classifier(folder, names)
    assert class_names_of(loaded.config) == names
    assert loaded.config.label2id == {name: index for index, name in enumerate(names)}
    assert loaded.classifier.weight.shape == (len(names), 24)
    assert not torch.equal(loaded.classifier.weight[:2], model.classifier.weight[:2])
    torch.testing.assert_close(loaded.videovit.state_dict(), model.videovit.state_dict(), rtol=0, atol=0)
    message = caplog.records[-1].getMessage()
    assert f"knows 3 other classes (clap, jump, wave), the data have {len(names)}" in message


def test_a_processor_follows_the_configuration_where_none_is_saved(saved, caplog):
    folder, model = saved
    processor = load_processor(folder, model.config)
    assert processor.num_frames == 4
    assert dict(processor.crop_size) == {"height": 32, "width": 32}
    assert "has no processor file" in caplog.text


def test_saved_options_win_over_the_configuration_and_given_ones_over_both(saved):
    folder, model = saved
    VideoClipProcessor(num_frames=8, sampling_strategy="uniform", num_clips=2).save_pretrained(folder)
    processor = load_processor(folder, model.config, num_clips=3, num_crops=None)
    assert (processor.num_frames, processor.sampling_strategy) == (8, "uniform")
    assert (processor.num_clips, processor.num_crops) == (3, 1)


def test_the_input_size_is_baked_in(saved):
    _, model = saved
    set_input_size(model, image_size=48, num_frames=8)
    assert (model.config.image_size, model.config.num_frames) == (48, 8)
    assert model(torch.zeros(1, 8, 3, 48, 48)).logits.shape == (1, 3)


def test_a_fresh_head_is_drawn_as_the_model_draws_it(saved):
    folder, _ = saved
    head = load_classifier(folder, ["clap", "jump", "run"], classifier_init_scale=0.001).classifier
    assert 0 < head.weight.abs().max() < 1e-3
    assert not head.bias.any()
