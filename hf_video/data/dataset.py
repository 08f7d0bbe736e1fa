"""A PyTorch data set of videos: rows, and a task that says what is made of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset

from hf_video.reading import VideoReadError
from hf_video.texts import count

from .checks import find_broken, readable_rows, warn_of_empty_rows
from .tasks import Task
from .video_settings import OnError

# A row, or a row and the number of its repetition.
Index = int | tuple[int, int]


class TaskItems:
    """What a [`VideoDataset`] and a [`VideoStream`] share: a task makes their items, and videos may be broken."""

    training: bool

    def __init__(self, rows: Any, task: Task, seed: int, on_error: str, expected: str = ""):
        # `expected` are videos of another form than those of the rows.
        names = [*(rows.features or ())]
        if missing := [name for name in task.columns if name not in names] or (["video"] if expected else []):
            raise ValueError(
                f"The rows have the columns {', '.join(names) or 'none'}, but not {missing[0]!r}"
                f"{f' with {expected}' if missing == ['video'] and expected else ''}: make them with "
                "load_video_dataset, load_video_stream, or the function of the task."
            )
        if on_error not in get_args(OnError):
            raise ValueError(f"on_error={on_error!r} is unknown; choose from {', '.join(get_args(OnError))}.")
        self.rows = rows
        self.task: Any = task.for_rows(rows)
        self.seed = seed
        self.on_error = on_error

    # Finds the row of an index, the key of its draws, and the rows that may stand in for it.
    _find: Callable[[Any], tuple[Any, tuple[int, ...], Sequence[Any]]]
    # Makes the item of a row, drawn by a key. A broken video is remembered.
    _read: Callable[[Any, tuple[int, ...]], Mapping[str, Any]]

    def __getitem__(self, index: Any) -> Mapping[str, Any] | None:
        row, key, others = self._find(index)
        try:
            return self._read(row, key)
        except VideoReadError:
            if self.on_error == "error":
                raise
        return self._replacement(key, others) if self.on_error == "replace" else None

    def complete_batch(
        self, items: list[Mapping[str, Any] | None], indices: Sequence[Any]
    ) -> list[Mapping[str, Any] | None]:
        """The items of a batch, of what `__getitem__` returned; in training at least one is not None."""
        if self.training and all(item is None for item in items):
            items[0] = self._replacement(*self._find(indices[0])[1:])
        return items

    def _replacement(self, key: tuple[int, ...], rows: Sequence[Any]) -> Mapping[str, Any]:
        """Another item, drawn from the key of the broken one."""
        reason = ""
        for number in np.random.default_rng(np.random.SeedSequence(key)).permutation(len(rows)).tolist():
            # A video that is known to be broken is tried again: the draw must not depend on what was read before.
            try:
                return self._read(rows[number], key)
            except VideoReadError as error:
                reason = str(error)
        raise _nothing_readable(len(rows), reason)


def _nothing_readable(num_rows: int, reason: str) -> VideoReadError:
    return VideoReadError(f"None of {count(num_rows, 'video')} can be read, such as this one: {reason}")


class VideoDataset(TaskItems, Dataset):
    """The items that a task makes of rows.

    Every draw of training depends on (seed, epoch, index) alone. So it does not matter which worker or machine draws,
    nor whether the run was interrupted. The index may be a pair of a row and a number of its repetition in the epoch,
    as `ClassSampler` gives it: each repetition is another clip.

    Args:
        rows: `video` (a path, or a name if there are `bytes`), the columns of the task and, optionally, `start` and
            `end` (seconds, or None); as of `load_video_dataset`, `load_captions`, `load_detections` or `cut_clips`.
        task: what an item is: a [`ClipTask`], [`TextTask`], [`FrameTask`] or [`BoxTask`], or one of your own.
        training: whether items are drawn at random, to learn from.
        seed: seed of all draws.
        on_error: what happens to a video that cannot be read: "error" raises, "skip" makes the item None, which
            `collate` of the task leaves out, "replace" takes another row, drawn from (seed, epoch, index). In
            training, a batch that would be empty gets one replacement also with "skip". `broken_videos` lists the
            unreadable videos. An evaluation never replaces a video, because a score must belong to its video: call
            `drop_broken` before it.

    Raises:
        ValueError: `rows` lack a column, `on_error` is unknown or for training alone, or the task refuses the rows.
        VideoReadError: on access to an item, if its video cannot be read and `on_error` is "error", or no other video
            can be read.
    """

    def __init__(self, rows: datasets.Dataset, task: Task, *, training: bool, seed: int = 0, on_error: str = "error"):
        if not training and on_error == "replace":
            raise ValueError('on_error="replace" is for training: a score must belong to its video.')
        is_feature = isinstance(rows.features.get("video"), datasets.Video)
        super().__init__(rows, task, seed, on_error, "paths of videos" if is_feature else "")
        self.training = training
        # Shared memory, because persistent DataLoader workers keep the copy of the data set that they started with.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._is_broken = torch.zeros(len(rows), dtype=torch.bool).share_memory_()
        self._dropped: set[str] = set()

    @property
    def epoch(self) -> int:
        """The epoch whose clips are drawn."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose clips are drawn, in this process and in its DataLoader workers."""
        self._epoch.fill_(epoch)

    def broken_videos(self) -> list[str]:
        """Paths of the videos that this process and its DataLoader workers could not read so far, and of those that
        `drop_broken` left out."""
        return sorted(self._dropped.union(self.rows.select(self._is_broken.nonzero().flatten())["video"]))

    def drop_broken(self, num_workers: int = 1) -> "VideoDataset":
        """Leave out the rows of every video that cannot be read to its end, and the rows that hold no frame of theirs,
        which are logged; and return this data set. Every video is decoded once in full, by `num_workers` threads; all
        processes of a launcher must call this. With `on_error="error"` nothing is decoded. Raises `VideoReadError` if
        no row can be read."""
        if self.on_error == "error":
            return self
        broken, empty = find_broken(self.rows, decode=True, num_workers=num_workers)
        self._dropped.update(broken)
        warn_of_empty_rows(empty)
        if not broken and not empty:
            return self
        kept = readable_rows(self.rows, broken, empty)
        if not kept:
            raise _nothing_readable(len(self), str([*broken.values(), *empty][0]))
        self.rows = self.rows.select(kept)
        self._is_broken = self._is_broken[kept].share_memory_()
        return self

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[Index]) -> list[Mapping[str, Any] | None]:
        """The items of a batch, for a DataLoader; see `complete_batch`."""
        return self.complete_batch([self[index] for index in indices], indices)

    def _find(self, index: Index) -> tuple[int, tuple[int, ...], range]:
        row, repetition = index if isinstance(index, tuple) else (index, 0)
        row = range(len(self))[row]
        return row, (self.seed, self.epoch, row, *([repetition] if repetition else [])), range(len(self))

    def _read(self, row: int, key: tuple[int, ...]) -> Mapping[str, Any]:
        try:
            return self.task.make(self.rows[row], key, self.training)
        except VideoReadError:
            self._is_broken[row] = True
            raise


def with_those_inside(dataset: Any) -> Iterator[Any]:
    """A data set and all data sets inside of it, as of a `Subset` or a `ConcatDataset`."""
    yield dataset
    inner = getattr(dataset, "datasets", ())
    for each in [*(inner.values() if isinstance(inner, Mapping) else inner), getattr(dataset, "dataset", None)]:
        if each is not None:
            yield from with_those_inside(each)


def task_of(dataset: Any) -> Task | None:
    """The task of a data set, or of the first inside of it that has one."""
    return next((each.task for each in with_those_inside(dataset) if hasattr(each, "task")), None)
