"""Chooses the values of a training's settings from defaults, a recipe, what was given, and a run to resume."""

from __future__ import annotations

import copy
import json
import math
import os
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from hf_video.io import replace_text
from hf_video.loading.models import locate_model
from hf_video.loading.start import SCRATCH, SHIPPED, start_sha256
from hf_video.settings import Setting, find_type, read_value, settings_of

from .checkpoints import is_secret
from .class_balance import read_class_weights
from .recipes import is_recipe, published_recipe, read_recipe

T = TypeVar("T", bound=Any)
Arguments = TypeVar("Arguments")
# Settings that say where data and run are. They are not saved, and a resumed run may change them.
PLACES = ("data", "output_dir")
# Settings of how a run starts. They are not saved.
START = ("recipe", "resume", "overwrite_output_dir", "training_arguments")
# Settings whose product with the number of processes is the number of videos in a step.
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True)
class Saved:
    """What is known of a run to go on with.

    Attributes:
        values: its settings, and its other fields of `TrainingArguments`, without `PLACES`.
        data: the description of its data.
        num_processes: the number of processes that trained.
        start_sha256: the digest of the start that it began with; None if it began with another model.
    """

    values: dict[str, Any]
    data: dict[str, Any]
    num_processes: int
    start_sha256: str | None = None

    def may_differ(self, name: str, settings: Any, num_processes: int) -> bool:
        """Whether a setting may have another value when the run goes on, on so many processes.

        On another number of processes the settings of the batch may; `check_same_batch` then compares their product.
        """
        known = settings_of(type(settings))
        is_batch = name in _BATCH and self.num_processes != num_processes
        return name in PLACES or (name in known and known[name].changeable) or is_batch


def given_values(settings: Any) -> dict[str, Any]:
    """The settings that were given, and the given fields of `TrainingArguments`, by name.

    Raises:
        ValueError: there is no such field, it has a wrong value, or it is a setting that was given, too.
    """
    values = _resolve({name: getattr(settings, name) for name in settings.given if name not in START})
    others = _read_named(type(settings), settings.training_arguments, "training_arguments: ")
    if doubled := others.keys() & values.keys():
        raise ValueError(f"{min(doubled)} is given twice, once in training_arguments. Keep one of them.")
    return values | others


def recipe_values(settings: Any) -> dict[str, Any]:
    """The values in the recipe, each converted to the type of its setting.

    Raises:
        ValueError, OSError: there is no such recipe, or a setting in it is unknown or has a wrong value.
    """
    if settings.recipe is None:
        return {}
    values = _resolve(_read_named(type(settings), read_recipe(settings.recipe), f"{settings.recipe}: "))
    # base_learning_rate sets learning_rate. Either, if it is given, replaces both in the recipe.
    if "learning_rate" in settings.given:
        values.pop("base_learning_rate", None)
    elif "base_learning_rate" in settings.given:
        values.pop("learning_rate", None)
    return values


def _resolve(values: dict[str, Any]) -> dict[str, Any]:
    """The values with what names stand for: the weights in a file, which a resumed run then has, whatever becomes of
    the file; the folder or Hub name of a model, `SHIPPED` for the start that ships, or None for random weights."""
    if values.get("class_weights") is not None:
        values["class_weights"] = read_class_weights(values["class_weights"])
    name = values.pop("model", None)
    if name in (SHIPPED, SCRATCH):
        values["model"] = name if name == SHIPPED else None
    elif name is not None:
        located = locate_model(name, "--model")
        values["model"] = os.path.abspath(located) if located == SHIPPED else located
    return values


def _read_named(kind: Any, words: dict[str, Any], where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in words.items():
        try:
            canonical, hint = find_type(kind, name)
        except ValueError as error:
            raise ValueError(f"{where}{error}") from error
        if canonical in values:
            raise ValueError(f"{where}{canonical} is given twice, once as {name}. Keep one of them.")
        if canonical in START:
            raise ValueError(f"{where}{canonical} says how a training starts: give it as a flag.")
        values[canonical] = read_value(hint, text, f"{where}{name}")
    return values


def choose_values(settings: T, saved: Saved | None = None, num_processes: int = 1, *, model: str | None = None) -> T:
    """The settings with a value for each: the given one; else that of the run to resume, or of the recipe; else the
    default. Other fields of `TrainingArguments` are in `training_arguments`.

    Args:
        settings: what the user gave. If a run is resumed, its saved settings replace those of the recipe.
        saved: the run to resume, from `read_saved`.
        num_processes: the number of processes that will train.
        model: what is trained if neither the settings nor the recipe name a model; None for random weights.

    Raises:
        ValueError, OSError: a setting is missing, or the recipe is wrong; or a setting that changes the result is
            given another value than the run to resume has.
    """
    known = settings_of(type(settings))
    given, recipe = given_values(settings), recipe_values(settings)
    values = {
        name: list(each.default) if isinstance(each.default, list) else each.default for name, each in known.items()
    }
    _check_given(recipe | given)
    if saved is None:
        named = {"model": model} | recipe | given
        if begun := {None: "from_scratch", SHIPPED: "from_start"}.get(named["model"]):
            values |= {name: value for name, each in known.items() if (value := getattr(each, begun)) is not None}
        if settings.recipe is not None and published_recipe(str(settings.recipe)) is not None:
            values["kept_frames_gib"] = 0.0  # its clips are cut from the frames of the files
        values |= named
        if named.get("multi_scale_crop") and "crop_min_area" not in named:
            values["crop_min_area"] = None  # a way to crop that was given stands in for the default one
    else:
        for name, value in given.items():
            before = saved.values.get(name, default_of(name, settings))
            if not saved.may_differ(name, settings, num_processes) and value != before:
                raise ValueError(
                    f"{spell(name, value, settings)} differs from the run being resumed ({_shown(before)}). Leave it "
                    "out, or train into another folder."
                )
        values |= saved.values | {name: recipe[name] for name in PLACES if name in recipe} | given
    chosen = copy.copy(settings)
    for name in known.keys() - START:
        setattr(chosen, name, values.pop(name))
    vars(chosen)["training_arguments"] = {name: value for name, value in values.items() if name not in known}
    return chosen


def _check_given(values: dict[str, Any]) -> None:
    if values.get("learning_rate") is not None and values.get("base_learning_rate") is not None:
        raise ValueError("learning_rate and base_learning_rate are both given; the latter sets the former. Keep one.")
    if values.get("data") is None:
        raise ValueError("The videos are missing: give DATA.")
    if is_recipe(values["data"]):
        raise ValueError(f"{values['data']} is a recipe, and DATA names videos. Write --recipe {values['data']}")
    if values.get("output_dir") is None:
        raise ValueError("The output folder is missing: give --output-dir DIR.")


def check_same_settings(settings: T, chosen: T, saved: Saved, num_processes: int) -> None:
    """Refuses to go on with a run by a command of other settings.

    Args:
        settings: what the user gave.
        chosen: a value for each setting, from `choose_values`.
        saved: the run to go on with, from `read_saved`.
        num_processes: the number of processes that will train.

    Raises:
        ValueError: a setting that changes the result differs. The error names the first one.
    """
    values = values_of(chosen)
    # Another model has other defaults, which follow from it.
    for name in sorted(values | saved.values, key=lambda name: name != "model"):
        value, before = (found.get(name, default_of(name, settings)) for found in (values, saved.values))
        if value != before and not saved.may_differ(name, settings, num_processes) and not is_secret(name):
            what = spell(name, value, settings) if name in given_values(settings) else f"{name} {_shown(value)}"
            raise ValueError(
                f"{what} differs from the run being resumed ({_shown(before)}). Give the settings that it began with, "
                "or train into another folder."
            )


def check_same_batch(chosen: Any, saved: Saved, num_processes: int) -> None:
    """Refuses to go on with a run on another number of processes with more or fewer videos in a step.

    Args:
        chosen: a value for each setting, from `choose_values`.
        saved: the run to go on with, from `read_saved`.
        num_processes: the number of processes that will train.

    Raises:
        ValueError: the number of videos differs.
    """
    if saved.num_processes == num_processes:
        return
    here, there = (
        math.prod(found[name] for name in _BATCH) * number
        for found, number in ((vars(chosen), num_processes), (saved.values, saved.num_processes))
    )
    if here != there:
        raise ValueError(
            f"The run being resumed trains on {there} videos a step (number of processes: {saved.num_processes}), and "
            f"here a step would have {here} (number of processes: {num_processes}). Start as many processes, or give "
            "--batch-size and --gradient-accumulation-steps so that a step has as many videos."
        )


def check_same_start(saved: Saved) -> None:
    """Refuses (`ValueError`) to go on with a run that began with another start than the one that ships here."""
    if saved.values.get("model") == SHIPPED and saved.start_sha256 != start_sha256():
        raise ValueError(
            "The run being resumed began with another start than this version of hf_video ships: resume it with the "
            "version that it began with, or train into another folder."
        )


def values_of(chosen: Any) -> dict[str, Any]:
    """The values of chosen settings by name, with the other fields of `TrainingArguments`."""
    known = settings_of(type(chosen))
    return {name: getattr(chosen, name) for name in known if name not in START} | chosen.training_arguments


def spell(name: str, value: Any, settings: Any) -> str:
    """A setting as the words of a command line that give it a value."""
    value = SCRATCH if (name, value) == ("model", None) else value
    return settings_of(type(settings)).get(name, Setting(name, None, None)).spell(value)


def _shown(value: Any) -> Any:
    return "not set" if value is None else value


def default_of(name: str, settings: Any) -> Any:
    """The default of a setting, or of a field of `TrainingArguments`."""
    if name in settings_of(type(settings)):
        return settings_of(type(settings))[name].default
    from transformers import TrainingArguments

    field = TrainingArguments.__dataclass_fields__[name]
    return field.default if field.default_factory is MISSING else field.default_factory()


def make(kind: type[Arguments], chosen: Any, **others: Any) -> Arguments:
    """An instance of a dataclass, such as of training arguments, with those of the values that it has fields for.

    Raises:
        ValueError: a value cannot be used, such as a mapping with an unknown name.
    """
    values, known = values_of(chosen) | others, {each.name for each in fields(cast(Any, kind)) if each.init}
    try:
        return kind(**{name: value for name, value in values.items() if name in known})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"A setting of TrainingArguments has a value that cannot be used: {error}") from error


def save(file: Path, chosen: Any, data: dict[str, Any], num_processes: int = 1) -> None:
    """Writes the settings of a run, without secrets and `PLACES`, the description of its data, the number of its
    processes, and the digest of the start that it began with."""
    values = values_of(chosen)
    kept = {name: value for name, value in values.items() if name not in PLACES and not is_secret(name)}
    begun = {"data": data, "num_processes": num_processes}
    if kept.get("model") == SHIPPED:
        begun["start_sha256"] = start_sha256()
    replace_text(file, json.dumps(kept | begun, indent=2) + "\n")


def read_saved(file: Path, kind: Any) -> Saved:
    """What `save` wrote of a run with settings of a kind.

    Raises:
        ValueError: there is no such file, or it has an unknown setting.
    """
    if not file.is_file():
        raise ValueError(
            f"{file.parent} has no {file.name}, so its settings are not known: train into another folder."
        )
    saved = json.loads(file.read_text(encoding="utf-8"))
    data, num_processes, start = saved.pop("data"), saved.pop("num_processes"), saved.pop("start_sha256", None)
    return Saved({find_type(kind, name)[0]: value for name, value in saved.items()}, data, num_processes, start)
