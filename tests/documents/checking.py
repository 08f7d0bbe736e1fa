"""Checks blocks without running them: each command as the program that it starts would read it."""

import contextlib
import importlib
import io
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import yaml

from hf_video.cli import convert
from hf_video.cli.command import parse
from hf_video.cli.main import COMMANDS
from hf_video.loading.released import released_models
from hf_video.training import values
from hf_video.training.values import choose_values

from .blocks import ROOT, Block, commands


def check(block: Block) -> None:
    """Checks a block by its language.

    Raises:
        ValueError, SyntaxError, yaml.YAMLError: a program or the parser of the language does not take it.
    """
    if block.language == "bash":
        bash = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        if bash.returncode:
            raise ValueError(bash.stderr)
        for words in commands(block.text):
            check_command(words)
    elif block.language == "python":
        compile(block.text, block.place, "exec")
    elif block.language == "yaml":
        list(yaml.safe_load_all(block.text))
    elif block.language == "toml":
        tomllib.loads(block.text)


def check_command(words: list[str]) -> None:
    """Raises `ValueError` for options, sources, scripts, targets and extras that there are not."""
    if "hf_video.cli" in words:  # behind `python -m`, torchrun, accelerate or srun
        words = ["hf-video", *words[words.index("hf_video.cli") + 1 :]]
    program, *rest = words
    if program == "hf-video":
        _check_hf_video(rest)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        _require(all("=" in word or word in targets for word in rest), words)
    elif program == "python" and rest[0].endswith(".py"):
        _require((ROOT / rest[0]).is_file(), words)
        flags = [word.partition("=")[0] for word in rest if word.startswith("--")]
        _require(all(f'"{flag}"' in (ROOT / rest[0]).read_text() for flag in flags), words)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(r"^\.\[([\w,-]+)\]$", "\n".join(rest), re.MULTILINE)
        _require(all(each in extras for names in named for each in names.split(",")), words)


def _require(condition: bool, words: list[str]) -> None:
    if not condition:
        raise ValueError(f"`{shlex.join(words)}` names what is not there.")


def _read(parser: Callable[[list[str]], Any], words: list[str]) -> Any:
    """What `argparse` reads, or None after help; its message is raised as a `ValueError`."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return parser(words)
    except SystemExit as end:
        if end.code:
            raise ValueError(f"{shlex.join(words)}: {said.getvalue().strip()}") from end
        return None


def _check_hf_video(words: list[str]) -> None:
    command, settings = _read(lambda words: parse(words, COMMANDS), words) or (None, None)
    if hasattr(settings, "recipe"):
        with patch.object(values, "locate_model", lambda name, option: name):  # a released model would be fetched
            choose_values(settings)
    if command.name == "convert":
        source, rest = settings.source, settings.arguments
        if model := released_models().get(source):
            _, _, source, *_ = shlex.split(model.command.splitlines()[-1])
            rest = [model.file or model.name, *rest]
        _require(source in convert.installed_sources(), words)
        module = importlib.import_module(f"{convert.CONVERSION}.{source}")
        with patch.object(module, "run", lambda parser, argv, *others: parser.parse_args(argv)):
            _read(module.main, rest)
