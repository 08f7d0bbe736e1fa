"""The file of a memory: written as a whole, and checked when it is read."""

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
Tensors = dict[str, torch.Tensor]


def write_memory_file(path: str | os.PathLike, header: dict[str, Any], tensors: Tensors) -> None:
    """
    Write a safetensors file that [`read_memory_file`] reads. It appears complete or not at all, and replaces an
    older one.

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


def read_memory_file(
    path: str | os.PathLike, device: torch.device | str
) -> tuple[dict[str, Any], Tensors, dict[str, Tensors]]:
    """
    Read a file that [`write_memory_file`] wrote.

    Args:
        path: path of the file.
        device: device of the tensors.

    Returns:
        The header, the tensors beside the banks by name, and those of each bank by name. The visual bank is "visual",
        the query banks are "0", "1", ..., one for each layer of the Q-Former.

    Raises:
        ValueError: if it is another kind of file, or damaged. The message names the field and what it must be.
        OSError: if the file cannot be opened.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path} is not a regular file; a file that `MemoryBank.save` wrote is expected.")
    own: Tensors = {}
    banks: dict[str, Tensors] = {}
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            text = (file.metadata() or {}).get("memory_bank")
            for key in file.keys():
                owner, dot, name = key.rpartition(".")
                (banks.setdefault(owner, {}) if dot else own)[name] = file.get_tensor(key)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a file that `MemoryBank.save` wrote, or is damaged: {error}") from error
    if text is None:
        raise ValueError(f"{path} is not a file that `MemoryBank.save` wrote.")
    try:
        header = {"origin": {}, **json.loads(text)}
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header is no JSON object ({error}).") from error
    try:
        _check(header, own, banks)
    except ValueError as error:
        raise ValueError(f"{path} is damaged, or not as `MemoryBank.save` writes it: {error}.") from None
    return header, own, banks


def _require(is_sound: Any, field: str, expected: str, value: Any = None) -> None:
    if not is_sound:
        raise ValueError(f"{field} must {expected}" + ("" if value is None else f", got {value}"))


def _require_tensor(field: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], *sizes: int | None) -> None:
    """Check the dtype of a tensor and its shape, in which `None` is any size from 1."""
    _require(tensor.dtype in dtypes, field, f"be {' or '.join(map(str, dtypes))}", tensor.dtype)
    fits = tensor.ndim == len(sizes) and all(
        size >= 1 if expected is None else size == expected for size, expected in zip(tensor.shape, sizes, strict=True)
    )
    shape = ", ".join("any" if size is None else str(size) for size in sizes)
    _require(fits, field, f"have the shape ({shape})", tuple(tensor.shape))


def _check(header: dict[str, Any], own: Tensors, banks: dict[str, Tensors]) -> None:
    length: Any = header.get("length")
    policy: Any = header.get("policy")
    origin = header["origin"]
    is_length = type(length) is int and length >= 1
    _require(is_length, "length", "be a whole number, at least 1", length or "none")
    is_policy = isinstance(policy, str) and policy in POLICIES
    _require(is_policy, "policy", f"be one of {', '.join(POLICIES)}", repr(policy))
    _require(isinstance(origin, dict), "origin", "be a JSON object", type(origin).__name__)

    unknown = own.keys() - OWN_TENSORS
    _require(not unknown, "its tensors", f"be {', '.join(sorted(OWN_TENSORS))} and those of banks", unknown)
    _require("frames_seen" in own, "frames_seen", "be there")
    num_videos = own["frames_seen"].numel()
    _require_tensor("frames_seen", own["frames_seen"], (torch.int64,), num_videos)
    layers = banks.keys() - {"visual"}
    is_whole = layers == {str(layer) for layer in range(len(layers))}
    _require(is_whole, "the banks", "be visual, and 0, 1, ... without a gap", sorted(banks))
    for owner, tensors in banks.items():
        names = {*BANK_TENSORS, "num_entries"}
        _require(tensors.keys() == names, f"bank {owner}", f"have {', '.join(sorted(names))}", sorted(tensors))
        _check_bank(owner, tensors, num_videos, own["frames_seen"].tolist(), length, policy)

    # All query banks have one size, which fits the queries and the text.
    sizes: tuple[int | None, ...] = (None, None)
    for layer in sorted(layers):
        sizes = banks["0"]["slots"].shape[2:]
        _require_tensor(f"{layer}.slots", banks[layer]["slots"], STATE_DTYPES, num_videos, length + 1, *sizes)
    num_queries = None
    if "last_queries" in own:
        dtypes = (*STATE_DTYPES, torch.float16, torch.bfloat16)
        _require_tensor("last_queries", own["last_queries"], dtypes, num_videos, None, sizes[1])
        num_queries = own["last_queries"].shape[1]
    if "text_ids" in own:
        text_length = None if num_queries is None or sizes[0] is None else sizes[0] - num_queries
        _require_tensor("text_ids", own["text_ids"], (torch.int64,), num_videos, text_length)


def _check_bank(
    owner: str, tensors: Tensors, num_videos: int, frames_seen: list[int], length: int, policy: str
) -> None:
    slots, order, _, similarities = (tensors[name] for name in BANK_TENSORS)
    _require_tensor(f"{owner}.slots", slots, STATE_DTYPES, num_videos, length + 1, None, None)
    for name, dtype in (("order", torch.int64), ("slot_counts", torch.float32), ("similarities", slots.dtype)):
        _require_tensor(f"{owner}.{name}", tensors[name], (dtype,), *slots.shape[:3])
    _require_tensor(f"{owner}.num_entries", tensors["num_entries"], (torch.int64,), num_videos)
    num_entries = tensors["num_entries"].tolist()
    pairs = zip(num_entries, frames_seen, strict=True)
    fits = all(min(frames, 1) <= number <= min(frames, length) for number, frames in pairs)
    expected = f"be 1 to {length}, and not above the frames seen, {frames_seen}"
    _require(fits, f"{owner}.num_entries", expected, num_entries)
    time = torch.arange(length + 1, device=order.device)[None, :, None]
    is_permutation = order.sort(dim=1).values.eq(time).all()
    _require(is_permutation, f"{owner}.order", f"have each of 0 to {length} once at every position")
    if similarity_range := POLICIES[policy].similarity_range:
        least, most = similarity_range
        tolerance = 1e-3 * (most - least) / 2
        is_used = time < tensors["num_entries"][:, None, None] - 1
        values = similarities[is_used.expand_as(similarities)]
        is_within = ((values >= least - tolerance) & (values <= most + tolerance)).all()
        _require(is_within, f"{owner}.similarities", f"be from {least:g} to {most:g}")
