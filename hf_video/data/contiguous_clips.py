"""Draws clips of long videos so that each row of a batch goes on with the same row of the batch before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from .frame_dataset import FrameDataset

# Seconds by which a clip may miss the end of the one before.
_ROUNDING = 1e-6


class ContiguousClip(NamedTuple):
    """A clip as a `ContiguousSampler` draws it.

    Attributes:
        row: its row in the data set.
        first_row: the row of the first clip of its run.
    """

    row: int
    first_row: int


class ContiguousSampler(Sampler[ContiguousClip]):
    """Draws the clips of an epoch for training with carried states, like the batches of language models that are
    trained by truncated backpropagation through time.

    A run is a series of clips, each of which begins where the one before ends. All runs, in an order that depends on
    the seed and the epoch of the data set, make one long sequence. It is cut into `num_rows` equal parts, and step t
    has the t-th clip of each part. Several processes share out the rows of a step.

    The clips of a batch are of equal length, so the last clip of a video is left out if it is shorter than the others.
    The clips at the end of the sequence that fill no step are left out, too; they are others in the next epoch.

    Args:
        dataset: clips that do not overlap.
        num_rows: rows of a batch times processes.
        seed: seed of the order.

    Raises:
        ValueError: the clips overlap, or do not fill a step.
    """

    def __init__(self, dataset: FrameDataset, num_rows: int, seed: int):
        self.dataset, self.num_rows, self.seed = dataset, num_rows, seed
        names = ("video", "start", "end", "num_frames")
        videos, starts, ends, lengths = (np.asarray(dataset.dataset[name][:]) for name in names)
        gaps = np.where(videos[1:] == videos[:-1], starts[1:] - ends[:-1], np.inf)
        if (gaps < -_ROUNDING).any():
            raise ValueError("The clips overlap, so that none goes on where another ends: cut them with overlap=0.")
        begins = np.append(True, gaps > _ROUNDING)
        self.first_rows = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0)).tolist()
        length = dataset.processor.num_frames // dataset.tubelet_size * dataset.tubelet_size
        whole = np.flatnonzero(lengths == length)
        self.runs = np.split(whole, np.flatnonzero(begins[whole])[1:])
        self.num_steps = len(whole) // num_rows
        if not self.num_steps:
            raise ValueError(
                f"{len(whole)} whole clips of {length} frames do not fill a step of {num_rows} rows: take shorter "
                "clips or a smaller batch."
            )

    def __len__(self) -> int:
        return self.num_steps * self.num_rows

    def __iter__(self) -> Iterator[ContiguousClip]:
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.dataset.epoch,)))
        sequence = np.concatenate([self.runs[number] for number in generator.permutation(len(self.runs))])
        for row in sequence[: len(self)].reshape(self.num_rows, -1).T.flatten().tolist():
            yield ContiguousClip(row, self.first_rows[row])
