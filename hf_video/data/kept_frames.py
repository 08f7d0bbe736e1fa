"""Decodes the frames that a training can ask for once, and keeps them in files while it runs.

Frames are kept at the size that the crops need, see `ClipTask.kept_size`. Where the processor resizes whole frames, it
is the size that it gives them, and each item has the bits that it has without kept frames. A crop that chooses its own
size is taken from frames in which the smallest crop still has all the pixels that it becomes. The frames of all videos
get this size, kept or not, so that an item does not depend on the room for files.

A video is decoded by the first process or thread that asks for it. The processes of a machine share the files.
"""

import copy
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from filelock import FileLock

from hf_video.reading import VideoReader, VideoReadError
from hf_video.reading.frame_streaming import stream_frames

from .dataset import VideoDataset
from .rows import BYTES, VideoRows, open_video
from .tasks import ClipTask

# Of more videos none are kept: each would be opened to learn its length, and few would fit.
MOST_VIDEOS = 1000
# To convert and shrink a frame takes as long as to decode so many.
_SHRINKING = 3
# Frames that are in memory before they are made smaller.
_PIECE = 32


@dataclass
class KeptVideo:
    """The frames of a video at the size at which they are kept.

    Attributes:
        times, end: see [`VideoReader`].
        size: height and width in pixels.
        numbers: (num_frames,) int64, the numbers of the frames that items can ask for, rising.
        shrink: gives frames, uint8 (n, height, width, 3), the size.
        gain: how many frames fewer are decoded in the training if these are kept.
        file: where they are kept; None if each item decodes its own.
    """

    times: np.ndarray
    end: float
    size: tuple[int, int]
    numbers: np.ndarray
    shrink: Callable[[np.ndarray], np.ndarray]
    gain: float
    file: Path | None = None

    @property
    def num_bytes(self) -> int:
        return len(self.numbers) * math.prod(self.size) * 3

    def open(self, row: Mapping[str, Any]) -> VideoReader:
        """A reader of these frames, for a row of the video."""
        return _KeptReader(self, row)

    def load(self, row: Mapping[str, Any]) -> np.ndarray | None:
        """The kept frames, (num_frames, height, width, 3) uint8; None if there are none."""
        if self.file is None:
            return None
        if not self.file.exists():
            with FileLock(f"{self.file}.lock"):
                if not self.file.exists():
                    self._fill(self.file, row)
        # The file of a video that cannot be read to its end is shorter.
        if self.file.stat().st_size != self.num_bytes:
            return None
        return np.asarray(np.memmap(self.file, np.uint8, "r", shape=(len(self.numbers), *self.size, 3)))

    def _fill(self, file: Path, row: Mapping[str, Any]) -> None:
        unfinished = file.with_suffix(".unfinished")
        with open(unfinished, "wb") as target:
            try:
                for frames in _decode_once(row, self.numbers):
                    target.write(self.shrink(frames).data)
            except VideoReadError:
                target.truncate(0)
        os.replace(unfinished, file)


class _KeptReader(VideoReader):
    def __init__(self, kept: KeptVideo, row: Mapping[str, Any]):
        self._kept, self._row, self._opened = kept, row, ExitStack()
        self._frames: Any = SimpleNamespace(height=kept.size[0], width=kept.size[1], backend="kept")
        self.name, self.times, self.end = row["video"], kept.times, kept.end
        self.metadata = self.metadata_of(range(len(self)))

    def read(self, indices: Any) -> np.ndarray:
        kept, indices = self._kept, np.asarray(indices)
        places = np.searchsorted(kept.numbers[:-1], indices)
        frames = kept.load(self._row) if np.array_equal(kept.numbers[places], indices) else None
        if frames is not None:
            return frames[places]
        with VideoReader(open_video(self._row)) as reader:
            frames = kept.shrink(reader.read(indices.ravel()))
        return frames.reshape(*indices.shape, *kept.size, 3)


def _decode_once(row: Mapping[str, Any], numbers: np.ndarray) -> Iterator[np.ndarray]:
    """The frames of some numbers, rising, in pieces, of which only one is in memory."""
    pieces = [numbers[start : start + _PIECE] for start in range(0, len(numbers), _PIECE)]
    with VideoReader(open_video(row)) as reader:
        if sum(_num_decoded(reader, piece) for piece in pieces) <= numbers[-1] + 1:
            yield from map(reader.read, pieces)
            return
        size = reader.metadata.height, reader.metadata.width
    # Each piece would be decoded from far before it.
    wanted, frames = {*numbers.tolist()}, stream_frames(open_video(row))
    for frame in islice(frames, int(numbers[-1]) + 1):
        if frame.number in wanted:
            if frame.image.shape[:2] != size:
                raise VideoReadError(f"{row['video']}: frame {frame.number} has another size than the first.")
            yield frame.image[None]


def _num_decoded(reader: VideoReader, numbers: np.ndarray) -> int:
    """How many frames are decoded to read some."""
    numbers = np.unique(numbers)
    keys = reader.key_frames[np.searchsorted(reader.key_frames, numbers, side="right") - 1]
    # Of the numbers behind a key frame only the last counts.
    is_last = np.append(np.diff(keys) > 0, True)
    return int((numbers - keys + 1)[is_last].sum())


@dataclass
class KeptFrames:
    """The videos whose frames have the kept size, and how many GiB those take that are not kept for lack of room."""

    videos: list[KeptVideo]
    gib_left_out: float

    def __str__(self) -> str:
        kept = [video for video in self.videos if video.file is not None]
        num_frames, mib = sum(len(video.numbers) for video in kept), sum(video.num_bytes for video in kept) / 2**20
        return (
            (
                f"{num_frames:,} frames of {len(kept):,} videos are decoded once and kept while the training runs, in "
                f"{mib:,.0f} MiB of its folder; --kept-frames-gib 0 turns that off."
            )
            if kept
            else ""
        )


@contextmanager
def keeping_frames(datasets: Iterable[Any], folder: Path, gib: float, num_epochs: float) -> Iterator[KeptFrames]:
    """In the block, the data sets of a training take their frames from files, which are removed behind it.

    Args:
        datasets: each [`VideoDataset`] of a [`ClipTask`] among them is changed.
        folder: the new folder of the files, the same in all processes.
        gib: the most that is kept, and at most half of the free disk is; 0 changes nothing.
        num_epochs: how often an item is asked for.
    """
    used = [each for each in datasets if isinstance(each, VideoDataset) and isinstance(each.task, ClipTask)]
    used = [each for each in used if gib and len(VideoRows(each.rows)) <= MOST_VIDEOS]
    tasks = [each.task for each in used]
    try:
        videos = [video for dataset in used for video in _give_size(dataset, num_epochs)]
        yield KeptFrames(videos, _choose_kept(videos, folder, gib) if videos else 0.0)
    finally:
        for dataset, task in zip(used, tasks, strict=True):
            dataset.task = task
        if int(os.environ.get("LOCAL_RANK") or 0) == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _choose_kept(videos: list[KeptVideo], folder: Path, gib: float) -> float:
    """Gives files to the videos for which there is room, and returns the GiB of the others that are worth one."""
    folder.mkdir(parents=True, exist_ok=True)
    room, left_out = min(gib * 2**30, shutil.disk_usage(folder).free / 2), 0
    for number, video in sorted(enumerate(videos), key=lambda each: -each[1].gain / each[1].num_bytes):
        if video.gain > 0 and video.num_bytes <= room:
            room -= video.num_bytes
            video.file = folder / f"{number}.rgb"
        elif video.gain > 0:
            left_out += video.num_bytes
    return left_out / 2**30


def _give_size(dataset: VideoDataset, num_epochs: float) -> list[KeptVideo]:
    """Lets the task of a data set give the frames of each video the kept size."""
    listed = VideoRows(dataset.rows)
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as threads:
        plan = partial(_plan, dataset, num_epochs)
        planned = [*threads.map(plan, map(listed.rows, range(len(listed))))]
    dataset.task = copy.copy(dataset.task)
    names = zip(listed.videos.to_pylist(), planned, strict=True)
    dataset.task.kept = {(name, dataset.training): video for name, video in names if video is not None}
    return [video for video in planned if video is not None]


def _plan(dataset: VideoDataset, num_epochs: float, rows: list[int]) -> KeptVideo | None:
    """What can be kept of the video of some rows; None if it cannot be read, which its items will tell."""
    task, draws = dataset.task, np.random.default_rng(0) if dataset.training else None
    plain = dataset.rows.remove_columns([name for name in (BYTES,) if name in dataset.rows.column_names])
    asked, each = [], 0
    try:
        with VideoReader(open_video(dataset.rows[rows[0]])) as reader:
            for row in map(plain.__getitem__, rows):
                asked.append(task.possible_frames(reader, row, dataset.training))
                chosen = task.choose_frames(reader, row, draws)
                each += _num_decoded(reader, chosen) + _SHRINKING * chosen.size
            numbers = np.unique(np.concatenate([part.ravel() for part in asked]))
            once = _num_decoded(reader, numbers) + _SHRINKING * len(numbers)
            size = task.kept_size(reader.metadata.height, reader.metadata.width, dataset.training)
            shrink = partial(task.shrink, size=size)
            return KeptVideo(reader.times, reader.end, size, numbers, shrink, num_epochs * each - once)
    except (VideoReadError, OSError):
        return None
