"""Batches that hold the pieces of several videos, and what a model makes of each video.

An engine may read, encode and write in different processes. What passes between these has a fixed size: a batch, and
the outputs of a batch.
"""

from __future__ import annotations

import pickle
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from hf_video.io import FULL_DISK, write_error_number

from .tasks import Piece, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Times = list[tuple[float, float]]
# The pieces of a video, or why it has none.
Reading = Iterable[Piece] | Exception


class Video(Protocol):
    """One of many videos, such as a `ListedVideo`: a key of its own; path, URL or name; and what a task reads."""

    @property
    def id(self) -> str: ...

    @property
    def source(self) -> str: ...

    def open(self) -> Any: ...


class Batch(NamedTuple):
    """Pieces of consecutive videos.

    Attributes:
        pixel_values: (batch_size, ...), see `Piece`.
        videos: the place of the video of each piece among those that are read.
        times: start and end of each piece in seconds.
    """

    pixel_values: np.ndarray
    videos: list[int]
    times: Times


@dataclass
class VideoOutputs:
    """What a model made of one video: (times, outputs) of the pieces of each batch. Iterate it once, before the next
    video.

    Attributes:
        video: the video.
        error: why it has no outputs; known after the iteration. Some of its outputs may have been given.
    """

    video: Video
    _place: int
    _runs: Iterator[tuple[Times, np.ndarray]]
    _errors: dict[int, Exception]

    def __iter__(self) -> Iterator[tuple[Times, np.ndarray]]:
        return self._runs

    @property
    def error(self) -> Exception | None:
        return self._errors.get(self._place)

    def gather(self) -> tuple[Times, list[np.ndarray]]:
        """The start and end, and the output, of every piece."""
        times: Times = []
        outputs: list[np.ndarray] = []
        for of_batch, values in self:
            times += of_batch
            outputs += list(values)
        return times, outputs


def is_of_machine(error: BaseException) -> bool:
    """Whether an error is one of the machine, which the next video would meet as well."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)):
        return True
    return isinstance(error, OSError) and write_error_number(error) in FULL_DISK


def reason_of(error: Exception) -> str:
    """The error in words."""
    return str(error) or type(error).__name__


def portable_error(error: Exception) -> Exception:
    """The error, or one with its words that can be pickled."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def pieces_of(task: Task, video: Video) -> Iterator[Piece]:
    """The pieces of a video, opened when the first one is asked for."""
    yield from task.read(video.open())


def read_batches(
    readings: Iterable[Reading], batch_size: int, errors: dict[int, Exception], ends_run: bool
) -> Iterator[Batch]:
    """The pieces of videos in batches of at most `batch_size`. A batch may go on into the next video. It ends early
    before a piece of another shape.

    `errors` gets the reason, by its place, of each video that cannot be read to its end, some of whose pieces may have
    been given. With `ends_run`, an error of the machine is raised, see `is_of_machine`.
    """
    waiting: list[tuple[int, Piece]] = []
    for place, reading in enumerate(readings):
        try:
            if isinstance(reading, Exception):
                raise reading
            for piece in reading:
                if waiting and waiting[0][1].pixel_values.shape != piece.pixel_values.shape:
                    yield _join(waiting)
                    waiting = []
                waiting.append((place, piece))
                if len(waiting) == batch_size:
                    yield _join(waiting)
                    waiting = []
        # There is no complete list of the errors that a decoder raises for strange files.
        except Exception as error:
            if ends_run and is_of_machine(error):
                raise
            errors[place] = _without_frames(error)
            waiting = [each for each in waiting if each[0] != place]
    if waiting:
        yield _join(waiting)


def _join(waiting: Sequence[tuple[int, Piece]]) -> Batch:
    values = np.stack([piece.pixel_values for _, piece in waiting])
    return Batch(values, [place for place, _ in waiting], [(piece.start, piece.end) for _, piece in waiting])


def _without_frames(error: Exception) -> Exception:
    """The error, whose traceback keeps no frames of a video that is too large, and no tensors."""
    traceback.clear_frames(error.__traceback__)
    return error


def encode_batch(
    task: Task, model: PreTrainedModel, pixel_values: np.ndarray, ends_run: bool = True
) -> list[np.ndarray | Exception]:
    """The float32 output of each piece of `Batch.pixel_values`, an array that may be read-only, or why it has none. If
    the model refuses a batch, its pieces are tried alone. With `ends_run`, an error of the machine is raised."""
    try:
        return list(task.encode(model, torch.from_numpy(pixel_values)))
    except Exception as error:
        if ends_run and is_of_machine(error):
            raise
        if len(pixel_values) == 1:
            return [_without_frames(error)]
    return [output for piece in pixel_values for output in encode_batch(task, model, piece[None], ends_run)]


def outputs_of_videos(
    task: Task,
    videos: Sequence[Video],
    encoded: Iterable[tuple[Batch, Sequence[np.ndarray | Exception]]],
    errors: dict[int, Exception],
) -> Iterator[VideoOutputs]:
    """The outputs of each video, in their order, as its batches come. Memory holds those of one batch. `encoded` has
    the batches of `read_batches` in their order, with their outputs, and `errors` is what that function fills."""
    runs = _runs(task, encoded, errors)
    upcoming: tuple[int, Times, np.ndarray] | None = None

    def runs_of(place: int) -> Iterator[tuple[Times, np.ndarray]]:
        nonlocal upcoming
        while upcoming := upcoming or next(runs, None):
            if upcoming[0] != place:
                return
            (_, times, outputs), upcoming = upcoming, None
            yield times, outputs
            if task.is_single:
                return

    for place, video in enumerate(videos):
        of_video = VideoOutputs(video, place, runs_of(place), errors)
        yield of_video
        deque(of_video, maxlen=0)


def _runs(
    task: Task, encoded: Iterable[tuple[Batch, Sequence[np.ndarray | Exception]]], errors: dict[int, Exception]
) -> Iterator[tuple[int, Times, np.ndarray]]:
    """The place of a video, and the times and outputs of its pieces in a batch. Those with an error are left out."""
    for batch, of_batch in encoded:
        for place, group in groupby(zip(batch.videos, batch.times, of_batch, strict=True), key=itemgetter(0)):
            times: Times = []
            outputs: list[np.ndarray] = []
            for _, time, output in group:
                if not isinstance(output, Exception) and not np.isfinite(output).all():
                    which = "this video" if task.is_single else f"the window from {time[0]:g} s"
                    output = ValueError(f"The model's {task.quantity} of {which} are not finite.")
                if isinstance(output, Exception):
                    errors.setdefault(place, output)
                else:
                    times.append(time)
                    outputs.append(output)
            if place not in errors:
                yield place, times, np.stack(outputs)


def portable_videos(videos: Sequence[Video]) -> list[Video]:
    """The videos, which can be pickled.

    Raises:
        ValueError: a video is stored inside its data set.
    """
    for video in videos:
        if getattr(video, "rows", None) is not None:
            raise ValueError(
                f"{video.source} is stored inside a data set, which would pass through the memory of Ray: use "
                "--engine local."
            )
    return list(videos)
