"""
`--labels`: the names of the classes of a converted classifier.

Only the files of Transformers hold names of classes. In the other files the rows of a head follow the class ids of the
annotation files in training, and nothing proves that these ids are in torchvision's order. In VideoMAE V2 the
Kinetics-400 head is a permutation of the first 400 rows of the Kinetics-710 head, so the two orders differ. So names
are written only if the user gives them.
"""

import argparse
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_video.loading.class_names import read_class_names

from .checkpoint import ConversionError, preview


def add_labels_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--labels",
        type=_class_names,
        metavar="FILE|kinetics400|imagenet1k",
        help="names of the classes in the order of the head's rows: one a line, a JSON list or id2label object, a CSV "
        "of id,name; or torchvision's list, of Kinetics-400 in alphabetical order. Nothing proves that an original "
        "checkpoint has torchvision's order: compare with the label map of its repository",
    )


def _class_names(word: str) -> list[str]:
    try:
        return read_class_names(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def num_labels_of_new_head(arguments: argparse.Namespace) -> int:
    """Number of classes of a head that is not in the checkpoint: `--num-labels`, else that of `--labels`, else 2."""
    given = getattr(arguments, "num_labels", None)
    if given is not None:
        return given
    return 2 if arguments.labels is None else len(arguments.labels)


def names_of_original(original: dict[str, Any]) -> dict[str, Any]:
    """
    `id2label` and `label2id` of a Transformers `config.json`; an empty dictionary if the file has no names.

    Raises:
        ConversionError: if the names are not those of the classes 0, 1, 2, ...
    """
    given = original.get("id2label") or {}
    if not isinstance(given, dict) or set(given) != set(map(str, range(len(given)))):
        raise ConversionError(
            f"config.json: `id2label` must name the classes 0, 1, 2, ... in an object, got {given!r}."
        )
    if nameless := [index for index, name in given.items() if not isinstance(name, str)]:
        raise ConversionError(f"config.json: `id2label` has no name for the classes {preview(nameless)}.")
    names = {int(index): name for index, name in given.items()}
    return {"id2label": names, "label2id": {name: index for index, name in names.items()}} if names else {}


def name_classes(model: PreTrainedModel, names: list[str]) -> None:
    """
    Write names into the configuration, as `id2label` and `label2id`.

    Raises:
        ConversionError: if the model has no classifier, or another number of classes.
    """
    head = getattr(model, "classifier", None)
    if not isinstance(head, nn.Linear):
        raise ConversionError(f"--labels names classes, but {type(model).__name__} has no classification head.")
    if len(names) != head.out_features:
        raise ConversionError(f"--labels has {len(names)} names, but the head has {head.out_features} classes.")
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: index for index, name in enumerate(names)}
