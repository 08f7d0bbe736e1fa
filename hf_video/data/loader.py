"""Reads the next clips in threads while a model works on the last ones: as a `DataLoader`, or from an iterator."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from itertools import repeat, takewhile
from threading import Lock, Thread
from typing import Any, TypeVar

import torch
from accelerate.utils import recursively_apply
from torch.utils.data import DataLoader, get_worker_info

from .mixing import collate_clips

Item = TypeVar("Item")

# As many as each worker process of PyTorch reads ahead.
_BATCHES_AHEAD = 2
# More threads would wait for Python's lock, or for the disk.
_MOST_THREADS = 16
# PyTorch takes a second thread for more numbers than this.
_PARALLEL_NUMBERS = 32768
_BEGINNING = Lock()


class ReadAheadLoader(DataLoader):
    """A `DataLoader` that reads ahead in threads if it has no worker processes.

    Batches, their order and all draws are those of a `DataLoader`: samplers draw in the thread of the loop, and so do
    collators, except `collate` of a [`Task`] and `collate_clips`, which draw nothing. At most two batches are read
    ahead. If reading a clip fails, the loop raises its error in the turn of its batch. After the loop, however it
    ends, no thread is left.

    Threads read only data sets that are made for it, as `VideoDataset` is: they have a method
    `complete_batch(items, indices)`, which is called with what `__getitem__` gave, and returns the items to join.
    Neither may draw from a global generator. Other data sets are read as by a `DataLoader`.

    Args:
        args, kwargs: those of `DataLoader`.
        reading_threads: clips that are read at a time; 0 reads in the thread of the loop, None in one thread for every
            two cores of the machine, shared out among its processes, and at most 16.
    """

    def __init__(self, *args: Any, reading_threads: int | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.reading_threads = reading_threads

    @classmethod
    def like(cls, loader: DataLoader, reading_threads: int | None = None, **changes: Any) -> "ReadAheadLoader":
        """A loader as a `DataLoader` that has batches, with other values of arguments of `DataLoader`."""
        kept = "batch_sampler num_workers collate_fn pin_memory timeout worker_init_fn generator in_order"
        kept += " multiprocessing_context prefetch_factor persistent_workers"
        options = {name: getattr(loader, name) for name in kept.split()} | changes
        return cls(loader.dataset, reading_threads=reading_threads, **options)

    def __iter__(self) -> Any:
        num_threads = self._num_threads()
        is_stream = hasattr(self.dataset, "draw_batches") and not self.num_workers
        if not num_threads and not is_stream:
            return super().__iter__()
        batches: Iterable[list[Any]]
        if is_stream:
            # No seed is drawn: a stream that goes on in the middle must not change later draws of the training.
            batches = self.dataset.draw_batches(self.batch_size)  # type: ignore[attr-defined]
        else:
            # `DataLoader` draws the seed of its workers, also without any. Later draws must be the same.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            batches = iter(self.batch_sampler)  # type: ignore[arg-type]
        return self._read(batches, num_threads)

    def _num_threads(self) -> int:
        is_readable = hasattr(self.dataset, "complete_batch") and self.batch_sampler is not None
        if self.num_workers or not is_readable or get_worker_info() is not None:
            return 0
        return threads_of_process() if self.reading_threads is None else self.reading_threads

    def _read(self, batches: Iterable[list[Any]], num_threads: int) -> Iterator[Any]:
        # `Trainer` puts the collator into one that removes columns.
        collate = getattr(self.collate_fn, "data_collator", self.collate_fn)
        draws_nothing = collate is collate_clips or hasattr(getattr(collate, "__self__", None), "for_rows")

        def complete(indices: list[Any], clips: Iterable[Any]) -> tuple[list[Any], Any]:
            items = self.dataset.complete_batch(list(clips), indices)  # type: ignore[attr-defined]
            return indices, self.collate_fn(items) if draws_nothing else items

        def begin(threads: ThreadPoolExecutor, indices: list[Any]) -> Future:
            clips = [threads.submit(self.dataset.__getitem__, index) for index in indices]
            # It begins after its clips, so that it never waits for one that has no thread.
            return threads.submit(complete, indices, map(Future.result, clips))

        if num_threads:
            found = _in_turn(begin, batches, num_threads, _BATCHES_AHEAD)
        else:
            found = (complete(indices, map(self.dataset.__getitem__, indices)) for indices in batches)
        with closing(found):
            for indices, items in found:
                batch = items if draws_nothing else self.collate_fn(items)
                if hasattr(self.dataset, "mark_used"):
                    self.dataset.mark_used(indices)
                is_pinned = self.pin_memory and torch.cuda.is_available()
                yield recursively_apply(torch.Tensor.pin_memory, batch) if is_pinned else batch


def _in_turn(
    begin: Callable[[ThreadPoolExecutor, Any], Future], items: Iterable[Any], num_threads: int, most_ahead: int
) -> Generator[Any]:
    """The results of what is begun for each item, in their order. However the loop ends, no thread is left."""
    pending: deque[Future] = deque()
    with ThreadPoolExecutor(num_threads, "reading", _keep_to_one_core) as threads:
        try:
            for item in items:
                pending.append(begin(threads, item))
                if len(pending) > most_ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            # After an error or Ctrl-C only what is being read is read to its end.
            threads.shutdown(cancel_futures=True)


def map_ahead(
    make: Callable[[Any], Item], items: Iterable[Any], num_threads: int | None, most_ahead: int
) -> Generator[Item]:
    """What a function makes of each item, in their order, in threads that are at most `most_ahead` items ahead of the
    loop. Without threads (0) the loop makes them; None takes as many as `ReadAheadLoader`."""
    num_threads = threads_of_process() if num_threads is None else num_threads
    if num_threads:
        yield from _in_turn(lambda threads, item: threads.submit(make, item), items, num_threads, most_ahead)
    else:
        yield from map(make, items)


def iterate_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The items of an iterator, of which the next is made in a thread while the last is used. After the loop, however
    it ends, the iterator is closed if it is a generator."""
    nothing: Any = object()
    closed: Any = closing(items) if isinstance(items, Generator) else nullcontext()
    with closed, closing(map_ahead(lambda _: next(items, nothing), repeat(None), 1, 1)) as made:
        yield from takewhile(lambda item: item is not nothing, made)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_process() -> int:
    """Threads that read in this process: one for every two cores, shared out among the processes that `torchrun` and
    its like began on this machine."""
    num_processes = max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)
    return min(max(available_cores() // 2 // num_processes, 1), _MOST_THREADS)


def _keep_to_one_core() -> None:
    """Makes PyTorch's operations in the calling thread use no other threads."""
    # Between two operations, GNU OpenMP lets the threads of the model spin for milliseconds, where reading needs a
    # core. It throttles them while it has more threads than cores. So one is begun, which sleeps until the calling
    # thread ends. `torch.set_num_threads` also sets the number for threads that begin later: one that ends at once
    # sets it back.
    with _BEGINNING:
        number = torch.get_num_threads()
        torch.set_num_threads(2)
        torch.zeros(2 * _PARALLEL_NUMBERS)
        torch.set_num_threads(1)
        thread = Thread(target=torch.set_num_threads, args=(number,))
        thread.start()
        thread.join()
