"""
Runs kernels that numba compiles on several threads.

These are PyTorch's own threads if they can be reached: they wait busily for some milliseconds after each operation,
and any other thread would have to share a core with one of them. They do not survive a fork; there, threads are
started for one call. Numba's own parallel layers leave threads behind that a forked child waits for, and that two
callers share.
"""

import ctypes
import functools
import math
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers.utils import logging

logger = logging.get_logger(__name__)

TEAM_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# A forked child would wait forever for threads that only its parent has.
OWNER_OF_TEAM = None if multiprocessing.parent_process() else os.getpid()
# Channels of a vector of the kernels.
LANES = 16
# More than one, so that a thread which has to wait for a core leaves its next units to the others.
UNITS_PER_THREAD = 2


def split_work(batch_size: int, groups: int, blocks: int) -> list[tuple[int, int, int, int, int]]:
    """Units of work (batch, group, part, first block, end block); `blocks` is the number of blocks of one group."""
    parts = min(blocks, math.ceil(UNITS_PER_THREAD * torch.get_num_threads() / max(1, batch_size * groups)))
    return [
        (batch, group, part, group * blocks + blocks * part // parts, group * blocks + blocks * (part + 1) // parts)
        for batch in range(batch_size)
        for group in range(groups)
        for part in range(parts)
    ]


def run_units(kernel: Any, arguments: tuple[Any, ...], units: Sequence[tuple[int, ...]]) -> None:
    """Call a compiled kernel with these arguments and each unit of work, on as many threads as PyTorch uses."""
    arrays = [as_array(argument) if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    if units and not kernel.signatures:
        kernel(*arrays, *units[0])
        units = units[1:]
        if kernel.stats.cache_misses:
            how = "once for this machine" if kernel.stats.cache_path else "and not kept: no folder can be written to"
            logger.warning_once(f"Compiling CPU kernels, {how} ...")
    waiting, errors = deque(units), list[BaseException]()

    def work(_: Any = None) -> None:
        try:
            while waiting:
                kernel(*arrays, *waiting.popleft())
        except IndexError:  # another thread has taken the last one
            return
        except BaseException as error:  # nothing can be raised through a frame of C
            errors.append(error)

    num_threads = torch.get_num_threads() if len(units) > 1 else 1
    if num_threads > 1 and os.getpid() == OWNER_OF_TEAM and (run_in_team := openmp_team()):
        # As many as PyTorch's operations have: a change of their number takes longer than the work.
        run_in_team(TEAM_TASK(work), None, num_threads, 0)
    elif num_threads > 1:
        with ThreadPoolExecutor(num_threads - 1) as threads:
            for _ in range(num_threads - 1):
                threads.submit(work)
            work()
    else:
        work()
    if errors:
        raise errors[0]
    if waiting:
        raise KeyboardInterrupt("a signal came while threads were started")


@functools.cache
def openmp_team() -> Callable[..., None] | None:
    """GNU OpenMP's function that starts a parallel region, from the library that PyTorch has loaded; `None` if PyTorch
    has another OpenMP. Each calling thread has its own team, so that callers in several threads do not meet."""
    try:
        function = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = (TEAM_TASK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    return function


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A NumPy array on the memory of a tensor."""
    # `numpy()` would forbid to resize the memory for good, and FSDP frees the memory of gathered weights so.
    return np.from_dlpack(tensor.detach())


def pad_lanes(x: torch.Tensor, groups: int = 1) -> torch.Tensor:
    """Pad the channels of each group, in the last dimension, with zeros to a multiple of `LANES`."""
    channels = x.shape[-1] // groups
    return F.pad(x.unflatten(-1, (groups, channels)), (0, -channels % LANES)).flatten(-2) if channels % LANES else x


def cut_lanes(x: torch.Tensor, groups: int, dim: int) -> torch.Tensor:
    """The inverse of `pad_lanes`, for `dim` channels in all groups."""
    return x if x.shape[-1] == dim else x.unflatten(-1, (groups, -1))[..., : dim // groups].flatten(-2)
