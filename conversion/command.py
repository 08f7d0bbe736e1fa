"""The command line that every source shares."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from .checkpoint import ConversionError

Converted = tuple[PreTrainedModel, Any]


def make_parser(source: str, description: str, from_hub: bool = False) -> argparse.ArgumentParser:
    """
    A parser with the arguments that every source takes.

    Args:
        source: name of the module.
        description: one sentence for `--help`.
        from_hub: whether the source is a Transformers folder or Hub id (HUB_ID_OR_DIR) that brings its configuration
            along, not an original file (CHECKPOINT and `--original-config`).
    """
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.{source}", description=description)
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
    parser.add_argument("--push-to-hub", metavar="REPO_ID", help="also upload the result to the Hub")
    return parser


def run(
    parser: argparse.ArgumentParser, argv: list[str] | None, convert: Callable[[argparse.Namespace], Converted]
) -> None:
    """
    Read the arguments, convert, and write model and processor into OUTPUT_DIR: all of it or nothing.

    Args:
        parser: from [`make_parser`].
        argv: arguments without the program's name; those of the process when not given.
        convert: makes the model and its processor from the arguments, raising `ConversionError` for bad input.
    """
    arguments = parser.parse_args(argv)
    output_dir: Path = arguments.output_dir
    try:
        if output_dir.exists() and not (output_dir.is_dir() and not any(output_dir.iterdir())):
            raise ConversionError(f"{output_dir} exists and is not an empty folder: choose another one.")
        model, processor = convert(arguments)
        save(model, processor, output_dir)
    except (ValueError, StrictDataclassError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"Wrote {type(model).__name__} with {num_parameters:,} parameters to {output_dir}.")
    if arguments.push_to_hub:
        model.push_to_hub(arguments.push_to_hub)
        processor.push_to_hub(arguments.push_to_hub)


def save(model: PreTrainedModel, processor: Any, output_dir: Path) -> None:
    """Write into a temporary folder beside `output_dir` first, so that a break leaves no half-written result."""
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_dir.parent, prefix=f".{output_dir.name}-") as unfinished:
        folder = Path(unfinished, "model")
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        folder.replace(output_dir)
