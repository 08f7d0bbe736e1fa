"""The memory of a video: explicit, of constant size, passed to the model and handed back."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from .compression_policies import POLICIES
from .frame_bank import Bank, TensorMap
from .memory_file import BANK_TENSORS, MemoryFile


class MemoryBank:
    """
    What a [`MemoryBankQFormerModel`] remembers of the videos of a batch. Pass it in and get it back, grown in place
    like Transformers' caches; without one a call begins new videos.

        memory = None
        for frame in frames:  # (batch_size, 1, num_channels, height, width)
            outputs = model(frame, memory=memory)
            memory = outputs.memory

    Nothing in it carries a gradient. It fits the model that filled it, with the text that it was filled with: keys and
    values of its entries are kept, so after a change of the weights call [`~MemoryBank.drop_projections`].

    Args:
        length (`int`): frames that each bank holds.
        policy (`"merge"`, `"fifo"` or `"uniform"`, defaults to `"merge"`): what happens to the rest, see
            `compression_policies.py`.

    Attributes:
        visual ([`Bank`], *optional*): vision tokens of frames, with the frame's position added. `states` is
            `(batch_size, num_entries, num_tokens, hidden_size of the vision tower)`, `counts` (the frames that were
            merged into an entry) `(batch_size, num_entries, num_tokens)`.
        query (`list[Bank]`): for every layer of the Q-Former its input, queries and then text. `states` is
            `(batch_size, num_entries, num_query_tokens + text_length, hidden_size)`.
        frames_seen (`torch.LongTensor` of shape `(batch_size,)`, on the CPU): frames so far.
        last_queries (`torch.Tensor` of shape `(batch_size, num_query_tokens, hidden_size)`, *optional*): what the
            Q-Former said after the last frame.
        text_ids (`torch.LongTensor` of shape `(batch_size, text_length)`, *optional*): the text that the query banks
            were filled with, -1 for padding; none in files of earlier versions, whose text is not known.
        origin (`dict[str, Any]`): what whoever fills the memory wants to find again in its file, as JSON has it.
    """

    def __init__(self, length: int, policy: str = "merge"):
        if length < 1:
            raise ValueError(f"A memory bank holds at least 1 frame, got the length {length}.")
        if policy not in POLICIES:
            raise ValueError(f"There is no compression policy {policy!r}; choose one of {', '.join(POLICIES)}.")
        self.length = length
        self.policy = policy
        self.visual: Bank | None = None
        self.query: list[Bank] = []
        self.frames_seen = torch.zeros(0, dtype=torch.long, device="cpu")
        self.last_queries: torch.Tensor | None = None
        self.text_ids: torch.Tensor | None = None
        self.origin: dict[str, Any] = {}
        # Whether a frame is entering the banks: some have it then, and some do not.
        self.is_unfinished = False

    def __repr__(self) -> str:
        return f"MemoryBank(length={self.length}, policy={self.policy!r}, frames_seen={self.frames_seen.tolist()})"

    @property
    def batch_size(self) -> int:
        return len(self.frames_seen)

    def banks(self) -> list[Bank]:
        return [bank for bank in (self.visual, *self.query) if bank is not None]

    def prepare(
        self,
        batch_size: int,
        visual_size: tuple[int, int] | None,
        query_sizes: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        device: torch.device,
        text_ids: torch.Tensor | None = None,
    ) -> None:
        """
        Make banks for new videos, or see that those of earlier frames fit. What was filled in inference mode is copied
        for a call outside of it, which may not write there.

        Args:
            batch_size: number of videos.
            visual_size: positions and channels of the visual bank; `None` for no such bank.
            query_sizes: positions and channels of the query bank of every layer.
            dtype, device: of the states, see [`Bank`].
            text_ids: as the attribute; `None` without a text.

        Raises:
            ValueError: if the memory was filled with something else, is on another device, or an earlier call was
                interrupted while a frame entered it.
        """
        if self.is_unfinished:
            raise ValueError(
                "A call was interrupted while a frame entered this memory, which some of its banks have and some have "
                "not: go on from a `clone()` or a file made before, or begin without a memory."
            )
        if not self.batch_size:
            visual, *query = (
                None if size is None else Bank(batch_size, *size, self.length, self.policy, dtype, device)
                for size in (visual_size, *query_sizes)
            )
            self.visual, self.query = visual, [bank for bank in query if bank is not None]
            self.frames_seen = torch.zeros(batch_size, dtype=torch.long, device="cpu")
            self.last_queries = self.text_ids = None
        if self.batch_size != batch_size:
            raise ValueError(
                f"The memory is of {self.batch_size} videos, but the batch has {batch_size}: select the videos with "
                "`memory.batch_select_indices`, or begin without a memory."
            )
        banks = self.banks()
        if banks and banks[0].slots.device != device:
            raise ValueError(f"The memory is on {banks[0].slots.device}, the frames on {device}: move it with `.to`.")
        if banks and banks[0].slots.is_inference() and not torch.is_inference_mode_enabled():
            self._replace(lambda bank: bank.map(torch.Tensor.clone))
            self._replace_rows(torch.Tensor.clone)
            self.frames_seen = self.frames_seen.clone()
        if (self.visual is not None, len(self.query)) != (visual_size is not None, len(query_sizes)):
            raise ValueError("The memory has other banks than this model: another model filled it.")
        if self.visual is not None and self.visual.size != visual_size:
            raise ValueError(f"The memory has frames of {self.visual.size} (tokens, channels), not {visual_size}.")
        for bank, size in zip(self.query, query_sizes, strict=True):
            if bank.size != size:
                raise ValueError(
                    f"The memory has queries and text of {bank.size} (tokens, channels) for a frame, but here are "
                    f"{size}: pass the same text in every call of a video."
                )
        if self.query and text_ids is not None:
            if self.text_ids is None:
                self.text_ids = text_ids.clone()
            differs = self.text_ids.to(text_ids.device).ne(text_ids).any(dim=1)
            if differs.any():
                raise ValueError(
                    f"The memory was filled with another text of the videos {differs.nonzero().flatten().tolist()}: "
                    "pass the same text in every call of a video. Another question is answered by `model.ask`, and "
                    "`replay_memory` makes a memory that goes on with it."
                )

    def _replace(self, function: Callable[[Bank], Bank]) -> None:
        self.visual = None if self.visual is None else function(self.visual)
        self.query = [function(bank) for bank in self.query]

    def _replace_rows(self, function: TensorMap) -> None:
        """Of the tensors beside the banks with a row for each video."""
        self.last_queries = None if self.last_queries is None else function(self.last_queries)
        self.text_ids = None if self.text_ids is None else function(self.text_ids)

    def _copy(self, function: Callable[[Bank], Bank]) -> "MemoryBank":
        memory = MemoryBank(self.length, self.policy)
        memory.visual, memory.query, memory.frames_seen = self.visual, self.query, self.frames_seen.clone()
        memory.last_queries, memory.text_ids, memory.origin = self.last_queries, self.text_ids, dict(self.origin)
        memory.is_unfinished = self.is_unfinished
        memory._replace(function)
        return memory

    def clone(self) -> "MemoryBank":
        """An independent copy, to go on in two ways."""
        memory = self._copy(lambda bank: bank.map(torch.Tensor.clone))
        memory._replace_rows(torch.Tensor.clone)
        return memory

    def to(self, device: torch.device | str) -> "MemoryBank":
        """The memory on a device: itself, moved. Its precision stays."""
        self._replace(lambda bank: bank.map(lambda tensor: tensor.to(device)))
        self._replace_rows(lambda tensor: tensor.to(device))
        return self

    def detach(self) -> "MemoryBank":
        """The memory without gradients, which it has none of: itself."""
        return self

    def reset(self) -> None:
        """Forget everything, to begin new videos."""
        self.visual, self.query, self.is_unfinished = None, [], False
        self.frames_seen = torch.zeros(0, dtype=torch.long, device="cpu")
        self.last_queries, self.text_ids, self.origin = None, None, {}

    def append(
        self, vision_states: torch.Tensor, layer_inputs: Sequence[torch.Tensor], last_queries: torch.Tensor
    ) -> None:
        """
        Add a frame to every bank: its tokens `(batch_size, num_tokens, hidden_size of the vision tower)`, the input of
        every layer `(batch_size, num_query_tokens + text_length, hidden_size)`, and the queries behind the last layer
        `(batch_size, num_query_tokens, hidden_size)`.
        """
        self.is_unfinished = True
        if self.visual is not None:
            self.visual.append(vision_states)
        for bank, layer_input in zip(self.query, layer_inputs, strict=bool(self.query)):
            bank.append(layer_input)
        self.last_queries = last_queries.detach()
        self.frames_seen += 1
        self.is_unfinished = False

    def drop_projections(self) -> None:
        """Forget the keys and values of the entries; the next call computes them from the states."""
        for bank in self.banks():
            bank.projections = {}

    def resize(self, length: int) -> None:
        """Hold `length` frames from here on; what is too much is compressed now."""
        if length < 1:
            raise ValueError(f"A memory bank holds at least 1 frame, got the length {length}.")
        if length != self.length:
            self._replace(lambda bank: bank.resized(length))
            self.length = length

    def take(self, rows: torch.Tensor) -> "MemoryBank":
        """A memory with copies of the videos in `rows`, int64."""
        memory = self._copy(lambda bank: bank.take(rows))
        memory._replace_rows(lambda tensor: tensor[rows.to(tensor.device)])
        memory.frames_seen = self.frames_seen[rows.cpu()]
        return memory

    def put(self, rows: torch.Tensor, memory: "MemoryBank") -> None:
        """Write videos back that [`~MemoryBank.take`] took."""
        for own, new in zip(self.banks(), memory.banks(), strict=True):
            own.put(rows, new)
        if memory.last_queries is not None:
            new_queries = memory.last_queries
            if self.last_queries is None:
                self.last_queries = new_queries.new_zeros(self.batch_size, *new_queries.shape[1:])
            # Not in place: the caller may hold the tensor as an output.
            self.last_queries = self.last_queries.index_copy(
                0, rows.to(new_queries.device), new_queries.to(self.last_queries)
            )
        self.frames_seen[rows.cpu()] = memory.frames_seen

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the videos of these indices (int64, or bool for each video), in this order."""
        rows = torch.arange(self.batch_size, device="cpu")[indices.cpu()]
        self._replace(lambda bank: bank.take(rows))
        self._replace_rows(lambda tensor: tensor[rows.to(tensor.device)])
        self.frames_seen = self.frames_seen[rows]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """[`~MemoryBank.batch_select_indices`] under the name that beam search knows."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every video `repeats` times, copies next to each other."""
        self.batch_select_indices(torch.arange(self.batch_size, device="cpu").repeat_interleave(repeats))

    def save(self, path: str | os.PathLike) -> None:
        """
        Write a safetensors file. It appears complete or not at all, and replaces an older one of this name.
        Keys and values are left out: they follow from the states.

        Raises:
            ValueError: if a call was interrupted while a frame entered the memory.
            OSError: if the file cannot be written.
        """
        if self.is_unfinished:
            raise ValueError(f"{path} was not written: a call was interrupted while a frame entered the memory.")
        tensors: dict[str, torch.Tensor] = {"frames_seen": self.frames_seen}
        for name in ("last_queries", "text_ids"):
            if getattr(self, name) is not None:
                tensors[name] = getattr(self, name).contiguous()
        for name, bank in [("visual", self.visual), *((str(i), bank) for i, bank in enumerate(self.query))]:
            if bank is not None:
                tensors |= {f"{name}.{tensor}": getattr(bank, tensor) for tensor in BANK_TENSORS}
                tensors[f"{name}.num_entries"] = torch.tensor(bank.num_entries)
        unfinished = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
        header = {"length": self.length, "policy": self.policy, "origin": self.origin}
        try:
            save_file(tensors, unfinished, {"memory_bank": json.dumps(header)})
            unfinished.replace(path)
        except SafetensorError as error:
            raise OSError(f"{path} was not written: {error}") from error
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike, device: torch.device | str = "cpu") -> "MemoryBank":
        """
        Read a file of [`~MemoryBank.save`].

        Raises:
            ValueError: if it is another file, or damaged; names the field that is not as expected.
            OSError: if it cannot be opened.
        """
        file = MemoryFile(path, device)
        memory = cls(file.length, file.policy)
        memory.origin = file.origin
        memory.frames_seen = file.own["frames_seen"].cpu()
        memory.last_queries, memory.text_ids = file.own.get("last_queries"), file.own.get("text_ids")
        banks = {}
        for owner, tensors in file.banks.items():
            banks[owner] = bank = object.__new__(Bank)
            bank.policy, bank.projections = memory.policy, {}
            bank.num_entries = tensors["num_entries"].tolist()
            vars(bank).update({name: tensors[name] for name in BANK_TENSORS})
        memory.visual = banks.pop("visual", None)
        memory.query = [banks[str(i)] for i in range(len(banks))]
        return memory
