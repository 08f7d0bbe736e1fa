"""Reading the files of original authors, without ever unpickling code."""

import argparse
import json
import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME


class ConversionError(ValueError):
    """The checkpoint or its configuration is not what the source expects; the message says what and what to do."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """
    Read a `.pth` / `.pt` / `.bin` file with `weights_only=True`, or a `.safetensors` file.

    Training scripts save their `argparse.Namespace` beside the weights: a class that holds plain values and runs
    nothing, and the only one allowed besides tensors and Python's own containers.

    Raises:
        ConversionError: if the file is missing, cut off, not a checkpoint, or holds anything else.
    """
    if not path.is_file():
        raise ConversionError(f"There is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):
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


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConversionError(f"{path} is not a readable JSON file: {_first_line(error)}") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path} must hold one JSON object, got a {type(content).__name__}.")
    return content


def find_weights(content: dict[str, Any], wrappers: Iterable[str]) -> dict[str, torch.Tensor]:
    """
    The state dict of a checkpoint: under the first of `wrappers` that is there, or the whole dictionary.

    Raises:
        ConversionError: if there are no tensors.
    """
    for wrapper in wrappers:
        if isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    weights = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    if not weights:
        raise ConversionError(
            f"No tensors under any of {list(wrappers)} nor at the top level, which has {preview(content)}."
        )
    return weights


def strip_prefixes(weights: dict[str, torch.Tensor], prefixes: Iterable[str]) -> dict[str, torch.Tensor]:
    """The weights with these prefixes taken off their names, in whatever order and as often as they are there."""
    pattern = re.compile(f"(?:{'|'.join(map(re.escape, prefixes))})+")
    return {pattern.sub("", name, count=1) if pattern.match(name) else name: value for name, value in weights.items()}


def select_prefix(weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The weights whose names have a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def read_original_config(path: Path, known: Iterable[str]) -> dict[str, Any]:
    """
    Read the keyword arguments of an original constructor from a JSON file with one bare object.

    Raises:
        ConversionError: if the file cannot be read, is no object, or has a key that is not in `known`.
    """
    config = read_json(path)
    known = set(known)
    if unknown := sorted(set(config) - known):
        raise ConversionError(f"{path} has unknown keys {unknown}; the original takes {sorted(known)}.")
    return config


def read_model_folder(source: str) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, Any]]:
    """
    Read a Transformers model folder or Hub repository, without any model class.

    Args:
        source: a folder, or the id of a repository on the Hub.

    Returns:
        The content of `config.json`, the tensors of the model's safetensors files, and the content of the processor's
        file (empty when there is none).

    Raises:
        ConversionError: if the files are not there or cannot be read.
    """
    folder = Path(source)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(source, allow_patterns=["*.json", "*.safetensors"]))
        except (HFValidationError, HfHubHTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
            raise ConversionError(f"{source} is neither a folder nor a reachable Hub repository: {error}") from error
    config = read_json(folder / "config.json")
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    files = {SAFE_WEIGHTS_NAME}
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ConversionError(f"{index} has no `weight_map` that says which file holds which tensor.")
        files = set(weight_map.values())
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(files):
        weights |= read_checkpoint(folder / file)
    processors = [folder / name for name in ("video_preprocessor_config.json", "preprocessor_config.json")]
    return config, weights, next((read_json(file) for file in processors if file.is_file()), {})


def agree(config: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """
    Merge what the original configuration says with what the tensors say.

    Raises:
        ConversionError: where they contradict each other.
    """
    for name, value in found.items():
        given = config.get(name, value)
        # A square may be given as one number or as two.
        if isinstance(given, list) and len(set(given)) == 1:
            given = given[0]
        if given != value:
            raise ConversionError(f"The original configuration says {name}={given!r}, the tensors say {value!r}.")
    return {**config, **found}


def preview(names: Iterable[str], limit: int = 6) -> str:
    """The first few of some names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + rest
