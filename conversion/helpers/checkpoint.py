"""Reads the files of original authors, and never unpickles code."""

import argparse
import os
import pickle
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils import SAFE_WEIGHTS_NAME

from hf_video.io import hub_or_cache, naming, read_object
from hf_video.loading.configurations import Config
from hf_video.settings import few


class ConversionError(ValueError):
    """The checkpoint or its configuration is not what the source expects; the message says what is wrong."""


# Classes that files of training scripts hold beside the weights, and what is read in their place.
PLAIN_CLASSES: list[Any] = [
    argparse.Namespace,
    (OrderedDict, "utils.easydict.EasyDict"),
    *((argparse.Namespace, "alphaction.structures.memory_pool.MemoryPool"), defaultdict, dict),
]


class Skipped(list):
    """Stands for an object of a class that is not read, and keeps nothing of it."""

    def __init__(self, *args: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass

    __hash__ = object.__hash__  # type: ignore[assignment]


def read_checkpoint(path: Path, skips_foreign: bool = False) -> dict[str, Any]:
    """The content of a `.pth` / `.pt` / `.bin` file, read with `weights_only=True`, or of a `.safetensors` file. Of
    the classes in `PLAIN_CLASSES` the values are read, and nothing runs. With `skips_foreign`, objects of others are
    read as [`Skipped`], apart from what PyTorch blocks, such as `os`."""
    if not path.is_file():
        raise ConversionError(f"There is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        _expect_pytorch(path)
        with torch.serialization.safe_globals(PLAIN_CLASSES), ExitStack() as stack:
            if skips_foreign and is_zipfile(path):
                names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
                stack.enter_context(torch.serialization.safe_globals([(Skipped, name) for name in names]))
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConversionError(
            f"{path} is damaged, or holds more than weights and plain values, which is not loaded because it could "
            f"run code: {str(error).partition(chr(10))[0]}"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, SafetensorError) as error:
        raise ConversionError(f"{path} cannot be read; is it cut off? {error}") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors.")
    return content


def _expect_pytorch(path: Path) -> None:
    """Refuse a file that neither begins as a ZIP archive nor as a pickle, on which PyTorch would fail anywhere."""
    with path.open("rb") as file:
        start = file.read(1024)
    if start and not start.startswith((b"PK", b"\x80")):
        is_page = b"<html" in start.lower()
        reason = ", but a web page: download the file in a browser" if is_page else " of PyTorch"
        raise ConversionError(f"{path} is no checkpoint{reason}.")


def find_weights(content: dict[str, Any], wrappers: Iterable[str]) -> dict[str, torch.Tensor]:
    """The state dict of a checkpoint: what is under the first of `wrappers` that exists, or the whole dictionary."""
    for wrapper in wrappers:
        if isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    if foreign := [name for name, value in content.items() if isinstance(value, Skipped)]:
        raise ConversionError(f"Beside the tensors are objects of classes that are not read: {few(foreign)}.")
    weights = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    if not weights:
        raise ConversionError(
            f"No tensors under any of {list(wrappers)} nor at the top level, which has {few(content)}."
        )
    return weights


def expect(weights: dict[str, torch.Tensor], model: str, *names: str) -> None:
    """Refuse weights that are not those of a model, which has tensors of these names."""
    if absent := [name for name in names if name not in weights]:
        raise ConversionError(f"These are not the weights of {model}, which has {few(absent)}. Found: {few(weights)}.")


def shape_of(weights: dict[str, torch.Tensor], name: str, num_dimensions: int) -> torch.Size:
    """The shape of a tensor that sizes are read from, which must be there and have this number of dimensions."""
    if name not in weights or weights[name].ndim != num_dimensions:
        found = tuple(weights[name].shape) if name in weights else few(weights)
        raise ConversionError(f"There is no {name} of {num_dimensions} dimensions. Found: {found}.")
    return weights[name].shape


def count_layers(weights: dict[str, torch.Tensor], pattern: str) -> int:
    """The number of layers: `pattern`, with a group for their number, is the beginning of their tensors' names."""
    found = {int(match[1]) for name in weights if (match := re.match(pattern, name))}
    if absent := set(range(len(found))) - found:
        raise ConversionError(f"The checkpoint has tensors of layer {max(found)}, but none of layer {min(absent)}.")
    return len(found)


def strip_prefixes(weights: dict[str, torch.Tensor], prefixes: Iterable[str]) -> dict[str, torch.Tensor]:
    """The weights without these prefixes, which may stand before a name in any order and several times."""
    pattern = re.compile(f"^(?:{'|'.join(map(re.escape, prefixes))})+")
    stripped: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        short = pattern.sub("", name)
        if short in stripped:
            raise ConversionError(f"The tensor {name} is a second one named {short}: keep one of them.")
        stripped[short] = tensor
    return stripped


def select_prefix(weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The weights whose names have a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def select_part(weights: dict[str, torch.Tensor], prefix: str, reason: str) -> dict[str, torch.Tensor]:
    """The weights whose names have a prefix, without it, or all if none has. The others are named with the reason."""
    part = select_prefix(weights, prefix)
    if part:
        name_left_out((name for name in weights if not name.startswith(prefix)), reason)
    return part or weights


def name_left_out(names: Iterable[str], reason: str) -> None:
    """Print how many tensors are left out, by what their names have in common, and why."""
    groups = defaultdict(list)
    for name in names:
        groups[name.partition(".")[0]].append(name.split("."))
    for group in groups.values():
        common = ".".join(os.path.commonprefix(group))
        print(f"Left out: {common if len(group) == 1 else f'{len(group)} tensors of {common}.*'} ({reason})")


def read_model_folder(source: str, model_type: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, Any]]:
    """The content of `config.json`, the tensors and the content of the processor's file (empty if there is none) of a
    folder or Hub repository with a model of a type, read without any class of a model."""
    with naming(source), hub_or_cache():
        is_here, files = Path(source).is_dir(), ["*.json", "*.safetensors"]
        folder = Path(source if is_here else snapshot_download(source, allow_patterns=files))
    config = read_object(folder / "config.json", Config)
    if config.get("model_type") != model_type:
        raise ConversionError(f"Expected the model type {model_type!r}, got {config.get('model_type')!r}.")
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("model-*-of-*.safetensors")) or [folder / SAFE_WEIGHTS_NAME]:
        weights |= read_checkpoint(file)
    processors = [folder / name for name in ("video_preprocessor_config.json", "preprocessor_config.json")]
    return config, weights, next((read_object(file) for file in processors if file.is_file()), {})
