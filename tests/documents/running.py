"""Runs the blocks of a document in order, as its reader would: in one folder, each command in a shell."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from .blocks import Block, commands
from .checking import check, checked, simple_commands

# What is written when a command that runs until Ctrl-C is ready for it.
SERVERS = {"hf-video app": "The page is at"}
SECONDS = 1800

_SHELL = """
set -eo pipefail
[ ! -f "$STATE/exports" ] || . "$STATE/exports"
trap 'code=$?; pwd > "$STATE/folder"; export -p > "$STATE/exports"; exit $code' EXIT
"""
# Executes what comes in, as lines of JSON, with the same names.
_PYTHON = """
import json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "__main__"}
for line in sys.stdin:
    folder, place, code = json.loads(line)
    os.chdir(folder)
    try:
        exec(compile(code, place, "exec"), names)
        error = None
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps(error), file=answers, flush=True)
"""


class Outcome(NamedTuple):
    """What became of a block, or of one command of it.

    Attributes:
        status: `ok`, `parsed` for what cannot run here, `not run` for what takes too long, or `failed`.
        said: what it wrote, or the error.
    """

    block: Block
    line: int
    text: str
    status: str
    seconds: float = 0.0
    said: str = ""

    def __str__(self) -> str:
        text = " ".join(self.text.replace("\\\n", " ").split())
        where = f"{self.block.page}:{self.line}"
        return f"{where:28} {self.status:7} {self.seconds:6.1f} s  {text[:100]}"


class Place(Protocol):
    """Where the blocks of a document run. Both methods return the status and what was said."""

    def shell(self, text: str) -> tuple[str, str]: ...

    def python(self, block: Block) -> tuple[str, str]: ...


def run_blocks(blocks: Iterable[Block], place: Place) -> Iterator[Outcome]:
    """The outcomes of all blocks in order. What is marked, and what is no program, is parsed only."""
    for block in blocks:
        begin = time.monotonic()
        first = block.text.strip().partition("\n")[0]
        if block.mark or block.file or block.language not in ("bash", "python"):
            try:
                if not block.file:
                    check(block)
                yield Outcome(block, block.line, first, "parsed", time.monotonic() - begin)
            except Exception as error:
                yield Outcome(block, block.line, first, "failed", time.monotonic() - begin, str(error))
        elif block.language == "python":
            status, said = place.python(block)
            yield Outcome(block, block.line, first, status, time.monotonic() - begin, said)
        else:
            for line, text in commands(block):
                begin = time.monotonic()
                status, said = place.shell(text)
                yield Outcome(block, line, text, status, time.monotonic() - begin, said)


def remove_outputs(text: str, folder: Path) -> None:
    """Removes what an earlier example wrote where this command writes, as each example stands by itself."""
    for words in simple_commands(text):
        if "--resume" in words and "auto" not in words:
            continue
        named = [
            *(after for word, after in zip(words, words[1:], strict=False) if word in ("--output", "--output-dir")),
            *(word.partition("=")[2] for word in words if word.startswith("--output")),
        ]
        if words[:2] == ["hf-video", "convert"]:
            named.append(words[4])
        for path in (folder / name for name in named if name and "://" not in name):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.parent != path:
                path.unlink(missing_ok=True)


class Shell:
    """Runs everything in processes of its own.

    Args:
        folder: the folder of the document, in which the files of the examples are copied.
        files: these files.
        environment: variables of the processes.
        unrun: what stands in the place of `ok` for commands that do not run, by the beginning of any command in them.
        at_hand: what a reader has defined before the first block of Python.
    """

    def __init__(
        self, folder: Path, files: Path, environment: Mapping[str, str], unrun: Mapping[str, str], at_hand: str
    ):
        self.folder, self.files, self.unrun = folder, files, unrun
        self.state = folder.with_name(f"{folder.name}.state")
        self.state.mkdir(parents=True)
        folder.mkdir(exist_ok=True)
        self.environment = {**environment, "STATE": str(self.state)}
        self.interpreter: subprocess.Popen[str] | None = None
        self.at_hand = at_hand
        self._copy_files()

    def close(self) -> None:
        if self.interpreter:
            self.interpreter.communicate()

    def shell(self, text: str) -> tuple[str, str]:
        parts = [" ".join(words) + " " for words in simple_commands(text)]
        for beginning, status in self.unrun.items():
            if any(part.startswith(beginning) for part in parts):
                return checked(text, status)
        remove_outputs(text, self.folder)
        ready = next((said for beginning, said in SERVERS.items() if text.startswith(beginning)), None)
        with open(self.state / "said.txt", "w+") as said:
            process = subprocess.Popen(
                ["bash", "-c", _SHELL + text],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code = self._wait(process, ready)
        self._follow()
        output = (self.state / "said.txt").read_text(errors="replace")
        return ("ok" if code == 0 else "failed"), output

    def python(self, block: Block) -> tuple[str, str]:
        if self.interpreter is None:
            self.interpreter = subprocess.Popen(
                ["python", "-c", _PYTHON],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._exchange("at hand", self.at_hand)
        error = self._exchange(f"{block.page}:{block.line}", block.text)
        return ("failed", error) if error else ("ok", "")

    def _exchange(self, place: str, code: str) -> str | None:
        assert self.interpreter and self.interpreter.stdin and self.interpreter.stdout
        print(json.dumps([str(self.folder), place, code]), file=self.interpreter.stdin, flush=True)
        answer = self.interpreter.stdout.readline()
        return json.loads(answer) if answer else "The process ended."

    def _wait(self, process: subprocess.Popen, ready: str | None) -> int:
        """The exit code. A command that serves is interrupted when it is ready, and then ends with 130."""
        deadline, is_interrupted = time.monotonic() + SECONDS, False
        said = self.state / "said.txt"
        while process.poll() is None and time.monotonic() < deadline:
            if ready and not is_interrupted and ready in said.read_text(errors="replace"):
                os.killpg(process.pid, signal.SIGINT)
                deadline, is_interrupted = time.monotonic() + 60, True
            time.sleep(0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        return 0 if is_interrupted and code == 130 else code

    def _follow(self) -> None:
        """Goes where the shell went, and puts the files there."""
        here = self.state / "folder"
        if here.is_file() and (folder := Path(here.read_text().strip())) != self.folder:
            self.folder = folder
            self._copy_files()

    def _copy_files(self) -> None:
        for path in self.files.iterdir():
            if not (self.folder / path.name).exists():
                (shutil.copytree if path.is_dir() else shutil.copy)(path, self.folder / path.name)
