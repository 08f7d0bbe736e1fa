"""Collects the custom code with which a repository loads without hf_video: `auto_map` and the files it points to."""

import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from transformers.utils import VIDEO_PROCESSOR_NAME

from hf_video.auto import CONFIGURATIONS, FAMILIES, PUBLIC_NAMES, find_public

from .folder_checks import PROCESSORS, PublishError, read_part

# Classes that have files of their own, which no other class needs; and those that no part of a model has.
_APART = ("AutoModelForPreTraining", "AutoModelForTokenClassification", "AutoBackbone")
_UNUSED = ("Processor", "AutoModelForTokenClassification")
# An import from the folder of a module, or the one above.
_IMPORT = re.compile(r"^\s*from (\.{1,2})(\w+) import ", re.MULTILINE)


class Processor(BaseModel):
    """Fields of the file of a processor."""

    video_processor_type: str | None = None


class CustomCode(NamedTuple):
    """Code that travels with a model: `auto_map`, which has `module.Class` by Auto class, and the modules to put at
    the root of the repository, by name."""

    auto_map: dict[str, str]
    files: dict[str, Path]


def classes_of(model_type: str, architectures: Sequence[str] | None = None) -> dict[str, str]:
    """The class names of a family by Auto class. Empty for a model type of Transformers, which needs no code. With
    `architectures`, classes that have files of their own go along only if they are among them."""
    config_class = _families().get(model_type)
    if config_class is None:
        return {}
    classes = {"AutoConfig": config_class} | {auto_class: name for _, name, auto_class in FAMILIES[config_class]}
    if architectures is None:
        return classes
    return {each: name for each, name in classes.items() if each not in _APART or name in architectures}


def collect(classes: dict[str, str]) -> CustomCode:
    """The custom code of public classes, given by Auto class."""
    sources = {name: Path(inspect.getfile(find_public(name))) for name in classes.values()}
    files: dict[str, Path] = {}
    for source in sources.values():
        _follow(source, files)
    return CustomCode({auto_class: f"{sources[name].stem}.{name}" for auto_class, name in classes.items()}, files)


def types_inside(config: dict[str, Any]) -> set[str]:
    """The model types of hf_video inside a configuration, at any depth."""
    # A list, because the type of a damaged part may be anything.
    known, found = list(_families()), set()
    for part in config.values():
        if isinstance(part, dict):
            found |= {part["model_type"]} if part.get("model_type") in known else set()
            found |= types_inside(part)
    return found


def add_code(staging: Path) -> None:
    """Puts the code of all classes that Transformers does not have beside the model, and names them in `auto_map`. It
    is a `PublishError` if the model has code of others."""
    config = read_part(staging, "config.json")
    classes = classes_of(config["model_type"], config.get("architectures"))
    processors = {name: read_part(staging, name, Processor) for name in PROCESSORS if (staging / name).is_file()}
    if not classes and config.get("auto_map"):
        raise PublishError(f"The code of {config['model_type']!r} is not of hf_video: publish it with its own tools.")
    # A model of Transformers may have been trained with our processor.
    video_processor = processors.get(VIDEO_PROCESSOR_NAME, {}).get("video_processor_type")
    code = collect(classes | ({"AutoVideoProcessor": video_processor} if video_processor in PUBLIC_NAMES else {}))
    parts = _collect_parts(config) if classes else {}
    for each in (code, *parts.values()):
        for source in each.files.values():
            _copy_module(source, staging)
    if classes:
        write_json(staging / "config.json", config | {"auto_map": code.auto_map})
        with (staging / f"{code.auto_map['AutoConfig'].partition('.')[0]}.py").open("a", encoding="utf-8") as file:
            file.writelines(_registration(*part) for part in parts.items())
    for name, content in processors.items():
        needed = [PROCESSORS[name]]
        if isinstance(part := content.get("video_processor"), dict) and "AutoVideoProcessor" in code.auto_map:
            # The file of a processor also describes its video processor.
            part["auto_map"] = {"AutoVideoProcessor": code.auto_map["AutoVideoProcessor"]}
            needed.append("AutoVideoProcessor")
        if PROCESSORS[name] in code.auto_map:
            write_json(staging / name, content | {"auto_map": {each: code.auto_map[each] for each in needed}})


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replaces a file of the repository."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _follow(source: Path, files: dict[str, Path]) -> None:
    """Adds a module to the files by name, and the modules that it imports from its folder and the one above."""
    files[source.name] = source
    for dots, name in _IMPORT.findall(source.read_text(encoding="utf-8")):
        module = source.parents[len(dots) - 1] / f"{name}.py"
        if module.name not in files:
            _follow(module, files)


def _copy_module(source: Path, folder: Path) -> None:
    """Copies a module into a repository, where all modules lie in one folder."""
    text = _IMPORT.sub(lambda found: found[0].replace("from ..", "from ."), source.read_text(encoding="utf-8"))
    (folder / source.name).write_text(text, encoding="utf-8")


def _families() -> dict[str, str]:
    """The name of the configuration class of every family, by `model_type`."""
    return {find_public(name).model_type: name for name in CONFIGURATIONS}


def _collect_parts(config: dict[str, Any]) -> dict[str, CustomCode]:
    """The custom code of the other families that a model of hf_video is built around, by model type."""
    own, inside = config["model_type"], types_inside(config)
    # Transformers writes a configuration as what differs from the default, of which it needs the configuration alone.
    specifications = find_public(_families()[own]).sub_configs_defaults.values()
    defaults = {specification.model_type for specification in specifications} & _families().keys()
    parts = {}
    for part in sorted((inside | defaults) - {own}):
        classes = {name: each for name, each in classes_of(part).items() if not name.endswith(_UNUSED)}
        parts[part] = collect(classes if part in inside else {"AutoConfig": classes["AutoConfig"]})
    return parts


def _registration(model_type: str, code: CustomCode) -> str:
    """Lines for the end of a module, which register a family with the Auto classes: Transformers finds the class of a
    part of a configuration by its type alone. The imports take its code along wherever that of the whole goes."""
    classes = {auto_class: reference.split(".") for auto_class, reference in code.auto_map.items()}
    keys = dict.fromkeys(classes, classes["AutoConfig"][1]) | {"AutoConfig": f'"{model_type}"'}
    imports = [f"from .{module} import {name}" for module, name in classes.values()]
    calls = [f"    transformers.{each}.register({keys[each]}, {name})" for each, (_, name) in classes.items()]
    comment = "# Transformers finds the class of a part by its model type. hf_video may have registered its own."
    condition = f'if "{model_type}" not in transformers.CONFIG_MAPPING:'
    return "\n".join(["", comment, "import transformers", *imports, "", condition, *calls, ""])
