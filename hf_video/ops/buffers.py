"""
Large tensors that hand their memory on.

The C library maps new memory for a tensor of 32 MiB or more, and gives it back with the tensor. The system clears
each page of it at its first use, and a virtual machine may have to get it from its host, which can take longer than
the work on it. Training on a long clip would do this with gigabytes at every step. So the memory of a tensor that is
gone goes to the next one of its size: from one layer to another, and from one step to the next.

What waits adds little to the peak: in use and waiting is at most a sixteenth more than was in use at once. Without
this sixteenth, tiles of a clip and whole clips would take turns to drive out each other's memory. It waits as long as
the process lives: after a clip that was larger than any to come, `release_buffers` gives it back.
"""

import math
import os
import weakref
from collections.abc import Sequence

import numpy as np
import torch

# From this size on NumPy asks for huge pages, which take fewer page faults to write.
SMALLEST_SIZE = 2**22

# The memory that waits, by its size in float32 numbers. Finalizers run at any time, so each step is one atomic call.
WAITING: dict[int, list[np.ndarray]] = {}
# Sizes in use, by the identity of the memory, and the most that were in use when some was mapped.
IN_USE: dict[int, int] = {}
most_in_use = 0


def new_output(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """
    An uninitialised tensor, float32 or bfloat16. If it has 4 MiB or more, its memory is kept for others when it is
    gone.
    """
    count = math.prod(shape)
    size = -(-count * dtype.itemsize // 4)
    if 4 * size < SMALLEST_SIZE:
        return torch.empty(shape, dtype=dtype)
    memory = _take(size)
    if memory is None:
        _make_room(size)
        memory = np.empty(size, np.float32)
    IN_USE[id(memory)] = size
    # PyTorch holds this array until nothing uses the storage.
    array = memory.view(np.float32 if dtype == torch.float32 else np.uint16)[:count].reshape(shape)
    weakref.finalize(array, _hand_on, memory).atexit = False
    return torch.from_numpy(array).view(dtype)


def release_buffers(size: float = math.inf) -> None:
    """Give waiting memory back to the system: all of it, or at least `size` float32 numbers, if there are as many."""
    for waiting in list(WAITING):
        while size > 0 and (memory := _take(waiting)) is not None:
            size -= memory.size


def _take(size: int) -> np.ndarray | None:
    try:
        return WAITING[size].pop()
    except (KeyError, IndexError):
        return None


def _hand_on(memory: np.ndarray) -> None:
    IN_USE.pop(id(memory), None)
    WAITING.setdefault(memory.size, []).append(memory)


def _make_room(size: int) -> None:
    global most_in_use
    in_use = sum(list(IN_USE.values())) + size
    most_in_use = max(most_in_use, in_use)
    waiting = sum(number * len(memories) for number, memories in list(WAITING.items()))
    release_buffers(in_use + waiting - most_in_use * 17 // 16)


if hasattr(os, "register_at_fork"):
    # The system would copy each page that the parent writes for as long as a child, such as a loader's worker, has it.
    os.register_at_fork(after_in_child=release_buffers)
