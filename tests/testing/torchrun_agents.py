"""Agents of torchrun on this machine, each in the place of one machine of a cluster."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.testing.processes import ROOT, free_port

# Without the last one, processes that torchrun starts again look for those before them, and cannot connect.
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


def agent_options(number: int, port: str, *, num_agents: int = 2, max_restarts: int = 0) -> list[str]:
    """The options of torchrun for one of the agents, which meet at the first one."""
    options = [f"--nnodes={num_agents}", "--nproc-per-node=1", f"--max-restarts={max_restarts}"]
    options += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=training"]
    # Here all agents have the address of the host. On a cluster each knows whether it is the host.
    return [*options, f"--rdzv-conf=is_host={number == 0}", "--local-addr=127.0.0.1"]


class Agents:
    """Agents with one worker each. Those that still run at the end of the block are killed.

    Args:
        words: what torchrun starts, such as `["-m", "hf_video.cli", "train", ...]`.
        logs: a folder for what agents and workers print. It must not exist.
        steps_per_epoch: of the training.
        port: where the agents meet.
    """

    def __init__(
        self,
        words: Sequence[str],
        logs: Path,
        *,
        steps_per_epoch: int,
        num_agents: int = 2,
        max_restarts: int = 0,
        port: str | None = None,
    ):
        self.logs, self.steps_per_epoch = logs, steps_per_epoch
        port = port or free_port()
        logs.mkdir()
        self.agents = []
        for number in range(num_agents):
            options = agent_options(number, port, num_agents=num_agents, max_restarts=max_restarts)
            command = [sys.executable, "-m", "torch.distributed.run", *options, *words]
            with self._output(number).open("wb") as output:
                self.agents.append(
                    subprocess.Popen(
                        command, env=os.environ | ENVIRONMENT, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
                    )
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number in range(len(self.agents)):
            self.kill_machine(number)

    def kill_machine(self, number: int) -> None:
        """SIGKILL of an agent and of all that it has started."""
        agent = self.agents[number]
        if agent.poll() is None:
            for process in (psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)):
                process.send_signal(signal.SIGKILL)
        agent.wait()

    def wait_for_step(self, step: int, timeout: float = 120) -> None:
        """Returns when the newest worker has printed the loss of a step, or of a later one.

        Raises:
            AssertionError: an agent has ended before, or `timeout` seconds have passed.
        """
        deadline = time.monotonic() + timeout
        while (self.steps() or [0])[-1] < step:
            ended = [number for number, agent in enumerate(self.agents) if agent.poll() is not None]
            assert not ended and time.monotonic() < deadline, f"{ended} ended before step {step}:\n{self.said()}"
            time.sleep(0.01)

    def wait(self, timeout: float = 240) -> list[int]:
        """The exit codes of all agents, when all have ended."""
        deadline = time.monotonic() + timeout
        return [agent.wait(max(0, deadline - time.monotonic())) for agent in self.agents]

    def steps(self) -> list[int]:
        """The steps whose loss the workers of the first agent have printed; a step that was repeated comes again."""
        epochs = re.findall(r"^epoch (.+?)/.* loss ", self._output(0).read_text(), re.MULTILINE)
        return [round(float(epoch) * self.steps_per_epoch) for epoch in epochs]

    def said(self) -> str:
        """The ends of all that agents and workers have printed."""
        return "\n".join(self._output(number).read_text()[-5000:] for number in range(len(self.agents)))

    def _output(self, number: int) -> Path:
        return self.logs / f"agent-{number}.txt"
