"""What torchrun tells the processes that it starts on one machine."""

import socket


def torchrun_variables(num_processes: int) -> list[dict[str, str]]:
    """Variables of the environment of each process."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(num_processes)}
    group["LOCAL_WORLD_SIZE"] = str(num_processes)
    return [group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_processes)]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
