"""Recipes: the settings of a fine-tuning run as a flat YAML file."""

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

import hf_video
from hf_video.data import ClipAugmentation, ClipMixing

from .arguments import VideoTrainingArguments, check_name

# The dataclasses whose fields a recipe sets.
FIELD_KINDS = (VideoTrainingArguments, ClipAugmentation, ClipMixing)
RECIPE_SUFFIXES = (".yaml", ".yml")


def is_recipe(path: str | os.PathLike) -> bool:
    """Whether a path is named as a recipe, or is no path but the name of a published recipe."""
    is_file = Path(path).suffix.lower() in RECIPE_SUFFIXES
    return is_file or (not Path(path).expanduser().exists() and published_recipe(str(path)) is not None)


def published_recipe(name: str) -> Path | None:
    """The file of a recipe that comes with this package: `videomae_base_kinetics400`, or `malmm/msvd_qa`."""
    package = Path(hf_video.__file__).parent
    # Where the package has them when it is installed, and where its repository has them.
    files = (folder / "recipes" / f"{name}.yaml" for folder in (package, package.parent))
    # Files for accelerate configure how processes run, not a training.
    is_name = not Path(name).is_absolute() and not {"..", "accelerate"} & set(Path(name).parts)
    return next((file for file in files if is_name and file.is_file()), None)


def read_recipe(path: str | os.PathLike, known: Collection[str]) -> list[str]:
    """The settings of a recipe as `name=value` words, for `parse_arguments`.

    A value is a number, a word, true or false, a list of words, or a mapping; null leaves a setting at its default.

    Args:
        path: a YAML file, or the name of a published recipe.
        known: names of all settings.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a mapping in YAML, or has a name that is not known; the message says which is near.
    """
    path = published_recipe(str(path)) or Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no recipe {path}.")
    try:
        # BaseLoader leaves numbers as they are written, so that each is read by the type of its setting alone.
        settings = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} holds no settings; one line `name: value` for each is expected.")
    for name in settings:
        try:
            check_name(name, sorted(known), "a setting")
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return [f"{name}={_as_word(value)}" for name, value in settings.items() if value not in ("", "null", "~")]


def _as_word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return json.dumps(_as_numbers(value)) if isinstance(value, dict) else value


def _as_numbers(mapping: dict[str, str]) -> dict[str, Any]:
    """A mapping has no types to read its values by: what looks like a number is one."""
    return {name: _number_or_word(value) for name, value in mapping.items()}


def _number_or_word(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
