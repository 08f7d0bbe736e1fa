"""Entry point of `hf-video`: reads the command line and runs a command."""

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from hf_video.data.folders import require_inputs
from hf_video.loading.models import require_model
from hf_video.loading.released import SHIPPED, find_released
from hf_video.processes import launched_processes
from hf_video.reading import VideoReadError
from hf_video.settings import settings_of

from .command import Command, parse
from .errors import run_guarded
from .signals import end_process

# Files with commands, in the groups and the order in which `--help` lists these.
_FILES = {
    "First steps": "example demo",
    "Train and measure": "inspect plan train probe evaluate audit",
    "Use": "predict timeline suggest detect index search watch extract explain app",
    "Share": "publish verify export",
    "Released models, this machine": "models convert env",
}
COMMANDS = [
    replace(found, group=group)
    for group, names in _FILES.items()
    for name in names.split()
    for found in vars(import_module(f".{name}", __package__)).values()
    if isinstance(found, Command)
]


def main(argv: list[str] | None = None) -> int:
    """Runs the words after `hf-video`, by default those of this process, and gives the exit code (`EXIT_CODES`)."""
    # Transformers imports torchao wherever it is installed, and PyTorch warns of how that registers its types.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    if sys.stderr is None or not sys.stderr.isatty():
        # A progress bar would fill a log. tqdm reads this when it is imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    code = run_guarded("hf-video", sys.argv[1:] if argv is None else argv, _run)
    if argv is None:
        end_process(code)
    return code


def _run(words: Sequence[str]) -> int:
    command, settings = parse(words, COMMANDS)
    if not command.takes_several_processes and (number := launched_processes()) > 1:
        raise ValueError(
            f"hf-video {command.name} works on one process, and a launcher started {number}: run it without torchrun, "
            "accelerate launch or mpirun."
        )
    refuse_missing(settings)
    try:
        return command.run(settings)
    except VideoReadError as error:
        if getattr(settings, "on_error", None) != "error":
            raise
        raise VideoReadError(f"{error} --on-error skip goes on without videos that cannot be read.") from error


def refuse_missing(settings: Any) -> None:
    """Refuses videos and models that are not there, before PyTorch and Transformers are imported."""
    named: dict[str, list[str]] = {"videos": [], "model": []}
    for name, each in settings_of(type(settings)).items():
        if each.names and (value := getattr(settings, name)) is not None:
            named[each.names] += [value] if isinstance(value, str) else value
    if named["videos"]:
        require_inputs(named["videos"])
    for model in named["model"]:
        # A released model is fetched when all else is right.
        if model != SHIPPED and find_released(model) is None:
            require_model(model)
