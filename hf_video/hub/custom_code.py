"""Collects the custom code with which a repository loads without hf_video: `auto_map` and the files it points to."""

import importlib.util
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files

import hf_video
from hf_video.auto import CLASSES, CONFIGURATIONS, PUBLIC_NAMES
from hf_video.loading.configurations import Processor

from .connection import PublishError
from .folder_checks import PROCESSOR_FILES, read_part

PROCESSOR_AUTO_CLASSES = dict(
    zip(PROCESSOR_FILES, ("AutoVideoProcessor", "AutoImageProcessor", "AutoProcessor"), strict=True)
)


@dataclass(frozen=True)
class CustomCode:
    """Code that travels with a model.

    Attributes:
        auto_map: `module.Class` by Auto class, for the configuration, the models and the processors.
        files: the modules to put at the root of the repository, by name.
    """

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
    rows = (row for row in CLASSES if row.config_class == config_class)
    return {"AutoConfig": config_class} | {row.auto_class: row.class_name for row in rows}


def collect(classes: dict[str, str]) -> CustomCode:
    """The custom code of some classes.

    Args:
        classes: names of public classes by Auto class.

    Raises:
        RuntimeError: two modules have the same file name, so that one would overwrite the other in a repository.
    """
    auto_map: dict[str, str] = {}
    files: dict[str, Path] = {}
    for auto_class, class_name in classes.items():
        source = _source_file(class_name)
        auto_map[auto_class] = f"{source.stem}.{class_name}"
        for file in (source, *map(Path, get_relative_import_files(source))):
            if files.setdefault(file.name, file) != file:
                raise RuntimeError(f"{file} and {files[file.name]} would be one file in a repository; rename one.")
    return CustomCode(auto_map, files)


def add_code(staging: Path, config: dict[str, Any]) -> None:
    """Puts the code of all classes that Transformers does not have beside the model, and names them in `auto_map`.

    Args:
        staging: the folder of the repository.
        config: the content of its `config.json`, which is written again.

    Raises:
        PublishError: the model brings code of others along.
    """
    classes = classes_of(config["model_type"])
    processors = [name for name in PROCESSOR_AUTO_CLASSES if (staging / name).is_file()]
    contents = {name: read_part(staging, name, Processor) for name in processors}
    if not classes and config.get("auto_map"):
        raise PublishError(f"The code of {config['model_type']!r} is not of hf_video: publish it with its own tools.")
    # A model of Transformers may have been trained with our processor.
    video_processor = contents.get(PROCESSOR_FILES[0], {}).get("video_processor_type")
    needed = classes | ({"AutoVideoProcessor": video_processor} if video_processor in PUBLIC_NAMES else {})
    code = collect(needed)
    for name, source in code.files.items():
        shutil.copyfile(source, staging / name)
    if classes:
        config["auto_map"] = code.auto_map
    write_json(staging / "config.json", config)
    for name, content in contents.items():
        auto_class = PROCESSOR_AUTO_CLASSES[name]
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
    """Whether a part of a model is of another family, which can only be loaded if hf_video is installed.

    Args:
        config: the content of `config.json`.
    """
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


def _source_file(class_name: str) -> Path:
    specification = importlib.util.find_spec(PUBLIC_NAMES[class_name], "hf_video")
    if specification is None or specification.origin is None:
        raise RuntimeError(f"The module of {class_name} has no file; install hf_video from its wheel or a clone.")
    return Path(specification.origin)
