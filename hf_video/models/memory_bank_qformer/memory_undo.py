"""Frames that leave a memory again: what a failed call wrote over is put back, without a copy of the memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .frame_bank import Bank, write
from .memory_bank import MemoryBank

# Rows that were written over, the latest last, and what was there; no rows for all of a tensor.
Steps = list[tuple[torch.Tensor | None, torch.Tensor]]


class Undo:
    """
    What a bank was when a call began, while frames enter it. Of states, keys and values, which are large, it keeps the
    rows that were written over; once these are as many as a tensor has, a copy of the tensor as it was.

    Args:
        bank: its `undo` while the call lasts.
    """

    def __init__(self, bank: Bank):
        small = {name: getattr(bank, name).clone() for name in ("order", "slot_counts", "similarities")}
        lists = {"num_entries": list(bank.num_entries), "projections": dict(bank.projections)}
        self.attributes: dict[str, Any] = {**vars(bank), **small, **lists}
        pairs = bank.projections.values()
        large = (bank.slots, *(tensor for pair in pairs for tensor in pair))
        self.steps: dict[int, Steps] = {id(tensor): [] for tensor in large}
        self.tensors = large
        # A slot that was free when the call began is written without a trace; one that a merge freed held an entry.
        self.has_merged = False

    def keep(self, tensor: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Before rows (see `rows_of`) of a tensor that the call found are written over: what they hold."""
        steps = self.steps.get(id(tensor))
        if steps is None or is_whole(steps):
            return
        steps.append((rows, values))
        if sum(values.numel() for _, values in steps) >= tensor.numel():
            self.keep_all(tensor)

    def keep_all(self, tensor: torch.Tensor) -> None:
        """Before all of a tensor that the call found is written over: a copy of what it was."""
        steps = self.steps.get(id(tensor))
        if steps is not None and not is_whole(steps):
            self.steps[id(tensor)] = [(None, rewound(tensor.clone(), steps))]

    def restore(self, bank: Bank) -> None:
        """The bank as it was."""
        for tensor in self.tensors:
            rewound(tensor, self.steps[id(tensor)])
        vars(bank).update(self.attributes)


def is_whole(steps: Steps) -> bool:
    """Whether all of a tensor is kept, so that nothing has to follow."""
    return bool(steps) and steps[0][0] is None


def rewound(tensor: torch.Tensor, steps: Steps) -> torch.Tensor:
    """The tensor itself, with what steps kept of it put back, the latest first."""
    for rows, values in reversed(steps):
        if rows is None:
            tensor.copy_(values)
        else:
            write(tensor, rows, values)
    return tensor


@contextmanager
def restored_on_error(memory: MemoryBank | None) -> Iterator[None]:
    """Take frames out of a memory again if the call fails behind them: tried again it does not count them twice."""
    if memory is None:
        yield
        return
    banks, attributes = memory.banks(), dict(vars(memory))
    attributes |= {"query": list(memory.query), "frames_seen": memory.frames_seen.clone()}
    undos = [Undo(bank) for bank in banks]
    for bank, undo in zip(banks, undos, strict=True):
        bank.undo = undo
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for bank, undo in zip(banks, undos, strict=True):
                undo.restore(bank)
        vars(memory).update(attributes)
        raise
    finally:
        for bank in banks:
            bank.undo = None
