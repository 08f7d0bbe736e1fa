"""Batches that hold the pieces of several videos, and the rows that their outputs become.

Reading, encoding and writing are apart, so that an engine can put them into different processes. What passes between
them has a fixed size: a batch, and the outputs of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import torch

from hf_video.io import FULL_DISK, write_error_number

from .bulk_tasks import BulkTask, Piece

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEY, PATH, ERROR = "key", "path", "error"


class BulkVideo(Protocol):
    """A video of a bulk run; `ListedVideo` is one."""

    @property
    def id(self) -> str:
        """The key of the video, its own among all."""

    @property
    def source(self) -> str:
        """Path or URL, or a name for a video that is stored elsewhere."""

    def open(self) -> Any:
        """What `read_video` and `open_frames` take."""


class Batch(NamedTuple):
    """Pieces of consecutive videos.

    Attributes:
        pixel_values: (batch_size, num_frames, num_channels, height, width) uint8, or (batch_size, num_views, ...).
        videos: the place of the video of each piece among those that are read.
        times: start and end of each piece in seconds.
    """

    pixel_values: np.ndarray
    videos: list[int]
    times: list[tuple[float, float]]


class Encoded(NamedTuple):
    """What a model made of a batch.

    Attributes:
        outputs: (batch_size, ...) float32.
        errors: why a piece has no output, by its place in the batch.
    """

    outputs: np.ndarray
    errors: dict[int, str]


def is_of_machine(error: BaseException) -> bool:
    """Whether an error is one of the machine, which the next video would meet as well."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)):
        return True
    return isinstance(error, OSError) and write_error_number(error) in FULL_DISK


def read_batches(
    task: BulkTask, videos: Sequence[BulkVideo], batch_size: int, errors: dict[int, str]
) -> Iterator[Batch]:
    """The pieces of videos in batches, which do not end where a video ends. Pieces of another shape begin another one.

    Args:
        task: reads a video.
        videos: what to read, in this order.
        batch_size: most pieces in a batch.
        errors: filled with the reason of each video that cannot be read to its end, by its place. Some of its pieces
            may have been given.

    Raises:
        MemoryError, OSError: an error of the machine, see `is_of_machine`.
    """
    waiting: list[tuple[int, Piece]] = []
    for place, video in enumerate(videos):
        try:
            for piece in task.read(video.open()):
                if waiting and waiting[0][1].pixel_values.shape != piece.pixel_values.shape:
                    yield _join(waiting)
                    waiting = []
                waiting.append((place, piece))
                if len(waiting) == batch_size:
                    yield _join(waiting)
                    waiting = []
        # There is no complete list of the errors that a decoder raises for strange files.
        except Exception as error:
            if is_of_machine(error):
                raise
            errors[place] = str(error) or type(error).__name__
            waiting = [each for each in waiting if each[0] != place]
    if waiting:
        yield _join(waiting)


def _join(waiting: Sequence[tuple[int, Piece]]) -> Batch:
    places, pieces = zip(*waiting, strict=True)
    values = np.stack([piece.pixel_values for piece in pieces])
    return Batch(values, list(places), [(piece.start, piece.end) for piece in pieces])


def encode_batch(task: BulkTask, model: PreTrainedModel, pixel_values: np.ndarray) -> Encoded:
    """The outputs of a batch. If the model refuses it, its pieces are tried alone.

    Args:
        task: encodes with the model.
        model: in evaluation mode, on the device to compute on.
        pixel_values: see `Batch`; the array may be read-only.

    Raises:
        MemoryError, torch.OutOfMemoryError, torch.AcceleratorError: an error of the machine.
    """
    try:
        return Encoded(task.encode(model, torch.from_numpy(pixel_values)), {})
    except Exception as error:
        if is_of_machine(error):
            raise
        if len(pixel_values) == 1:
            return Encoded(np.full((1, 1), np.nan, np.float32), {0: str(error) or type(error).__name__})
    singly = [encode_batch(task, model, piece[None]) for piece in pixel_values]
    shape = next((each.outputs.shape for each in singly if not each.errors), (1, 1))
    outputs = [np.full(shape, np.nan, np.float32) if each.errors else each.outputs for each in singly]
    return Encoded(
        np.concatenate(outputs), {place: each.errors[0] for place, each in enumerate(singly) if each.errors}
    )


def rows_of_videos(
    task: BulkTask,
    videos: Sequence[BulkVideo],
    encoded: Iterable[tuple[Batch, Encoded]],
    errors: dict[int, str],
) -> Iterator[pa.Table]:
    """One row for each video, in their order, as soon as all of its pieces are encoded: `key`, `path`, `error`, and
    the columns of the task. Memory holds the outputs of one video, and of the batch that ends it.

    Args:
        task: says what the columns are.
        videos: those that were read.
        encoded: the batches of `read_batches` in their order, with their outputs.
        errors: the mapping that `read_batches` fills.
    """
    schema = table_schema(task)
    place = 0
    times: list[tuple[float, float]] = []
    outputs: list[np.ndarray] = []

    def row() -> pa.Table:
        video, error = videos[place], errors.get(place)
        columns = {} if error is not None else task.describe(times, outputs)
        texts = {KEY: as_utf8(video.id), PATH: as_utf8(video.source), ERROR: error and as_utf8(error)}
        columns |= {name: pa.array([text], pa.string()) for name, text in texts.items()}
        return pa.table([columns.get(field.name, pa.nulls(1, field.type)) for field in schema], schema=schema)

    for batch, (values, failed) in encoded:
        for position, (of_video, time) in enumerate(zip(batch.videos, batch.times, strict=True)):
            while place < of_video:
                yield row()
                place, times, outputs = place + 1, [], []
            if position in failed:
                errors.setdefault(place, failed[position])
            elif not np.isfinite(values[position]).all():
                errors.setdefault(place, _not_finite(task, time[0]))
            times.append(time)
            outputs.append(values[position])
    while place < len(videos):
        yield row()
        place, times, outputs = place + 1, [], []


def table_schema(task: BulkTask) -> pa.Schema:
    """The columns of the output of a task."""
    return pa.schema([(name, pa.string()) for name in (KEY, PATH, ERROR)] + list(task.columns))


def as_utf8(text: str) -> str:
    """The text for a column. Names of files, and messages with them, may have bytes that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _not_finite(task: BulkTask, start: float) -> str:
    if task.name == "predict":
        return "The model's scores of this video are not finite."
    return f"The features of the window from {start:g} s are not finite."
