"""The names of a classifier's classes: of its configuration, of a file, or of the lists that torchvision ships."""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.io import read_csv, read_json, read_text

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

EXPECTED = (
    "expected one name a line, or a JSON list of names or object of ids and names (`.json`), or lines of id,name "
    "(`.csv`)"
)
# Modules of torchvision.models and weights whose classes are in the order of torchvision's own classifiers; that of
# Kinetics-400 is alphabetical.
LISTS = {"kinetics400": ("video", "R3D_18_Weights"), "imagenet1k": ("resnet", "ResNet18_Weights")}


def read_class_names(source: str | Path) -> list[str]:
    """The names of classes by class id: `kinetics400` or `imagenet1k` for torchvision's list, or those of a file.

    A `.json` file holds a list of names, an object that maps ids to names or names to ids, or such an object under
    `id2label`. A `.csv` file holds rows of `id,name`, with or without a header. Any other file holds one name a line.
    A `ValueError` names what is wrong: ids are not 0, 1, 2, ..., a name is empty, or two are the same."""
    if str(source) in LISTS:
        module, weights = LISTS[str(source)]
        return list(getattr(import_module(f"torchvision.models.{module}"), weights).DEFAULT.meta["categories"])
    path, names = Path(source), dict[int, str]()
    try:
        rows = list(_rows_of(path))
    except OSError as error:
        lists = "" if path.suffix else f" The names of lists are {' and '.join(LISTS)}."
        raise ValueError(f"{source} cannot be read: {error}{lists}") from error
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or not str(row[0]).strip().isdecimal() or not isinstance(row[1], str):
            raise ValueError(f"{path} has {row}: {EXPECTED}.")
        index, name = int(row[0]), row[1].strip()
        if not name or name in names.values():
            raise ValueError(f"{path}: class {index} has no name of its own, but {name!r}.")
        names[index] = name
        if len(names) < number:
            raise ValueError(f"{path} names class {index} twice, the second time {name!r}.")
    if not names:
        raise ValueError(f"{path}: {EXPECTED}.")
    if missing := set(range(len(names))) - names.keys():
        raise ValueError(f"{path} has {len(names)} names, but none of class {min(missing)}: ids count from 0.")
    return [names[index] for index in range(len(names))]


def _rows_of(path: Path) -> Iterable[Any]:
    """The ids and names in a file."""
    if path.suffix.lower() == ".csv":
        rows = [row for _, row in read_csv(path)]
        has_header = bool(rows) and not rows[0][0].strip().isdecimal()
        return rows[has_header:]
    content = read_json(path) if path.suffix.lower() == ".json" else read_text(path).rstrip().splitlines()
    content = content.get("id2label", content) if isinstance(content, dict) else content
    if not isinstance(content, dict):
        return enumerate(content if isinstance(content, list) else ())
    is_by_name = any(isinstance(value, int) for value in content.values())
    return [pair[::-1] if is_by_name else pair for pair in content.items()]


def class_names_of(config: "PreTrainedConfig") -> list[str]:
    """The class names of a model by class id. It is a `ValueError` if a class has no name."""
    names = [config.id2label.get(index) for index in range(config.num_labels)]
    if nameless := [str(index) for index, name in enumerate(names) if not isinstance(name, str)]:
        raise ValueError(
            f"{Path(config.name_or_path, 'config.json')}: `id2label` must name the classes 0 to "
            f"{config.num_labels - 1}, one after the other, and does not name {', '.join(nameless[:3])}."
        )
    return names


def label_fields(names: Iterable[str]) -> dict[str, Any]:
    """The names of classes as fields of a configuration."""
    id2label = dict(enumerate(names))
    return {"id2label": id2label, "label2id": {name: index for index, name in id2label.items()}}


def background_of(config: "PreTrainedConfig") -> list[str]:
    """The `background_label` of a configuration, if it has one that is among its classes."""
    name = getattr(config, "background_label", None)
    return [each for each in config.id2label.values() if each == name]


def points_of(config: "PreTrainedConfig") -> list[str]:
    """The classes of a configuration that are instants: its `point_labels`, if it has any."""
    return [each for each in config.id2label.values() if each in (getattr(config, "point_labels", None) or ())]
