"""Chooses the settings of a training run from defaults, a recipe, `name=value` words, flags and a run to resume."""

import argparse
import dataclasses
import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from hf_video.files import replace_text

from .command_line import CommandSettings
from .model_loading import locate_model

T = TypeVar("T")
# Settings that say where data and run are. They are not saved, and a resumed run may change them.
PLACES = ("data", "output_dir")


@dataclass(frozen=True)
class Given:
    """The values that a user gave, by name of setting.

    Args:
        recipe: values from a recipe.
        words: values from flags and `name=value` words.
        spelled: each flag or word as the user wrote it, such as "--epochs 3" or "epochs=3".
    """

    recipe: dict[str, Any]
    words: dict[str, Any]
    spelled: dict[str, str]

    def value(self, name: str) -> Any:
        """The value that was given for a setting, else None. A word or flag replaces the value in the recipe."""
        return self.words.get(name, self.recipe.get(name))


def read_given(args: argparse.Namespace) -> Given:
    """The values in a recipe, in words and in flags, each converted to the type of its setting.

    Raises:
        ValueError, OSError: the recipe, a flag or a word is wrong, or the data or the output folder is not given.
    """
    from hf_video.training.recipes import is_recipe, read_recipe

    settings: CommandSettings = args.settings
    flags = dict(args.given)
    _, source = flags["data"]
    recipe = {}
    if is_recipe(source):
        del flags["data"]
        recipe = _read_named(settings, read_recipe(source), f"{source}: ")
    words, spelled = {}, {}
    for word in args.words:
        name, _, text = word.partition("=")
        canonical = settings.canonical(name)
        words[canonical], spelled[canonical] = settings.read(canonical, text, name), word
    for name, (flag, text) in flags.items():
        if name in words:
            if name == "data":
                raise ValueError(_why_two_data(source))
            raise ValueError(
                f"{name} is given twice, as an option and as {spelled[name].partition('=')[0]}=...; leave one of them "
                "out."
            )
        words[name] = settings.read(name, text, flag)
        spelled[name] = flag if settings.by_name[name].is_switch else f"{flag} {text}"
    for chosen in (recipe, words):
        if chosen.get("model") is not None:
            chosen["model"] = locate_model(chosen["model"])
    # base_learning_rate sets learning_rate. A word for either replaces both in the recipe.
    if "learning_rate" in words:
        recipe.pop("base_learning_rate", None)
    elif "base_learning_rate" in words:
        recipe.pop("learning_rate", None)
    given = Given(recipe, words, spelled)
    if all(given.value(name) is not None for name in ("learning_rate", "base_learning_rate")):
        raise ValueError("learning_rate and base_learning_rate are both given; the latter sets the former. Keep one.")
    if given.value("data") is None:
        raise ValueError("The videos are missing: give DATA or data=...")
    if given.value("output_dir") is None:
        raise ValueError("The output folder is missing: give --output-dir or output_dir=...")
    return given


def _read_named(settings: CommandSettings, words: dict[str, str], where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in words.items():
        try:
            canonical = settings.canonical(name)
        except ValueError as error:
            raise ValueError(f"{where}{error}") from error
        if canonical in values:
            raise ValueError(f"{where}{canonical} is given twice, once as {name}. Keep one of them.")
        values[canonical] = settings.read(canonical, text, f"{where}{name}")
    return values


def choose_values(settings: CommandSettings, given: Given, saved: dict[str, Any] | None = None) -> dict[str, Any]:
    """A value for each setting: the given one; else that of the run to resume; else the default.

    Args:
        settings: the settings of the command.
        given: the values that the user gave. If a run is resumed, its saved settings replace those of the recipe.
        saved: the settings of the run to resume, from `read_saved`.

    Raises:
        ValueError: a setting that changes the result is given another value than the run to resume has.
    """
    defaults = {name: each.default for name, each in settings.by_name.items()}
    values = {name: list(value) if isinstance(value, list) else value for name, value in defaults.items()}
    if saved is None:
        if given.value("model") is None:
            scratch = {name: each.from_scratch for name, each in settings.by_name.items()}
            values |= {name: default for name, default in scratch.items() if default is not None}
        return values | given.recipe | given.words
    for name, value in given.words.items():
        before = saved.get(name, settings.default(name))
        if not settings.is_changeable(name) and value != before:
            shown = "not set" if before is None else before
            raise ValueError(
                f"{given.spelled[name]} differs from the run being resumed ({shown}). Leave it out, or train into "
                "another folder."
            )
    places = {name: given.recipe[name] for name in PLACES if name in given.recipe}
    return values | saved | places | given.words


def check_same_settings(
    settings: CommandSettings, values: dict[str, Any], given: Given, saved: dict[str, Any]
) -> None:
    """Refuses to continue a run with a command of other settings.

    Args:
        settings: the settings of the command.
        values: a value for each, from `choose_values`.
        given: those that the user gave.
        saved: the settings of the run, from `read_saved`.

    Raises:
        ValueError: a setting that changes the result differs. The error names the first one.
    """
    from hf_video.training.checkpoints import is_secret

    for name in values | saved:
        if name in PLACES or settings.is_changeable(name) or is_secret(name):
            continue
        before, value = (found.get(name, settings.default(name)) for found in (saved, values))
        if value != before:
            shown = given.spelled.get(name, f"{name}={'not set' if value is None else value}")
            raise ValueError(
                f"{shown} differs from the run to go on with ({'not set' if before is None else before}). Give the "
                "settings that it has, or train into another folder."
            )


def make(kind: type[T], values: dict[str, Any]) -> T:
    """An instance of a dataclass, with those of the values that it has fields for."""
    fields: Any = dataclasses.fields(cast(Any, kind))
    return kind(**{field.name: values[field.name] for field in fields if field.init and field.name in values})


def save(file: Path, values: dict[str, Any], data: dict[str, Any]) -> None:
    """Writes the settings of a run, without secrets and `PLACES`, and the description of its data."""
    from hf_video.training.checkpoints import is_secret

    kept = {name: value for name, value in values.items() if name not in PLACES and not is_secret(name)}
    replace_text(file, json.dumps(kept | {"data": data}, indent=2) + "\n")


def read_saved(file: Path, settings: CommandSettings) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The settings of a run, which `save` wrote in this or an earlier version, and the description of its data if
    there is one.

    Raises:
        ValueError: there is no such file, or a setting in it cannot be read.
    """
    if not file.is_file():
        raise ValueError(
            f"{file.parent} has no {file.name}, so its settings are not known: train into another folder."
        )
    saved = json.loads(file.read_text(encoding="utf-8"))
    data = saved.pop("data", None)
    words = dict(word.split("=", maxsplit=1) for word in saved.pop("words", []))
    if "batch_size" in saved:
        # Earlier versions wrote short names, one size for all batches, and words as strings.
        saved["per_device_eval_batch_size"] = saved["batch_size"]
    values = {settings.canonical(name): value for name, value in saved.items()}
    return values | _read_named(settings, words, f"{file}: "), data


def _why_two_data(source: str) -> str:
    from hf_video.training.recipes import published_recipes

    if Path(source).expanduser().exists():
        return "data is given twice, as DATA and as data=...; leave one of them out."
    close = difflib.get_close_matches(source, published_recipes(), n=1)
    hint = f"Did you mean {close[0]}?" if close else "With data=..., DATA must be a recipe."
    return f"There is no recipe or folder {source}. {hint}"
