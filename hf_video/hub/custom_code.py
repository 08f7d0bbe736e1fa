"""Collects the custom code with which a repository loads without hf_video: `auto_map` and the files it points to."""

import inspect
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import VIDEO_PROCESSOR_NAME

import hf_video
from hf_video.auto import CLASSES, CONFIGURATIONS, FAMILIES, PUBLIC_NAMES
from hf_video.loading.configurations import Processor

from .connection import PublishError
from .folder_checks import PROCESSORS, read_part


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
        for file in (source, *map(Path, get_relative_import_files(source))):
            if files.setdefault(file.name, file) != file:
                raise RuntimeError(f"{file} and {files[file.name]} would be one file in a repository; rename one.")
    return CustomCode(auto_map, files)


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
    for name, source in code.files.items():
        shutil.copyfile(source, staging / name)
    if classes:
        config["auto_map"] = code.auto_map
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


def needs_hf_video(config: dict[str, Any]) -> bool:
    """Whether a part of a model is of another family, by its `config.json`: it only loads if hf_video is installed."""
    # A list, because the type of a damaged part may be anything.
    known, own = list(model_types()), config.get("model_type")
    parts = [part for part in config.values() if isinstance(part, dict)]
    return own in known and any(
        (part.get("model_type") in known and part["model_type"] != own) or needs_hf_video(part) for part in parts
    )


def register_custom_code() -> None:
    """Let `save_pretrained` and `push_to_hub` of our classes write their code beside the weights.

    Transformers then names only the saved class in `auto_map`. [`publish`] names all classes of the family.
    """
    for name in CONFIGURATIONS:
        getattr(hf_video, name).register_for_auto_class()
    for row in CLASSES:
        getattr(hf_video, row.class_name).register_for_auto_class(row.auto_class)
