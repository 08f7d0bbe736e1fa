"""VideoViT's attention against its formula in double precision, and what a bias of the keys does to it."""

import math

import pytest
import torch
from torch import nn
from transformers import AutoModel

from hf_video import VideoViTForVideoClassification, VideoViTModel

from . import videovit_testing
from .videovit_testing import random_clips, tiny_config

HEADS, WIDTH = 3, 12
KINDS = {
    "plain": {},
    "layer_norm": {"use_qk_norm": True},
    "rms_norm": {"use_qk_norm": True, "norm_type": "rms_norm"},
    "rope": {"position_embedding_type": "rope"},
    "cosine": {"use_cosine_attention": True},
    "all": {"use_qk_norm": True, "use_cosine_attention": True, "position_embedding_type": "rope"},
}


def make(model_class=VideoViTModel, **settings):
    """A model whose parameters are all random."""
    model = videovit_testing.make(model_class, **settings)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def normalize_heads(states, norm):
    """LayerNorm or RMSNorm over the channels of a head."""
    if isinstance(norm, nn.Identity):
        return states
    if isinstance(norm, nn.LayerNorm):
        states = states - states.mean(-1, keepdim=True)
    states = states / (states.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    return states + norm.bias if isinstance(norm, nn.LayerNorm) else states


def rotate_heads(states, config):
    """RoPE by complex numbers: channels i and i + width / 2 are one, whose angle grows along an axis."""
    pairs = WIDTH // 2
    share = {"row": pairs // 3, "column": pairs // 3}
    share["time"] = pairs - sum(share.values())
    _, height, width = config.token_grid
    factors = []
    for token in range(math.prod(config.token_grid)):
        place = {"time": token // (height * width), "row": token // width % height, "column": token % width}
        angles = [
            place[axis] * config.rope_theta ** (-i / share[axis])
            for axis in ("time", "row", "column")
            for i in range(share[axis])
        ]
        factors.append(torch.polar(torch.ones(pairs, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64)))
    rotated = torch.complex(states[..., :pairs], states[..., pairs:]) * torch.stack(factors)
    return torch.cat([rotated.real, rotated.imag], dim=-1)


def attend(attention, tokens):
    """The formula: softmax(queries keys^T) values for every head, then the output projection."""
    config = attention.config
    query, key, value = (
        (tokens @ layer.weight.T + (0 if layer.bias is None else layer.bias)).unflatten(-1, (HEADS, WIDTH))
        for layer in (attention.query, attention.key, attention.value)
    )
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    query, key = normalize_heads(query, attention.q_norm), normalize_heads(key, attention.k_norm)
    factor = 1 / math.sqrt(WIDTH)
    if config.use_cosine_attention:
        query, key = (states / states.norm(dim=-1, keepdim=True) for states in (query, key))
        factor = attention.logit_scale.clamp(max=math.log(100)).exp()
    if config.position_embedding_type == "rope":
        query, key = rotate_heads(query, config), rotate_heads(key, config)
    weights = (factor * torch.einsum("bhid,bhjd->bhij", query, key)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    context = torch.einsum("bhij,bhjd->bihd", weights, value).flatten(2)
    return context @ attention.o_proj.weight.T + attention.o_proj.bias


@torch.no_grad()
def attention_of(model, tokens):
    rotary = None
    if model.rotary_embedding is not None:
        angles = model.rotary_embedding(model.config.token_grid, tokens.device)[:, None]
        rotary = angles.cos(), angles.sin()
    return model.layers[0].attention(tokens, rotary)[0]


@pytest.mark.parametrize(
    ("attention", "biases"), [("eager", {"key_bias": True}), ("sdpa", {"key_bias": True, "qkv_bias": False})]
)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_equals_its_formula(kind, biases, attention):
    model = make(**KINDS[kind], **biases, attn_implementation=attention).double()
    # Small, so that scores are a few units: RoPE rotates in float32, and its error grows with them.
    tokens = torch.randn(2, math.prod(model.config.token_grid), 36, dtype=torch.float64) / 4
    with torch.no_grad():
        expected = attend(model.layers[0].attention, tokens)
    tolerance = 1e-5 if model.rotary_embedding is not None else 1e-10
    torch.testing.assert_close(attention_of(model, tokens), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_only_plain_attention_is_indifferent_to_a_key_bias(kind):
    model = make(**KINDS[kind], key_bias=True).double()
    tokens = torch.randn(2, math.prod(model.config.token_grid), 36, dtype=torch.float64)
    biased = attention_of(model, tokens)
    nn.init.zeros_(model.layers[0].attention.key.bias)
    difference = (attention_of(model, tokens) - biased).abs().max()
    assert difference < 1e-12 if kind == "plain" else difference > 1e-2


def test_a_key_bias_starts_at_zero_and_is_saved(tmp_path):
    settings = KINDS["all"]
    torch.manual_seed(0)
    fresh, without = VideoViTModel(tiny_config(**settings, key_bias=True)), VideoViTModel(tiny_config(**settings))
    added = fresh.state_dict().keys() - without.state_dict().keys()
    assert added == {f"layers.{layer}.attention.key.bias" for layer in range(3)}
    assert not any(fresh.state_dict()[name].any() for name in added)
    model = make(**settings, key_bias=True)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    for name in added:
        assert torch.equal(loaded.state_dict()[name], model.state_dict()[name]) and model.state_dict()[name].any()
    clips = random_clips(model.config)
    with torch.no_grad():
        torch.testing.assert_close(loaded(clips).last_hidden_state, model(clips).last_hidden_state)


@pytest.mark.parametrize(
    ("use_dora", "settings"), [(False, {}), (True, {"position_embedding_type": "rope", "key_bias": True})]
)
def test_lora_changes_the_output_and_merges(use_dora, settings):
    peft = pytest.importorskip("peft", reason="peft is an optional package")
    torch.manual_seed(0)
    model = VideoViTForVideoClassification(tiny_config(**settings)).eval()
    clips = random_clips(model.config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("query.bias", "key.bias", "value.bias")):
                parameter.normal_()
        before = model(clips).logits
        adapted = peft.get_peft_model(
            model, peft.LoraConfig(target_modules=["query", "value"], use_dora=use_dora)
        ).eval()
        torch.testing.assert_close(adapted(clips).logits, before, atol=1e-5, rtol=1e-4)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
        after = adapted(clips).logits
        assert (after - before).abs().max() > 1e-2
        torch.testing.assert_close(adapted.merge_and_unload()(clips).logits, after, atol=1e-4, rtol=1e-3)
