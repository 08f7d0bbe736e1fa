"""The memory by itself: selecting, copying, saving, and calls that do not fit it."""

import json

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from hf_video import MemoryBank, replay_memory
from hf_video.models.memory_bank_qformer import memory_bank
from hf_video.models.memory_bank_qformer.token_bank import TokenBank

from .memory_bank_qformer_testing import random_frames, random_text, tiny_model


def filled_memory(num_frames=7, batch_size=2):
    model, text = tiny_model(), random_text(batch_size)
    with torch.no_grad():
        return model, text, model(vision_embeds=random_frames(batch_size, num_frames), **text).memory


def assert_same(memory, expected):
    """Equal in everything that can be read."""
    assert memory.frames_seen.tolist() == expected.frames_seen.tolist()
    torch.testing.assert_close(memory.last_queries, expected.last_queries)
    assert len(memory.banks()) == len(expected.banks()) > 0
    for bank, other in zip(memory.banks(), expected.banks(), strict=True):
        torch.testing.assert_close(bank.states, other.states)
        assert torch.equal(bank.counts, other.counts)
        assert bank.num_entries == other.num_entries


def test_states_are_copies():
    _, _, memory = filled_memory()
    states, counts = memory.visual.states, memory.visual.counts
    assert (states != 0).all() and (counts != 0).all()
    memory.visual.states.zero_()
    memory.visual.counts.zero_()
    assert torch.equal(memory.visual.states, states) and torch.equal(memory.visual.counts, counts)


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda memory: memory.batch_select_indices(torch.tensor([2, 0])), [2, 0]),
        (lambda memory: memory.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
        (lambda memory: memory.batch_select_indices(torch.tensor([1, 1, 2])), [1, 1, 2]),
        (lambda memory: memory.batch_select_indices(torch.arange(3).repeat_interleave(2)), [0, 0, 1, 1, 2, 2]),
    ],
)
@torch.no_grad()
def test_selected_videos_go_on_as_if_alone(change, rows):
    model, text, memory = filled_memory(batch_size=3)
    change(memory)
    more = random_frames(3, 4, seed=5)
    together = model(vision_embeds=more[rows], memory=memory, **{name: ids[rows] for name, ids in text.items()})
    assert together.memory is memory
    for place, row in enumerate(rows):
        frames = torch.cat([random_frames(3, 7)[row : row + 1], more[row : row + 1]], dim=1)
        alone = model(vision_embeds=frames, **{name: ids[row : row + 1] for name, ids in text.items()})
        torch.testing.assert_close(together.last_hidden_state[place], alone.last_hidden_state[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_last_queries_are_those_after_each_videos_last_frame():
    model, text = tiny_model(), random_text(3)
    frames = random_frames(3, 6)
    has_frame = torch.arange(6) < torch.tensor([6, 2, 4])[:, None]
    outputs = model(vision_embeds=frames, frame_attention_mask=has_frame, **text)
    memory = outputs.memory
    assert torch.equal(memory.last_queries, outputs.last_hidden_state)
    kept = memory.last_queries.clone()
    some = torch.tensor([[True], [False], [True]])
    more = model(vision_embeds=frames[:, :1], frame_attention_mask=some, memory=memory, **text)
    assert torch.equal(memory.last_queries[1], kept[1])
    assert torch.equal(memory.last_queries[[0, 2]], more.last_hidden_state[[0, 2]])
    memory.batch_select_indices(torch.tensor([2, 1]))
    assert torch.equal(memory.last_queries, torch.stack([more.last_hidden_state[2], kept[1]]))
    memory.reset()
    assert memory.last_queries is None


@torch.no_grad()
def test_a_clone_goes_its_own_way():
    model, text, memory = filled_memory()
    branch, kept = memory.clone(), memory.clone()
    model(vision_embeds=random_frames(2, 3, seed=4), memory=branch, **text)
    assert_same(memory, kept)
    assert branch.frames_seen.tolist() == [10, 10]


def test_reset_begins_new_videos():
    model, text, memory = filled_memory()
    memory.reset()
    with torch.no_grad():
        again = model(vision_embeds=random_frames(2, 7), memory=memory, **text).memory
    assert_same(again, filled_memory()[2])


@pytest.mark.parametrize("length", [1, 2, 6])
@torch.no_grad()
def test_the_length_can_change_between_calls(length):
    model, text, memory = filled_memory()
    memory.resize(length)
    assert memory.visual.num_entries == [min(length, 3)] * 2
    assert (memory.visual.counts.sum(1) == 7).all()
    grown = model(vision_embeds=random_frames(2, 6, seed=3), memory=memory, **text).memory
    assert grown.visual.states.shape[1] == grown.query[0].states.shape[1] == length
    assert (grown.visual.counts.sum(1) == 13).all()


@pytest.mark.parametrize("num_frames", [2, 7])
@torch.no_grad()
def test_a_saved_memory_goes_on_the_same(tmp_path, num_frames):
    model, text, memory = filled_memory(num_frames)
    memory.origin = {"camera": "door"}
    memory.save(tmp_path / "video.safetensors")
    loaded = MemoryBank.load(tmp_path / "video.safetensors")
    assert (loaded.length, loaded.policy) == (3, "merge")
    assert_same(loaded, memory)
    assert loaded.origin == {"camera": "door"}
    more = random_frames(2, 4, seed=8)
    outputs = [model(vision_embeds=more, memory=each, **text) for each in (memory, loaded)]
    torch.testing.assert_close(outputs[0].last_hidden_state, outputs[1].last_hidden_state, atol=1e-5, rtol=0)
    assert [path.name for path in tmp_path.iterdir()] == ["video.safetensors"]


def test_another_file_is_no_memory(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="is not a file that `MemoryBank.save` wrote"):
        MemoryBank.load(tmp_path / "a.safetensors")
    (tmp_path / "text").write_text("no tensors at all")
    with pytest.raises(ValueError, match="text is not a file that `MemoryBank.save` wrote, or is damaged"):
        MemoryBank.load(tmp_path / "text")


def test_damaged_files_are_refused(tmp_path):
    """One is cut off; in others a part does not fit."""
    filled_memory()[2].save(tmp_path / "sound")
    content = (tmp_path / "sound").read_bytes()
    with safe_open(tmp_path / "sound", "pt") as file:
        header = json.loads(file.metadata()["memory_bank"])
    tensors = load_file(tmp_path / "sound")
    for size in (0, 8, len(content) // 2):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(ValueError, match="cut is not a file that `MemoryBank.save` wrote, or is damaged"):
            MemoryBank.load(tmp_path / "cut")
    for changes, message in (
        ({"policy": "lifo"}, "no compression policy 'lifo'"),
        ({"frames_seen": tensors["frames_seen"].float()}, "frames_seen must be torch.int64"),
        ({"0.counts": tensors["0.counts"][:1]}, "0 must be torch.float32"),
        ({"0.counts": None}, "'0.counts'"),
    ):
        changed = {name: each for name, each in {**tensors, **changes}.items() if torch.is_tensor(each)}
        save_file(changed, tmp_path / "other", {"memory_bank": json.dumps(header | changes, default=str)})
        with pytest.raises(ValueError, match=message):
            MemoryBank.load(tmp_path / "other")


@torch.no_grad()
def test_a_memory_is_saved_after_it_was_replayed_or_resized(tmp_path):
    """The counts of a memory that answers another question are not whole numbers."""
    model, _, memory = filled_memory()
    replayed, _ = replay_memory(model, memory, **random_text(2, length=4))
    for each, length in ((replayed, 3), (memory.clone(), 1), (memory.clone(), 5)):
        each.resize(length)
        each.save(tmp_path / "memory")
        loaded = MemoryBank.load(tmp_path / "memory")
        assert loaded.length == length
        assert_same(loaded, each)


def test_a_save_that_fails_leaves_the_older_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "memory"
    MemoryBank(4).save(path)
    before = path.read_bytes()

    def fail(tensors, unfinished, metadata):
        unfinished.write_bytes(b"half")
        raise SafetensorError("No space left")

    monkeypatch.setattr(memory_bank, "save_file", fail)
    with pytest.raises(OSError, match="No space left"):
        MemoryBank(5).save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("where", "has_gaps", "error"), [("compress", False, KeyboardInterrupt), ("append", True, RuntimeError)]
)
def test_a_memory_is_refused_after_a_call_that_stopped_in_the_middle(where, has_gaps, error, monkeypatch, tmp_path):
    model, text, memory = filled_memory()
    kept, frames = memory.clone(), random_frames(2, 3, seed=1)
    has_frame = torch.tensor([[True, True, True], [True, not has_gaps, True]])
    calls, method = [], getattr(TokenBank, where)

    def stopped(bank, *args, **kwargs):
        calls.append(bank)
        if len(calls) == 7:
            raise error
        return method(bank, *args, **kwargs)

    with monkeypatch.context() as patch, torch.no_grad(), pytest.raises(error):
        patch.setattr(TokenBank, where, stopped)
        model(vision_embeds=frames, memory=memory, frame_attention_mask=has_frame, **text)
    for each in (memory, memory.clone()):
        with pytest.raises(ValueError, match=r"A call stopped .* this memory.*`load`.*`clone\(\)`.*`reset\(\)`"):
            model(vision_embeds=frames, memory=each, **text)
    with pytest.raises(ValueError, match="was not written: a call stopped after a frame had entered"):
        memory.save(tmp_path / "memory.safetensors")
    assert not list(tmp_path.iterdir())
    with torch.no_grad():
        assert model(vision_embeds=frames, memory=kept, **text).memory.frames_seen.tolist() == [10, 10]
        memory.reset()
        assert model(vision_embeds=frames, memory=memory, **text).memory.frames_seen.tolist() == [3, 3]


@torch.no_grad()
def test_a_memory_of_inference_mode_goes_on_outside_of_it():
    model, text, expected = filled_memory(5)
    with torch.inference_mode():
        memory = model(vision_embeds=random_frames(2, 5)[:, :3], **text).memory
    assert_same(model(vision_embeds=random_frames(2, 5)[:, 3:], memory=memory, **text).memory, expected)


@torch.no_grad()
def test_another_text_of_the_same_length_is_named(tmp_path):
    """The error names the rows that have it. Padding may differ. Memories from a file are checked, too."""
    model, text, memory = filled_memory(batch_size=3)
    memory.save(tmp_path / "memory")
    more = random_frames(3, 1, seed=5)
    for each in (memory, MemoryBank.load(tmp_path / "memory"), memory.clone()):
        padded = text["qformer_attention_mask"] == 0
        other = text["qformer_input_ids"].masked_fill(padded, 9)
        model(vision_embeds=more, memory=each, **text | {"qformer_input_ids": other})
        other[1, 0] += 1
        assert_same(each.take(torch.arange(3)), each)
        with pytest.raises(ValueError, match=r"another text of the videos \[1\].*`model.ask`"):
            model(vision_embeds=more, memory=each, **text | {"qformer_input_ids": other})
        unmasked = {"qformer_attention_mask": torch.ones_like(other)}
        with pytest.raises(ValueError, match=r"another text of the videos \[1, 2\]"):
            model(vision_embeds=more, memory=each, **text | unmasked)
        assert each.frames_seen.tolist() == [8, 8, 8]
    rows = torch.tensor([2, 0])
    memory.batch_select_indices(rows)
    model(vision_embeds=more[rows], memory=memory, **{name: ids[rows] for name, ids in text.items()})
    with pytest.raises(ValueError, match=r"of the videos \[0, 1\]"):
        model(vision_embeds=more[rows], memory=memory, **{name: ids[:2] for name, ids in text.items()})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MemoryBank(0), "at least 1 frame, got the length 0"),
        (lambda: MemoryBank(3, "lru"), "no compression policy 'lru'; choose one of merge, fifo, uniform"),
        (lambda: MemoryBank(3).resize(0), "at least 1 frame, got the length 0"),
    ],
)
def test_impossible_memories_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
