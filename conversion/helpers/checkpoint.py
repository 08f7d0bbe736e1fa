"""Reads the files of original authors, and never unpickles code."""

import argparse
import math
import os
import pickle
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from hf_video.io import read_object
from hf_video.loading.configurations import Config, Index


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


# What no tensor shows: the attention heads of BERT-base by its width, and the fields of an original `BertConfig` with
# their defaults.
BERT_HEADS = {768: 12}
BERT_FIELDS = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "pad_token_id": 0,
    "initializer_range": 0.02,
}


def read_checkpoint(path: Path, skips_foreign: bool = False) -> dict[str, Any]:
    """
    Read a `.pth` / `.pt` / `.bin` file with `weights_only=True`, or a `.safetensors` file.

    Training scripts save other things beside the weights: settings in an `argparse.Namespace`, which holds plain
    values and runs nothing, or in a dictionary class of their own, and STMixer's a memory of persons. Of the classes
    in `PLAIN_CLASSES` the values are read, and nothing runs. Besides tensors and Python's own containers nothing else
    is allowed.

    Args:
        path: the file.
        skips_foreign: whether objects of other classes are read as [`Skipped`], apart from dictionaries and what
            PyTorch blocks, such as `os`.

    Raises:
        ConversionError: if the file is missing, cut off, no checkpoint, or holds anything else.
    """
    if not path.is_file():
        raise ConversionError(f"There is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(PLAIN_CLASSES), ExitStack() as stack:
            if skips_foreign and is_zipfile(path):
                names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
                stack.enter_context(torch.serialization.safe_globals([(Skipped, name) for name in names]))
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConversionError(
            f"{path} is damaged, or holds more than weights and plain values, which is not loaded because it could "
            f"run code: {_first_line(error)}"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, SafetensorError) as error:
        raise ConversionError(f"{path} cannot be read; is it cut off? {_first_line(error)}") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors.")
    return content


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def read_json(path: Path, kind: type[BaseModel] | None = None) -> dict[str, Any]:
    """
    Read a JSON file with one object of finite numbers.

    Args:
        path: the file.
        kind: the fields that are read, see `io.read_object`.

    Raises:
        ConversionError: if it is something else.
    """
    try:
        content = read_object(path, kind)
    except (OSError, ValueError) as error:
        raise ConversionError(str(error)) from error
    if (field := _find_not_finite(content)) is not None:
        raise ConversionError(f"{path}: {field} must be a finite number, not NaN or infinite.")
    return content


def _find_not_finite(value: Any) -> str | None:
    """The place of a number that is not finite, such as `vision_config.sizes.0`; `None` if there is none."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, float) and not math.isfinite(item):
            return str(key)
        if (inner := _find_not_finite(item)) is not None:
            return f"{key}.{inner}"
    return None


def find_weights(content: dict[str, Any], wrappers: Iterable[str]) -> dict[str, torch.Tensor]:
    """
    The state dict of a checkpoint: what is under the first of `wrappers` that exists, or else the whole dictionary.

    Raises:
        ConversionError: if there are no tensors, the name of one is not a text, or one has no values.
    """
    for wrapper in wrappers:
        if isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    if foreign := [name for name, value in content.items() if isinstance(value, Skipped)]:
        raise ConversionError(f"Beside the tensors are objects of classes that are not read: {preview(foreign)}.")
    weights = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    if odd := [name for name in weights if not isinstance(name, str)]:
        raise ConversionError(f"The names of tensors must be texts, got {preview(map(repr, odd))}.")
    if not weights:
        raise ConversionError(
            f"No tensors under any of {list(wrappers)} nor at the top level, which has {preview(content)}."
        )
    if empty := [name for name, tensor in weights.items() if tensor.is_meta]:
        raise ConversionError(
            f"The tensor {empty[0]} is on the meta device, and so has no values: save the model after its weights are "
            "loaded."
        )
    return weights


def shape_of(weights: dict[str, torch.Tensor], name: str, num_dimensions: int) -> torch.Size:
    """
    The shape of a tensor that sizes are read from.

    Raises:
        ConversionError: if there is no such tensor, or it has another number of dimensions.
    """
    if name not in weights:
        raise ConversionError(f"There is no {name}. Found: {preview(weights)}.")
    shape = weights[name].shape
    if len(shape) != num_dimensions:
        raise ConversionError(
            f"The tensor {name} must have {num_dimensions} dimensions, got the shape {tuple(shape)}."
        )
    return shape


def count_layers(weights: dict[str, torch.Tensor], pattern: str) -> int:
    """
    The number of layers whose tensors have names that begin with `pattern`, which has a group for the layer's number.

    Raises:
        ConversionError: if the numbers are not 0, 1, 2, ...
    """
    found = {int(match[1]) for name in weights if (match := re.match(pattern, name))}
    if absent := set(range(len(found))) - found:
        raise ConversionError(f"The checkpoint has tensors of layer {max(found)}, but none of layer {min(absent)}.")
    return len(found)


def strip_prefixes(weights: dict[str, torch.Tensor], prefixes: Iterable[str]) -> dict[str, torch.Tensor]:
    """
    The weights without these prefixes, which may stand before a name in any order and several times.

    Raises:
        ConversionError: if two weights then have the same name.
    """
    pattern = re.compile(f"(?:{'|'.join(map(re.escape, prefixes))})+")
    stripped: dict[str, str] = {}
    for name in weights:
        short = name[match.end() :] if (match := pattern.match(name)) else name
        if short in stripped:
            raise ConversionError(f"The tensors {stripped[short]} and {name} are both {short}: keep one of them.")
        stripped[short] = name
    return {short: weights[name] for short, name in stripped.items()}


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


def read_original_config(path: Path | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """
    Read the keyword arguments of an original constructor from a JSON file with one bare object.

    Args:
        path: the JSON file; there are no arguments without one.
        known: the arguments with their defaults. A value in the file must be of the same kind as the default.

    Raises:
        ConversionError: if the file cannot be read or holds no object, or for a key that is not in `known` or a value
            of another kind.
    """
    return check_arguments({} if path is None else read_json(path), known, str(path))


def check_arguments(config: dict[str, Any], known: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the arguments of an original constructor, which `place` holds, or raise as [`read_original_config`]."""
    if unknown := sorted(set(config) - set(known)):
        raise ConversionError(f"{place} has unknown keys {unknown}; the original takes {sorted(known)}.")
    for name, value in config.items():
        check_kind(f"{place}: {name}", value, known[name])
    return config


def check_kind(name: str, value: Any, default: Any) -> None:
    """
    Check that a value of a JSON file is of the same kind as a default: a switch, a number, a text or an object. A size
    may also be a list of numbers, height and width. Null stands for no value and is always accepted.

    Raises:
        ConversionError: if the kinds differ.
    """
    if value is None or default is None:
        return
    if isinstance(default, bool):
        fits, expected = value in (True, False), "true or false"
    elif isinstance(default, (int, float)):
        numbers = value if isinstance(value, list) and "size" in name.lower().rpartition(": ")[2] else [value]
        fits = all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers)
        expected = "a number"
    else:
        fits, expected = isinstance(value, type(default)), f"a {type(default).__name__}"
    if not fits:
        raise ConversionError(f"{name} must be {expected}, got {value!r}.")


def read_model_folder(source: str, model_type: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, Any]]:
    """
    Read a Transformers model folder or Hub repository, without any model class.

    Args:
        source: a folder, or the id of a repository on the Hub.
        model_type: that of `config.json`.

    Returns:
        The content of `config.json`, the tensors of the model's safetensors files, and the content of the processor's
        file (empty if there is none).

    Raises:
        ConversionError: if a file is missing or cannot be read, or the model is of another type.
    """
    folder = Path(source)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(source, allow_patterns=["*.json", "*.safetensors"]))
        except (HFValidationError, HfHubHTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
            raise ConversionError(f"{source} is neither a folder nor a reachable Hub repository: {error}") from error
    config = read_json(folder / "config.json", Config)
    if config.get("model_type") != model_type:
        raise ConversionError(f"Expected the model type {model_type!r}, got {config.get('model_type')!r}.")
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    files = {SAFE_WEIGHTS_NAME}
    if index.is_file():
        files = set(read_json(index, Index)["weight_map"].values())
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(files):
        weights |= read_checkpoint(folder / file)
    processors = [folder / name for name in ("video_preprocessor_config.json", "preprocessor_config.json")]
    return config, weights, next((read_json(file) for file in processors if file.is_file()), {})


def agree(config: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """
    Merge the arguments of the original configuration with those that the tensors show.

    Raises:
        ConversionError: if they contradict each other.
    """
    for name, value in found.items():
        given = config.get(name, value)
        # A square may be given as one number or as two.
        if isinstance(given, list) and given and all(side == given[0] for side in given):
            given = given[0]
        if given != value:
            raise ConversionError(f"The original configuration says {name}={given!r}, the tensors say {value!r}.")
    return {**config, **found}


def num_heads_of(
    config: dict[str, Any], name: str, width: int, published: Mapping[int, int], section: str = ""
) -> int:
    """
    The number of attention heads, which no tensor shows.

    Args:
        config: the original configuration.
        name: its argument.
        width: that of the model.
        published: the heads of the published models, by their width.
        section: where the argument is in the file of the configuration, such as `"bert_config."`.

    Raises:
        ConversionError: if there is no such argument, and no published model of this width.
    """
    heads = config.get(name, published.get(width))
    if heads is None:
        raise ConversionError(
            f"No published model has width {width}, so the number of attention heads is unknown: pass "
            f"`--original-config FILE.json` with {section}{name}."
        )
    return heads


def preview(names: Iterable[str], limit: int = 6) -> str:
    """The first `limit` names, and the number of the others."""
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + rest
