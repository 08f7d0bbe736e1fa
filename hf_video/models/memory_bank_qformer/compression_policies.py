"""What a full memory bank gives up: one rule a policy, decided for every token position on its own."""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Replacement:
    """
    One entry in the place of two neighbours, at every token position; each is `(batch_size, num_positions)`.

    Attributes:
        index: int64, the older entry of the pair; the other is `index + 1`.
        weight: share of the older entry in the one that replaces both, 0 to 1.
        count: the count of the entry that replaces both.
    """

    index: torch.Tensor
    weight: torch.Tensor
    count: torch.Tensor


class CompressionPolicy(Protocol):
    """
    Chooses what becomes of a bank with one entry too many.

    Attributes:
        uses_similarities: whether [`~CompressionPolicy.__call__`] looks at the similarities of neighbours.
        averages: whether its weights are other than 0 and 1.
    """

    uses_similarities: bool
    averages: bool

    def __call__(self, counts: torch.Tensor, similarities: torch.Tensor) -> Replacement:
        """
        Args:
            counts: `(batch_size, num_entries, num_positions)`, the frames that each entry stands for, oldest first.
            similarities: `(batch_size, num_entries - 1, num_positions)`, cosine of each entry and the one after it;
                without meaning unless `uses_similarities`.
        """
        ...


def counts_of_pair(counts: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts `(batch_size, num_positions)` of the entries `index` and `index + 1`."""
    index = index[:, None]
    return counts.gather(1, index)[:, 0], counts.gather(1, index + 1)[:, 0]


class Merge:
    """
    The most similar neighbours become their mean weighted by counts; of equals the oldest pair (MA-LMM,
    https://arxiv.org/abs/2404.05726, `memory_bank_compress`).
    """

    uses_similarities = True
    averages = True

    def __call__(self, counts: torch.Tensor, similarities: torch.Tensor) -> Replacement:
        index = similarities.argmax(dim=1)
        older, newer = counts_of_pair(counts, index)
        # Counts are float32 as the original's, and whole; the states may be float64.
        return Replacement(index, older.double() / (older + newer), older + newer)


class FirstInFirstOut:
    """The oldest entry goes: the bank is a window over the last frames, and the counts stay 1."""

    uses_similarities = False
    averages = False

    def __call__(self, counts: torch.Tensor, similarities: torch.Tensor) -> Replacement:
        index = torch.zeros_like(counts[:, 0], dtype=torch.long)
        return Replacement(index, torch.zeros_like(counts[:, 0]), counts[:, 1])


class Uniform:
    """
    Frames spread over all of the video, whatever they show: of the neighbours that stand for the fewest frames
    together, the oldest pair, the older entry stays and stands for the other's frames too.
    """

    uses_similarities = False
    averages = False

    def __call__(self, counts: torch.Tensor, similarities: torch.Tensor) -> Replacement:
        index = (counts[:, :-1] + counts[:, 1:]).argmin(dim=1)
        older, newer = counts_of_pair(counts, index)
        return Replacement(index, torch.ones_like(older), older + newer)


POLICIES: dict[str, CompressionPolicy] = {"merge": Merge(), "fifo": FirstInFirstOut(), "uniform": Uniform()}
