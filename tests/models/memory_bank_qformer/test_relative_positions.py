"""Relative positions in the Q-Former, against the formula written out pair by pair."""

import pytest
import torch

from .memory_bank_qformer_testing import NUM_TOKENS, QFORMER, random_frames, random_text, tiny_model

TYPES = ["relative_key", "relative_key_query"]
NO_BANK = {"memory_bank_length": 0}
VISUAL_BANK = {"query_memory": False}


def relative_model(kind, **settings):
    return tiny_model(qformer_config={**QFORMER, "position_embedding_type": kind}, **settings)


def explicit_attention(attention, kind, hidden_states, states, mask):
    """Softmax over (q_i k_j + q_i e_(i-j) [+ k_j e_(i-j)]) / sqrt(head_dim), one pair after the other."""
    query, key, value = (
        projection(tensor).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for projection, tensor in (
            (attention.query, hidden_states),
            (attention.key, states),
            (attention.value, states),
        )
    )
    scores = torch.empty(*query.shape[:3], key.shape[2])
    for i in range(query.shape[2]):
        for j in range(key.shape[2]):
            pair = (query[:, :, i] * key[:, :, j]).sum(-1)
            if query.shape[2] == key.shape[2]:
                distance = attention.distance_embedding.weight[i - j + QFORMER["max_position_embeddings"] - 1]
                pair = pair + query[:, :, i] @ distance
                if kind == "relative_key_query":
                    pair = pair + key[:, :, j] @ distance
            scores[:, :, i, j] = pair / attention.head_dim**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask.bool()[:, None, None], float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("kind", "num_query_tokens", "implementation"),
    [(TYPES[0], NUM_TOKENS, "eager"), (TYPES[1], NUM_TOKENS - 1, "sdpa"), (TYPES[1], NUM_TOKENS, "eager")],
)
def test_attention_follows_the_formula(kind, num_query_tokens, implementation):
    model = relative_model(kind, num_query_tokens=num_query_tokens, **NO_BANK)
    model.set_attn_implementation(implementation)
    seen = []
    for layer in model.qformer.layers:
        for part in (layer.self_attention, layer.cross_attention):
            if part is not None:
                part.attention.register_forward_hook(
                    lambda *call: seen.append((call[0], *call[1], call[2].get("attention_mask"), call[3][0])),
                    with_kwargs=True,
                )
    model(vision_embeds=random_frames(num_frames=1), **random_text())
    assert len(seen) == 5
    text_mask = torch.nn.functional.pad(random_text()["qformer_attention_mask"], (num_query_tokens, 0), value=1)
    for attention, hidden_states, states, mask, context in seen:
        explicit = explicit_attention(attention, kind, hidden_states, states, None if mask is None else text_mask)
        torch.testing.assert_close(context, explicit, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "settings"), [(TYPES[0], NO_BANK), (TYPES[1], VISUAL_BANK)])
def test_streaming_and_gradients(kind, settings):
    model = relative_model(kind, num_query_tokens=NUM_TOKENS, **settings)
    frames, text = random_frames(num_frames=6), random_text()
    at_once = model(vision_embeds=frames, output_frame_hidden_states=True, **text)
    at_once.frame_hidden_states.square().sum().backward()
    for name, parameter in model.named_parameters():
        if "distance_embedding" in name:
            assert parameter.grad.abs().max() > 0, name
    memory, states = None, []
    with torch.no_grad():
        for frame in frames.split(1, dim=1):
            outputs = model(vision_embeds=frame, memory=memory, **text)
            memory = outputs.memory
            states.append(outputs.last_hidden_state)
    torch.testing.assert_close(torch.stack(states, 1), at_once.frame_hidden_states, atol=5e-5, rtol=0)


def test_what_cannot_run_is_named():
    model = relative_model("relative_key", num_query_tokens=20, **NO_BANK)
    with pytest.raises(ValueError, match="are 26 positions, but relative positions reach over"):
        model(vision_embeds=random_frames(num_frames=1), **random_text())
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="need `attn_implementation` 'eager' or 'sdpa', got 'flex_attention'"):
        model(vision_embeds=random_frames(num_frames=1))
