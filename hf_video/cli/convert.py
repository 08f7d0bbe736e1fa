"""Convert a checkpoint of an original repository into a folder for from_pretrained."""

import ast
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hf_video.loading.released import CONVERSION, convert_released, fetch_released, find_released
from hf_video.settings import Mark, Settings, setting

from .command import command
from .errors import is_debugging


@dataclass(kw_only=True)
class ConvertSettings(Settings):
    """Conversion"""

    source: Annotated[str, Mark(form="word")] = setting(
        help="Where the checkpoint comes from, see below; or the name of a released model, which is fetched.",
        metavar="SOURCE|NAME",
    )
    arguments: Annotated[list[str], Mark(form="rest")] = setting(
        [], "Words for the source; no CHECKPOINT after a NAME.", "[CHECKPOINT] OUTPUT_DIR [options]"
    )


def installed_sources() -> dict[str, str]:
    """The first line of the docstring of each module in the package, by module name. No module is imported."""
    package = importlib.util.find_spec(CONVERSION)
    folders = [] if package is None else package.submodule_search_locations or []
    files = sorted(file for folder in folders for file in Path(folder).glob("[!_]*.py"))
    docstrings = {file.stem: ast.get_docstring(ast.parse(file.read_bytes())) or "" for file in files}
    return {name: text.partition("\n")[0].rstrip(".") for name, text in docstrings.items()}


def describe_sources() -> str:
    listed = "\n".join(f"  {name:12} {text}" for name, text in installed_sources().items())
    hint = "`hf-video convert SOURCE --help` shows the options of one, `hf-video models` the names of released models."
    return f"sources:\n{listed}\n\n{hint}"


@command(
    help="convert an original checkpoint",
    usage="hf-video convert SOURCE CHECKPOINT OUTPUT_DIR [options]\n       hf-video convert NAME OUTPUT_DIR [options]",
    epilog=describe_sources,
)
def run(settings: ConvertSettings) -> int:
    """Calls `main` of the source with the remaining words, before them the file of a released model."""
    sources = installed_sources()
    if not sources:
        raise ImportError(
            f"The sources of `hf-video convert` ({CONVERSION}) are not installed: install hf_video from its wheel or "
            "a clone, with pip."
        )
    words = [*settings.arguments, *(["--debug"] if is_debugging() else [])]
    if released := find_released(settings.source):
        if not words or words[0].startswith("-"):
            raise ValueError(f"hf-video convert {released.name} OUTPUT_DIR: name the folder to write.")
        convert_released(released, fetch_released(released), words)
        return 0
    if settings.source not in sources:
        raise ValueError(
            f"There is no source {settings.source!r} to convert from; choose one of {', '.join(sources)}, or name a "
            "released model, as `hf-video models` lists them."
        )
    return importlib.import_module(f"{CONVERSION}.{settings.source}").main(words) or 0
