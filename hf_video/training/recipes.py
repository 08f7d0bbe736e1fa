"""Recipes: the settings of a fine-tuning run as a flat YAML file."""

import json
import os
from pathlib import Path
from typing import Any

from hf_video.io import read_yaml
from hf_video.settings import closest


def is_recipe(path: str) -> bool:
    """Whether a path ends as a recipe does, or does not exist and is the name of a published recipe."""
    return path.endswith((".yaml", ".yml")) or (not Path(path).expanduser().exists() and path in published_recipes())


def published_recipe(name: str) -> Path | None:
    """The file of a recipe in this package, by its name such as `videomae_base_kinetics400` or `malmm/msvd_qa`. None
    if there is no such recipe."""
    files = (folder / f"{name}.yaml" for folder in _recipe_folders())
    # Files for accelerate configure how processes run, not a training.
    is_name = not Path(name).is_absolute() and not {"..", "accelerate"} & set(Path(name).parts)
    return next((file for file in files if is_name and file.is_file()), None)


def published_recipes() -> list[str]:
    """The names of all recipes that come with this package."""
    names = {
        file.relative_to(folder).with_suffix("").as_posix()
        for folder in _recipe_folders()
        for file in folder.rglob("*.yaml")
    }
    return sorted(name for name in names if published_recipe(name) is not None)


def _recipe_folders() -> tuple[Path, Path]:
    """The folders of recipes: in the installed package, and in its repository."""
    package = Path(__file__).parents[1]
    return package / "recipes", package.parent / "recipes"


def read_recipe(path: str | os.PathLike) -> dict[str, str | list[str]]:
    """The settings of a recipe by name, each as text behind its flag, or a list of texts.

    A value is a number, a word, true or false, a list of words, or a mapping; null leaves a setting at its default.
    `extends` names another recipe, a published one or a file beside this one, whose settings count where this one has
    none.

    Args:
        path: a YAML file, or the name of a published recipe.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a mapping in YAML, or has a name twice; or what it extends extends another one.
    """
    path = _find_recipe(path)
    settings = _read_settings(path)
    if (base := settings.pop("extends", None)) is not None:
        base = _find_recipe(base, path.parent)
        inherited = _read_settings(base)
        if "extends" in inherited:
            raise ValueError(f"{path} extends {base}, which extends {inherited['extends']} itself; one level is read.")
        settings = inherited | settings
    return {name: _as_word(value) for name, value in settings.items() if value not in ("", "null", "~")}


def _find_recipe(name: str | os.PathLike, folder: Path = Path()) -> Path:
    path = published_recipe(str(name)) or folder / Path(name).expanduser()
    if not os.path.lexists(path):
        raise FileNotFoundError(f"There is no recipe {path}. {closest(str(name), published_recipes())}".rstrip())
    return path


def _read_settings(path: Path) -> dict[str, Any]:
    # Numbers stay strings here: the type of its setting decides how each is read.
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise ValueError(f"{path} holds no settings; one line `name: value` for each is expected.")
    return settings


def _as_word(value: Any) -> str | list[str]:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value)):
        return value
    return json.dumps(_typed(value))


def _typed(value: Any) -> Any:
    """The value with numbers, true, false and null in place of strings that look like them: the values of a mapping
    have no declared types."""
    if isinstance(value, dict):
        return {name: _typed(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_typed(part) for part in value]
    for kind in (json.loads, float):  # the second reads .5 and 1.
        try:
            return kind(value)
        except ValueError:
            continue
    return None if value in ("", "~") else value
