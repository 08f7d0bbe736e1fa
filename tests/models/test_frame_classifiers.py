"""Classifiers of frames of both families: padding, pooling and losses."""

import math

import pytest
import torch
from transformers import AutoModelForTokenClassification

from .videomamba.videomamba_testing import random_clips
from .videomamba.videomamba_testing import tiny_config as mamba_config
from .videovit.videovit_testing import VJEPA2
from .videovit.videovit_testing import tiny_config as vit_config

CONFIGURATIONS = {
    "videomamba": lambda **settings: mamba_config(**settings),
    "causal": lambda **settings: mamba_config(
        bidirectional=False, use_temporal_position_embeddings=False, conv_kernel=7, **settings
    ),
    "temporal_first": lambda **settings: mamba_config(scan_order="temporal_first", **settings),
    "spatiotemporal": lambda **settings: mamba_config(scan_order="spatiotemporal", **settings),
    "videovit": lambda **settings: vit_config(num_frames=8, **settings),
    "class token": lambda **settings: vit_config(
        use_class_token=True, position_embedding_type="learned", tubelet_size=1, num_frames=4, **settings
    ),
    "rope": lambda **settings: vit_config(position_embedding_type="rope", **settings),
    "V-JEPA 2": lambda **settings: vit_config(**VJEPA2, **settings),
}


def make(name, **settings):
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_config(CONFIGURATIONS[name](**settings)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * expected.detach().abs().max().item())


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_clip_gives_the_same_alone_and_padded(name):
    """Whatever pixels the padding has; and its gradients are those of the clip alone."""
    model = make(name)
    clips, size = random_clips(model.config), model.config.tubelet_size
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    short, labels = clips[1:, : 2 * size], torch.tensor([[0, 1, 2, -100], [3, 4, -100, -100]])
    padded = model(clips, attention_mask=mask, labels=labels)
    alone = model(short, labels=labels[1:, :2])
    assert_same(padded.logits[1:, :2], alone.logits)
    assert_same(padded.logits[:1], model(clips[:1]).logits)
    whole = model(clips[:1], labels=labels[:1])
    torch.testing.assert_close(padded.loss, (2 * alone.loss + 3 * whole.loss) / 5)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    found = torch.autograd.grad(padded.logits[1, :2].square().sum(), weights, allow_unused=True)
    wanted = torch.autograd.grad(alone.logits.square().sum(), weights, allow_unused=True)
    for gradient, expected in zip(found, wanted, strict=True):
        if expected is not None:
            assert_same(gradient, expected)


@pytest.mark.parametrize("name", ["videomamba", "class token"])
def test_positions_over_time_are_those_of_the_first_frames(name):
    model = make(name)
    clips = random_clips(model.config, num_frames=10, batch_size=1)
    with pytest.raises(ValueError, match="5 token frames, but there are positions for 4|10 token frames"):
        model(clips)
    larger = random_clips(model.config, image_size=(48, 32), num_frames=model.config.tubelet_size)
    assert model(larger).logits.shape == (2, 1, 5)
    with pytest.raises(ValueError, match=r"mask of frames must have the shape .* \(2, 1\), got \(2, 3\)"):
        model(larger, attention_mask=torch.ones(2, 3))


def test_eager_attention_leaves_padding_out():
    model = make("videovit")
    model.set_attn_implementation("eager")
    clips = random_clips(model.config)
    padded = model(clips, attention_mask=torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]]))
    assert_same(padded.logits[:1, :1], model(clips[:1, :2]).logits)


@pytest.mark.parametrize("name", ["videomamba", "class token"])
def test_a_frame_is_the_mean_of_its_patches_or_the_last_of_them(name):
    model = make(name)
    clips = random_clips(model.config)
    tokens = model.base_model(clips).last_hidden_state[:, -4 * 16 :].unflatten(1, (4, 16))
    torch.testing.assert_close(model(clips).logits, model.classifier(tokens.mean(dim=2)))
    model.config.frame_pooling = "last"
    torch.testing.assert_close(model(clips).logits, model.classifier(tokens[:, :, -1]))


def test_the_smoothing_loss_is_that_of_ms_tcn():
    """Written out, with a difference above 4, an unknown frame, which counts, and padding, which does not."""
    model = make("videomamba", smoothing_loss_weight=0.15)
    clips, mask = random_clips(model.config), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    labels = torch.tensor([[0, -100, 2, 3], [3, 4, -100, -100]])
    torch.nn.init.normal_(model.classifier.weight, std=10.0)
    outputs = model(clips, attention_mask=mask, labels=labels)
    logs = outputs.logits.log_softmax(-1)
    entropy = -torch.stack([logs[0, 0, 0], logs[0, 2, 2], logs[1, 0, 3], logs[1, 1, 4]]).mean()
    pairs = [(logs[0, 1], logs[0, 0]), (logs[0, 2], logs[0, 1]), (logs[1, 1], logs[1, 0])]
    squares = torch.stack([(later - earlier).abs().clamp(max=4).square() for later, earlier in pairs])
    assert (squares == 16).any()
    torch.testing.assert_close(outputs.loss, entropy + 0.15 * squares.mean())
    # The earlier frame gets no gradient.
    outputs = model(clips[:, : 2 * model.config.tubelet_size], labels=torch.full((2, 2), -100))
    gradient = torch.autograd.grad(outputs.loss, outputs.logits)[0]
    assert not gradient[:, 0].any() and gradient[:, 1].any()


def test_several_labels_at_once_are_floats():
    model = make("videomamba")
    clips = random_clips(model.config)
    labels = torch.zeros(2, 4, 5)
    labels[0, 0, [1, 3]], labels[1, 2] = 1.0, -100.0
    outputs = model(clips, labels=labels)
    known = torch.ones(2, 4, dtype=torch.bool)
    known[1, 2] = False
    expected = torch.nn.functional.binary_cross_entropy_with_logits(outputs.logits[known], labels[known])
    torch.testing.assert_close(outputs.loss, expected)
    assert model.config.problem_type == "multi_label_classification"
    with pytest.raises(ValueError, match="with logits of|With logits of"):
        model(clips, labels=torch.zeros(2, 4, dtype=torch.long))


def test_parts_of_an_accumulated_batch_add_up_to_the_whole():
    model = make("videomamba")
    clips = random_clips(model.config)
    labels = torch.tensor([[0, 1, 2, 3], [3, -100, -100, -100]])
    whole = model(clips, labels=labels).loss
    parts = [model(clips[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=5).loss for i in range(2)]
    torch.testing.assert_close(sum(parts), whole)
    assert model(clips, labels=torch.full((2, 4), -100)).loss == 0
    assert math.isfinite(whole)


@pytest.mark.parametrize("name", ["videomamba", "videovit"])
def test_it_is_saved_and_found_by_the_auto_class(name, tmp_path):
    model = make(name, frame_pooling="last", smoothing_loss_weight=0.15)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path)
    clips = random_clips(model.config)
    torch.testing.assert_close(loaded(clips).logits, model(clips).logits)
    assert type(loaded) is type(model) and loaded.config.frame_pooling == "last"
