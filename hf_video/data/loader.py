"""Reads the next clips in threads while a model works on the last ones: as a `DataLoader`, or from an iterator."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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

    Decoding and PyTorch's operations leave Python's lock to the model. Batches, their order and all draws are those of
    a `DataLoader`: samplers draw in the thread of the loop, and so do collators, except `collate` of a [`Task`] and
    `collate_clips`, which draw nothing. At most two batches are read ahead. If reading a clip fails, the loop raises
    its error in the turn of its batch. After the loop, however it ends, no thread is left.

    Threads read only data sets that are made for it, as `VideoDataset` is: they have a method
    `complete_batch(items, indices)`, which is called with what `__getitem__` gave, and returns the items to join.
    Neither may draw from a global generator. Other data sets are read as by a `DataLoader`. A `VideoStream` hands out
    clips that are not read yet in place of indices, and hears which of them the loop got.

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
        kept: tuple[str, ...] = (
            "batch_sampler",
            "num_workers",
            "collate_fn",
            "pin_memory",
            "timeout",
            "worker_init_fn",
        )
        kept += ("generator", "multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order")
        options = {name: getattr(loader, name) for name in kept} | changes
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
        return self._read_ahead(batches, num_threads) if num_threads else self._read_in_turn(batches)

    def _num_threads(self) -> int:
        is_readable = hasattr(self.dataset, "complete_batch") and self.batch_sampler is not None
        if self.num_workers or not is_readable or get_worker_info() is not None:
            return 0
        return threads_of_process() if self.reading_threads is None else self.reading_threads

    def _read_in_turn(self, batches: Iterable[list[Any]]) -> Iterator[Any]:
        for indices in batches:
            items = self.dataset.complete_batch([self.dataset[index] for index in indices], indices)  # type: ignore[attr-defined]
            yield self._finish(self.collate_fn(items) if self._draws_nothing else items, indices)

    def _read_ahead(self, batches: Iterable[list[Any]], num_threads: int) -> Iterator[Any]:
        pending: deque[tuple[Future, list[Any]]] = deque()
        with ThreadPoolExecutor(num_threads, "reading", _keep_to_one_core) as threads:
            try:
                for indices in batches:
                    clips = [threads.submit(self.dataset.__getitem__, index) for index in indices]
                    # It begins after its clips, so that it never waits for one that has no thread.
                    pending.append((threads.submit(self._complete, clips, indices), indices))
                    if len(pending) > _BATCHES_AHEAD:
                        yield self._finish_next(pending)
                while pending:
                    yield self._finish_next(pending)
            finally:
                # After an error or Ctrl-C only the clips that are being read are read to their end.
                threads.shutdown(cancel_futures=True)

    def _complete(self, clips: list[Future], indices: list[int]) -> Any:
        items = self.dataset.complete_batch([clip.result() for clip in clips], indices)  # type: ignore[attr-defined]
        return self.collate_fn(items) if self._draws_nothing else items

    def _finish_next(self, pending: deque[tuple[Future, list[Any]]]) -> Any:
        future, indices = pending.popleft()
        return self._finish(future.result(), indices)

    def _finish(self, found: Any, indices: list[Any]) -> Any:
        batch = found if self._draws_nothing else self.collate_fn(found)
        if hasattr(self.dataset, "mark_used"):
            self.dataset.mark_used(indices)
        is_pinned = self.pin_memory and torch.cuda.is_available()
        return recursively_apply(torch.Tensor.pin_memory, batch) if is_pinned else batch

    @property
    def _draws_nothing(self) -> bool:
        # `Trainer` puts the collator into one that removes columns.
        collate = getattr(self.collate_fn, "data_collator", self.collate_fn)
        owner = getattr(collate, "__self__", None)
        if collate is collate_clips or owner is None:
            return collate is collate_clips
        from .tasks import Task  # which loads `datasets`: the path of a single video does not need it

        return isinstance(owner, Task)


def iterate_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The items of an iterator, of which the next is made in a thread while the last is used.

    If making an item fails, the loop raises the error in its turn. After the loop, however it ends, the thread has
    ended, and the iterator is closed if it is a generator.
    """
    nothing: Any = object()
    with ThreadPoolExecutor(1, "reading", _keep_to_one_core) as thread:
        upcoming = thread.submit(next, items, nothing)
        try:
            while (item := upcoming.result()) is not nothing:
                upcoming = thread.submit(next, items, nothing)
                yield item
                del item
        finally:
            thread.shutdown(cancel_futures=True)
            if isinstance(items, Generator):
                items.close()


def map_ahead(
    make: Callable[[Any], Item], items: Iterable[Any], num_threads: int | None, most_ahead: int
) -> Iterator[Item]:
    """What a function makes of each item, in their order, in threads that are at most `most_ahead` items ahead of the
    loop. Without threads (0) the loop makes them; None takes as many as `ReadAheadLoader`. After the loop, however it
    ends, the threads have ended."""
    num_threads = threads_of_process() if num_threads is None else num_threads
    if not num_threads:
        yield from map(make, items)
        return
    pending: deque[Future] = deque()
    with ThreadPoolExecutor(num_threads, "reading", _keep_to_one_core) as threads:
        try:
            for item in items:
                pending.append(threads.submit(make, item))
                if len(pending) > most_ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_process() -> int:
    """Threads that read in this process: one for every two cores, shared out among the processes that `torchrun` and
    its like began on this machine."""
    num_processes = max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)
    return min(max(available_cores() // 2 // num_processes, 1), _MOST_THREADS)


def _keep_to_one_core() -> None:
    """Makes PyTorch's operations in the calling thread use no other threads.

    `torch.set_num_threads` also sets the number for threads that begin later. A thread that ends at once sets it back.

    Between two operations, GNU OpenMP lets the threads of the model spin for milliseconds, where reading needs a core.
    It throttles them while it has more threads than cores. So the calling thread begins one, which sleeps until the
    calling thread ends."""
    with _BEGINNING:
        number = torch.get_num_threads()
        torch.set_num_threads(2)
        torch.zeros(2 * _PARALLEL_NUMBERS)
        torch.set_num_threads(1)
        thread = Thread(target=torch.set_num_threads, args=(number,))
        thread.start()
        thread.join()
