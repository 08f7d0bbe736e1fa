"""Checks blocks without running them: each command as the program that it starts would read it."""

import contextlib
import importlib
import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from accelerate.commands.launch import launch_command_parser
from packaging.requirements import Requirement
from torch.distributed.run import get_args_parser

from hf_video.cli import convert
from hf_video.cli.command import parse
from hf_video.cli.main import COMMANDS
from hf_video.loading.released import released_models
from hf_video.training import resuming
from hf_video.training.resuming import choose_values

from .blocks import ROOT, Block

# Programs of clusters and of operating systems, which need not be here.
FOREIGN = ("apt-get", "ray", "sbatch", "scontrol")
_KEYWORDS = ("if", "then", "else", "elif", "do", "while", "!", "time", "exec")


def check(block: Block) -> None:
    """Checks a block by its language.

    Raises:
        ValueError, SyntaxError, yaml.YAMLError: a program or the parser of the language does not take it.
    """
    if block.language == "bash":
        check_shell(block.text)
    elif block.language == "python":
        compile(block.text, f"{block.page}:{block.line}", "exec")
    elif block.language == "yaml":
        list(yaml.safe_load_all(block.text))
    elif block.language == "toml":
        tomllib.loads(block.text)


def check_shell(text: str) -> None:
    """Raises `ValueError` if bash, or a program that the text starts, does not take it."""
    bash = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    if bash.returncode:
        raise ValueError(bash.stderr.strip())
    for words in simple_commands(text):
        _check_program(words)


def checked(text: str, status: str = "parsed") -> tuple[str, str]:
    """The status of a command that does not run."""
    try:
        check_shell(text)
        return status, ""
    except ValueError as error:
        return "failed", str(error)


def simple_commands(text: str) -> list[list[str]]:
    """The words of each command in a piece of shell, without keywords, redirections and variables in front."""
    found: list[list[str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        found.append([])
        tokens = iter(lexer)
        for token in tokens:
            if set(token) <= set("<>"):
                next(tokens, None)
            elif set(token) <= set("();&|"):
                found.append([])
            elif found[-1] or not (token in _KEYWORDS or re.match(r"\w+=", token)):
                found[-1].append(token)
    return [words for words in found if words]


def _check_program(words: list[str]) -> None:
    program = Path(words[0]).name
    if program in _PROGRAMS:
        _PROGRAMS[program](words[1:])
    elif program not in FOREIGN and not shutil.which(program):
        builtin = subprocess.run(["bash", "-c", f"type -t {shlex.quote(program)}"], capture_output=True)
        if builtin.returncode:
            raise ValueError(f"{words[0]!r} is no program that is known here.")


def _parsed(read: Callable[[list[str]], Any], words: list[str]) -> Any:
    """What `argparse` reads, or None after help; its message is raised as a `ValueError`."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return read(words)
    except SystemExit as end:
        if end.code:
            raise ValueError(f"{shlex.join(words)}: {said.getvalue().strip()}") from end
        return None


def _check_hf_video(words: list[str]) -> None:
    command, settings = _parsed(lambda words: parse(words, COMMANDS), words) or (None, None)
    if hasattr(settings, "recipe"):
        with patch.object(resuming, "locate_model", lambda name, option: name):  # a released model would be fetched
            choose_values(settings)
    if command is convert.COMMAND:
        _check_conversion(settings.source, settings.arguments)


def _check_conversion(source: str, words: list[str]) -> None:
    if model := released_models().get(source):
        _, _, source, *_ = shlex.split(model.command.splitlines()[-1])
        words = [model.file or model.name, *words]
    if source not in convert.installed_sources():
        raise ValueError(f"There is no source {source!r}.")
    module = importlib.import_module(f"{convert.CONVERSION}.{source}")
    with patch.object(module, "run", lambda parser, argv, *others: parser.parse_args(argv)):
        _parsed(module.main, words)


def _check_python(words: list[str]) -> None:
    if words[0] == "-m":
        module, rest = words[1], words[2:]
        if module == "hf_video.cli":
            _check_hf_video(rest)
        elif module.startswith("conversion."):
            _check_conversion(module.removeprefix("conversion."), rest)
        elif module == "pip":
            _check_pip(rest)
        elif importlib.util.find_spec(module) is None:
            raise ValueError(f"There is no module {module}.")
    elif words[0].endswith(".py"):
        _check_script(words)


def _check_script(words: list[str]) -> None:
    script = ROOT / words[0]
    if not script.is_file():
        raise ValueError(f"There is no {words[0]}.")
    sources = "".join(file.read_text() for file in [script, *script.parent.glob("helpers/*.py")])
    for word in words[1:]:
        flag = word.partition("=")[0]
        if flag.startswith("--") and f'"{flag}"' not in sources:
            raise ValueError(f"{words[0]} has no option {flag}.")


def _check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words[1:]:
        if word.startswith("-"):
            continue
        local = re.fullmatch(r"\.(?:\[([\w,-]+)\])?", word)
        extras = local[1].split(",") if local and local[1] else []
        if unknown := set(extras) - project["optional-dependencies"].keys():
            raise ValueError(f"pyproject.toml has no extra {', '.join(unknown)}.")
        if not local and Requirement(word).name == project["name"]:
            raise ValueError(f"{word}: this package is installed from a clone.")


def _check_make(words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        if "=" not in word and word not in targets:
            raise ValueError(f"The Makefile has no target {word}.")


def _check_torchrun(words: list[str]) -> None:
    launched = _parsed(get_args_parser().parse_args, words)
    script = ["-m", launched.training_script] if launched.module else [launched.training_script]
    _check_python([*script, *launched.training_script_args])


def _check_accelerate(words: list[str]) -> None:
    if words[0] != "launch":
        return
    launched = _parsed(launch_command_parser().parse_args, words[1:])
    if launched.config_file and not (ROOT / launched.config_file).is_file():
        raise ValueError(f"There is no {launched.config_file}.")
    script = ["-m", launched.training_script] if launched.module else [launched.training_script]
    _check_python([*script, *launched.training_script_args])


def _check_srun(words: list[str]) -> None:
    first = next(number for number, word in enumerate(words) if not word.startswith("-"))
    _check_program(words[first:])


_PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "accelerate": _check_accelerate,
    "hf-video": _check_hf_video,
    "make": _check_make,
    "pip": _check_pip,
    "python": _check_python,
    "srun": _check_srun,
    "torchrun": _check_torchrun,
}
