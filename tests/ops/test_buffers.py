"""Memory that large tensors hand on: to whom, when, and how much of it waits."""

import os

import numpy as np
import pytest
import torch

from hf_video.ops import buffers
from hf_video.ops.buffers import SMALLEST_SIZE, new_output, release_buffers

SIZE = SMALLEST_SIZE // 4


@pytest.fixture(autouse=True)
def waiting(monkeypatch):
    waiting = {}
    monkeypatch.setattr(buffers, "WAITING", waiting)
    monkeypatch.setattr(buffers, "IN_USE", {})
    monkeypatch.setattr(buffers, "most_in_use", 0)
    return waiting


def count(waiting):
    return {size: len(arrays) for size, arrays in waiting.items() if arrays}


def test_the_next_tensor_of_a_size_gets_the_memory_of_one_that_is_gone(waiting):
    tensor = new_output((2, SIZE))
    pointer = tensor.data_ptr()
    del tensor
    assert count(waiting) == {2 * SIZE: 1}
    following = new_output((SIZE, 2))
    assert following.data_ptr() == pointer and following.shape == (SIZE, 2) and following.is_contiguous()
    assert count(waiting) == {}


@pytest.mark.parametrize("use", [lambda x: x[1:, None], lambda x: x.numpy()[1:], lambda x: x.untyped_storage()])
def test_memory_in_use_goes_to_nobody(waiting, use):
    tensor = new_output((2, SIZE)).fill_(7)
    used = use(tensor)
    del tensor
    new_output((2, SIZE)).fill_(0)
    kept = torch.tensor([], dtype=torch.float32).set_(used) if isinstance(used, torch.UntypedStorage) else used
    assert kept.min() == 7


def test_what_autograd_keeps_is_in_use(waiting):
    weight = torch.ones(SIZE, requires_grad=True)
    product = (new_output((SIZE,)).fill_(3) * weight).sum()
    new_output((SIZE,)).fill_(0)
    product.backward()
    assert (weight.grad == 3).all()


def test_what_waits_does_not_add_to_the_peak(waiting):
    """Memory of other sizes is given back before more is mapped than was in use at once."""
    tensors = [new_output((SIZE,)) for _ in range(4)]
    tensors.clear()
    assert count(waiting) == {SIZE: 4}
    larger = new_output((3 * SIZE,))
    assert count(waiting) == {SIZE: 1}
    del larger
    largest = new_output((5 * SIZE,))
    assert count(waiting) == {}
    del largest
    release_buffers()
    assert count(waiting) == {}


def test_no_step_maps_what_the_one_before_had(waiting, monkeypatch):
    """Sizes take turns, as the tensors of tiles and of whole clips do, and are not all in use at once."""
    mapped = []
    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda size, dtype: mapped.append(size) or empty(size, dtype))
    for _ in range(3):
        mapped.clear()
        kept = [new_output((4 * SIZE,)) for _ in range(8)]
        while kept:
            kept.pop()
            tiles = [new_output((SIZE,)) for _ in range(2)]
            del tiles
    assert not mapped


def test_small_tensors_are_left_to_pytorch(waiting):
    assert new_output((SIZE - 1,)).shape == (SIZE - 1,) and new_output((0, SIZE)).shape == (0, SIZE)
    assert not waiting


def test_a_forked_child_does_not_hold_what_waits_in_its_parent(waiting):
    """What the parent writes next would be copied page by page for as long as a loader's worker lives."""
    new_output((SIZE,))
    assert count(waiting) == {SIZE: 1}
    child = os.fork()
    if not child:
        os._exit(sum(count(waiting).values()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert count(waiting) == {SIZE: 1}
