"""Computes something of many videos: a task says what, an engine does it, and a sink keeps it.

A sink divides the videos that it does not have yet into parts. An engine does the parts, and tells what became of each
one, in any order. Whenever a run is ended, the next one does what is left, with the same engine or another one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info
from tqdm.auto import tqdm

from hf_video.data import ReadAheadLoader
from hf_video.data.loader import iterate_ahead

from .batches import (
    Batch,
    Reading,
    Video,
    VideoOutputs,
    encode_batch,
    outputs_of_videos,
    pieces_of,
    portable_error,
    read_batches,
    reason_of,
)
from .tasks import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The batches of a part with their outputs, in the order of the batches, see `encode_batch`.
Encoded = Iterator[tuple[Batch, Sequence[np.ndarray | Exception]]]


class Part(NamedTuple):
    """Videos that are done together or not at all. A name stands for one part of a run."""

    name: str
    videos: Sequence[Video]


class PartResult(NamedTuple):
    """What became of a part.

    Attributes:
        part: its name.
        num_videos: its videos.
        errors: path and reason of each video with an error.
        written: what `Sink.write` returned.
    """

    part: str
    num_videos: int
    errors: list[tuple[str, str]]
    written: Any = None


class Report(NamedTuple):
    """What a run has done.

    Attributes:
        num_new: the videos of this run.
        errors: path and reason of those that have an error.
    """

    num_new: int
    errors: list[tuple[str, str]]


class Sink:
    """Where the outputs of videos go, and what is there already.

    Attributes:
        place: its name in messages.
        contents: what it holds of a video, for messages.
        is_kept: whether outputs stay. Then an error of the machine ends the run, as it would be written down as one of
            its video.
    """

    place = ""
    contents = "rows"
    is_kept = True

    def claim(self) -> None:
        """Begins a run. Raises `ValueError` if the place has outputs of other settings, or files of others."""

    def is_claimed(self) -> bool:
        """Whether a run has begun here, as another machine sees it."""
        return True

    def plan(self, videos: Sequence[Video]) -> list[Part]:
        """The parts that are left to do. Raises `ValueError` if the key of a video stands for another one."""
        return [Part("", videos)]

    def write(self, task: Task, part: Part, outputs: Iterator[VideoOutputs]) -> Any:
        """Writes a part as a whole, in the process that reads its videos. What it returns goes to `note`."""
        raise NotImplementedError

    def note(self, result: PartResult) -> None:
        """A part is done."""

    def close(self) -> None:
        """Ends a run, after Ctrl-C as well."""


# Does parts, in any order, and gives the result of each part as soon as it is written.
Engine = Callable[[Task, Sequence[Part], Sink], Generator[PartResult]]


def require_no_files(place: str, is_file: bool, names: Sequence[str]) -> None:
    """Raises `ValueError` if a place that no run has begun is a file, or a folder with these files."""
    if is_file:
        raise ValueError(f"{place} is a file; a folder is expected.")
    if names:
        listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise ValueError(f"{place} has other files ({listed}): choose another folder for the results.")


def require_same_settings(sink: Sink, known: dict[str, Any], key: dict[str, Any]) -> None:
    """Raises `ValueError` if what is in the sink has another key: outputs of different settings are never mixed."""

    def difference(name: str) -> str:
        values = known.get(name), key.get(name)
        is_short = not isinstance(values[1], dict) and sum(len(str(value)) for value in values) < 60
        return f"{name} {values[0]!r}, not {values[1]!r}" if is_short else f"other {name}"

    if differing := sorted(name for name in key.keys() | known.keys() if known.get(name) != key.get(name)):
        raise ValueError(
            f"{sink.place} has {sink.contents} of other settings ({'; '.join(map(difference, differing))}), which are "
            "never mixed: choose another folder, or the same settings."
        )


def run(task: Task, videos: Sequence[Video], sink: Sink, engine: Engine, *, progress: bool = True) -> Report:
    """Does the videos that a sink does not have yet. An error is one of its video; the others are done all the same.

    Args:
        task: what is computed.
        videos: each with a key of its own.
        sink: where it goes.
        engine: does the work.
        progress: shows a progress bar.

    Raises:
        ValueError: the sink has other files or outputs of other settings, or a key stands for two videos.
        OSError: writing failed.
        ChildProcessError: some videos are not done, because the processes that read them died.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    sink.claim()
    parts = sink.plan(videos)
    num_left, num_new = sum(len(part.videos) for part in parts), 0
    errors: list[tuple[str, str]] = []
    shown = {"total": len(videos), "initial": len(videos) - num_left, "disable": None if progress and parts else True}
    try:
        with tqdm(desc="Videos", unit="video", **shown) as bar, closing(engine(task, parts, sink)) as results:
            for result in results:
                sink.note(result)
                num_new += result.num_videos
                errors += result.errors
                bar.update(result.num_videos)
    except KeyboardInterrupt as interrupt:
        sink.close()
        if not sink.is_kept:
            raise
        num_done = len(videos) - sum(len(part.videos) for part in sink.plan(videos))
        raise type(interrupt)(
            f"The {sink.contents} of {num_done} of {len(videos)} videos are kept in {sink.place}; the same command "
            "continues."
        ) from None
    sink.close()
    if num_new < num_left:
        raise ChildProcessError(
            f"{num_left - num_new} of {len(videos)} videos are not done, because the processes that read them died "
            f"each time: memory ran out, or a video ends its decoder. The {sink.contents} of the others are kept. The "
            "same command tries again; a smaller --part-size shows which videos they are."
        )
    return Report(num_new, errors)


def do_part(
    task: Task,
    part: Part,
    sink: Sink,
    encode: Callable[[Iterator[Batch]], Encoded],
    batch_size: int,
    readings: Iterable[Reading],
) -> PartResult:
    """Reads the videos of a part, has their batches of at most `batch_size` pieces encoded, and writes their outputs.
    `readings` has the pieces of each video. An error of the machine is raised, see `read_batches`."""
    errors: dict[int, Exception] = {}
    batches = read_batches(readings, batch_size, errors, sink.is_kept)
    written = sink.write(task, part, outputs_of_videos(task, part.videos, encode(batches), errors))
    failed = [(part.videos[place].source, reason_of(errors[place])) for place in sorted(errors)]
    return PartResult(part.name, len(part.videos), failed, written)


@dataclass
class LocalEngine:
    """Does one part after the other in this process, and reads ahead while the model computes.

    Attributes:
        model: on the device to compute on; put into evaluation mode.
        batch_size: pieces in a batch.
        num_workers, reading_threads: processes and threads that read videos of a single piece, see `ReadAheadLoader`.
            The pieces of other videos are read in one thread.
    """

    model: PreTrainedModel
    batch_size: int = 8
    num_workers: int = 0
    reading_threads: int | None = None

    def __call__(self, task: Task, parts: Sequence[Part], sink: Sink) -> Generator[PartResult]:
        self.model.eval()

        def encode(batches: Iterator[Batch]) -> Encoded:
            # Videos of a single piece are read ahead already.
            for batch in batches if task.is_single else iterate_ahead(batches):
                yield batch, encode_batch(task, self.model, batch.pixel_values, sink.is_kept)

        # Reading goes on when a part ends.
        with closing(self._read(task, [video for part in parts for video in part.videos])) as readings:
            for part in parts:
                videos = islice(readings, len(part.videos))
                yield do_part(task, part, sink, encode, self.batch_size, videos)

    def _read(self, task: Task, videos: Sequence[Video]) -> Generator[Reading]:
        """The pieces of each video, in the order of the videos."""
        if not task.is_single:
            yield from (pieces_of(task, video) for video in videos)
            return
        loader = ReadAheadLoader(
            _Videos(task, videos),
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            reading_threads=self.reading_threads,
            collate_fn=list,
        )
        for readings in loader:
            yield from readings


class _Videos:
    """The pieces of each video, or what was raised instead, for a `DataLoader`."""

    def __init__(self, task: Task, videos: Sequence[Video]):
        self.task, self.videos = task, videos

    def __len__(self) -> int:
        return len(self.videos)

    def __getitem__(self, index: int) -> Reading:
        try:
            return list(pieces_of(self.task, self.videos[index]))
        # There is no complete list of the errors that a decoder raises for strange files.
        except Exception as error:
            return error if get_worker_info() is None else portable_error(error)

    def complete_batch(self, items: list, indices: list[int]) -> list:
        """Nothing replaces a video that cannot be read; see `ReadAheadLoader`."""
        return items
