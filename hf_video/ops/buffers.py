"""
Large tensors that hand their memory on.

The C library maps new memory for a tensor of 32 MiB or more, and gives it back with the tensor. The system clears
each page of it at its first use, and a virtual machine may have to get it from its host, which can take longer than
the work on it. Training on a long clip would do this with gigabytes at every step. So the memory of a tensor that is
gone goes to the next one of its size: from one layer to another, and from one step to the next.

What is kept never adds to the peak: before memory is mapped, as much of other sizes is given back.
"""

import math
import weakref
from collections.abc import Sequence

import numpy as np
import torch

# From this size on NumPy asks for huge pages, which take fewer page faults to write.
SMALLEST_SIZE = 2**22

# The memory that waits, by its number of elements. Finalizers run at any time, so each step is one atomic call.
WAITING: dict[int, list[np.ndarray]] = {}


def new_output(shape: Sequence[int]) -> torch.Tensor:
    """An uninitialised float32 tensor. If it has 4 MiB or more, its memory is kept for others when it is gone."""
    size = math.prod(shape)
    if 4 * size < SMALLEST_SIZE:
        return torch.empty(shape)
    memory = _take(size)
    if memory is None:
        release_buffers(size)
        memory = np.empty(size, np.float32)
    # PyTorch holds this array until nothing uses the storage.
    array = memory.reshape(shape)
    weakref.finalize(array, WAITING.setdefault(size, []).append, memory).atexit = False
    return torch.from_numpy(array)


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
