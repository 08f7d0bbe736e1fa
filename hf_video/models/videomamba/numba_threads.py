"""
Runs kernels that numba compiles on threads.

The threads live for one call. Nothing is left behind that a forked child would wait for, or that two callers would
share, as with numba's own parallel layers.
"""

import functools
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers.utils import logging

logger = logging.get_logger(__name__)

# For each thread, so that one which has to wait for a core leaves its next units to the others.
UNITS_PER_THREAD = 2
COMPILING = threading.RLock()


@functools.cache
def why_numba_cannot() -> str | None:
    """The reason why kernels cannot be compiled here, or `None` if they can."""
    try:
        from .numba_vectors import LANES  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error})"
    return None


def split_work(batch_size: int, groups: int, blocks: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Units of work (batch, group, part, first block, end block), `blocks` being those of one group."""
    parts = min(blocks, math.ceil(UNITS_PER_THREAD * torch.get_num_threads() / (batch_size * groups)))
    for batch in range(batch_size):
        for group in range(groups):
            for part in range(parts):
                first, end = (group * blocks + blocks * border // parts for border in (part, part + 1))
                yield batch, group, part, first, end


def run_units(kernel: Any, arguments: tuple[Any, ...], units: Iterable[tuple[int, ...]]) -> None:
    """
    Call a kernel with the same arguments for every unit of work, on as many threads as PyTorch uses.

    Args:
        kernel: a function that numba compiles, which runs without the GIL.
        arguments: tensors, given on as NumPy arrays, and anything else.
        units: the arguments that come behind those, different in every call.
    """
    arrays = [as_array(argument) if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    waiting = deque(units)
    with COMPILING:
        if not kernel.signatures:
            start = time.perf_counter()
            kernel(*arrays, *waiting.pop())
            if kernel.stats.cache_misses:
                logger.warning(
                    f"{kernel.__name__} was compiled for this machine in {time.perf_counter() - start:.1f} s; where "
                    f"numba can keep it ({kernel.stats.cache_path}), only this once."
                )

    def work() -> None:
        while True:
            try:
                unit = waiting.pop()
            except IndexError:  # the other threads have taken the last ones
                return
            kernel(*arrays, *unit)

    helpers = min(torch.get_num_threads(), len(waiting)) - 1
    if helpers < 1:
        return work()
    with ThreadPoolExecutor(helpers) as threads:
        others = [threads.submit(work) for _ in range(helpers)]
        work()
        for other in others:
            other.result()


def as_array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def to_lanes(tensor: torch.Tensor, groups: int, lanes: int) -> torch.Tensor:
    """Fill up the channels of each group, the last dimension, with zeros to a multiple of `lanes`."""
    channels = tensor.shape[-1] // groups
    if channels % lanes:
        tensor = F.pad(tensor.unflatten(-1, (groups, channels)), (0, -channels % lanes)).flatten(-2)
    return tensor


def from_lanes(tensor: torch.Tensor, groups: int, channels: int) -> torch.Tensor:
    """The first `channels` of each group, what `to_lanes` was given."""
    return tensor.unflatten(-1, (groups, -1))[..., :channels].flatten(-2).contiguous()
