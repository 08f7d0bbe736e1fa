"""The file of a memory: written as a whole, and checked field by field when it is read."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .memory_compression import POLICIES

# Tensors of every bank, besides `num_entries`.
BANK_TENSORS = ("slots", "order", "slot_counts", "similarities")
OWN_TENSORS = {"frames_seen", "last_queries", "text_ids"}
STATE_DTYPES = (torch.float32, torch.float64)


def write_memory_file(path: str | os.PathLike, header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """
    Write a safetensors file that [`MemoryFile`] reads. It appears complete or not at all, and replaces an older one.

    Args:
        path: path of the file.
        header: the memory's `length`, `policy` and `origin`, as JSON has them.
        tensors: the tensors of the memory, those of banks named `"visual.slots"`, `"0.slots"`, ...

    Raises:
        OSError: if the file cannot be written.
    """
    unfinished = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
    try:
        save_file(tensors, unfinished, {"memory_bank": json.dumps(header)})
        unfinished.replace(path)
    except SafetensorError as error:
        raise OSError(f"{path} was not written: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


class MemoryFile:
    """
    The contents of a file that [`MemoryBank.save`] wrote.

    Args:
        path: path of the file.
        device: device of the tensors.

    Attributes:
        length (`int`), policy (`str`), origin (`dict[str, Any]`): as in [`MemoryBank`].
        own (`dict[str, torch.Tensor]`): the tensors beside the banks, by name.
        banks (`dict[str, dict[str, torch.Tensor]]`): the tensors of each bank, by name. The visual bank is "visual",
            the query banks are "0", "1", ..., one for each layer of the Q-Former.

    Raises:
        ValueError: if it is another kind of file, or damaged. The message names the field and what it must be.
        OSError: if the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike, device: torch.device | str):
        self.path = path
        if Path(path).exists() and not Path(path).is_file():
            raise ValueError(f"{path} is no regular file; a file that `MemoryBank.save` wrote is expected.")
        self.own: dict[str, torch.Tensor] = {}
        self.banks: dict[str, dict[str, torch.Tensor]] = {}
        try:
            with safe_open(path, "pt", device=str(device)) as file:
                header = (file.metadata() or {}).get("memory_bank")
                if header is None:
                    raise ValueError(f"{path} is not a file that `MemoryBank.save` wrote.")
                for key in file.keys():
                    owner, dot, name = key.rpartition(".")
                    tensors = self.banks.setdefault(owner, {}) if dot else self.own
                    tensors[name] = file.get_tensor(key)
        except SafetensorError as error:
            raise ValueError(f"{path} is not a file that `MemoryBank.save` wrote, or is damaged: {error}") from error
        self._read_header(header)
        self._check_own()
        self._check_names()
        for owner, tensors in self.banks.items():
            self._check_bank(owner, tensors)
        self._check_queries()

    def _require(self, is_sound: bool | torch.Tensor, field: str, expected: str, found: Any = None) -> None:
        if not is_sound:
            got = "" if found is None else f", got {found}"
            raise ValueError(
                f"{self.path} is damaged, or not as `MemoryBank.save` writes it: {field} must {expected}{got}."
            )

    def _require_tensor(
        self, field: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], sizes: tuple[int | None, ...]
    ) -> None:
        """Check a tensor's dtype, one of `dtypes`, and its shape. In `sizes`, `None` allows any size from 1."""
        self._require(tensor.dtype in dtypes, field, f"be {' or '.join(map(str, dtypes))}", tensor.dtype)
        fits = tensor.ndim == len(sizes) and all(
            size >= 1 if expected is None else size == expected
            for size, expected in zip(tensor.shape, sizes, strict=True)
        )
        shape = ", ".join("any" if size is None else str(size) for size in sizes)
        self._require(fits, field, f"have the shape ({shape})", tuple(tensor.shape))

    def _require_finite(self, field: str, tensor: torch.Tensor) -> None:
        # A policy that averages spreads an infinite frame over the memory; the others drop it in the end.
        self._require(not POLICIES[self.policy].averages or tensor.isfinite().all(), field, "be finite")

    def _read_header(self, text: str) -> None:
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path} is damaged: its header is no JSON ({error}).") from error
        self._require(isinstance(header, dict), "the header", "be a JSON object", type(header).__name__)
        length, policy, origin = header.get("length"), header.get("policy"), header.get("origin", {})
        self._require(type(length) is int and length >= 1, "length", "be a whole number, at least 1", length or "none")
        self._require(
            isinstance(policy, str) and policy in POLICIES, "policy", f"be one of {', '.join(POLICIES)}", repr(policy)
        )
        self._require(isinstance(origin, dict), "origin", "be a JSON object", type(origin).__name__)
        self.length, self.policy, self.origin = length, policy, origin

    def _check_own(self) -> None:
        unknown = self.own.keys() - OWN_TENSORS
        self._require(not unknown, "its tensors", f"be {', '.join(sorted(OWN_TENSORS))} and those of banks", unknown)
        self._require("frames_seen" in self.own, "frames_seen", "be there")
        frames_seen = self.own["frames_seen"]
        self.batch_size = len(frames_seen) if frames_seen.ndim else 0
        self._require_tensor("frames_seen", frames_seen, (torch.int64,), (self.batch_size,))
        self._require((frames_seen >= 0).all(), "frames_seen", "be at least 0", frames_seen.tolist())
        for name, dtypes, sizes in (
            ("last_queries", (*STATE_DTYPES, torch.float16, torch.bfloat16), (self.batch_size, None, None)),
            ("text_ids", (torch.int64,), (self.batch_size, None)),
        ):
            if name in self.own:
                self._require_tensor(name, self.own[name], dtypes, sizes)
        if "last_queries" in self.own:
            self._require_finite("last_queries", self.own["last_queries"])
        if "text_ids" in self.own:
            self._require((self.own["text_ids"] >= -1).all(), "text_ids", "be token ids, or -1 for padding")

    def _check_names(self) -> None:
        layers = [owner for owner in self.banks if owner != "visual"]
        expected = {str(layer) for layer in range(len(layers))}
        self._require(
            set(layers) == expected, "the banks", "be visual, and 0, 1, ... without a gap", sorted(self.banks)
        )
        self._require(
            not self.banks or self.batch_size > 0, "frames_seen", "have a number for each video of the banks"
        )
        names = {*BANK_TENSORS, "num_entries"}
        for owner, tensors in self.banks.items():
            self._require(
                tensors.keys() == names, f"bank {owner}", f"have {', '.join(sorted(names))}", sorted(tensors)
            )

    def _check_bank(self, owner: str, tensors: dict[str, torch.Tensor]) -> None:
        slots, order, counts, similarities = (tensors[name] for name in BANK_TENSORS)
        self._require_tensor(f"{owner}.slots", slots, STATE_DTYPES, (self.batch_size, self.length + 1, None, None))
        sizes = tuple(slots.shape[:3])
        for name, dtype in (("order", torch.int64), ("slot_counts", torch.float32), ("similarities", slots.dtype)):
            self._require_tensor(f"{owner}.{name}", tensors[name], (dtype,), sizes)

        num_entries, field = tensors["num_entries"], f"{owner}.num_entries"
        self._require_tensor(field, num_entries, (torch.int64,), (self.batch_size,))
        # The first frame adds an entry, and a compression leaves at least one.
        seen, entries = self.own["frames_seen"].tolist(), num_entries.tolist()
        fits = all(
            min(frames, 1) <= number <= min(frames, self.length) for number, frames in zip(entries, seen, strict=True)
        )
        self._require(fits, field, f"be 1 to {self.length}, and not above the frames seen, {seen}", entries)
        first = next(iter(self.banks))
        expected = self.banks[first]["num_entries"].tolist()
        self._require(entries == expected, field, f"be those of bank {first}, {expected}", entries)

        time = torch.arange(self.length + 1, device=order.device)[None, :, None]
        is_permutation = order.sort(dim=1).values.eq(time).all()
        self._require(is_permutation, f"{owner}.order", f"have each of 0 to {self.length} once at every position")
        is_entry = time < num_entries.to(time.device)[:, None, None]
        # Counts are not whole numbers in a bank of `replay_memory`, where they are means over positions.
        is_count = torch.where(is_entry, counts >= 1, counts == 0) & counts.isfinite()
        self._require(is_count.all(), f"{owner}.slot_counts", "be at least 1 for entries, and 0 after them")
        total, frames = counts.double().sum(dim=1), self.own["frames_seen"].to(counts.device).double()[:, None]
        policy = POLICIES[self.policy]
        if policy.forgets:
            is_one = (counts <= 1).all()
            self._require(is_one, f"{owner}.slot_counts", f"be 1 for entries of the policy {self.policy}")
        else:
            is_sum = torch.isclose(total, frames, rtol=1e-4).all()
            self._require(is_sum, f"{owner}.slot_counts", "sum up to the frames seen", seen)
        self._require_finite(
            f"{owner}.slots", slots.gather(1, order[..., None].expand_as(slots)).where(is_entry[..., None], 0)
        )
        if policy.similarity_range:
            least, most = policy.similarity_range
            tolerance = 1e-3 * (most - least) / 2
            found = similarities[(time < num_entries.to(time.device)[:, None, None] - 1).expand_as(similarities)]
            is_within = ((found >= least - tolerance) & (found <= most + tolerance)).all()
            self._require(is_within, f"{owner}.similarities", f"be from {least:g} to {most:g}")

    def _check_queries(self) -> None:
        """All query banks have one size, which fits the queries and the text."""
        shapes = {owner: tuple(bank["slots"].shape[2:]) for owner, bank in self.banks.items() if owner != "visual"}
        if not shapes:
            return
        num_positions, num_channels = shapes["0"]
        for owner, shape in shapes.items():
            self._require(shape == shapes["0"], f"{owner}.slots", f"be of {shapes['0']} as those of layer 0", shape)
        if (queries := self.own.get("last_queries")) is None:
            return
        text_ids = self.own.get("text_ids")
        num_queries = queries.shape[1]
        fits = num_queries <= num_positions if text_ids is None else num_queries + text_ids.shape[1] == num_positions
        self._require(
            fits and queries.shape[2] == num_channels,
            "last_queries" if text_ids is None else "last_queries and text_ids",
            f"fit the banks of {num_positions} positions and {num_channels} channels",
            [tuple(tensor.shape) for tensor in (queries, text_ids) if tensor is not None],
        )
