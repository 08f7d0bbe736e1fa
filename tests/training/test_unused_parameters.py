"""Which models leave parameters unused; compared with those that get a gradient in a step of training."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForVideoClassification, PreTrainedConfig

from hf_video.loading.clip_size import clip_size
from hf_video.models.videomamba import VideoMambaConfig, VideoMambaForVideoClassification
from hf_video.training import add_lora, freeze_layers, make_linear_probe
from hf_video.training.parallelism import unused_parameters

from .tiny import make_model
from .transformers_families import FAMILIES, save_family


def without_gradient(model):
    """The names of the trainable parameters that a training step of two clips gives no gradient."""
    num_frames, image_size = clip_size(model.config)
    clips = torch.randn(2, num_frames, 3, image_size, image_size)
    model.train()(**{model.main_input_name: clips})["logits"].sum().backward()
    return [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]


@pytest.mark.parametrize("family", FAMILIES)
def test_in_families_of_transformers(family, tmp_path):
    model = AutoModelForVideoClassification.from_pretrained(save_family(family, tmp_path, ["a", "b"]))
    found = unused_parameters(model)
    assert found == without_gradient(model)
    assert all(name.startswith("vjepa2.predictor.") for name in found)
    assert bool(found) == (family == "vjepa2")


def _videomamba():
    sizes = {"image_size": 16, "patch_size": 8, "num_frames": 2, "hidden_size": 16, "num_hidden_layers": 2}
    return VideoMambaForVideoClassification(VideoMambaConfig(**sizes, num_labels=2))


def _frozen():
    model = make_model(num_hidden_layers=2)
    freeze_layers(model, 2)
    return model


def _probe():
    model = make_model()
    make_linear_probe(model)
    return model


def _adapted():
    pytest.importorskip("peft")
    return add_lora(make_model(), 2)


@pytest.mark.parametrize(
    "make", [make_model, lambda: make_model(drop_path_rate=0.5), _videomamba, _frozen, _probe, _adapted]
)
def test_our_models_use_all_that_is_trained(make):
    model = make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, was_training = torch.get_rng_state(), model.training
    assert unused_parameters(model) == []
    assert torch.equal(torch.get_rng_state(), state) and model.training == was_training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert without_gradient(model) == []


def test_a_model_without_a_size_of_clips_is_not_judged():
    assert unused_parameters(SimpleNamespace(config=PreTrainedConfig())) is None


def test_a_frozen_parameter_is_no_unused_one():
    model = make_model()
    model.spare = torch.nn.Parameter(torch.zeros(1))
    assert unused_parameters(model) == ["spare"]
    model.spare.requires_grad_(False)
    assert unused_parameters(model) == []


def test_a_model_that_needs_more_than_a_clip_is_not_judged(monkeypatch):
    model = make_model()
    monkeypatch.setattr(model, "forward", lambda pixel_values, texts: None)
    model.train()
    assert unused_parameters(model) is None
    assert model.training


def test_the_pass_keeps_no_activations():
    """Training recomputes them where they do not fit."""
    model, kept = make_model(num_hidden_layers=2), []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):
        assert unused_parameters(model) == []
    assert not kept
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):
        model(torch.zeros(1, 2, 3, 16, 16))
    assert kept
