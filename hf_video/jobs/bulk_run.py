"""Computes something of many videos, whichever engine does the work: what is left, the parts, and what became of them.

An engine takes parts and gives what became of each one, in any order. Whenever a run is ended, the next one does what
is left, with the same engine or another one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm.auto import tqdm

from hf_video.data.read_ahead import iterate_ahead

from .bulk_batches import ERROR, PATH, Batch, BulkVideo, Encoded, encode_batch, read_batches, rows_of_videos
from .bulk_parts import Part, PartFolder, plan_parts
from .bulk_tasks import BulkTask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Errors that a report shows.
_SHOWN = 10

Encode = Callable[[Iterator[Batch]], Iterator[tuple[Batch, Encoded]]]


class PartResult(NamedTuple):
    """What became of a part.

    Attributes:
        num_videos: its rows.
        errors: path and reason of each row with an error.
    """

    num_videos: int
    errors: list[tuple[str, str]]


class BulkReport(NamedTuple):
    """What a folder holds after a run.

    Attributes:
        num_videos: the rows, those of earlier runs included.
        num_new: those of this run.
        num_errors: the rows with an error.
        errors: path and reason of the first of them.
    """

    num_videos: int
    num_new: int
    num_errors: int
    errors: list[tuple[str, str]]


Engine = Callable[[Sequence[Part]], Generator[PartResult]]


def run_bulk(
    videos: Sequence[BulkVideo],
    folder: PartFolder,
    key: dict[str, Any],
    engine: Engine,
    *,
    part_size: int,
    retry_errors: bool = False,
    progress: bool = True,
) -> BulkReport:
    """Computes the rows of the videos that a folder does not have yet.

    Args:
        videos: each with a key of its own.
        folder: where the parts are written.
        key: the settings, see `PartFolder.claim`.
        engine: does the parts.
        part_size: videos of a part.
        retry_errors: whether videos whose row has an error are done again.
        progress: shows a progress bar.

    Raises:
        ValueError: the folder has other files or rows of other settings, or a key stands for two videos.
        OSError: writing failed.
        ChildProcessError: some videos are not done, because the processes that read them died.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    folder.claim(key)
    if retry_errors:
        folder.forget_errors()
    finished = folder.read_finished()
    parts = plan_parts(videos, finished, part_size)
    num_left = sum(len(part.videos) for part in parts)
    known = finished.errors
    first = known.slice(0, _SHOWN)
    shown = list(zip(first[PATH].to_pylist(), first[ERROR].to_pylist(), strict=True))
    num_errors, num_new = len(known), 0
    total = len(videos)
    try:
        with (
            tqdm(total=total, initial=total - num_left, desc="Videos", unit="video", disable=not progress) as bar,
            closing(engine(parts)) as results,
        ):
            for result in results:
                num_new += result.num_videos
                num_errors += len(result.errors)
                shown += result.errors[: _SHOWN - len(shown)]
                bar.update(result.num_videos)
    except KeyboardInterrupt as interrupt:
        written = set(folder.part_names())
        done = total - sum(len(part.videos) for part in parts if part.name not in written)
        raise type(interrupt)(
            f"The rows of {done} of {total} videos are kept in {folder.place}; the same command continues."
        ) from None
    if num_new < num_left:
        raise ChildProcessError(
            f"{num_left - num_new} of {total} videos are not done, because the processes that read them died each "
            "time: memory ran out, or a video ends its decoder. The rows of the others are kept. The same command "
            "tries again; a smaller --part-size shows which videos they are."
        )
    return BulkReport(len(finished) + num_new, num_new, num_errors, shown)


def do_part(task: BulkTask, part: Part, folder: PartFolder, encode: Encode, batch_size: int) -> PartResult:
    """Reads the videos of a part, has their batches encoded, and writes their rows.

    Args:
        task: what is computed.
        part: the videos.
        folder: where the part is written.
        encode: gives each batch with its outputs, in the order of the batches.
        batch_size: pieces in a batch.

    Raises:
        MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, OSError: an error of the machine.
    """
    errors: dict[int, str] = {}
    batches = read_batches(task, part.videos, batch_size, errors)
    folder.write(part.name, rows_of_videos(task, part.videos, encode(batches), errors))
    return PartResult(len(part.videos), [(part.videos[place].source, errors[place]) for place in sorted(errors)])


def local_engine(task: BulkTask, model: PreTrainedModel, folder: PartFolder, batch_size: int) -> Engine:
    """Does one part after the other in this process. A thread reads the next batch while the model computes."""

    def encode(batches: Iterator[Batch]) -> Iterator[tuple[Batch, Encoded]]:
        for batch in iterate_ahead(batches):
            yield batch, encode_batch(task, model, batch.pixel_values)

    def engine(parts: Sequence[Part]) -> Generator[PartResult]:
        model.eval()
        for part in parts:
            yield do_part(task, part, folder, encode, batch_size)

    return engine
