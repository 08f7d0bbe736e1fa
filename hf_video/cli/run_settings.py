"""The settings of `hf-video train`: defaults, a recipe, a run that is resumed, and what the command line says."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .model_loading import locate_model

DEFAULTS: dict[str, Any] = {
    "model": None,
    "num_frames": None,
    "frame_sampling_rate": None,
    "sampling_strategy": None,
    "image_size": None,
    "patch_size": 16,
    "tubelet_size": 2,
    "hidden_size": 192,
    "num_hidden_layers": 6,
    "num_attention_heads": 3,
    "drop_path_rate": None,
    "classifier_dropout": None,
    "classifier_init_scale": None,
    "epochs": 20,
    "batch_size": 8,
    "learning_rate": None,
    "seed": 42,
    "device": "auto",
    "num_workers": 0,
    "validation_fraction": 0.2,
    "on_error": "error",
    "video_root": None,
    "num_clips": None,
    "num_crops": None,
}
# What a model from scratch gets where nothing is said; with --model these follow the model.
SCRATCH_DEFAULTS = {"num_frames": 16, "frame_sampling_rate": 4, "sampling_strategy": "uniform", "image_size": 112}
SCRATCH_ONLY = ("patch_size", "tubelet_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
MODEL_OPTIONS = ("drop_path_rate", "classifier_dropout", "classifier_init_scale")
# A resumed run with another value of these would be another run, or would validate on videos it was trained on.
FIXED_ON_RESUME = (
    *("model", *SCRATCH_DEFAULTS, *SCRATCH_ONLY, *MODEL_OPTIONS),
    *("batch_size", "learning_rate", "seed", "validation_fraction"),
)
FIXED_FIELDS = ("gradient_accumulation_steps", "base_learning_rate", "per_device_train_batch_size")
# Fields of the trainer that have an option under another name, which is the one for recipes.
FIELDS_WITH_OPTIONS = {
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "per_device_eval_batch_size": "batch_size",
    "dataloader_num_workers": "num_workers",
}
RESERVED_FIELDS = {"resume_from_checkpoint": "--resume", "use_cpu": "--device"}


def read_settings(args: argparse.Namespace) -> argparse.Namespace:
    """The namespace with a recipe's and the words' options in it, the words of fields alone in `words`.

    Options go before words, words before the recipe.

    Raises:
        ValueError, OSError: the recipe or a word is wrong, or DATA or the output folder is given nowhere.
    """
    from hf_video.training.recipes import is_recipe, read_recipe

    settings = {name: value for name, value in vars(args).items() if name not in ("data", "words")}
    settings["recipe"] = args.data if is_recipe(args.data) else None
    recipe_words = read_recipe(args.data, known_settings()) if settings["recipe"] else []
    if not settings["recipe"]:
        settings["data"] = args.data
    from_recipe, recipe_fields = _split(recipe_words, args.parser)
    from_words, fields = _split(args.words, args.parser)
    for word in (*recipe_fields, *fields):
        name = word.partition("=")[0]
        if name in RESERVED_FIELDS:
            raise ValueError(f"{name}=... is set by the option {RESERVED_FIELDS[name]}.")
    for name in from_words:
        if name in settings and name != "data":
            raise ValueError(f"{name} is given twice, as an option and as {name}=...; leave one of them out.")
    chosen = {name for name in (*from_words, *settings)} | {word.partition("=")[0] for word in fields}
    if "learning_rate" in chosen:
        recipe_fields = [word for word in recipe_fields if not word.startswith("base_learning_rate=")]
    elif "base_learning_rate" in chosen:
        from_recipe.pop("learning_rate", None)
    if settings.get("resume"):
        # The options of the run are saved beside it, those of the recipe among them.
        from_recipe = {name: from_recipe[name] for name in ("data", "output_dir") if name in from_recipe}
        recipe_fields = []
    if "data" in from_words and not settings["recipe"]:
        raise ValueError(_why_two_data(args.data))
    merged = from_recipe | from_words | settings
    if "learning_rate" in merged and any(word.startswith("base_learning_rate=") for word in (*recipe_fields, *fields)):
        raise ValueError("learning_rate and base_learning_rate are both given, of which the latter sets the former.")
    for name, way in (("data", "DATA or data=..."), ("output_dir", "--output-dir")):
        if name not in merged:
            raise ValueError(f"{'The videos are' if name == 'data' else 'The output folder is'} missing: give {way}.")
    if settings["recipe"] and not settings.get("resume") and merged.get("model") is None:
        raise ValueError(f"{args.data} fine-tunes a model: say which with --model, a folder or a name on the Hub.")
    return argparse.Namespace(**merged, words=_last_of_each([*recipe_fields, *fields]))


def known_settings() -> list[str]:
    """Names that a recipe may set."""
    from hf_video.training.recipes import FIELD_KINDS

    fields = [field.name for kind in FIELD_KINDS for field in dataclasses.fields(kind) if field.init]
    return sorted({"data", "output_dir", *DEFAULTS, *fields} - {*FIELDS_WITH_OPTIONS, *RESERVED_FIELDS})


def merge_options(given: dict[str, Any], saved_file: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Defaults, below the options of the run being resumed, below those given; and the `name=value` words.

    Raises:
        ValueError: an option does not go with the model, or is another than that of the run being resumed.
    """
    options = {name: given[name] for name in DEFAULTS if name in given}
    words = given["words"]
    if "model" in options:
        options["model"] = locate_model(options["model"])
    if saved_file is not None:
        saved = json.loads(saved_file.read_text(encoding="utf-8"))
        saved_words = saved.pop("words")
        for word in words:
            if word.partition("=")[0] in FIXED_FIELDS and word not in saved_words:
                raise ValueError(
                    f"{word} is not what the run being resumed has ({' '.join(saved_words) or 'no such setting'}). "
                    "Leave it out, or train into another folder."
                )
        words = _last_of_each([*saved_words, *words])
        for name in FIXED_ON_RESUME:
            if name in options and options[name] != saved[name]:
                raise ValueError(
                    f"--{name.replace('_', '-')} {options[name]} differs from the run being resumed ({saved[name]}). "
                    "Leave it out, or train into another folder."
                )
        return saved | options, words
    if "model" in options:
        wrong = [name for name in SCRATCH_ONLY if name in options]
        if wrong:
            raise ValueError(f"--{wrong[0].replace('_', '-')} is for a model from scratch, not for --model.")
        return DEFAULTS | {"learning_rate": 1e-4} | options, words
    return DEFAULTS | SCRATCH_DEFAULTS | {"learning_rate": 1e-3} | options, words


def _why_two_data(source: str) -> str:
    from hf_video.training.recipes import published_recipes

    if Path(source).expanduser().exists():
        return "data is given twice, as DATA and as data=...; leave one of them out."
    close = difflib.get_close_matches(source, published_recipes(), n=1)
    hint = f"Did you mean {close[0]}?" if close else "Beside data=... a recipe is expected."
    return f"There is no recipe or folder {source}. {hint}"


def _split(words: Iterable[str], parser: argparse.ArgumentParser) -> tuple[dict[str, Any], list[str]]:
    """The options among `name=value` words, each read by the type of its option, and the other words."""
    data: dict[str, Any] = {}
    flags, fields = [], []
    for word in words:
        name, _, value = word.partition("=")
        if name == "data":
            data["data"] = value
        elif name in DEFAULTS or name == "output_dir":
            flags.append(f"--{name.replace('_', '-')}={value}")
        else:
            fields.append(word)
    options = vars(parser.parse_args(["DATA", *flags]))
    return data | {name: options[name] for name in (*DEFAULTS, "output_dir") if name in options}, fields


def _last_of_each(words: Iterable[str]) -> list[str]:
    return list({word.partition("=")[0]: word for word in words}.values())
