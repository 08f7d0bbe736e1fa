"""Decodes the frames that a training can ask for once, and keeps them in files while it runs.

Frames are kept at the size that the crops need, see `ClipTask.kept_size`. Where the processor resizes whole frames,
each item has the bits that it has without kept frames. The frames of all videos get this size, kept or not, so that an
item does not depend on the room for files. A video is decoded by the first process or thread that asks for it.
"""

import copy
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
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
from hf_video.texts import count

from .dataset import VideoDataset
from .rows import BYTES, VideoRows
from .tasks import ClipTask

# Of more videos none are kept: each would be opened to learn its length, and few would fit.
MOST_VIDEOS = 1000
# To convert a frame and to make it smaller takes as long as to decode so many.
_SHRINKING = 3
# Frames that are in memory before they are made smaller.
_PIECE = 32


class KeptVideo(VideoReader):
    """Frames of a video at the size (height, width) that `shrink` gives them. Items can ask for those with the rising
    `numbers`. `gain` frames fewer are decoded if they are kept, in the `file`; without it each item decodes its own.
    """

    file: Path | None = None

    def __init__(
        self,
        path: str,
        training: bool,
        reader: VideoReader,
        size: tuple[int, int],
        numbers: np.ndarray,
        shrink: Callable[[np.ndarray], np.ndarray],
        gain: float,
    ):
        self.path, self.training, self.size, self.numbers = path, training, size, numbers
        self.shrink, self.gain = shrink, gain
        self.num_bytes = len(numbers) * math.prod(size) * 3
        self.name, self.times, self.end = reader.name, reader.times, reader.end
        self._frames: Any = SimpleNamespace(height=size[0], width=size[1], backend="kept")
        self.metadata = self.metadata_of(range(len(self)))
        self._opened = ExitStack()

    def read(self, indices: Any) -> np.ndarray:
        indices = np.asarray(indices)
        places = np.searchsorted(self.numbers[:-1], indices)
        kept = self._load() if np.array_equal(self.numbers[places], indices) else None
        if kept is not None:
            return kept[places]
        with VideoReader(self.path) as reader:
            return self.shrink(reader.read(indices.ravel())).reshape(*indices.shape, *self.size, 3)

    def _load(self) -> np.ndarray | None:
        """The kept frames, (num_frames, height, width, 3) uint8; None if there are none."""
        if self.file is None:
            return None
        if not self.file.exists():
            with FileLock(f"{self.file}.lock"):
                if not self.file.exists():
                    self._fill(self.file)
        # The file of a video that cannot be read to its end is shorter.
        if self.file.stat().st_size != self.num_bytes:
            return None
        return np.asarray(np.memmap(self.file, np.uint8, "r", shape=(len(self.numbers), *self.size, 3)))

    def _fill(self, file: Path) -> None:
        unfinished = file.with_suffix(".unfinished")
        with open(unfinished, "wb") as target:
            try:
                for frames in _decode_once(self.path, self.numbers):
                    target.write(np.ascontiguousarray(self.shrink(frames)).data)
            except VideoReadError:
                target.truncate(0)
        os.replace(unfinished, file)


def _decode_once(path: str, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """The frames of some numbers, rising, in pieces, of which only one is in memory."""
    pieces = [numbers[start : start + _PIECE] for start in range(0, len(numbers), _PIECE)]
    with VideoReader(path) as reader:
        if sum(_num_decoded(reader, piece) for piece in pieces) <= numbers[-1] + 1:
            yield from map(reader.read, pieces)
            return
        size = reader.metadata.height, reader.metadata.width
    # Each piece would be decoded from far before it.
    wanted = {*numbers.tolist()}
    for frame in islice(stream_frames(path), int(numbers[-1]) + 1):
        if frame.number in wanted:
            if frame.image.shape[:2] != size:
                raise VideoReadError(f"{path}: frame {frame.number} has another size than the first.")
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
    """The videos of a training, those of each data set by themselves, and the GiB with which all that are worth it
    are kept; 0 if they are."""

    videos: list[KeptVideo]
    gib_needed: float = 0.0

    def __str__(self) -> str:
        kept = [video for video in self.videos if video.file is not None]
        if not kept:
            return ""
        num_frames, mib = sum(len(video.numbers) for video in kept), sum(video.num_bytes for video in kept) / 2**20
        num_videos, num_all = (len({video.path for video in each}) for each in (kept, self.videos))
        others = "There is no room for the others." if self.gib_needed else "Of the others this would save no time."
        return (
            f"To save time, {count(num_frames, 'frame')} of {count(num_videos, 'video')} will be decoded once, and "
            f"kept until the end, in {math.ceil(mib):,} MiB of the output folder; --kept-frames-gib 0 turns that off."
            + (f" {others}" if num_videos < num_all else "")
        )

    def share_decoded(self) -> float:
        """How much of the kept frames that are trained on is in files by now, 0 to 1."""
        kept = {video.file: video.num_bytes for video in self.videos if video.file is not None and video.training}
        return sum(_num_written(*each) for each in kept.items()) / max(1, sum(kept.values()))


def _num_written(file: Path, num_bytes: int) -> int:
    with suppress(FileNotFoundError):
        return file.with_suffix(".unfinished").stat().st_size
    return num_bytes if file.exists() else 0  # a file of a damaged video is shorter, and finished


@contextmanager
def keeping_frames(data_sets: Iterable[Any], folder: Path, gib: float, num_epochs: float) -> Iterator[KeptFrames]:
    """In the block, the data sets of a training take their frames from files in a new folder, the same in all
    processes, which is removed behind it: at most so many GiB, and half of the free disk."""
    found = [each for each in data_sets if gib and isinstance(each, VideoDataset) and isinstance(each.task, ClipTask)]
    found = [x for x in found if BYTES not in x.rows.column_names and len(VideoRows(x.rows)) <= MOST_VIDEOS]
    tasks = [each.task for each in found]
    try:
        kept = KeptFrames([video for each in found for video in _give_size(each, num_epochs)])
        if kept.videos:
            _give_files(kept, folder, gib)
        yield kept
    finally:
        for dataset, task in zip(found, tasks, strict=True):
            dataset.task = task
        if int(os.environ.get("LOCAL_RANK") or 0) == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _give_size(dataset: VideoDataset, num_epochs: float) -> list[KeptVideo]:
    """Lets the task of a data set take the frames of each video at the kept size."""
    listed = VideoRows(dataset.rows)
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as threads:
        planned = threads.map(partial(_plan, dataset, num_epochs), map(listed.rows, range(len(listed))))
        videos = [video for video in planned if video is not None]
    dataset.task = copy.copy(dataset.task)
    dataset.task.kept = {(video.path, dataset.training): video for video in videos}
    return videos


def _plan(dataset: VideoDataset, num_epochs: float, rows: list[int]) -> KeptVideo | None:
    """What can be kept of the video of some rows; None if it cannot be read, which its items will tell."""
    task, draws = dataset.task, np.random.default_rng(0) if dataset.training else None
    asked, each = [], 0
    try:
        with VideoReader(dataset.rows[rows[0]]["video"]) as reader:
            for row in map(dataset.rows.__getitem__, rows):
                asked.append(task.possible_frames(reader, row, dataset.training).ravel())
                chosen = task.choose_frames(reader, row, draws)
                each += _num_decoded(reader, chosen) + _SHRINKING * chosen.size
            numbers = np.unique(np.concatenate(asked))
            gain = num_epochs * each - _num_decoded(reader, numbers) - _SHRINKING * len(numbers)
            size = task.kept_size(reader.metadata.height, reader.metadata.width, dataset.training)
            shrink = partial(task.shrink, size=size)
            return KeptVideo(row["video"], dataset.training, reader, size, numbers, shrink, gain)
    except (VideoReadError, OSError):
        return None


def _give_files(kept: KeptFrames, folder: Path, gib: float) -> None:
    """Gives files to the videos that gain most by them, as long as there is room."""
    folder.mkdir(parents=True, exist_ok=True)
    room = min(gib * 2**30, shutil.disk_usage(folder).free / 2)
    worth = [video for video in kept.videos if video.gain > 0]
    for video in sorted(worth, key=lambda video: -video.gain / video.num_bytes):
        if video.num_bytes <= room:
            room -= video.num_bytes
            video.file = folder / f"{kept.videos.index(video)}.rgb"
        else:
            kept.gib_needed = sum(each.num_bytes for each in worth) / 2**30
