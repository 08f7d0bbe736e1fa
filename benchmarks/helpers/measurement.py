"""What the benchmarks share: their options, the line about the machine, turns, and processes of their own."""

import argparse
import datetime
import importlib.metadata
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

# Test harnesses take this exit code for a program that was skipped.
SKIPPED = 77
# The figures are good, but one of them is not as good as it has to be.
GOAL_MISSED = 3


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--smoke", action="store_true", help="run all of the script on small inputs; the figures mean nothing"
    )
    return parser


def print_machine(*packages: str, threads: int | None = None) -> None:
    """One line: the day, the machine and how busy it is, and the versions of Python and of some packages."""
    words = [str(datetime.date.today()), f"{os.cpu_count()} cores ({platform.machine()})"]
    words += [] if threads is None else [f"{threads} threads"]
    words += [f"load {os.getloadavg()[0]:.1f} before", f"Python {platform.python_version()}"]
    print(", ".join([*words, *(f"{name} {importlib.metadata.version(name)}" for name in packages)]))


def take_turns(
    runs: Mapping[str, Callable[..., object]],
    *arguments: Any,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call in each round, after a round that is not timed."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(rounds + 1):
        for name, run in runs.items():
            start = clock()
            run(*arguments)
            if round_number:
                seconds[name].append(clock() - start)
    return seconds


def fastest(
    runs: Mapping[str, Callable[..., object]],
    *arguments: Any,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Least seconds of each call, taken in turn: whatever else the machine does only adds to them."""
    return {name: min(seconds) for name, seconds in take_turns(runs, *arguments, rounds=rounds, clock=clock).items()}


def require_agreement(outputs: str, difference: float, tolerance: float) -> None:
    """
    Raises:
        SystemExit: the outputs differ by more than the tolerance, or by NaN. Their times say nothing then.
    """
    if not difference <= tolerance:
        sys.exit(f"{outputs} differ by {difference:.1e}, above {tolerance:.0e}: no figure means anything.")


def print_ratio(case: str, value: float, reference: str, *, quantity: str = "time", is_limit: bool = False) -> None:
    """One line, once the outputs of both were found equal.

    Args:
        value: Ours divided by that of the reference.
        is_limit: The reference is no program that does the same, but the part of the work that none can avoid.
    """
    print(f"ratio | {case} | {quantity} | {'limit' if is_limit else 'peer'} {reference} | {value:.3f}", flush=True)


def in_own_process(threads: int, function: Callable[..., Result], *arguments: Any) -> Result:
    """The result of a call in a fork of this process, so that peak memory is that of this call.

    PyTorch's threads do not survive a fork. So this process must have computed nothing, nor set the number of threads.
    """
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        return pool.submit(function, *arguments).result()


def peak_memory() -> float:
    """Largest resident memory of this process in GiB; `getrusage` counts in that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20
