"""
What a full memory bank loses. A policy is a function of the bank, and a row of `POLICIES`; it decides on every token
position by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


def counts_of_pair(counts: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The counts of the entries `index` and `index + 1`, each `(batch_size, num_positions)`."""
    index = index[:, None]
    return counts.gather(1, index)[:, 0], counts.gather(1, index + 1)[:, 0]


def merge(bank: Any) -> Replacement:
    """
    The two most similar neighbours, by the cosine of their angle, become their mean, weighted by their counts. If
    several pairs are equally similar, it is the oldest pair (MA-LMM, https://arxiv.org/abs/2404.05726,
    `memory_bank_compress`).
    """
    states = bank.states
    index = F.cosine_similarity(states[:, :-1], states[:, 1:], dim=-1).argmax(dim=1)
    older, newer = counts_of_pair(bank.counts, index)
    # Counts are float32, as in the original, but states may be float64 and need a weight as precise.
    return Replacement(index, older.double() / (older + newer), older + newer)


def fifo(bank: Any) -> Replacement:
    """The oldest entry is dropped: the bank is a window over the last frames."""
    counts = bank.counts
    index = torch.zeros_like(counts[:, 0], dtype=torch.long)
    return Replacement(index, torch.zeros_like(counts[:, 0]), counts[:, 1])


def uniform(bank: Any) -> Replacement:
    """
    Frames are spread evenly over the video, whatever they show. Of all pairs of neighbours, the one that stands for
    the fewest frames loses its newer entry; if several do, it is the oldest pair. The older entry gets both counts.
    """
    counts = bank.counts
    index = (counts[:, :-1] + counts[:, 1:]).argmin(dim=1)
    older, newer = counts_of_pair(counts, index)
    return Replacement(index, torch.ones_like(older), older + newer)


# A policy gets a [`TokenBank`] of at least two entries, as many for every video, and reads its `states` and `counts`.
POLICIES: dict[str, Callable[[Any], Replacement]] = {"merge": merge, "fifo": fifo, "uniform": uniform}
