"""A call that fails takes its frames out of the memory again. It keeps only what it has written over."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_video import MemoryBank
from hf_video.models.memory_bank_qformer.memory_undo import restored_on_error
from hf_video.models.memory_bank_qformer.token_bank import TokenBank

from .memory_bank_qformer_testing import random_frames, random_text, tiny_model
from .test_memory_bank import assert_same

LENGTH = 3


class Failure(Exception):
    pass


class Allocations(TorchDispatchMode):
    """Counts the bytes of new tensors."""

    num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in known:
                self.num_bytes += leaf.untyped_storage().nbytes()
        return outputs


def contents(memory):
    """All of a memory, with its keys and values, except for slots that are free."""
    parts = [memory.frames_seen, memory.last_queries]
    for bank in memory.banks():
        is_used = torch.zeros_like(bank.order, dtype=torch.bool)
        for row, num_entries in enumerate(bank.num_entries):
            is_used[row].scatter_(0, bank.order[row, :num_entries], True)
        pairs = [bank.projections[layer] for layer in sorted(bank.projections)]
        large = [bank.slots, *(tensor for pair in pairs for tensor in pair)]
        parts += [bank.order, bank.counts, bank.similarities, *(tensor[is_used] for tensor in large)]
    return [None if part is None else part.clone() for part in parts], [bank.num_entries for bank in memory.banks()]


def read(model, memory, num_frames, has_frame=None, seed=1, with_gradients=False):
    frames = random_frames(2, num_frames, seed=seed)
    with torch.set_grad_enabled(with_gradients):
        return model(vision_embeds=frames, memory=memory, frame_attention_mask=has_frame, **random_text())


@pytest.mark.parametrize("policy", ["merge", "fifo", "uniform"])
@pytest.mark.parametrize("num_before", [0, 1, 3, 8], ids=lambda number: f"{number} before")
@pytest.mark.parametrize("num_frames", [1, 2, 3, 11], ids=lambda number: f"{number} undone")
def test_a_failed_call_leaves_nothing(policy, num_before, num_frames):
    model = tiny_model(memory_policy=policy)
    memory = MemoryBank(LENGTH, policy)
    if num_before:
        read(model, memory, num_before)
    before, is_fresh = contents(memory), not num_before
    with pytest.raises(Failure), restored_on_error(memory):
        read(model, memory, num_frames, seed=2)
        raise Failure
    after = contents(memory)
    assert after[1] == before[1] and len(after[0]) == len(before[0])
    for found, expected in zip(after[0], before[0], strict=True):
        assert (found is expected is None) or torch.equal(found, expected)
    assert is_fresh or memory.visual.undo is None
    again, expected = memory, MemoryBank(LENGTH, policy)
    if num_before:
        read(model, expected, num_before)
    assert torch.equal(
        read(model, again, 4, seed=3).last_hidden_state, read(model, expected, 4, seed=3).last_hidden_state
    )
    assert_same(again, expected)


@pytest.mark.parametrize("num_frames", [2, 11])
@pytest.mark.parametrize("kind", ["ragged", "gradients", "loaded"])
def test_however_the_call_reads(kind, num_frames, tmp_path):
    """Whether videos pause, and whether keys and values are dropped or not computed yet."""
    model, memory = tiny_model(), MemoryBank(LENGTH)
    read(model, memory, 5)
    if kind == "loaded":
        memory.save(tmp_path / "memory")
        memory = MemoryBank.load(tmp_path / "memory")
    has_frame = None
    if kind == "ragged":
        has_frame = torch.rand(2, num_frames, generator=torch.Generator().manual_seed(0)) < 0.6
        has_frame[0, 0], has_frame[1, 0] = True, False
    before, expected = contents(memory), memory.clone()
    with pytest.raises(Failure), restored_on_error(memory):
        read(model, memory, num_frames, has_frame, seed=2, with_gradients=kind == "gradients")
        raise Failure
    after = contents(memory)
    assert after[1] == before[1]
    assert all(torch.equal(found, known) for found, known in zip(after[0], before[0], strict=True))
    read(model, memory, 3, seed=3)
    read(model, expected, 3, seed=3)
    assert_same(memory, expected)


@pytest.mark.parametrize("where", ["keys_and_values", "compress", "append"])
def test_a_call_that_is_interrupted_anywhere_leaves_nothing(where, monkeypatch):
    """Also within the work of a bank, and by anything that stops a program."""
    model, memory = tiny_model(), MemoryBank(LENGTH)
    read(model, memory, 6)
    expected, calls, method = memory.clone(), [], getattr(TokenBank, where)

    def interrupted(self, *args, **kwargs):
        calls.append(self)
        outputs = method(self, *args, **kwargs)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(TokenBank, where, interrupted)
        with pytest.raises(KeyboardInterrupt), restored_on_error(memory):
            read(model, memory, 9, seed=2)
    assert not memory.is_unfinished
    read(model, memory, 3, seed=3)
    read(model, expected, 3, seed=3)
    assert_same(memory, expected)


@pytest.mark.parametrize("num_frames", [1, 40])
def test_it_needs_no_copy_of_the_memory_for_a_frame_and_one_for_many(num_frames):
    length = 20
    model = tiny_model(memory_bank_length=length, max_num_frames=64)
    memory = MemoryBank(length)
    read(model, memory, length + 2)
    size = sum(tensor.nbytes for bank in memory.banks() for tensor in bank.tensors())
    with Allocations() as alone:
        read(model, memory, num_frames)
    with Allocations() as guarded, restored_on_error(memory):
        read(model, memory, num_frames)
        kept = {id(bank): bank.undo.steps for bank in memory.banks()}
    held = sum(values.nbytes for steps in kept.values() for each in steps.values() for _, values in each)
    frame = size / (length + 1)
    # For one frame, its rows and copies of the indices are kept. For many frames it is as many rows, then a copy that
    # replaces them, and rows that were read and not kept.
    assert held <= (frame if num_frames == 1 else size)
    assert guarded.num_bytes - alone.num_bytes <= (frame if num_frames == 1 else 3 * size)
