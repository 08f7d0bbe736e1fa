"""Chooses the settings of a training run from defaults, a recipe, flags and a run to resume."""

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from hf_video.io import replace_text
from hf_video.loading.models import locate_model

from .command_line import CommandSettings

T = TypeVar("T")
# Settings that say where data and run are. They are not saved, and a resumed run may change them.
PLACES = ("data", "output_dir")
# Settings whose product with the number of processes is the number of videos in a step.
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True)
class Given:
    """The values that a user gave, by name of setting.

    Args:
        recipe: values from a recipe.
        flags: values from flags.
        spelled: each flag as the user wrote it, such as "--epochs 3".
    """

    recipe: dict[str, Any]
    flags: dict[str, Any]
    spelled: dict[str, str]

    def value(self, name: str) -> Any:
        """The value that was given for a setting, else None. A flag replaces the value in the recipe."""
        return self.flags.get(name, self.recipe.get(name))


class Saved(NamedTuple):
    """What is known of a run to go on with.

    Args:
        values: its settings, without `PLACES`.
        data: the description of its data; None if there is none.
        num_processes: the number of processes that trained; None if it was not recorded.
    """

    values: dict[str, Any]
    data: dict[str, Any] | None
    num_processes: int | None

    def may_differ(self, name: str, settings: CommandSettings, num_processes: int) -> bool:
        """Whether a setting may have another value when the run goes on, on so many processes.

        On another number of processes the settings of the batch may; `check_same_batch` then compares their product.
        """
        is_batch = name in _BATCH and self.num_processes not in (None, num_processes)
        return name in PLACES or settings.is_changeable(name) or is_batch


def read_given(args: argparse.Namespace) -> Given:
    """The values in a recipe and in flags, each converted to the type of its setting.

    Raises:
        ValueError, OSError: the recipe or a flag is wrong, or the data or the output folder is not given.
    """
    from hf_video.training.recipes import is_recipe, read_recipe

    settings: CommandSettings = args.settings
    _, source = args.given.get("data", ("", ""))
    if source and is_recipe(source):
        raise ValueError(f"{source} is a recipe, and DATA names videos. Write --recipe {source}")
    recipe = _read_named(settings, read_recipe(args.recipe), f"{args.recipe}: ") if args.recipe is not None else {}
    flags, spelled = {}, {}
    for name, (flag, text) in args.given.items():
        flags[name] = settings.read(name, text, flag)
        is_switch = name in settings.by_name and settings.by_name[name].is_switch
        spelled[name] = flag if is_switch else f"{flag} {text}"
    for chosen in (recipe, flags):
        if chosen.get("model") is not None:
            chosen["model"] = locate_model(chosen["model"], "--model")
    # base_learning_rate sets learning_rate. A flag for either replaces both in the recipe.
    if "learning_rate" in flags:
        recipe.pop("base_learning_rate", None)
    elif "base_learning_rate" in flags:
        recipe.pop("learning_rate", None)
    given = Given(recipe, flags, spelled)
    if all(given.value(name) is not None for name in ("learning_rate", "base_learning_rate")):
        raise ValueError("learning_rate and base_learning_rate are both given; the latter sets the former. Keep one.")
    if given.value("data") is None:
        raise ValueError("The videos are missing: give DATA.")
    if given.value("output_dir") is None:
        raise ValueError("The output folder is missing: give --output-dir DIR.")
    return given


def _read_named(settings: CommandSettings, words: Mapping[str, str | list[str]], where: str) -> dict[str, Any]:
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


def choose_values(
    settings: CommandSettings, given: Given, saved: Saved | None = None, num_processes: int = 1
) -> dict[str, Any]:
    """A value for each setting: the given one; else that of the run to resume; else the default.

    Args:
        settings: the settings of the command.
        given: the values that the user gave. If a run is resumed, its saved settings replace those of the recipe.
        saved: the run to resume, from `read_saved`.
        num_processes: the number of processes that will train.

    Raises:
        ValueError: a setting that changes the result is given another value than the run to resume has.
    """
    defaults = {name: each.default for name, each in settings.by_name.items()}
    values = {name: list(value) if isinstance(value, list) else value for name, value in defaults.items()}
    if saved is None:
        if given.value("model") is None:
            scratch = {name: each.from_scratch for name, each in settings.by_name.items()}
            values |= {name: default for name, default in scratch.items() if default is not None}
        return values | given.recipe | given.flags
    for name, value in given.flags.items():
        before = saved.values.get(name, settings.default(name))
        if not saved.may_differ(name, settings, num_processes) and value != before:
            shown = "not set" if before is None else before
            raise ValueError(
                f"{given.spelled[name]} differs from the run being resumed ({shown}). Leave it out, or train into "
                "another folder."
            )
    places = {name: given.recipe[name] for name in PLACES if name in given.recipe}
    return values | saved.values | places | given.flags


def check_same_settings(
    settings: CommandSettings, given: Given, values: dict[str, Any], saved: Saved, num_processes: int
) -> None:
    """Refuses to go on with a run by a command of other settings.

    Args:
        settings: the settings of the command.
        given: the values that the user gave.
        values: a value for each setting, from `choose_values`.
        saved: the run to go on with, from `read_saved`.
        num_processes: the number of processes that will train.

    Raises:
        ValueError: a setting that changes the result differs. The error names the first one.
    """
    from hf_video.training.checkpoints import is_secret

    for name in values | saved.values:
        value, before = (found.get(name, settings.default(name)) for found in (values, saved.values))
        if value != before and not saved.may_differ(name, settings, num_processes) and not is_secret(name):
            here, there = ("not set" if each is None else each for each in (value, before))
            raise ValueError(
                f"{given.spelled.get(name, f'{name} {here}')} differs from the run being resumed ({there}). Give the "
                "settings that it began with, or train into another folder."
            )


def check_same_batch(values: dict[str, Any], saved: Saved, num_processes: int) -> None:
    """Refuses to go on with a run on another number of processes with more or fewer videos in a step.

    Args:
        values: a value for each setting, from `choose_values`.
        saved: the run to go on with, from `read_saved`.
        num_processes: the number of processes that will train.

    Raises:
        ValueError: the number of videos differs.
    """
    if saved.num_processes in (None, num_processes):
        return
    here, there = (
        math.prod(found[name] for name in _BATCH) * number
        for found, number in ((values, num_processes), (saved.values, saved.num_processes))
    )
    if here != there:
        raise ValueError(
            f"The run being resumed trains on {there} videos a step (number of processes: {saved.num_processes}), and "
            f"here a step would have {here} (number of processes: {num_processes}). Start as many processes, or give "
            "--batch-size and --gradient-accumulation-steps so that a step has as many videos."
        )


def make(kind: type[T], values: dict[str, Any]) -> T:
    """An instance of a dataclass of training arguments, with those of the values that it has fields for.

    Raises:
        ValueError: a value cannot be used, such as a mapping with an unknown name.
    """
    fields: Any = dataclasses.fields(cast(Any, kind))
    try:
        return kind(**{field.name: values[field.name] for field in fields if field.init and field.name in values})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"A setting of TrainingArguments has a value that cannot be used: {error}") from error


def save(file: Path, values: dict[str, Any], data: dict[str, Any], num_processes: int = 1) -> None:
    """Writes the settings of a run, without secrets and `PLACES`, the description of its data, and the number of its
    processes."""
    from hf_video.training.checkpoints import is_secret

    kept = {name: value for name, value in values.items() if name not in PLACES and not is_secret(name)}
    replace_text(file, json.dumps(kept | {"data": data, "num_processes": num_processes}, indent=2) + "\n")


def read_saved(file: Path, settings: CommandSettings) -> Saved:
    """What `save` wrote of a run, in this or an earlier version.

    Raises:
        ValueError: there is no such file, or a setting in it cannot be read.
    """
    if not file.is_file():
        raise ValueError(
            f"{file.parent} has no {file.name}, so its settings are not known: train into another folder."
        )
    saved = json.loads(file.read_text(encoding="utf-8"))
    data, num_processes = saved.pop("data", None), saved.pop("num_processes", None)
    words = dict(word.split("=", maxsplit=1) for word in saved.pop("words", []))
    if "batch_size" in saved:
        # Earlier versions wrote short names, one size for all batches, and words as strings.
        saved["per_device_eval_batch_size"] = saved["batch_size"]
    values = {settings.canonical(name): value for name, value in saved.items()}
    return Saved(values | _read_named(settings, words, f"{file}: "), data, num_processes)
