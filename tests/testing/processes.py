"""Programs in other processes: forks of a server that has imported what they need, or new interpreters.

A program that a test starts spends most of its time on imports. `run_forked` is for tests that need another process,
and not another interpreter.
"""

import atexit
import functools
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
# What commands and trainings import. One server of each process of pytest has them.
HF_VIDEO_IMPORTS = (
    *("torch._dynamo", "torch.distributed.tensor", "torch.distributed.run", "torchvision"),
    *("pandas", "scipy.optimize", "numba", "matplotlib.pyplot"),
    *("transformers.models.llama.modeling_llama", "transformers.models.videomae.modeling_videomae"),
    *("hf_video.cli.main", "hf_video.data", "hf_video.training.classification", "hf_video.training.trainer"),
    "hf_video.models.memory_bank_qformer.modeling_memory_bank_qformer",
    *("hf_video.models.videomamba.modeling_videomamba", "hf_video.models.videovit.modeling_videovit"),
)


class Program(NamedTuple):
    """What follows `python` on a command line, `-c PROGRAM` or `[-P] SCRIPT WORD...`; and the whole environment."""

    words: Sequence[str]
    env: Mapping[str, str]
    cwd: str = str(ROOT)


def launched(words: Sequence[object], num_processes: int = 1, **variables: str) -> list[Program]:
    """A program in as many processes as torchrun would start on one machine, with one thread each."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | variables
    groups = torchrun_variables(num_processes) if num_processes > 1 else [{}]
    return [Program([*map(str, words)], env | group) for group in groups]


def torchrun_variables(num_processes: int) -> list[dict[str, str]]:
    """What torchrun tells each process that it starts on one machine, in variables of the environment."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(num_processes)}
    group["LOCAL_WORLD_SIZE"] = str(num_processes)
    return [group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_processes)]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run_fresh(*programs: Program, timeout: float = 240) -> list[subprocess.CompletedProcess[str]]:
    """Runs programs at the same time in new interpreters, for what happens while modules are imported."""

    def run(program: Program) -> subprocess.CompletedProcess[str]:
        command, options = [sys.executable, *program.words], {"env": dict(program.env), "cwd": program.cwd}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)  # type: ignore

    with ThreadPoolExecutor(len(programs)) as pool:
        return [*pool.map(run, programs)]


def run_forked(
    *programs: Program, timeout: float = 300, imports: tuple[str, ...] = HF_VIDEO_IMPORTS
) -> list[subprocess.CompletedProcess[str]]:
    """Runs programs at the same time, and waits for them as `subprocess.run` does. One that fails ends the others.

    Args:
        imports: modules that the programs find imported. Each choice has a server of its own.

    Raises:
        subprocess.TimeoutExpired: not all have ended after `timeout` seconds; they are killed.
    """
    server = _server(imports)
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        request = {"programs": [each._asdict() | {"env": dict(each.env)} for each in programs], "folder": folder}
        print(json.dumps(request | {"timeout": timeout}), file=server.stdin, flush=True)
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
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)
    atexit.register(server.communicate)
    return server


def _execute(words: list[str], env: dict[str, str], cwd: str, outputs: str) -> None:
    """Runs a program in this process, which is like a fresh one but for what has been imported."""
    for fd in (1, 2):
        os.dup2(os.open(f"{outputs}.{fd}", os.O_WRONLY | os.O_CREAT), fd)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:] = [path for path in sys.path if path != str(ROOT)]
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    try:
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
    finally:
        atexit._run_exitfuncs()


def _run(programs: list[dict[str, Any]], folder: str, timeout: float) -> list[int | None] | None:
    """Exit codes as of `subprocess`; `None` if the programs took too long."""
    fork, deadline = multiprocessing.get_context("fork"), time.monotonic() + timeout
    processes = [
        fork.Process(target=_execute, kwargs=program | {"outputs": f"{folder}/{number}"})
        for number, program in enumerate(programs)
    ]
    for process in processes:
        process.start()
    is_late = False
    while running := [process for process in processes if process.is_alive()]:
        if is_late or any(process.exitcode for process in processes):
            for process in running:
                process.kill()
        connection.wait([process.sentinel for process in running], max(deadline - time.monotonic(), 0) or None)
        is_late |= time.monotonic() > deadline
    return None if is_late else [process.exitcode for process in processes]


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # No fork looks through what it shares with this process, which would make it a copy of its own.
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
