"""`hf-video convert`: makes folders that `from_pretrained` loads from original checkpoints."""

import argparse
import ast
import importlib
import importlib.util
from pathlib import Path

PACKAGE = "hf_video.conversion"


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command. Each source declares its own options."""
    listed = "\n".join(f"  {name:12} {text}" for name, text in installed_sources().items())
    parser = commands.add_parser(
        "convert",
        help="convert an original checkpoint",
        usage="hf-video convert SOURCE CHECKPOINT OUTPUT_DIR [options]",
        description="Convert a checkpoint of an original repository into a folder for from_pretrained.",
        epilog=f"sources:\n{listed}\n\n`hf-video convert SOURCE --help` shows the options of one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="where the checkpoint comes from, see below")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="CHECKPOINT OUTPUT_DIR [options]", help="words for the source"
    )
    return parser


def installed_sources() -> dict[str, str]:
    """The first line of the docstring of each module in the package, by module name. No module is imported."""
    package = importlib.util.find_spec(PACKAGE)
    folders = [] if package is None else package.submodule_search_locations or []
    files = sorted(file for folder in folders for file in Path(folder).glob("[!_]*.py"))
    docstrings = {file.stem: ast.get_docstring(ast.parse(file.read_bytes())) or "" for file in files}
    return {name: text.partition("\n")[0].rstrip(".") for name, text in docstrings.items()}


def run(args: argparse.Namespace) -> int:
    """Calls `main` of the source with the remaining words."""
    sources = installed_sources()
    if not sources:
        raise ImportError(
            f"The sources of `hf-video convert` ({PACKAGE}) are not installed: install hf_video from its wheel or a "
            "clone, with pip."
        )
    if args.source not in sources:
        raise ValueError(f"There is no source {args.source!r} to convert from; choose one of {', '.join(sources)}.")
    words = [*args.arguments, *(["--debug"] if args.debug else [])]
    return importlib.import_module(f"{PACKAGE}.{args.source}").main(words) or 0
