"""Draws clips of long videos so that each row of a batch goes on with the same row of the batch before."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from .frame_dataset import ContiguousClip, FrameDataset

# Seconds by which a clip may miss the end of the one before.
_ROUNDING = 1e-6


class ContiguousSampler(Sampler[ContiguousClip]):
    """Draws the clips of an epoch for training with carried states, like the batches of language models that are
    trained by truncated backpropagation through time.

    All videos, in an order that depends on the seed and the epoch of the data set, make one long sequence of clips. It
    is cut into `num_rows` equal parts, and step t has the t-th clip of each part. Several processes share out the rows
    of a step. A row of a batch begins anew with another video, and where a clip is missing.

    The clips of a batch are of equal length, so the last clip of a video is left out if it is shorter than the others.
    So are the clips that fill no step, some at the beginning and some at the end of the sequence.

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
            raise ValueError("The clips overlap, so that none begins where another ends: cut them with overlap=0.")
        self.follows = np.append(False, gaps < _ROUNDING)
        length = dataset.processor.num_frames // dataset.tubelet_size * dataset.tubelet_size
        whole = np.flatnonzero(lengths == length)
        self.series = np.split(whole, np.flatnonzero(~self.follows[whole])[1:])
        self.num_steps = len(whole) // num_rows
        if not self.num_steps:
            raise ValueError(
                f"{len(whole)} whole clips of {length} frames do not fill a step of {num_rows} rows: take shorter "
                "clips or a smaller batch."
            )

    def __len__(self) -> int:
        return self.num_steps * self.num_rows

    def __iter__(self) -> Iterator[ContiguousClip]:
        # Clips are drawn by keys of the same numbers. A spawn key makes other draws.
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.dataset.epoch,)))
        sequence = np.concatenate([self.series[number] for number in generator.permutation(len(self.series))])
        sequence = sequence[generator.integers(len(sequence) - len(self) + 1) :][: len(self)]
        first, last = [-1] * self.num_rows, [-1] * self.num_rows
        for clips in sequence.reshape(self.num_rows, -1).T.tolist():
            for number, row in enumerate(clips):
                if row != last[number] + 1 or not self.follows[row]:
                    first[number] = row
                yield ContiguousClip(row, first[number])
            last = clips
