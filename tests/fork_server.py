"""Runs programs in new processes that need not import PyTorch: they are forks of a process that has imported it.

A program that a test starts spends most of its time on imports. `run_forked` is for tests that need another process,
and not another interpreter. What the server imports is none of ours, and none of Hugging Face's: tests look at those
imports, and they read the environment.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MODULES = (
    *("torch._dynamo", "torch.distributed.tensor", "torchao", "torchvision"),
    *("pandas", "pyarrow", "scipy.optimize", "numba"),
)
# For `imports`, of programs that run hf_video, to which neither its imports nor the variables of Hugging Face matter.
# All tests share them, so that one server does.
HF_VIDEO_IMPORTS = (
    *("torch.distributed.run", "matplotlib.pyplot"),
    *("transformers.models.llama.modeling_llama", "transformers.models.videomae.modeling_videomae"),
    *("hf_video.cli.main", "hf_video.data", "hf_video.training", "hf_video.training.fine_tuning"),
    "hf_video.training.trainer",
    "hf_video.models.memory_bank_qformer.modeling_memory_bank_qformer",
    *("hf_video.models.videomamba.modeling_videomamba", "hf_video.models.videovit.modeling_videovit"),
)
ROOT = Path(__file__).parents[1]


class Program(NamedTuple):
    """What follows `python` on a command line, `-c PROGRAM` or `[-P] SCRIPT WORD...`; and the whole environment."""

    words: Sequence[str]
    env: Mapping[str, str]
    cwd: str = str(ROOT)


def run_forked(
    *programs: Program, timeout: float, imports: tuple[str, ...] = ()
) -> list[subprocess.CompletedProcess[str]]:
    """Runs programs at the same time, and waits for them as `subprocess.run` does.

    A program that fails ends the others.

    Args:
        imports: Modules that these programs find imported as well. A server of their own imports them, which is worth
            its seconds for many programs: take `HF_VIDEO_IMPORTS`.

    Raises:
        subprocess.TimeoutExpired: not all have ended after `timeout` seconds; they are killed.
    """
    server = _server(imports)
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "programs": [each._asdict() | {"env": dict(each.env)} for each in programs],
            "folder": folder,
            "timeout": timeout,
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        codes = json.loads(server.stdout.readline())
        if codes is None:
            raise subprocess.TimeoutExpired([list(program.words) for program in programs], timeout)
        written = [[Path(folder, f"{number}.{fd}").read_text() for fd in (1, 2)] for number in range(len(programs))]
    return [
        subprocess.CompletedProcess(list(program.words), code, *texts)
        for program, code, texts in zip(programs, codes, written, strict=True)
    ]


@functools.cache
def _server(imports: tuple[str, ...]) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", __file__, *imports]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    atexit.register(server.communicate)
    return server


def _execute(words: list[str], env: dict[str, str], cwd: str) -> None:
    """Runs a program in this process, which is like a fresh one but for what has been imported."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        sys.argv = words[words[0] == "-P" :]
        if words[0] != "-P":
            sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


def _fork(program: dict[str, Any], outputs: str) -> int:
    """Starts a program whose stdout and stderr go to files, and returns the number of its process."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for fd in (1, 2):
            os.dup2(os.open(f"{outputs}.{fd}", os.O_WRONLY | os.O_CREAT), fd)
        _execute(**program)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(programs: list[dict[str, Any]], folder: str, timeout: float) -> list[int] | None:
    """Exit codes as of `subprocess`; `None` if the programs took too long."""
    running = {_fork(program, f"{folder}/{number}"): number for number, program in enumerate(programs)}
    codes, deadline = [0] * len(programs), time.monotonic() + timeout
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            codes[running.pop(process)] = os.waitstatus_to_exitcode(status)
        is_late = time.monotonic() > deadline
        if is_late or (process and status):
            for other in running:
                os.kill(other, signal.SIGKILL)
        if is_late and not running:
            return None
        if not process:
            time.sleep(0.01)
    return codes


def main() -> None:
    sys.path.append(str(ROOT))  # for modules of tests
    for name in (*MODULES, *sys.argv[1:]):
        importlib.import_module(name)
    sys.path.remove(str(ROOT))
    # No fork looks through what it shares with this process, which would make it a copy of its own.
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), file=answers, flush=True)
    gc.unfreeze()


if __name__ == "__main__":
    main()
