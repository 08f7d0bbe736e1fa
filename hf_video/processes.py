"""The processes of a command: how many a launcher starts, how they decide and fail together, and their exit codes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

# The exit code of a process that ends because another one failed: that of a mistake in the input.
USER_ERROR = 2

T = TypeVar("T")
# Set by torchrun and by the launchers of MPI. As in accelerate the first one that is set counts.
_WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


def _told_by(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), default)


def is_first_process() -> bool:
    """Whether this is the first of the processes that a launcher started, or the only one."""
    return _told_by(_RANKS, 0) == 0


def launched_processes() -> int:
    """Number of processes that the launcher says it started; 1 if there is no launcher."""
    return _told_by(_WORLD_SIZES, 1)


def join_processes(*, use_cpu: bool, backend: str | None, timeout: int) -> None:
    """Lets the processes of a launcher find each other, with `ddp_backend` and `ddp_timeout` (seconds) of
    `TrainingArguments`. A `ValueError` says that fewer processes than were started find each other, and each would
    train alone into the same folder; or that this is one of several tasks of Slurm that do not know of each other."""
    number = launched_processes()
    if number == 1:
        if (tasks := _told_by(("SLURM_STEP_NUM_TASKS",), 1)) > 1:
            raise ValueError(
                f"srun started {tasks} tasks that do not know of each other: let it start torchrun, one task a "
                "machine."
            )
        return
    from accelerate import PartialState

    state = PartialState(cpu=use_cpu, backend=backend, timeout=timedelta(seconds=timeout))
    if number > state.num_processes:
        raise ValueError(
            f"A launcher started {number} processes, but this one would train alone: use torchrun, with --device cpu "
            "where an accelerator takes a single process, or no launcher."
        )


@contextmanager
def failing_together() -> Iterator[None]:
    """Ends all processes if the block, which must not itself wait for others, fails on one: the first that failed
    raises its error, the others `SystemExit`, so that it is printed once."""
    if launched_processes() == 1:
        yield
        return
    from accelerate import PartialState
    from accelerate.utils import gather_object

    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    failed = [rank for rank, has_failed in enumerate(gather_object([error is not None])) if has_failed]
    if error is not None and failed[0] == PartialState().process_index:
        raise error
    if failed:
        raise SystemExit(USER_ERROR)


def decided_by_first(decide: Callable[[], T]) -> T:
    """What a function returns on the first process, on all of them. It runs there alone, and if it fails, all end."""
    if launched_processes() == 1:
        return decide()
    from accelerate.utils import broadcast_object_list

    with failing_together():
        decision = [decide() if is_first_process() else None]
    return broadcast_object_list(decision)[0]
