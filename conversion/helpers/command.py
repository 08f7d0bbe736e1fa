"""Runs the command line that every source shares."""

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from hf_video.cli.boundary import run_guarded
from hf_video.cli.error_messages import is_out_of_memory
from hf_video.hub import publish
from hf_video.io import new_folder
from hf_video.loading.configurations import bounded_models

from .checkpoint import ConversionError
from .labels import add_labels_option, name_classes

Converted = tuple[PreTrainedModel, Any]


def make_parser(file: str, description: str | None, from_hub: bool = False) -> argparse.ArgumentParser:
    """
    A parser with the arguments that every source takes.

    Args:
        file: the `__file__` of the source's module, for the name of the command.
        description: the docstring of the module, for `--help`; its first line is what `hf-video convert` lists.
        from_hub: whether the source is a Transformers folder or Hub id (HUB_ID_OR_DIR) that brings its configuration
            along, not an original file (CHECKPOINT and `--original-config`).
    """
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
    add_labels_option(parser)
    parser.add_argument("--push-to-hub", metavar="REPO_ID", help="also upload the result to the Hub")
    return parser


def run(
    parser: argparse.ArgumentParser, argv: list[str] | None, convert: Callable[[argparse.Namespace], Converted]
) -> None:
    """
    Read the arguments, convert, and write model and processor into OUTPUT_DIR: all of it or nothing.

    Args:
        parser: from [`make_parser`].
        argv: arguments without the program's name; by default those of the process.
        convert: makes the model and its processor from the arguments; raises `ConversionError` for bad input.

    Raises:
        SystemExit: if something failed, with the exit code of `hf-video`, after one line on stderr.
    """
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def work(words: Sequence[str]) -> None:
        arguments = parser.parse_args(words)
        output_dir: Path = arguments.output_dir.resolve()
        check_output_dir(output_dir)
        try:
            with bounded_models():
                model, processor = convert(arguments)
        except StrictDataclassError as error:  # the original has settings that our configurations refuse
            raise ConversionError(" ".join(str(error).split())) from error
        except (MemoryError, RuntimeError, OverflowError) as error:
            if not (isinstance(error, OverflowError) or is_out_of_memory(error)):
                raise
            raise ConversionError(
                f"A model of these sizes does not fit into memory ({' '.join(str(error).split())[:200]}): look at the "
                "sizes in its configuration, or convert it on a machine with more memory."
            ) from error
        if arguments.labels is not None:
            name_classes(model, arguments.labels)
        save(model, processor, output_dir)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"Wrote {type(model).__name__} with {num_parameters:,} parameters to {output_dir}.")
        if arguments.push_to_hub:
            commit = publish_converted(output_dir, arguments.push_to_hub, str(arguments.checkpoint))
            print(f"Published {commit.commit_url}.")

    if code := run_guarded(parser.prog, sys.argv[1:] if argv is None else argv, work):
        sys.exit(code)


def publish_converted(output_dir: Path, repo_id: str, checkpoint: str) -> CommitInfo:
    """Publish with a card that names the original: a file and its SHA-256, or a repository."""
    source: dict[str, Any] = {"how": "converted from", "name": checkpoint}
    if Path(checkpoint).is_file():
        with open(checkpoint, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        source |= {"name": Path(checkpoint).name, "sha256": digest}
    return publish(output_dir, repo_id, facts={"source": source})


def positive_int(word: str) -> int:
    """A whole number of at least 1, as an argument's type."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {word!r}")
    return int(word)


def check_output_dir(output_dir: Path) -> None:
    """Raise `ConversionError` for a folder that cannot take the result, before any work is done."""
    if output_dir.exists() and not (output_dir.is_dir() and not any(output_dir.iterdir())):
        raise ConversionError(f"{output_dir} exists and is not an empty folder: choose another one.")
    if output_dir == Path.cwd():
        raise ConversionError(f"{output_dir} is the folder you are in, which cannot be replaced: choose another one.")
    existing = next(parent for parent in output_dir.parents if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConversionError(f"{existing} is no folder that can be written to: choose another output folder.")


def save(model: PreTrainedModel, processor: Any, output_dir: Path) -> None:
    """Write model and processor into `output_dir`; if that fails, nothing is left there."""
    with new_folder(output_dir) as folder:
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
