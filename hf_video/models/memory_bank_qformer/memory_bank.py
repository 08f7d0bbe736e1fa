"""The memory of a video: explicit, of constant size, passed to the model and handed back; and its file."""

import copy
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .memory_compression import POLICIES
from .token_bank import TensorMap, TokenBank


class MemoryBank:
    """
    What a [`MemoryBankQFormerModel`] remembers of a batch of videos. The model takes it and hands it back; it grows in
    place, like the caches of Transformers. A call without a memory begins new videos.

        memory = None
        for frame in frames:  # (batch_size, 1, num_channels, height, width)
            outputs = model(frame, memory=memory)
            memory = outputs.memory

    A memory carries no gradients. It belongs to the model and the text that it was filled with. It keeps keys and
    values of its entries: call [`~MemoryBank.drop_projections`] after the model's weights have changed.

    If a call stops after a frame has entered, by an error or by Ctrl-C, the memory is unfinished, and later calls
    refuse it: some banks may lack the frame, and a call that is repeated would count frames twice. Go on from a
    [`~MemoryBank.clone`] or a file made before that call, or [`~MemoryBank.reset`] the memory. A call that fails
    before, for example because of a wrong shape, leaves the entries as they were.

    Args:
        length (`int`): number of frames that each bank holds.
        policy (`str`, defaults to `"merge"`): what happens when a bank is full, a key of `POLICIES` in
            `memory_compression.py`.

    Attributes:
        visual ([`TokenBank`], *optional*): vision tokens of frames, with the positions of the frames added. `states`
            is `(batch_size, num_entries, num_tokens, hidden_size of the vision tower)`; `counts`, the number of frames
            merged into each entry, is `(batch_size, num_entries, num_tokens)`.
        query (`list[TokenBank]`): for each layer of the Q-Former, its input: queries, followed by text. `states` is
            `(batch_size, num_entries, num_query_tokens + text_length, hidden_size)`.
        frames_seen (`torch.LongTensor` of shape `(batch_size,)`, on the CPU): number of frames read so far.
        last_queries (`torch.Tensor` of shape `(batch_size, num_query_tokens, hidden_size)`, *optional*): output of the
            Q-Former for the last frame.
        text_ids (`torch.LongTensor` of shape `(batch_size, text_length)`, *optional*): the text that the query banks
            were filled with, -1 for padding.
        origin (`dict[str, Any]`): notes of the caller, such as the name of the video. They are saved as JSON.
    """

    def __init__(self, length: int, policy: str = "merge"):
        if length < 1:
            raise ValueError(f"A memory bank holds at least 1 frame, got the length {length}.")
        if policy not in POLICIES:
            raise ValueError(f"There is no compression policy {policy!r}; choose one of {', '.join(POLICIES)}.")
        self.length = length
        self.policy = policy
        self.reset()

    def reset(self) -> None:
        """Forget everything, to begin new videos."""
        self.visual: TokenBank | None = None
        self.query: list[TokenBank] = []
        self.frames_seen = torch.zeros(0, dtype=torch.long, device="cpu")
        self.last_queries: torch.Tensor | None = None
        self.text_ids: torch.Tensor | None = None
        self.origin: dict[str, Any] = {}
        # True while a frame enters, and after a call that stopped with frames in the memory.
        self.is_unfinished = False

    def __repr__(self) -> str:
        return f"MemoryBank(length={self.length}, policy={self.policy!r}, frames_seen={self.frames_seen.tolist()})"

    @property
    def batch_size(self) -> int:
        return len(self.frames_seen)

    def banks(self) -> list[TokenBank]:
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
        Make banks for new videos, or check that the banks of earlier frames fit. Outside of inference mode, a memory
        that was filled in inference mode is copied, because its tensors may not be written.

        Args:
            batch_size: number of videos.
            visual_size: number of positions and of channels of the visual bank; `None` for no visual bank.
            query_sizes: number of positions and of channels of the query bank of each layer.
            dtype, device: dtype and device of the states; half precisions become float32.
            text_ids: see the attribute; `None` if there is no text.

        Raises:
            ValueError: if the memory was filled by another model or with another text, is on another device, or is
                unfinished.
        """
        if self.is_unfinished:
            raise ValueError(
                "A call stopped after a frame had entered this memory, so it may lack others or parts of one: `load` "
                "a file or take a `clone()` made before that call, or `reset()` it to begin anew."
            )
        if not self.frames_seen.any():

            def empty(size: tuple[int, int]) -> TokenBank:
                states = torch.zeros(batch_size, 0, *size, dtype=dtype, device=device)
                return TokenBank.of_entries(states, states[..., 0], self.length, self.policy)

            self.visual = None if visual_size is None else empty(visual_size)
            self.query = [empty(size) for size in query_sizes]
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
            vars(self).update(vars(self.clone()))
        own_size = None if self.visual is None else self.visual.size
        if (own_size, len(self.query)) != (visual_size, len(query_sizes)):
            raise ValueError("The memory has other banks than this model: another model filled it.")
        if self.query and self.query[0].size != query_sizes[0]:
            raise ValueError(
                f"The memory has queries and text of {self.query[0].size} (tokens, channels) for a frame, but the "
                f"call has {query_sizes[0]}: pass the same text in every call of a video."
            )
        if self.query and text_ids is not None:
            if self.text_ids is None:
                self.text_ids = text_ids.clone()
            differs = self.text_ids.to(text_ids.device).ne(text_ids).any(dim=1)
            if differs.any():
                raise ValueError(
                    f"The memory was filled with another text of the videos {differs.nonzero().flatten().tolist()}: "
                    "pass the same text in every call of a video. To ask another question, call `model.ask`. To go on "
                    "with another text, call `replay_memory`."
                )

    def _replace(self, of_rows: TensorMap, of_bank: Callable[[TokenBank], TokenBank] | None = None) -> None:
        """Replace every tensor with one row for each video, and every bank, by the result of a function."""
        of_bank = of_bank or (lambda bank: bank.map(of_rows))
        self.visual = None if self.visual is None else of_bank(self.visual)
        self.query = [of_bank(bank) for bank in self.query]
        self.last_queries = None if self.last_queries is None else of_rows(self.last_queries)
        self.text_ids = None if self.text_ids is None else of_rows(self.text_ids)

    def _copy(self) -> "MemoryBank":
        """A copy that shares its tensors with this memory."""
        memory = copy.copy(self)
        memory.frames_seen, memory.origin = self.frames_seen.clone(), dict(self.origin)
        return memory

    def clone(self) -> "MemoryBank":
        """An independent copy, to go on in two ways."""
        memory = self._copy()
        memory._replace(torch.Tensor.clone)
        return memory

    def to(self, device: torch.device | str) -> "MemoryBank":
        """Move the memory to a device, in place, and return it. Dtypes stay as they are."""
        self._replace(lambda tensor: tensor.to(device))
        return self

    def append(
        self, vision_states: torch.Tensor, layer_inputs: Sequence[torch.Tensor], last_queries: torch.Tensor
    ) -> None:
        """Add a frame to every bank: its tokens, the input of each layer of the Q-Former, and the queries after the
        last one, all `(batch_size, number of tokens, hidden_size)`."""
        self.is_unfinished = True
        if self.visual is not None:
            self.visual.append(vision_states)
        for bank, layer_input in zip(self.query, layer_inputs, strict=bool(self.query)):
            bank.append(layer_input)
        self.last_queries = last_queries.detach()
        self.frames_seen += 1
        self.is_unfinished = False

    def drop_projections(self) -> None:
        """Forget the keys and values of the entries. The next call computes them again, from the states."""
        for bank in self.banks():
            bank.projections = {}

    def resize(self, length: int) -> None:
        """Hold `length` frames instead. If that is fewer, what is too much is compressed at once."""
        if length < 1:
            raise ValueError(f"A memory bank holds at least 1 frame, got the length {length}.")
        if length != self.length:
            self._replace(lambda tensor: tensor, lambda bank: bank.resized(length))
            self.length = length

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the videos `indices`, in this order. The indices are int64, or one bool for each video."""
        rows = torch.arange(self.batch_size, device="cpu")[indices.cpu()]
        self._replace(lambda tensor: tensor[rows.to(tensor.device)], lambda bank: bank.take(rows))
        self.frames_seen = self.frames_seen[rows]

    def take(self, rows: torch.Tensor) -> "MemoryBank":
        """A memory with copies of the videos `rows`, int64."""
        memory = self._copy()
        memory.batch_select_indices(rows)
        return memory

    def put(self, rows: torch.Tensor, memory: "MemoryBank") -> None:
        """Write back the videos that [`~MemoryBank.take`] copied."""
        self.is_unfinished = True
        for own, new in zip(self.banks(), memory.banks(), strict=True):
            own.put(rows, new)
        if memory.last_queries is not None:
            new_queries = memory.last_queries
            if self.last_queries is None:
                self.last_queries = new_queries.new_zeros(self.batch_size, *new_queries.shape[1:])
            # Not in place, because the caller may hold the tensor as an output.
            self.last_queries = self.last_queries.index_copy(
                0, rows.to(new_queries.device), new_queries.to(self.last_queries)
            )
        self.frames_seen[rows.cpu()] = memory.frames_seen
        self.is_unfinished = False

    def save(self, path: str | os.PathLike) -> None:
        """
        Write a safetensors file. It appears complete or not at all, and replaces an older file of this name. Keys and
        values are left out, because they can be computed from the states.

        Raises:
            ValueError: if the memory is unfinished.
            OSError: if the file cannot be written.
        """
        if self.is_unfinished:
            raise ValueError(f"{path} was not written: a call stopped after a frame had entered the memory.")
        tensors: dict[str, Any] = {name: getattr(self, name) for name in ("frames_seen", "last_queries", "text_ids")}
        for name, bank in (("visual", self.visual), *((str(i), bank) for i, bank in enumerate(self.query))):
            if bank is not None:
                tensors |= {f"{name}.states": bank.states, f"{name}.counts": bank.counts}
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
        header = {"length": self.length, "policy": self.policy, "origin": self.origin}
        unfinished = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
        try:
            save_file(tensors, unfinished, {"memory_bank": json.dumps(header)})
            unfinished.replace(path)
        except SafetensorError as error:
            raise OSError(f"{path} was not written: {error}") from error
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike, device: torch.device | str = "cpu") -> "MemoryBank":
        """Read a file that [`~MemoryBank.save`] wrote. Raises `ValueError` if it is another kind of file or damaged,
        and `OSError` if it cannot be opened."""
        try:
            with safe_open(path, "pt", device=str(device)) as file:
                header = json.loads((file.metadata() or {})["memory_bank"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            memory = cls(header["length"], header["policy"])
            memory.origin = dict(header["origin"])
            memory.frames_seen = check_tensor("frames_seen", tensors.pop("frames_seen"), torch.int64, None).cpu()
            for name, dtype, *sizes in (("last_queries", None, None, None), ("text_ids", torch.int64, None)):
                if name in tensors:
                    setattr(memory, name, check_tensor(name, tensors.pop(name), dtype, memory.batch_size, *sizes))
            banks = {}
            for name in dict.fromkeys(name.partition(".")[0] for name in tensors):
                states = check_tensor(name, tensors[f"{name}.states"], None, memory.batch_size, None, None, None)
                counts = check_tensor(name, tensors[f"{name}.counts"], torch.float32, *states.shape[:3])
                banks[name] = TokenBank.of_entries(states, counts, memory.length, memory.policy)
            memory.visual = banks.pop("visual", None)
            memory.query = [banks[str(i)] for i in range(len(banks))]
        except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
            raise ValueError(f"{path} is not a file that `MemoryBank.save` wrote, or is damaged: {error}") from error
        return memory


def check_tensor(name: str, tensor: torch.Tensor, dtype: torch.dtype | None, *sizes: int | None) -> torch.Tensor:
    """The tensor of a file, or `ValueError` for another dtype (`None`: any float) or shape (`None`: any size)."""
    fits_dtype = tensor.is_floating_point() if dtype is None else tensor.dtype == dtype
    fits = [size in (None, found) for size, found in zip(sizes, tensor.shape, strict=False)]
    if not fits_dtype or tensor.ndim != len(sizes) or not all(fits):
        raise ValueError(
            f"{name} must be {dtype or 'floats'} of the sizes {sizes}, got {tensor.dtype} of {tuple(tensor.shape)}"
        )
    return tensor


@contextmanager
def unfinished_on_error(memory: MemoryBank | None) -> Iterator[None]:
    """Leave a memory unfinished if the code within raises after it has added frames."""
    before = None if memory is None else memory.frames_seen.sum()
    try:
        yield
    except BaseException:
        if memory is not None and memory.frames_seen.sum() != before:
            memory.is_unfinished = True
        raise


@torch.no_grad()
def replay_memory(
    model: Any,
    memory: MemoryBank,
    qformer_input_ids: torch.Tensor | None = None,
    qformer_attention_mask: torch.Tensor | None = None,
) -> tuple[MemoryBank, torch.Tensor]:
    """
    Rebuild the query banks of a memory for another text.

    The visual bank does not depend on the text. Its entries are read like frames, oldest first, each with the entries
    before it. As long as no entries were merged, the result is exact: it equals a memory that was filled with this
    text from the start. After that it is an approximation: an entry that stands for many frames is read once, and its
    token positions may stand for different frames.

    Args:
        model ([`MemoryBankQFormerModel`]): the model that filled the memory.
        memory ([`MemoryBank`]): the memory, which is not changed. If it has one video, it answers any number of texts.
        qformer_input_ids, qformer_attention_mask: the text `(batch_size, text_length)`, as the model takes it.

    Returns:
        A memory to go on with, and the queries after its last entry `(batch_size, num_query_tokens, hidden_size)`.

    Raises:
        ValueError: if the memory is empty or has no visual bank (`visual_memory=False`), if its videos have different
            numbers of entries, if there is not one text for each video, or if a text is too long.
    """
    if memory.visual is None or not any(memory.visual.num_entries):
        raise ValueError("The memory holds no frames to be read with another text: ask from the start instead.")
    if qformer_input_ids is not None and memory.batch_size == 1:
        memory = memory.take(torch.zeros(len(qformer_input_ids), dtype=torch.long))
    visual: Any = memory.visual
    model.check_inputs(None, visual.slots, None, qformer_input_ids)
    num_entries = visual.entries_of_each
    replayed = MemoryBank(memory.length, memory.policy)
    model.prepare_memory(replayed, visual.slots, qformer_input_ids, qformer_attention_mask)
    query_embeds = model.query_tokens.expand(memory.batch_size, -1, -1)
    outputs: Any = None
    for entry in visual.states.to(model.qformer.embeddings.layernorm.weight.dtype).unbind(1):
        text = (qformer_input_ids, qformer_attention_mask)
        options = {"memory": replayed, "reuse_projections": True, "return_dict": True}
        outputs = model.qformer(query_embeds, entry, *text, **options)
        for bank, states in zip(replayed.banks(), (entry, *outputs.layer_inputs), strict=False):
            bank.append(states)
    for bank in replayed.banks():
        # Queries have other positions than vision tokens, so their entries get the mean of the counts.
        counts = visual.counts if bank is replayed.visual else visual.counts.mean(-1, keepdim=True)
        bank.slot_counts[:, :num_entries] = counts
    replayed.frames_seen = memory.frames_seen.clone()
    replayed.last_queries = outputs.last_hidden_state[:, : model.config.num_query_tokens]
    return replayed, replayed.last_queries
