"""The rows of many videos, one a piece: read ahead, in batches that hold the pieces of several videos."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from hf_video.data.loader import iterate_ahead, map_ahead
from hf_video.inference.windows import Piece
from hf_video.io import FULL_DISK, write_error_number
from hf_video.settings import few

from .tasks import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.data.video_listing import ListedVideo


class Todo(NamedTuple):
    """A video to read, what changes with its file (see [`content_of`]), and the pieces whose rows are there."""

    video: ListedVideo
    content: str | None = None
    known: frozenset[int] = frozenset()


class Row(NamedTuple):
    """A piece of a video, its number from 0, and what a model makes of it, or why that is nothing. A video without a
    piece has one row without one."""

    todo: Todo
    number: int
    is_last: bool
    piece: Piece | None = None
    output: np.ndarray | None = None
    error: Exception | None = None


def run(
    task: Task,
    model: PreTrainedModel,
    todo: Sequence[Todo],
    batch_size: int,
    *,
    threads: int | None = None,
    total: int | None = None,
) -> Iterator[Row]:
    """The rows of videos that are not known, in their order. The next pieces are read while the model computes; videos
    of a single piece are read by several threads, those of others in one. With a `total` number of videos there is a
    progress bar. An error of the machine, such as too little memory, ends the run; others are those of a video."""
    model.eval()
    if task.is_single:
        found = map_ahead(lambda each: list(read_rows(task, each)), todo, threads, 2 * batch_size)
        read = batches(chain.from_iterable(found), batch_size)
    else:
        read = iterate_ahead(batches((row for each in todo for row in read_rows(task, each)), batch_size))
    initial = (total or 0) - len(todo)
    with tqdm(desc="Videos", unit="video", total=total, initial=initial, disable=None if total else True) as bar:
        for batch in read:
            for row in encode(task, model, batch):
                yield row
                bar.update(row.is_last)


def read_rows(task: Task, todo: Todo) -> Iterator[Row]:
    """The pieces of a video that are not known. An error is the last row."""
    number, held = 0, None
    try:
        for piece in task.read(todo.video.open()):
            if held is not None:
                if number not in todo.known:
                    yield Row(todo, number, False, held)
                number += 1
            held = piece
        last = Row(todo, number, True, held)
    # There is no complete list of the errors that a decoder raises for strange files.
    except Exception as error:
        last = Row(todo, number, True, error=_of_video(error))
    yield last


def by_video(rows: Iterator[Row]) -> Iterator[tuple[Todo, Iterator[Row]]]:
    """The rows of each video. They end with its last one, before anything is known of the next video."""

    def of_video(row: Row) -> Iterator[Row]:
        yield row
        while not row.is_last:
            yield (row := next(rows))

    for first in rows:
        found = of_video(first)
        yield first.todo, found
        deque(found, maxlen=0)


def batches(rows: Iterable[Row], batch_size: int) -> Iterator[list[Row]]:
    """Rows whose pieces have one shape."""
    for _, of_shape in groupby(rows, lambda row: None if row.piece is None else row.piece.pixel_values.shape):
        while batch := list(islice(of_shape, batch_size)):
            yield batch


def encode(task: Task, model: PreTrainedModel, rows: Sequence[Row]) -> Iterator[Row]:
    """Rows with what a model makes of their pieces, which have one shape, and are then without their pixels."""
    pieces = [row.piece.pixel_values for row in rows if row.piece is not None]
    outputs = iter(_encode(task, model, np.stack(pieces)) if pieces else ())
    for row in rows:
        if row.piece is not None:
            found = next(outputs)
            if not isinstance(found, Exception) and not np.isfinite(found).all():
                which = "this video" if task.is_single else f"the window from {row.piece.start:g} s"
                found = ValueError(f"The model's {task.quantity} of {which} are not finite.")
            row = row._replace(piece=row.piece._replace(pixel_values=np.empty(0)))
            row = row._replace(error=found) if isinstance(found, Exception) else row._replace(output=found)
        yield row


def _encode(task: Task, model: PreTrainedModel, pixel_values: np.ndarray) -> list[np.ndarray | Exception]:
    """The output of each piece, or why it has none. If the model refuses a batch, its pieces are tried alone."""
    try:
        return list(task.encode(model, torch.from_numpy(pixel_values)))
    except Exception as error:
        found = _of_video(error)
    return [found] if len(pixel_values) == 1 else [_encode(task, model, piece[None])[0] for piece in pixel_values]


def _of_video(error: Exception) -> Exception:
    """An error of a video, whose traceback keeps no frames and no tensors. One of the machine, which the next video
    would meet as well, is raised."""
    is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError))
    if is_memory or (isinstance(error, OSError) and write_error_number(error) in FULL_DISK):
        raise error
    traceback.clear_frames(error.__traceback__)
    return error


def content_of(video: ListedVideo) -> str | None:
    """Digits that change when the file of a video does; None for an address, and for what is not there."""
    from hf_video.inference.features import video_identity

    try:
        known = video_identity(video.source, video.sha256)[1]
    except OSError:
        return None
    return None if known is None else hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


@contextmanager
def telling_what_is_kept(contents: str, place: str, total: int, left: Callable[[], Sized]) -> Iterator[None]:
    """Ctrl-C in the block then says how many of `total` videos are kept; `left` gives those that are not."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(
            f"The {contents} of {total - len(left())} of {total} videos are kept in {place}; the same command "
            "continues."
        ) from None


def reason_of(error: Exception) -> str:
    """The error in words."""
    return str(error) or type(error).__name__


def require_no_files(place: str, is_file: bool, names: Sequence[str]) -> None:
    """Raises `ValueError` if a place that no run has begun is a file, or a folder with files."""
    if is_file:
        raise ValueError(f"{place} is a file; a folder is expected.")
    if visible := sorted(name for name in names if not name.startswith(".")):
        raise ValueError(f"{place} has other files ({few(visible)}): choose another folder for the results.")


def require_same_settings(place: str, contents: str, known: dict[str, Any], key: dict[str, Any]) -> None:
    """Raises `ValueError` if what a place has follows from another key: outputs of different settings are never
    mixed."""

    def difference(name: str) -> str:
        one, other = known.get(name), key.get(name)
        return f"{name} {one!r}, not {other!r}" if len(f"{one}{other}") < 60 else f"other {name}"

    if differing := sorted(name for name in key.keys() | known.keys() if known.get(name) != key.get(name)):
        raise ValueError(
            f"{place} has {contents} of other settings ({'; '.join(map(difference, differing))}), which are never "
            "mixed: choose another folder, or the same settings."
        )
