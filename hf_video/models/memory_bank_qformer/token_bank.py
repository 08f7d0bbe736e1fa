"""One bank of a memory: entries at every token position, and the keys and values made of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .memory_compression import POLICIES

TensorMap = Callable[[torch.Tensor], torch.Tensor]
# Maps states (..., num_channels) to keys and values (..., hidden_size).
Projection = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def read(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The given rows `(num_rows, num_channels)` of a tensor `(..., num_channels)`."""
    return tensor.view(-1, tensor.shape[-1]).index_select(0, rows)


def write(tensor: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` `(..., num_channels)` to the rows that `read` returns for the same arguments."""
    values = values.detach().reshape(-1, tensor.shape[-1])
    tensor.view(-1, tensor.shape[-1]).index_copy_(0, rows, values.to(tensor))


@dataclass(eq=False)
class TokenBank:
    """
    Up to `length` entries, oldest first, at every token position: positions of a frame's vision tokens, or of a
    Q-Former layer's queries and text.

    Entries live in `length + 1` slots; one slot is for the current frame. An entry never moves: a compression writes
    one slot of a pair, and `order` keeps the order in time. What is written for a frame therefore does not grow with
    `length`. Attention does not depend on the order of its keys, so it reads the slots as they lie.

    States, keys and values are at least float32, because a mean over many frames needs that precision.

    Attributes:
        policy: key of `POLICIES`, what happens when the bank is full.
        slots: states `(batch_size, length + 1, num_positions, num_channels)`.
        order: int64 `(batch_size, length + 1, num_positions)`, numbers of slots in order of time. The slots after the
            last entry are free, and the first of them is filled next.
        slot_counts: float32 `(batch_size, length + 1, num_positions)`, in order of time: number of frames that an
            entry stands for; 0 after the last entry.
        num_entries: number of entries of each video.
        projections: for each layer that has read the bank, keys and values of the slots, each `(batch_size,
            length + 1, num_positions, hidden_size)`.
    """

    policy: str
    slots: torch.Tensor
    order: torch.Tensor
    slot_counts: torch.Tensor
    num_entries: list[int]
    projections: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    # Rows of the first slot, computed when they are first needed.
    first_rows: torch.Tensor | None = field(default=None, init=False, repr=False)

    @classmethod
    def of_entries(cls, states: torch.Tensor, counts: torch.Tensor, length: int, policy: str) -> "TokenBank":
        """
        A bank that holds `length` entries, with the given ones.

        Args:
            states, counts: see the properties; half precisions become float32.
            length: number of entries that a compression leaves, at least 1.
            policy: key of `POLICIES`.
        """
        batch_size, num_entries, num_positions, num_channels = states.shape
        sizes, device = (batch_size, length + 1, num_positions), states.device
        dtype = torch.promote_types(states.dtype, torch.float32)
        slots = torch.zeros(*sizes, num_channels, dtype=dtype, device=device)
        slot_counts = torch.zeros(sizes, dtype=torch.float32, device=device)
        slots[:, :num_entries], slot_counts[:, :num_entries] = states, counts
        order = torch.arange(length + 1, device=device)[None, :, None].expand(sizes).contiguous()
        return cls(policy, slots, order, slot_counts, slot_counts[..., 0].gt(0).sum(1).tolist())

    @property
    def length(self) -> int:
        return self.slots.shape[1] - 1

    @property
    def size(self) -> tuple[int, int]:
        """Number of token positions and of channels."""
        num_positions, num_channels = self.slots.shape[2:]
        return num_positions, num_channels

    @property
    def states(self) -> torch.Tensor:
        """
        A copy of the entries `(batch_size, num_entries, num_positions, num_channels)`, oldest first. If a video has
        fewer entries than others, zeros follow, with a count of 0.
        """
        order = self.order[:, : max(self.num_entries, default=0)]
        states = self.slots.gather(1, order[..., None].expand(-1, -1, -1, self.slots.shape[-1]))
        for row, num_entries in enumerate(self.num_entries):
            states[row, num_entries:] = 0
        return states

    @property
    def counts(self) -> torch.Tensor:
        """A copy of the counts `(batch_size, num_entries, num_positions)`: frames that each entry stands for."""
        return self.slot_counts[:, : max(self.num_entries, default=0)].clone()

    @property
    def entries_of_each(self) -> int:
        """Number of entries of each video; raises `ValueError` if the videos differ in it."""
        if len(set(self.num_entries)) != 1:
            raise ValueError(
                f"The videos have different numbers of entries, {self.num_entries}: take them one by one."
            )
        return self.num_entries[0]

    def rows_of_entries(self, index: torch.Tensor) -> torch.Tensor:
        """Rows, for `read` and `write`, of entries `(batch_size, n, num_positions)`, given by their order in time."""
        if self.first_rows is None:
            batch_size, num_slots, num_positions = self.order.shape
            first_rows = torch.arange(batch_size)[:, None] * num_slots * num_positions + torch.arange(num_positions)
            self.first_rows = first_rows[:, None].to(self.order.device)
        return torch.add(self.first_rows, self.order.gather(1, index), alpha=self.order.shape[2]).flatten()

    def rows_of_frame(self) -> torch.Tensor:
        """Rows, for `read` and `write`, of the slots that the current frame fills."""
        return self.rows_of_entries(torch.full_like(self.order[:, :1], self.entries_of_each))

    @torch.no_grad()
    def keys_and_values(self, layer: int, project: Projection, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """
        Keys and values of all entries and of the current frame. Only those of the frame are computed.

        Args:
            layer: number of the layer that reads them.
            project: the layer's projections to keys and values.
            states: the current frame `(batch_size, num_positions, num_channels)`.

        Returns:
            Keys and values, each `(batch_size, (num_entries + 1) * num_positions, hidden_size)`, in no order.
        """
        num_entries = self.entries_of_each
        current = project(states)
        if layer not in self.projections:
            if num_entries:
                key, value = (projected.to(self.slots) for projected in project(self.slots.to(states)))
            else:
                shape = (*self.slots.shape[:-1], current[0].shape[-1])
                key, value = (self.slots.new_zeros(shape) for _ in current)
            self.projections[layer] = key, value
        buffers = self.projections[layer]
        rows = self.rows_of_frame()
        for buffer, new in zip(buffers, current, strict=True):
            write(buffer, rows, new)
        # Until all slots have been in use, the entries and the current frame are in the first slots.
        return tuple(buffer[:, : num_entries + 1].flatten(1, 2).to(states) for buffer in buffers)

    @torch.no_grad()
    def append(self, states: torch.Tensor) -> None:
        """
        Add a frame `(batch_size, num_positions, num_channels)`, and compress if the bank is full. If the bank has keys
        and values, [`~TokenBank.keys_and_values`] must have added those of this frame.
        """
        num_entries = self.entries_of_each
        write(self.slots, self.rows_of_frame(), states)
        self.slot_counts[:, num_entries] = 1
        self.num_entries = [num_entries + 1] * len(self.num_entries)
        if num_entries == self.length:
            self.compress()

    @torch.no_grad()
    def compress(self) -> None:
        """
        Replace two entries by one, at every token position. Keys and values are replaced alike: they are affine in the
        states, so the mean of two keys is the key of the mean.
        """
        num_entries, replacement = self.entries_of_each, POLICIES[self.policy](self)
        index, weight = replacement.index[:, None], replacement.weight.reshape(-1, 1)
        older_rows, newer_rows = self.rows_of_entries(index), self.rows_of_entries(index + 1)
        freed_slot = self.order.gather(1, index + 1)
        for tensor in self.slot_tensors():
            older, newer = read(tensor, older_rows), read(tensor, newer_rows)
            mean = torch.lerp(newer, older, weight.to(tensor))
            # An infinite entry that is dropped leaves no trace; 0 times infinity would.
            write(tensor, older_rows, mean.where(weight > 0, newer).where(weight < 1, older))

        remaining = num_entries - 1
        time = torch.arange(remaining, device=index.device)[None, :, None]
        kept = time + (time > index)
        self.order[:, :num_entries] = torch.cat([self.order.gather(1, kept), freed_slot], dim=1)
        counts = self.slot_counts.gather(1, kept).scatter(1, index, replacement.count[:, None])
        self.slot_counts[:, :remaining], self.slot_counts[:, remaining] = counts, 0
        self.num_entries = [remaining] * len(self.num_entries)

    def map(self, function: TensorMap, num_entries: list[int] | None = None) -> "TokenBank":
        """A bank with the results of a function for every tensor of this one."""
        slots, order, counts = (function(tensor) for tensor in (self.slots, self.order, self.slot_counts))
        projections = {layer: (function(key), function(value)) for layer, (key, value) in self.projections.items()}
        num_entries = list(self.num_entries if num_entries is None else num_entries)
        return TokenBank(self.policy, slots, order, counts, num_entries, projections)

    def take(self, rows: torch.Tensor) -> "TokenBank":
        """A bank with copies of the videos `rows`, int64."""
        num_entries = [self.num_entries[row] for row in rows.tolist()]
        return self.map(lambda tensor: tensor[rows.to(tensor.device)], num_entries)

    def put(self, rows: torch.Tensor, bank: "TokenBank") -> None:
        """Write back the videos that [`~TokenBank.take`] copied."""
        if self.projections.keys() != bank.projections.keys():
            self.projections, bank.projections = {}, {}
        own_tensors, new_tensors = ((each.order, each.slot_counts, *each.slot_tensors()) for each in (self, bank))
        for own, new in zip(own_tensors, new_tensors, strict=True):
            own[rows.to(own.device)] = new
        for row, num_entries in zip(rows.tolist(), bank.num_entries, strict=True):
            self.num_entries[row] = num_entries

    def slot_tensors(self) -> list[torch.Tensor]:
        """The states of the slots, and their keys and values."""
        return [self.slots, *(tensor for pair in self.projections.values() for tensor in pair)]

    def resized(self, length: int) -> "TokenBank":
        """A bank of another length. Entries beyond it are compressed one after the other, without keys and values."""
        bank = self.of_entries(self.states[:, :0], self.counts[:, :0], length, self.policy)
        for row in torch.arange(len(self.num_entries), device="cpu").split(1):
            video = self.take(row)
            video.projections = {}
            while video.num_entries[0] > length:
                video.compress()
            bank.put(row, self.of_entries(video.states, video.counts, length, self.policy))
        return bank
