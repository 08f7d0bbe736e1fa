"""Undoing a call that fails: the memory gets back what the call wrote over, without a copy of the whole memory."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .memory_bank import MemoryBank
from .token_bank import TokenBank, write

# Rows of a tensor, see `TokenBank.rows_of`, and the values that were in them; the latest last. Without rows the values
# are those of the whole tensor.
Steps = list[tuple[torch.Tensor | None, torch.Tensor]]


class Undo:
    """
    The state of a bank when a call begins. Small tensors are copied. Of states, keys and values, which are large, only
    rows that the call writes over are kept. If these add up to the size of a tensor, a copy of that tensor replaces
    them.

    Args:
        bank: the bank; the undo is its attribute `undo` during the call.
    """

    def __init__(self, bank: TokenBank):
        self.attributes: dict[str, Any] = {
            "order": bank.order.clone(),
            "slot_counts": bank.slot_counts.clone(),
            "similarities": bank.similarities.clone(),
            "num_entries": list(bank.num_entries),
            "projections": dict(bank.projections),
        }
        self.tensors = [bank.slots, *(tensor for pair in bank.projections.values() for tensor in pair)]
        self.steps: dict[int, Steps] = {id(tensor): [] for tensor in self.tensors}
        # A slot that was free when the call began need not be kept, but a slot that a merge freed held an entry.
        self.has_merged = False

    def keep(self, tensor: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Keep the values of rows that the call is about to write over. Tensors made by the call are left out."""
        steps = self.steps.get(id(tensor))
        if steps is None or is_whole(steps):
            return
        steps.append((rows, values))
        if sum(values.numel() for _, values in steps) >= tensor.numel():
            self.keep_all(tensor)

    def keep_all(self, tensor: torch.Tensor) -> None:
        """Keep a copy of a tensor as it was when the call began. Tensors made by the call are left out."""
        steps = self.steps.get(id(tensor))
        if steps is not None and not is_whole(steps):
            self.steps[id(tensor)] = [(None, rewound(tensor.clone(), steps))]

    def restore(self, bank: TokenBank) -> None:
        """Make the bank what it was."""
        for tensor in self.tensors:
            rewound(tensor, self.steps[id(tensor)])
        for name, value in self.attributes.items():
            setattr(bank, name, value)


def is_whole(steps: Steps) -> bool:
    """Whether the steps hold a copy of the whole tensor, so that none has to follow."""
    return bool(steps) and steps[0][0] is None


def rewound(tensor: torch.Tensor, steps: Steps) -> torch.Tensor:
    """The tensor itself, after the values of all steps are written back, the latest first."""
    for rows, values in reversed(steps):
        if rows is None:
            tensor.copy_(values)
        else:
            write(tensor, rows, values)
    return tensor


@contextmanager
def restored_on_error(memory: MemoryBank | None) -> Iterator[None]:
    """Give the memory its state back if the code within raises. A call that is repeated counts no frame twice."""
    if memory is None:
        yield
        return
    before = copy.copy(memory)
    before.frames_seen = memory.frames_seen.clone()
    undos = [(bank, Undo(bank)) for bank in memory.banks()]
    for bank, undo in undos:
        bank.undo = undo
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for bank, undo in undos:
                undo.restore(bank)
        for name in ("visual", "query", "frames_seen", "last_queries", "text_ids", "is_unfinished"):
            setattr(memory, name, getattr(before, name))
        raise
    finally:
        for bank, _ in undos:
            bank.undo = None
