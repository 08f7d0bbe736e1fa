"""Runs the command line that every source shares."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_video.cli.errors import run_guarded
from hf_video.hub import publish
from hf_video.io import new_folder, sha256_of
from hf_video.loading.class_names import label_fields, read_class_names
from hf_video.loading.configurations import bounded_models
from hf_video.loading.released import released_models
from hf_video.training.facts import write_facts

from .checkpoint import ConversionError

Converted = tuple[PreTrainedModel, Any]


def make_parser(file: str, description: str | None, from_hub: bool = False) -> argparse.ArgumentParser:
    """A parser with the arguments that every source takes, for the file and docstring of its module. `from_hub` is for
    sources that read a Transformers folder or Hub id, which brings its configuration along."""
    source, is_installed = Path(file).stem, __package__.startswith("hf_video.")
    prog = f"hf-video convert {source}" if is_installed else f"python -m conversion.{source}"
    parser = argparse.ArgumentParser(prog=prog, description=description)
    if from_hub:
        parser.add_argument("checkpoint", metavar="HUB_ID_OR_DIR", help="a Transformers model")
    else:
        parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="the original file")
        parser.add_argument(
            "--original-config",
            type=Path,
            metavar="FILE.json",
            help="the original constructor's keyword arguments as one JSON object, describing the checkpoint",
        )
    parser.add_argument("output_dir", type=Path, metavar="OUTPUT_DIR", help="a folder that does not exist or is empty")
    # Nothing in a file tells the order of the classes: in VideoMAE V2 the Kinetics-400 head is a permutation of the
    # first 400 rows of the Kinetics-710 head.
    parser.add_argument(
        "--labels",
        metavar="FILE|kinetics400|imagenet1k",
        help="names of the classes in the order of the head's rows: one a line, a JSON list or id2label object, a CSV "
        "of id,name; or torchvision's list, of Kinetics-400 in alphabetical order. Nothing proves that an original "
        "checkpoint has torchvision's order: compare with the label map of its repository",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of our configuration that tensors and configuration do not tell; may be given several times",
    )
    parser.add_argument("--push-to-hub", metavar="REPO_ID", help="also upload the result to the Hub")
    return parser


def run(
    parser: argparse.ArgumentParser,
    argv: list[str] | None,
    convert: Callable[[argparse.Namespace], Converted],
    raises_errors: bool = False,
) -> None:
    """Read the arguments, `convert` them to a model and its processor, and write both into OUTPUT_DIR, or nothing. An
    error is one line on stderr and the exit code of `hf-video`, or raised as it is with `raises_errors`."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def work(words: Sequence[str]) -> None:
        arguments = parser.parse_args(words)
        if arguments.labels is not None:
            arguments.labels = read_class_names(arguments.labels)
        output_dir: Path = arguments.output_dir.resolve()
        if output_dir.is_file() or (output_dir.exists() and any(output_dir.iterdir())):
            raise ConversionError(f"{output_dir} exists and is not an empty folder: choose another one.")
        with bounded_models():
            model, processor = convert(arguments)
        if arguments.labels is not None:
            name_classes(model, arguments.labels)
        with new_folder(output_dir) as folder:
            model.save_pretrained(folder)
            processor.save_pretrained(folder)
            write_facts(folder, {"source": describe_original(str(arguments.checkpoint))})
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"Wrote {type(model).__name__} with {num_parameters:,} parameters to {output_dir}.")
        if arguments.push_to_hub:
            print(f"Published {publish(output_dir, arguments.push_to_hub).commit_url}.")

    if raises_errors:
        work(argv or [])
    elif code := run_guarded(parser.prog, sys.argv[1:] if argv is None else argv, work):
        sys.exit(code)


def describe_original(checkpoint: str) -> dict[str, Any]:
    """The facts about an original file, folder or repository, with the licence of a released file of this name."""
    path = Path(checkpoint)
    facts: dict[str, Any] = {"how": "converted from", "name": path.name if path.exists() else checkpoint}
    if path.is_file():
        facts["sha256"] = sha256_of(path)
        if (released := released_models().get(path.stem)) and released.license:
            facts["license"] = released.license
    return facts


def new_head(arguments: argparse.Namespace) -> dict[str, int]:
    """The number of classes of a head that is not in the checkpoint; `--set num_labels=N` has another one."""
    return {"num_labels": 2 if arguments.labels is None else len(arguments.labels)}


def labels_of_original(original: dict[str, Any], num_labels: int) -> dict[str, Any]:
    """The classes of a Transformers `config.json` as fields of ours: their names, or their number if it has none."""
    given = original.get("id2label") or {}
    if {*given} != {str(index) for index in range(len(given))}:
        raise ConversionError(f"config.json: `id2label` must name the classes 0, 1, 2, ..., got {given!r}.")
    names = [given[str(index)] for index in range(len(given))]
    return label_fields(names) if names else {"num_labels": num_labels}


def name_classes(model: PreTrainedModel, names: list[str]) -> None:
    """Write the names of classes into the configuration of a model with a head for them."""
    ends = ("classifier", "action_head.output")
    heads = [head for name, head in model.named_modules() if name.endswith(ends) and isinstance(head, nn.Linear)]
    if not heads:
        raise ConversionError(f"--labels names classes, but {type(model).__name__} has no classification head.")
    if len(names) != heads[0].out_features:
        raise ConversionError(f"--labels has {len(names)} names, but the head has {heads[0].out_features} classes.")
    model.config.update(label_fields(names))
