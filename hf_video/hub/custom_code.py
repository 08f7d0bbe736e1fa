"""Collects the custom code with which a repository loads without hf_video: `auto_map` and the files it points to."""

import inspect
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from transformers.utils import VIDEO_PROCESSOR_NAME

import hf_video
from hf_video.auto import CONFIGURATIONS, FAMILIES, PUBLIC_NAMES
from hf_video.loading.configurations import Processor

from .connection import PublishError
from .folder_checks import PROCESSORS, read_part

# An import from the folder of a module, or the one above.
_IMPORT = re.compile(r"^\s*from (\.{1,2})(\w+) import ", re.MULTILINE)


class CustomCode(NamedTuple):
    """Code that travels with a model: `auto_map`, which has `module.Class` by Auto class, and the modules to put at
    the root of the repository, by name."""

    auto_map: dict[str, str]
    files: dict[str, Path]


def model_types() -> dict[str, str]:
    """The name of the configuration class of every family, by `model_type`."""
    return {getattr(hf_video, name).model_type: name for name in CONFIGURATIONS}


def classes_of(model_type: str) -> dict[str, str]:
    """The class names of a family by Auto class. Empty for a model type of Transformers, which needs no code."""
    config_class = model_types().get(model_type)
    if config_class is None:
        return {}
    return {"AutoConfig": config_class} | {auto_class: name for _, name, auto_class in FAMILIES[config_class]}


def collect(classes: dict[str, str]) -> CustomCode:
    """The custom code of public classes, given by Auto class. It is a `RuntimeError` if two modules have the same file
    name, so that one would overwrite the other in a repository."""
    auto_map: dict[str, str] = {}
    files: dict[str, Path] = {}
    for auto_class, class_name in classes.items():
        source = Path(inspect.getfile(getattr(hf_video, class_name)))
        auto_map[auto_class] = f"{source.stem}.{class_name}"
        _follow(source, files)
    return CustomCode(auto_map, files)


def _follow(source: Path, files: dict[str, Path]) -> None:
    """Adds a module to the files by name, and the modules that it imports from its folder and the one above."""
    if (known := files.setdefault(source.name, source)) != source:
        raise RuntimeError(f"{source} and {known} would be one file in a repository; rename one.")
    for dots, name in _IMPORT.findall(source.read_text(encoding="utf-8")):
        module = source.parents[len(dots) - 1] / f"{name}.py"
        if module.name not in files:
            _follow(module, files)


def copy_module(source: Path, folder: Path) -> None:
    """Copies a module into a repository, where all modules lie in one folder."""
    text = _IMPORT.sub(lambda found: found[0].replace("from ..", "from ."), source.read_text(encoding="utf-8"))
    (folder / source.name).write_text(text, encoding="utf-8")


def types_inside(config: dict[str, Any]) -> set[str]:
    """The model types of hf_video inside a configuration, at any depth."""
    # A list, because the type of a damaged part may be anything.
    known, found = list(model_types()), set()
    for part in config.values():
        if isinstance(part, dict):
            found |= {part["model_type"]} if part.get("model_type") in known else set()
            found |= types_inside(part)
    return found


def collect_parts(config: dict[str, Any]) -> dict[str, CustomCode]:
    """The custom code of the other families that a model of hf_video is built around, by model type."""
    own, parts = config["model_type"], {}
    inside = types_inside(config)
    # Transformers writes a configuration as what differs from the default, of which it needs the configuration alone.
    specifications = getattr(hf_video, model_types()[own]).sub_configs_defaults.values()
    defaults = {specification.model_type for specification in specifications} & model_types().keys()
    for part in sorted((inside | defaults) - {own}):
        classes = {name: each for name, each in classes_of(part).items() if not name.endswith("Processor")}
        parts[part] = collect(classes if part in inside else {"AutoConfig": classes["AutoConfig"]})
    return parts


def registration(model_type: str, code: CustomCode) -> str:
    """Lines for the end of a module, which register a family with the Auto classes.

    Transformers finds the class of a part of a configuration by its type alone, among those that are registered. The
    imports take the code of the part along wherever that of the whole goes.
    """
    classes = {auto_class: reference.split(".") for auto_class, reference in code.auto_map.items()}
    keys = dict.fromkeys(classes, classes["AutoConfig"][1]) | {"AutoConfig": f'"{model_type}"'}
    imports = [f"from .{module} import {name}" for module, name in classes.values()]
    calls = [f"    transformers.{each}.register({keys[each]}, {name})" for each, (_, name) in classes.items()]
    comment = "# Transformers finds the class of a part by its model type. hf_video may have registered its own."
    condition = f'if "{model_type}" not in transformers.CONFIG_MAPPING:'
    return "\n".join(["", comment, "import transformers", *imports, "", condition, *calls, ""])


def add_code(staging: Path, config: dict[str, Any]) -> None:
    """Puts the code of all classes that Transformers does not have beside the model, and names them in `auto_map`.
    `config.json` is written again with `config`. It is a `PublishError` if the model has code of others."""
    classes = classes_of(config["model_type"])
    contents = {name: read_part(staging, name, Processor) for name in PROCESSORS if (staging / name).is_file()}
    if not classes and config.get("auto_map"):
        raise PublishError(f"The code of {config['model_type']!r} is not of hf_video: publish it with its own tools.")
    # A model of Transformers may have been trained with our processor.
    video_processor = contents.get(VIDEO_PROCESSOR_NAME, {}).get("video_processor_type")
    needed = classes | ({"AutoVideoProcessor": video_processor} if video_processor in PUBLIC_NAMES else {})
    code = collect(needed)
    parts = collect_parts(config) if classes else {}
    for each in (code, *parts.values()):
        for source in each.files.values():
            copy_module(source, staging)
    if classes:
        config["auto_map"] = code.auto_map
        module = staging / code.auto_map["AutoConfig"].replace(f".{classes['AutoConfig']}", ".py")
        with module.open("a", encoding="utf-8") as file:
            file.writelines(registration(*part) for part in parts.items())
    write_json(staging / "config.json", config)
    for name, content in contents.items():
        auto_class = PROCESSORS[name]
        if auto_class in code.auto_map:
            auto_classes = [auto_class]
            if isinstance(part := content.get("video_processor"), dict) and "AutoVideoProcessor" in code.auto_map:
                # The file of a processor also describes its video processor.
                part["auto_map"] = {"AutoVideoProcessor": code.auto_map["AutoVideoProcessor"]}
                auto_classes.append("AutoVideoProcessor")
            write_json(staging / name, content | {"auto_map": {each: code.auto_map[each] for each in auto_classes}})


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replaces a file of the repository."""
    path.unlink()  # it may be a link into the user's folder
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
