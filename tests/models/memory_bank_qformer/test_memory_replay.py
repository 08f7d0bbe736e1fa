"""Another question to a memory: the answer is exact until entries were merged, and close after that."""

import pytest
import torch

from hf_video import replay_memory
from tests.testing.answering import same

from .memory_bank_qformer_testing import random_frames, random_text, tiny_model

LENGTH = 6


def ids_of(seed, length=5):
    ids = torch.randint(1, 61, (1, length), generator=torch.Generator().manual_seed(seed))
    return {"qformer_input_ids": ids, "qformer_attention_mask": torch.ones_like(ids)}


@pytest.fixture(scope="module")
def model():
    return tiny_model(memory_bank_length=LENGTH)


@pytest.mark.parametrize("num_frames", [1, LENGTH - 1, LENGTH])
@torch.no_grad()
def test_it_is_exact_as_long_as_nothing_was_merged(model, num_frames):
    frames = random_frames(1, num_frames)
    memory = model(vision_embeds=frames, **ids_of(0)).memory
    states = [bank.states.clone() for bank in memory.banks()]
    expected = model(vision_embeds=frames, **ids_of(1, length=7))
    replayed, queries = replay_memory(model, memory, **ids_of(1, length=7))
    assert same(queries, expected.last_hidden_state)
    for bank, other in zip(replayed.banks(), expected.memory.banks(), strict=True):
        assert same(bank.states, other.states) and same(bank.counts, other.counts)
    assert replayed.frames_seen.tolist() == [num_frames] and torch.equal(replayed.last_queries, queries)
    assert all(torch.equal(bank.states, old) for bank, old in zip(memory.banks(), states, strict=True))


@torch.no_grad()
def test_a_replayed_memory_goes_on(model):
    frames = random_frames(1, 3 * LENGTH)
    memory = model(vision_embeds=frames[:, :LENGTH], **ids_of(0)).memory
    replayed, _ = replay_memory(model, memory, **ids_of(1))
    found = model(vision_embeds=frames[:, LENGTH:], memory=replayed, **ids_of(1))
    expected = model(vision_embeds=frames, **ids_of(1))
    assert same(found.last_hidden_state, expected.last_hidden_state, atol=1e-4)


@torch.no_grad()
def test_after_merges_it_is_closer_than_another_question_is():
    """Frames change slowly, as in videos. The distance was 56% of the other one when this was written."""
    model = tiny_model(memory_bank_length=LENGTH)
    distances = {"replayed": 0.0, "other question": 0.0}
    for seed in range(8):
        steps = random_frames(1, 24, seed=seed)
        frames = steps[:, ::8].repeat_interleave(8, dim=1) + 0.1 * steps
        memory = model(vision_embeds=frames, **ids_of(10 + seed)).memory
        expected = model(vision_embeds=frames, **ids_of(30 + seed)).last_hidden_state
        other = model(vision_embeds=frames, **ids_of(10 + seed)).last_hidden_state
        replayed, queries = replay_memory(model, memory, **ids_of(30 + seed))
        assert replayed.query[0].counts.sum(1).allclose(torch.tensor(24.0))
        distances["replayed"] += (queries - expected).norm().item()
        distances["other question"] += (other - expected).norm().item()
    assert distances["replayed"] < 0.7 * distances["other question"], distances


@torch.no_grad()
def test_one_video_answers_many_texts_and_many_videos_one_each(model):
    frames, texts = random_frames(2, LENGTH), random_text(2)
    one = model(vision_embeds=frames[:1], **ids_of(0)).memory
    _, queries = replay_memory(model, one, **texts)
    assert same(queries, model(vision_embeds=frames[:1].expand(2, -1, -1, -1), **texts).last_hidden_state)
    both = model(vision_embeds=frames, **random_text(2)).memory
    _, queries = replay_memory(model, both, **texts)
    assert same(queries, model(vision_embeds=frames, **texts).last_hidden_state)


@torch.no_grad()
def test_a_qformer_without_text_is_replayed_too():
    model = tiny_model(memory_bank_length=LENGTH, use_qformer_text_input=False)
    outputs = model(vision_embeds=random_frames(1, LENGTH))
    assert same(replay_memory(model, outputs.memory)[1], outputs.last_hidden_state)


@torch.no_grad()
def test_texts_that_do_not_fit_are_refused(model):
    memory = model(vision_embeds=random_frames(2, 2), **random_text(2)).memory
    with pytest.raises(ValueError, match=r"here 2 texts of at most 24 tokens, got \(3, 6\)"):
        replay_memory(model, memory, **random_text(3))
    with pytest.raises(ValueError, match=r"at most 24 tokens, got \(2, 30\)"):
        replay_memory(model, memory, **random_text(2, length=30))
    blind = tiny_model(memory_bank_length=LENGTH, use_qformer_text_input=False)
    with pytest.raises(ValueError, match="reads no text"):
        replay_memory(blind, blind(vision_embeds=random_frames(1, 2)).memory, **ids_of(0))


@torch.no_grad()
def test_memories_without_frames_are_refused(model):
    with pytest.raises(ValueError, match="holds no frames"):
        replay_memory(model, model(vision_embeds=random_frames(1, 2)).memory.__class__(LENGTH))
    blind = tiny_model(memory_bank_length=LENGTH, visual_memory=False)
    with pytest.raises(ValueError, match="holds no frames"):
        replay_memory(blind, blind(vision_embeds=random_frames(1, 2)).memory)
