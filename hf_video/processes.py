"""The processes of a command: how many a launcher starts, how they decide and fail together, and their exit codes."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

# The exit code of a process that ends because another one failed: that of a mistake in the input.
USER_ERROR = 2

logger = logging.getLogger(__name__)
T = TypeVar("T")
# Set by torchrun and by the launchers of MPI; accelerate reads the same.
_WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


def is_first_process() -> bool:
    """Whether this is the first of the processes that a launcher started, or the only one."""
    return all(int(os.environ[name]) == 0 for name in _RANKS if os.environ.get(name, "").isdecimal())


def launched_processes() -> int:
    """Number of processes that the launcher says it started; 1 if there is no launcher."""
    return next((int(os.environ[name]) for name in _WORLD_SIZES if os.environ.get(name, "").isdecimal()), 1)


def require_one_process(command: str) -> None:
    """Refuses a command that would do the same work on each process of a launcher, with a `ValueError`."""
    if (number := launched_processes()) > 1:
        raise ValueError(
            f"{command} works on one process, and a launcher started {number}: run it without torchrun, accelerate "
            "launch or mpirun."
        )


def join_processes(*, use_cpu: bool, backend: str | None, timeout: int) -> None:
    """Lets the processes of a launcher find each other, with `ddp_backend` and `ddp_timeout` (seconds) of
    `TrainingArguments`. Without a launcher it only checks that there is none."""
    world_size = 1
    if launched_processes() > 1:
        if is_first_process() and _finds_dead_processes():
            logger.warning(
                "Processes that torchrun restarts may look for those that died. Start torchrun with "
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 set, and with --rdzv-backend=c10d or --standalone."
            )
        from accelerate import PartialState

        world_size = PartialState(cpu=use_cpu, backend=backend, timeout=timedelta(seconds=timeout)).num_processes
    check_processes(world_size)


def _finds_dead_processes() -> bool:
    """Whether torchrun keeps one store of addresses over its restarts. In PyTorch 2.15 it still has those of the
    processes that died, and a restarted process may read them before they are replaced."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and restarts != "0"


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


def check_processes(world_size: int) -> None:
    """Refuses (`ValueError`) to train on fewer processes than a launcher started, each of which would train alone into
    the same folder, and as one of several tasks of Slurm that do not know of each other."""
    number = launched_processes()
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    if number == 1 and tasks.isdecimal() and int(tasks) > 1:
        raise ValueError(
            f"srun started {tasks} tasks that do not know of each other: let it start torchrun, one task a machine."
        )
    if number > world_size:
        raise ValueError(
            f"A launcher started {number} processes, but this one would train alone: use torchrun, with --device cpu "
            "where an accelerator takes a single process, or no launcher."
        )
