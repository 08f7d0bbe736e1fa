"""How an operation finds the backend for a call, and says which one it took and why."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from transformers.utils import logging

logger = logging.get_logger(__name__)


class Backend(NamedTuple):
    """One implementation of an operation. `unsupported` takes the facts about a call, and returns the reason why the
    backend cannot run it, or `None`."""

    run: Callable[..., Any]
    unsupported: Callable[[Any], str | None]


def choose(operation: str, backends: Mapping[str, Backend], facts: Any, forced: str | None = None) -> str:
    """Name of the first backend that can run a call, or of the forced one, which must exist and be able to."""
    if forced:
        if forced not in backends:
            raise ValueError(f"There is no backend {forced!r} of {operation}; choose one of {', '.join(backends)}.")
        if reason := backends[forced].unsupported(facts):
            raise ValueError(f"The backend {forced!r} of {operation} was asked for, but {reason}.")
        logger.info_once(f"{operation} runs on the backend {forced!r} (as asked for).")
        return forced
    rejected = []
    for name, backend in backends.items():
        reason = backend.unsupported(facts)
        if reason is None:
            break
        rejected.append(f"not {name!r}: {reason}")
    log = logger.warning_once if name == "reference" else logger.info_once
    log(f"{operation} runs on the backend {name!r} ({'; '.join(rejected) or 'the first choice'}).")
    return name


def probing(run: Callable[..., torch.Tensor]) -> Any:
    """A cached function that says why `run`, which calls kernels for their output, fails; `None` if it works."""

    @functools.cache
    def probe(*arguments: Any) -> str | None:
        try:
            output = run(*arguments)
        # Compilers, drivers, cards and foreign builds fail in many ways. Each means that kernels cannot be used.
        except Exception as error:
            # But for memory, which another process may give back. What is raised is not cached.
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
                raise
            return f"its kernels do not answer ({type(error).__name__}: {error})"
        return None if output.isfinite().all() else "its kernels answer with numbers that are not finite"

    return probe
