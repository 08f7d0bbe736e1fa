"""
How a full memory bank loses one entry. A policy is a class and a row of `POLICIES`: configuration, banks and the file
of a memory ask it for all they need to know.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Replacement:
    """
    The entry that replaces two neighbours in time, at every token position. Each tensor is `(batch_size,
    num_positions)`.

    Attributes:
        index: int64, number of the older of the two entries, in order of time; the other one is `index + 1`.
        weight: share of the older entry in the result, from 0 to 1.
        count: number of frames that the result stands for.
    """

    index: torch.Tensor
    weight: torch.Tensor
    count: torch.Tensor


class CompressionPolicy:
    """
    Chooses two neighbours in time, and what replaces them. Every token position is decided on its own.

    Attributes:
        averages: whether weights other than 0 and 1 occur. An infinite frame then spreads over the bank.
        similarity_range: the smallest and the largest similarity; `None` if the policy uses none.
    """

    averages = False
    similarity_range: tuple[float, float] | None = None

    def similarity(self, older: torch.Tensor, newer: torch.Tensor) -> torch.Tensor:
        """How alike two entries `(..., num_channels)` are, `(...)`."""
        raise NotImplementedError

    def __call__(self, counts: torch.Tensor, similarities: torch.Tensor) -> Replacement:
        """
        Args:
            counts: number of frames that each entry stands for, oldest first, `(batch_size, num_entries,
                num_positions)`.
            similarities: [`~CompressionPolicy.similarity`] of each entry and the next one, `(batch_size, num_entries -
                1, num_positions)`; undefined if the policy uses none.
        """
        raise NotImplementedError


def counts_of_pair(counts: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The counts of the entries `index` and `index + 1`, each `(batch_size, num_positions)`."""
    index = index[:, None]
    return counts.gather(1, index)[:, 0], counts.gather(1, index + 1)[:, 0]


class Merge(CompressionPolicy):
    """
    The two most similar neighbours, by the cosine of their angle, become their mean, weighted by their counts. If
    several pairs are equally similar, it is the oldest pair (MA-LMM, https://arxiv.org/abs/2404.05726,
    `memory_bank_compress`).
    """

    averages = True
    similarity_range = (-1.0, 1.0)

    def similarity(self, older: torch.Tensor, newer: torch.Tensor) -> torch.Tensor:
        return F.cosine_similarity(older, newer, dim=-1)

    def __call__(self, counts: torch.Tensor, similarities: torch.Tensor) -> Replacement:
        index = similarities.argmax(dim=1)
        older, newer = counts_of_pair(counts, index)
        # Counts are float32, as in the original, but states may be float64 and need a weight as precise.
        return Replacement(index, older.double() / (older + newer), older + newer)


class FirstInFirstOut(CompressionPolicy):
    """The oldest entry is dropped: the bank is a window over the last frames."""

    def __call__(self, counts: torch.Tensor, similarities: torch.Tensor) -> Replacement:
        index = torch.zeros_like(counts[:, 0], dtype=torch.long)
        return Replacement(index, torch.zeros_like(counts[:, 0]), counts[:, 1])


class Uniform(CompressionPolicy):
    """
    Frames are spread evenly over the video, whatever they show. Of all pairs of neighbours, the one that stands for
    the fewest frames loses its newer entry; if several do, it is the oldest pair. The older entry gets both counts.
    """

    def __call__(self, counts: torch.Tensor, similarities: torch.Tensor) -> Replacement:
        index = (counts[:, :-1] + counts[:, 1:]).argmin(dim=1)
        older, newer = counts_of_pair(counts, index)
        return Replacement(index, torch.ones_like(older), older + newer)


POLICIES: dict[str, CompressionPolicy] = {"merge": Merge(), "fifo": FirstInFirstOut(), "uniform": Uniform()}
