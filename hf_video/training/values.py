"""Chooses the values of a training's settings: what was given, else what a run to resume or the recipe has, else the
default."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from hf_video.io import replace_text
from hf_video.loading.models import locate_model
from hf_video.loading.released import SCRATCH, SHIPPED
from hf_video.settings import Setting, find_setting, read_values, settings_of, training_argument_fields

from .checkpoints import is_secret
from .recipes import read_recipe

T = TypeVar("T", bound=Any)
Arguments = TypeVar("Arguments")
# Settings that say where data and run are. They are not saved, and a resumed run may change them.
PLACES = ("data", "output_dir")
# Settings of how a run starts. They are not saved.
START = ("recipe", "resume", "overwrite_output_dir", "training_arguments")
# Settings whose product with the number of processes is the number of videos in a step.
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
# Further fields of `TrainingArguments` that a resumed run may change.
_CHANGEABLE = {
    *("activation_checkpointing", "torch_empty_cache_steps", "eval_accumulation_steps", "disable_tqdm", "log_level"),
    *("logging_strategy", "logging_first_step", "report_to", "run_name", "ddp_timeout", "ddp_bucket_cap_mb"),
    *("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_token"),
    *("dataloader_prefetch_factor", "dataloader_persistent_workers"),
}


class Named(NamedTuple):
    """What the user named: as flags or keywords, and in the recipe. Names stand for their values: those of a file of
    weights, which a resumed run then has, and folders or Hub names of models."""

    given: dict[str, Any]
    recipe: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        return self.recipe | self.given


def read_named(settings: Any, words: Mapping[str, Any] | None = None) -> Named:
    """What was given and what the recipe says. `words` are those of the recipe, which is read otherwise.

    Raises:
        ValueError, OSError: there is no such recipe, or a setting in it is unknown or has a wrong value.
    """
    known = settings_of(type(settings))
    given = {name: getattr(settings, name) for name in settings.given if name in known and name not in START}
    given = _resolve(given | settings.training_arguments)
    if settings.recipe is None:
        return Named(given, {})
    words = dict(read_recipe(settings.recipe) if words is None else words)
    words.pop("task", None)  # `hf-video train` has chosen the class of the settings by it
    for name in START:
        if name in words:
            raise ValueError(f"{settings.recipe}: {name} says how a training starts: give it as a flag.")
    recipe = _resolve(read_values(type(settings), words, f"{settings.recipe}: "))
    # base_learning_rate sets learning_rate. Either, if it is given, replaces both in the recipe.
    if "learning_rate" in given:
        recipe.pop("base_learning_rate", None)
    elif "base_learning_rate" in given:
        recipe.pop("learning_rate", None)
    return Named(given, recipe)


def _resolve(values: dict[str, Any]) -> dict[str, Any]:
    if values.get("class_weights") is not None:
        from .class_balance import read_class_weights

        values["class_weights"] = read_class_weights(values["class_weights"])
    name = values.pop("model", None)
    if name in (SHIPPED, SCRATCH):
        values["model"] = name if name == SHIPPED else None
    elif name is not None:
        located = locate_model(name, "--model")
        values["model"] = os.path.abspath(located) if located == SHIPPED else located
    return values


class Saved(NamedTuple):
    """What is known of a run to go on with: its settings, without `PLACES`, the description of its data, and the
    number of its processes."""

    values: dict[str, Any]
    data: dict[str, Any]
    num_processes: int


def choose_values(
    settings: T,
    saved: Saved | None = None,
    num_processes: int = 1,
    *,
    model: str | None = None,
    named: Named | None = None,
) -> T:
    """The settings with a value for each: the given one; else that of the run to resume, or of the recipe; else the
    default. Other fields of `TrainingArguments` are in `training_arguments`.

    Args:
        settings: what the user gave. If a run is resumed, its saved settings replace those of the recipe.
        saved: the run to resume, from `read_saved`.
        num_processes: the number of processes that will train.
        model: what is trained if neither the settings nor the recipe name a model; None for random weights.
        named: from `read_named`, which is called otherwise.

    Raises:
        ValueError, OSError: a setting is missing, or the recipe is wrong; or a setting that changes the result is
            given another value than the run to resume has.
    """
    known = settings_of(type(settings))
    given, recipe = named = named or read_named(settings)
    if named.values.get("learning_rate") is not None and named.values.get("base_learning_rate") is not None:
        raise ValueError("learning_rate and base_learning_rate are both given; the latter sets the former. Keep one.")
    values = {name: copy.copy(each.default) for name, each in known.items()}
    if saved is None:
        chosen_by_user = {"model": model} | named.values
        if begun := {None: "from_scratch", SHIPPED: "from_start"}.get(chosen_by_user["model"]):
            values |= {name: value for name, each in known.items() if (value := getattr(each, begun)) is not None}
        values |= chosen_by_user
        if chosen_by_user.get("multi_scale_crop") and "crop_min_area" not in chosen_by_user:
            values["crop_min_area"] = None  # a way to crop that was given stands in for the default one
    else:
        _check_same(given, saved, type(settings), num_processes, given)
        values |= saved.values | {name: recipe[name] for name in PLACES if name in recipe} | given
    chosen = copy.copy(settings)
    for name in known.keys() - START:
        setattr(chosen, name, values.pop(name))
    chosen.training_arguments = {name: value for name, value in values.items() if name not in known}
    return chosen


def check_same_settings(chosen: Any, saved: Saved, num_processes: int, named: Named) -> None:
    """Refuses (`ValueError`) to go on with a run by a command of other settings; the error names the first one."""
    kind, values = type(chosen), values_of(chosen)
    values = {name: value_of(name, values, kind) for name in values | saved.values}
    _check_same(values, saved, kind, num_processes, named.given)


def _check_same(
    values: Mapping[str, Any], saved: Saved, kind: Any, num_processes: int, given: Mapping[str, Any]
) -> None:
    # On another number of processes the settings of the batch may differ; `check_same_batch` compares their product.
    free = {*PLACES, *_CHANGEABLE, *(_BATCH if saved.num_processes != num_processes else ())}
    free |= {name for name, each in settings_of(kind).items() if each.changeable}
    # Another model has other defaults, which follow from it.
    for name in sorted(values, key=lambda name: name != "model"):
        value, before = values[name], value_of(name, saved.values, kind)
        if value != before and name not in free and not is_secret(name):
            what = _spell(name, value, kind) if name in given else f"{name} {_shown(value)}"
            raise ValueError(
                f"{what} differs from the run being resumed ({_shown(before)}). Give what it began with, or train "
                "into another folder."
            )


def check_same_batch(chosen: Any, saved: Saved, num_processes: int) -> None:
    """Refuses (`ValueError`) to go on with a run on another number of processes with more or fewer videos in a
    step, or with a stream."""
    if saved.num_processes == num_processes:
        return
    numbers = f"(number of processes: {saved.num_processes})", f"(number of processes: {num_processes})"
    if getattr(chosen, "streaming", False):
        raise ValueError("The run being resumed reads a stream {}, and here it would {}.".format(*numbers))
    here = math.prod(getattr(chosen, name) for name in _BATCH) * num_processes
    there = math.prod(saved.values[name] for name in _BATCH) * saved.num_processes
    if here != there:
        raise ValueError(
            f"The run being resumed trains on {there} videos a step {numbers[0]}, and here a step would have {here} "
            f"{numbers[1]}: change --batch-size or --gradient-accumulation-steps."
        )


def values_of(chosen: Any) -> dict[str, Any]:
    """The values of chosen settings by name, with the other fields of `TrainingArguments`."""
    known = settings_of(type(chosen))
    return {name: getattr(chosen, name) for name in known if name not in START} | chosen.training_arguments


def value_of(name: str, values: Mapping[str, Any], kind: Any) -> Any:
    return values[name] if name in values else find_setting(kind, name).default


def _spell(name: str, value: Any, kind: Any) -> str:
    """A setting as the words of a command line that give it a value."""
    value = SCRATCH if (name, value) == ("model", None) else value
    return settings_of(kind).get(name, Setting(name=name)).spell(value)


def _shown(value: Any) -> Any:
    return "not set" if value is None else value


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
    """Writes the settings of a run, without secrets and `PLACES`, the description of its data, and the number of its
    processes."""
    values = values_of(chosen)
    kept = {name: value for name, value in values.items() if name not in PLACES and not is_secret(name)}
    replace_text(file, json.dumps(kept | {"data": data, "num_processes": num_processes}, indent=2) + "\n")


def read_saved(file: Path, kind: Any) -> Saved:
    """What `save` wrote of a run with settings of a kind; names that are no settings are passed over. It is a
    `ValueError` if there is no such file."""
    if not file.is_file():
        raise ValueError(f"{file.parent} has no {file.name}: its settings are not known.")
    saved = json.loads(file.read_text(encoding="utf-8"))
    data, num_processes, known = saved.pop("data"), saved.pop("num_processes"), settings_of(kind)
    if not saved.keys() <= known.keys():
        known = known | training_argument_fields()
    return Saved({name: value for name, value in saved.items() if name in known}, data, num_processes)
