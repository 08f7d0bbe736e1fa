"""
Runs kernels that numba compiles on several threads.

These are PyTorch's own threads if they can be reached. PyTorch's threads wait busily for some milliseconds after each
operation, so that any other thread would have to share a core with one of them. PyTorch's threads do not survive a
fork: if they cannot be reached, threads are started for one call. Numba's own parallel layers are not used. They leave
threads behind that a forked child waits for, and that two callers share.
"""

import ctypes
import functools
import math
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers.utils import logging

logger = logging.get_logger(__name__)

# More than one, so that a thread which has to wait for a core leaves its next units to the others.
UNITS_PER_THREAD = 2
COMPILING = threading.RLock()
TEAM_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# A forked child would wait forever for threads that only its parent has, or for a lock that one of them held.
OWNER_OF_TEAM = None if multiprocessing.parent_process() else os.getpid()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=COMPILING.acquire, after_in_parent=COMPILING.release, after_in_child=COMPILING.release)


@functools.cache
def why_numba_cannot() -> str | None:
    """The reason why kernels cannot be compiled here, or `None` if they can."""
    try:
        from .numba_vectors import LANES  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error})"
    return None


def split_work(batch_size: int, groups: int, blocks: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Units of work (batch, group, part, first block, end block); `blocks` is the number of blocks of one group."""
    parts = min(blocks, math.ceil(UNITS_PER_THREAD * torch.get_num_threads() / max(1, batch_size * groups)))
    for batch in range(batch_size):
        for group in range(groups):
            for part in range(parts):
                first, end = (group * blocks + blocks * border // parts for border in (part, part + 1))
                yield batch, group, part, first, end


def split_tokens(batch_size: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Units of work (clip, first token, end token)."""
    for clip, _, _, first, end in split_work(batch_size, 1, length):
        yield clip, first, end


def run_units(kernel: Any, arguments: tuple[Any, ...], units: Iterable[tuple[int, ...]]) -> None:
    """
    Call a kernel with the same arguments for every unit of work, on as many threads as PyTorch uses.

    Args:
        kernel: a function that numba compiles, which runs without the GIL.
        arguments: tensors, which are passed as NumPy arrays, and anything else.
        units: the last arguments, one tuple for each call.
    """
    arrays = [as_array(argument) if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    waiting = deque(units)
    with COMPILING:
        if waiting and not kernel.signatures:
            start = time.perf_counter()
            kernel(*arrays, *waiting.pop())
            if kernel.stats.cache_misses:
                place = kernel.stats.cache_path or "memory alone, because the cache folder cannot be written"
                seconds = time.perf_counter() - start
                logger.warning(f"{kernel.__name__} was compiled for this machine in {seconds:.1f} s, kept in {place}.")

    def work() -> None:
        while True:
            try:
                unit = waiting.pop()
            except IndexError:  # the other threads have taken the last ones
                return
            kernel(*arrays, *unit)

    num_threads = min(torch.get_num_threads(), len(waiting))
    if num_threads < 2:
        work()
    elif os.getpid() == OWNER_OF_TEAM and (run_in_team := openmp_team()) is not None:
        _on_team(run_in_team, work)
    else:
        with ThreadPoolExecutor(num_threads - 1) as threads:
            others = [threads.submit(work) for _ in range(num_threads - 1)]
            work()
            for other in others:
                other.result()


@functools.cache
def openmp_team() -> Callable[..., None] | None:
    """
    GNU OpenMP's function that starts a parallel region, from the library that PyTorch has loaded; `None` if PyTorch
    has another OpenMP. Each calling thread has its own team, so that callers in several threads do not meet.
    """
    try:
        function = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return None
    function.argtypes = (TEAM_TASK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    return function


def _on_team(run_in_team: Callable[..., None], work: Callable[[], None]) -> None:
    """Call a function once on every thread of the team, and raise what one of them raised, Ctrl-C included."""
    caller, errors, has_run = threading.get_ident(), list[BaseException](), False

    def task(_: Any) -> None:
        nonlocal has_run
        try:
            work()
        except BaseException as error:  # nothing can be raised through a frame of C
            errors.append(error)
        if threading.get_ident() == caller:
            has_run = True

    # As many threads as PyTorch's operations have: a change of their number takes longer than the work.
    run_in_team(TEAM_TASK(task), None, torch.get_num_threads(), 0)
    if errors:
        raise errors[0]
    if not has_run:
        # Only the handler of a signal, such as Ctrl-C, can raise before the first line of the task.
        raise KeyboardInterrupt("a signal came while threads were started")


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A NumPy array on the memory of a tensor."""
    # `numpy()` would forbid to resize the memory for good, and FSDP frees the memory of gathered weights so.
    return np.from_dlpack(tensor.detach())


def to_lanes(tensor: torch.Tensor, groups: int = 1) -> torch.Tensor:
    """Pad the channels of each group, in the last dimension, with zeros to a multiple of `LANES`."""
    from .numba_vectors import LANES

    channels = tensor.shape[-1] // groups
    if channels % LANES:
        tensor = F.pad(tensor.unflatten(-1, (groups, channels)), (0, -channels % LANES)).flatten(-2)
    return tensor


def from_lanes(tensor: torch.Tensor, groups: int, channels: int) -> torch.Tensor:
    """The inverse of `to_lanes`: the first `channels` of each group."""
    return tensor.unflatten(-1, (groups, -1))[..., :channels].flatten(-2).contiguous()
