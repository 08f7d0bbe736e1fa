"""Gradient checkpointing of all layers of VideoViT or of some."""

import copy
import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForVideoClassification, Trainer, TrainingArguments

from hf_video import VideoViTConfig, VideoViTForPreTraining, VideoViTForVideoClassification
from hf_video.models.videovit.masking_videovit import tube_mask

from . import videovit_testing
from .videovit_testing import ATTENTIVE, random_clips


def make(model_class=VideoViTForVideoClassification, **settings):
    return videovit_testing.make(model_class, **settings).train()


def count_runs(layers):
    """How often the attention of every layer has run since, in a list that grows with the runs."""
    runs = [0] * len(layers)

    def count(index):
        def hook(*_):
            runs[index] += 1

        return hook

    for index, layer in enumerate(layers):
        layer.attention.register_forward_hook(count(index))
    return runs


@pytest.mark.parametrize(
    ("chosen", "runs", "use_reentrant"),
    [(None, [2, 2, 2], True), (1, [2, 1, 1], False), ([0, 2], [2, 1, 2], False)],
)
def test_chosen_layers_run_twice_and_give_the_same_gradients(chosen, runs, use_reentrant):
    model = make(**ATTENTIVE, gradient_checkpointing_layers=chosen)
    checkpointed = copy.deepcopy(model)
    checkpointed.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    counted = count_runs(checkpointed.videovit.layers)
    clips, labels = random_clips(model.config), torch.tensor([1, 3])
    for each in (model, checkpointed):
        each(clips, labels=labels).loss.backward()
    assert counted == runs
    for (name, old), new in zip(model.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(new.grad, old.grad, msg=name)


def test_it_is_switched_off_again():
    model = make(gradient_checkpointing_layers=2)
    model.activation_checkpointing_enable()
    assert model.is_activation_checkpointing
    model.activation_checkpointing_disable()
    counted = count_runs(model.videovit.layers)
    model(random_clips(model.config), labels=torch.tensor([1, 3])).loss.backward()
    assert counted == [1, 1, 1] and not model.is_activation_checkpointing


def test_a_call_that_leaves_layers_out_comes_before_the_configuration():
    model = make(gradient_checkpointing_layers=[0, 1])
    model.activation_checkpointing_enable(every_n_layers=2)
    assert [layer.gradient_checkpointing for layer in model.videovit.layers] == [True, False, True]


def test_the_decoder_of_pre_training_is_recomputed_whole():
    model = make(VideoViTForPreTraining, gradient_checkpointing_layers=[1], decoder_num_hidden_layers=2)
    model.activation_checkpointing_enable()
    encoder, decoder = count_runs(model.videovit.layers), count_runs(model.decoder.layers)
    model(random_clips(model.config), bool_masked_pos=tube_mask(2, model.config.token_grid, 0.5)).loss.backward()
    assert (encoder, decoder) == ([1, 2, 1], [2, 2])


def test_trainer_recomputes_the_layers_of_a_saved_configuration(tmp_path):
    make(gradient_checkpointing_layers=[0, 2]).save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["gradient_checkpointing_layers"] == [0, 2]
    model = AutoModelForVideoClassification.from_pretrained(tmp_path / "model")
    counted = count_runs(model.videovit.layers)
    clips = [{"pixel_values": clip, "labels": torch.tensor(1)} for clip in random_clips(model.config)]
    arguments = TrainingArguments(
        tmp_path / "run",
        gradient_checkpointing=True,
        max_steps=1,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=clips).train()
    assert counted == [2, 1, 2]


@pytest.mark.parametrize("wrong", [0, -1, 4, [], [3], [-1], True, [True], 1.5, "all"])
def test_layers_that_do_not_exist_are_refused(wrong):
    with pytest.raises((ValueError, StrictDataclassError), match="gradient_checkpointing_layers"):
        VideoViTConfig(num_hidden_layers=3, gradient_checkpointing_layers=wrong)
