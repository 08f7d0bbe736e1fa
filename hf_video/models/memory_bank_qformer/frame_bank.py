"""One bank of a memory: the entries of every token position, and the keys and values made of them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .compression_policies import POLICIES

TensorMap = Callable[[torch.Tensor], torch.Tensor]
# Maps states (..., channels) to keys and values (..., hidden_size).
Projection = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def read(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows `(num_rows, num_channels)` of a tensor whose last dimension is channels."""
    return tensor.view(-1, tensor.shape[-1]).index_select(0, rows)


def write(tensor: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Writes what `read` reads, from values `(..., num_channels)` in the order of the rows."""
    values = values.detach().reshape(-1, tensor.shape[-1])
    tensor.view(-1, tensor.shape[-1]).index_copy_(0, rows, values.to(tensor))


class Bank:
    """
    Up to `length` entries, oldest first, at each of a number of token positions.

    Entries live in `length + 1` slots, one of them for the frame at hand, and never move: a compression writes the
    slots of one pair, and an index keeps the order in time. What is written for a frame therefore does not grow with
    the length. Attention, which does not care for the order of its keys, reads the slots as they lie.

    States, and the keys and values made of them, are float32 at least: a mean over many frames needs it.

    Args:
        batch_size, num_positions, num_channels: sizes.
        length: entries a position that survive compression, at least 1.
        policy: a key of `POLICIES`.
        dtype, device: of the states; half precisions are widened to float32.
    """

    # Rows of the first slot, made when they are needed.
    first_rows: torch.Tensor | None = None
    # Of a call that takes its frames out again if it fails, see `memory_undo.py`.
    undo: Any = None

    def __init__(
        self,
        batch_size: int,
        num_positions: int,
        num_channels: int,
        length: int,
        policy: str,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        self.policy = policy
        sizes = (batch_size, length + 1, num_positions)
        dtype = torch.promote_types(dtype, torch.float32)
        self.slots = torch.zeros(*sizes, num_channels, dtype=dtype, device=device)
        # Slots in order of time; those behind the entries are free, and the first of these is the next to be filled.
        self.order = torch.arange(length + 1, device=device)[None, :, None].expand(sizes).contiguous()
        self.slot_counts = torch.zeros(sizes, dtype=torch.float32, device=device)
        # Cosine of the entries k and k + 1, in order of time; the last column is scratch.
        self.similarities = torch.zeros(sizes, dtype=dtype, device=device)
        self.num_entries = [0] * batch_size
        self.projections: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def from_states(cls, states: torch.Tensor, counts: torch.Tensor, length: int, policy: str) -> "Bank":
        """A bank with the given states `(batch_size, num_entries, num_positions, num_channels)` and counts."""
        batch_size, num_entries, num_positions, num_channels = states.shape
        bank = cls(batch_size, num_positions, num_channels, length, policy, states.dtype, states.device)
        bank.slots[:, :num_entries] = states
        bank.slot_counts[:, :num_entries] = counts
        bank.similarities[:, : num_entries - 1] = F.cosine_similarity(states[:, :-1], states[:, 1:], dim=-1)
        bank.num_entries = [num_entries] * batch_size
        return bank

    @property
    def length(self) -> int:
        return self.slots.shape[1] - 1

    @property
    def size(self) -> tuple[int, int]:
        """Token positions and channels."""
        num_positions, num_channels = self.slots.shape[2:]
        return num_positions, num_channels

    @property
    def states(self) -> torch.Tensor:
        """
        A copy of the entries `(batch_size, num_entries, num_positions, num_channels)`, oldest first. Where videos of a
        batch have fewer entries than others, zeros follow, and their counts are 0.
        """
        order = self.order[:, : max(self.num_entries, default=0)]
        states = self.slots.gather(1, order[..., None].expand(-1, -1, -1, self.slots.shape[-1]))
        for row, num_entries in enumerate(self.num_entries):
            states[row, num_entries:] = 0
        return states

    @property
    def counts(self) -> torch.Tensor:
        """A copy of the frames that each entry stands for `(batch_size, num_entries, num_positions)`, float32."""
        return self.slot_counts[:, : max(self.num_entries, default=0)].clone()

    @property
    def entries_of_each(self) -> int:
        """The number of entries where all videos have as many."""
        if len(set(self.num_entries)) != 1:
            raise ValueError(
                f"The videos have different numbers of entries, {self.num_entries}: take them one by one."
            )
        return self.num_entries[0]

    def rows_of(self, slots: torch.Tensor) -> torch.Tensor:
        """Where one slot a position `(batch_size, num_positions)` lies in a tensor like `slots` flattened to rows."""
        if self.first_rows is None:
            batch_size, num_slots, num_positions = self.order.shape
            first_rows = torch.arange(batch_size)[:, None] * num_slots * num_positions + torch.arange(num_positions)
            self.first_rows = first_rows.to(slots.device)
        return torch.add(self.first_rows, slots, alpha=self.order.shape[2]).flatten()

    def fill(self, tensor: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Write the frame at hand into the slots that are next to be filled."""
        if self.undo is not None and self.undo.has_merged:
            self.undo.keep(tensor, rows, read(tensor, rows))
        write(tensor, rows, values)

    @torch.no_grad()
    def keys_and_values(self, layer: int, project: Projection, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """
        Keys and values of all entries and of the frame at hand, of which only the last are computed.

        Args:
            layer: whose keys and values.
            project: the layer's projections.
            states: the frame at hand, `(batch_size, num_positions, num_channels)`.

        Returns:
            Keys and values `(batch_size, (num_entries + 1) * num_positions, hidden_size)`, in no order.
        """
        num_entries = self.entries_of_each
        current = project(states)
        if layer not in self.projections:
            if num_entries:
                key, value = (projected.to(self.slots) for projected in project(self.slots.to(states.dtype)))
            else:
                shape = (*self.slots.shape[:-1], current[0].shape[-1])
                key, value = (self.slots.new_zeros(shape) for _ in current)
            self.projections[layer] = key, value
        buffers = self.projections[layer]
        rows = self.rows_of(self.order[:, num_entries])
        for buffer, new in zip(buffers, current, strict=True):
            self.fill(buffer, rows, new)
        # The entries and the next to be filled are the first slots: there are no others until all have been in use.
        return tuple(buffer[:, : num_entries + 1].flatten(1, 2).to(states.dtype) for buffer in buffers)

    @torch.no_grad()
    def append(self, states: torch.Tensor) -> None:
        """
        Add a frame `(batch_size, num_positions, num_channels)`, and compress if the bank is full. Its keys and values
        must have been made by [`~Bank.keys_and_values`], or there be none.
        """
        num_entries = self.entries_of_each
        self.fill(self.slots, self.rows_of(self.order[:, num_entries]), states)
        self.slot_counts[:, num_entries] = 1
        if num_entries and POLICIES[self.policy].uses_similarities:
            last = read(self.slots, self.rows_of(self.order[:, num_entries - 1]))
            cosine = F.cosine_similarity(last, states.to(last).flatten(0, 1), dim=-1)
            self.similarities[:, num_entries - 1] = cosine.view(states.shape[:2])
        self.num_entries = [num_entries + 1] * len(self.num_entries)
        if num_entries == self.length:
            self.compress()

    @torch.no_grad()
    def compress(self) -> None:
        """One entry in the place of two, at every token position; keys and values alike, since they are affine."""
        num_entries = self.entries_of_each
        policy = POLICIES[self.policy]
        replacement = policy(self.slot_counts[:, :num_entries], self.similarities[:, : num_entries - 1])
        index, weight = replacement.index[:, None], replacement.weight[..., None]
        older = self.order.gather(1, index)[:, 0]
        newer = self.order.gather(1, index + 1)[:, 0]
        older_rows, newer_rows = self.rows_of(older), self.rows_of(newer)
        for tensor in (self.slots, *(tensor for pair in self.projections.values() for tensor in pair)):
            pair, share = (read(tensor, newer_rows), read(tensor, older_rows)), weight.view(-1, 1)
            # An entry that leaves takes its infinities with it, which no share of 0 does.
            merged = (
                torch.lerp(*pair, share.to(tensor)) if policy.uses_similarities else pair[0].where(share == 0, pair[1])
            )
            if self.undo is not None:
                self.undo.keep(tensor, older_rows, pair[1])
            write(tensor, older_rows, merged)
        if self.undo is not None:
            self.undo.has_merged = True

        remaining = num_entries - 1
        time = torch.arange(remaining, device=index.device)[None, :, None]
        kept = time + (time > index)
        self.order[:, :num_entries] = torch.cat([self.order.gather(1, kept), newer[:, None]], dim=1)
        self.slot_counts[:, :remaining] = self.slot_counts.gather(1, kept).scatter(
            1, index, replacement.count[:, None]
        )
        self.slot_counts[:, remaining] = 0
        self.num_entries = [remaining] * len(self.num_entries)
        if policy.uses_similarities and remaining > 1:
            self.similarities[:, :remaining] = self.similarities.gather(1, time + (time >= index))
            # A pair that does not exist, before the first entry or after the last, goes to the scratch column.
            before = torch.where(index > 0, index - 1, self.length)
            after = torch.where(index < remaining - 1, index, self.length)
            neighbours = torch.cat([index - 1, index + 1], dim=1).clamp(0, remaining - 1)
            rows = [self.rows_of(slots) for slots in self.order.gather(1, neighbours).unbind(1)]
            beside = torch.stack([read(self.slots, row) for row in rows]).unflatten(1, older.shape)
            cosine = F.cosine_similarity(read(self.slots, older_rows).view_as(beside[0]), beside, dim=-1)
            self.similarities.scatter_(1, torch.cat([before, after], dim=1), cosine.transpose(0, 1))

    def map(self, function: TensorMap, num_entries: Sequence[int] | None = None) -> "Bank":
        """A bank of every tensor of this one after a function."""
        bank = object.__new__(Bank)
        bank.policy, bank.projections = self.policy, {}
        bank.num_entries = list(self.num_entries if num_entries is None else num_entries)
        for name in ("slots", "order", "slot_counts", "similarities"):
            setattr(bank, name, function(getattr(self, name)))
        bank.projections = {
            layer: (function(key), function(value)) for layer, (key, value) in self.projections.items()
        }
        return bank

    def take(self, rows: torch.Tensor) -> "Bank":
        """A bank with copies of some videos."""
        return self.map(
            lambda tensor: tensor[rows.to(tensor.device)], [self.num_entries[row] for row in rows.tolist()]
        )

    def put(self, rows: torch.Tensor, bank: "Bank") -> None:
        """Write videos back that [`~Bank.take`] took."""
        if not any(self.num_entries):
            for layer, pair in bank.projections.items():
                key, value = (tensor.new_zeros(len(self.num_entries), *tensor.shape[1:]) for tensor in pair)
                self.projections[layer] = key, value
        if self.projections.keys() != bank.projections.keys():
            self.projections, bank.projections = {}, {}
        for own, new in zip(self.tensors(), bank.tensors(), strict=True):
            if self.undo is not None:
                self.undo.keep_all(own)
            own[rows.to(own.device)] = new
        for row, num_entries in zip(rows.tolist(), bank.num_entries, strict=True):
            self.num_entries[row] = num_entries

    def tensors(self) -> list[torch.Tensor]:
        projections = [tensor for pair in self.projections.values() for tensor in pair]
        return [self.slots, self.order, self.slot_counts, self.similarities, *projections]

    def resized(self, length: int) -> "Bank":
        """A bank of another length; what is too much is compressed, oldest decision first."""
        videos = []
        for row, num_entries in enumerate(self.num_entries):
            video = self.take(torch.tensor([row]))
            video.projections = {}
            for _ in range(num_entries - length):
                video.compress()
            videos.append(video)
        bank = Bank(len(videos), *self.size, length, self.policy, self.slots.dtype, self.slots.device)
        for row, video in enumerate(videos):
            kept = video.entries_of_each
            bank.slots[row, :kept] = video.states[0]
            bank.slot_counts[row, :kept] = video.counts[0]
            bank.similarities[row, : max(kept - 1, 0)] = video.similarities[0, : max(kept - 1, 0)]
            bank.num_entries[row] = kept
        return bank
