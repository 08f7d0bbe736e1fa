"""Counts the processes that a launcher starts, and checks that they work together."""

import os

import psutil

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
    """Refuses a command that would do the same work on each process of a launcher.

    Raises:
        ValueError: a launcher started several processes.
    """
    if (number := launched_processes()) > 1:
        raise ValueError(
            f"{command} works on one process, and a launcher started {number}: run it without torchrun, accelerate "
            "launch or mpirun."
        )


def check_processes(world_size: int) -> None:
    """Refuses to train on fewer processes than were asked for.

    Args:
        world_size: number of processes that train together, from `TrainingArguments`.

    Raises:
        ValueError: a launcher started more processes, each of which would train alone into the same folder; or
            accelerate was asked for several and started one, as it does on CPUs. It then sets the address of a main
            process, but no number of processes.
    """
    number = launched_processes()
    if number > world_size:
        raise ValueError(
            f"A launcher started {number} processes, but this one would train alone: use torchrun, with --device cpu "
            "where an accelerator takes a single process, or no launcher."
        )
    if "ACCELERATE_USE_CPU" in os.environ and not set(_WORLD_SIZES) & set(os.environ) and _parent_chose_port():
        raise ValueError(
            "accelerate launch was asked for several processes and started one, as it does on CPUs: use torchrun, or "
            "accelerate launch --multi_gpu, which starts them there, too."
        )


def _parent_chose_port() -> bool:
    """Whether the parent process set MASTER_PORT, and did not inherit it."""
    port = os.environ.get("MASTER_PORT")
    try:
        parent = psutil.Process().parent()
        return port is not None and parent is not None and parent.environ().get("MASTER_PORT") != port
    except psutil.Error:
        return False
