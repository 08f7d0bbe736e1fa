"""`hf-video app` as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


class AppServer:
    """An app of some models that answers at `address` until `stop`. An empty folder takes its log, and the temporary
    files of the process; options are further words of the command line."""

    def __init__(self, models: Sequence[str], folder: Path, *options: str):
        self.temporary = folder / "server_temporary"
        self.temporary.mkdir(parents=True)
        self._log = folder / "server.log"
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1"}
        words = [sys.executable, "-m", "hf_video.cli", "app", *models, "--port", str(port), *options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(self.address, timeout=10).close()
                return
            except OSError:
                time.sleep(0.2)
        self._process.kill()
        raise RuntimeError(f"The app does not answer: {self.output}")

    @property
    def output(self) -> str:
        """What the process has printed so far."""
        return self._log.read_text(errors="replace")

    def processor_seconds(self) -> float:
        """Processor time of the process and its children so far."""
        parent = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def is_idle(self) -> bool:
        """Whether the process hardly computes for a second. An open page alone costs a tenth of one."""
        before = self.processor_seconds()
        time.sleep(1)
        return self.processor_seconds() - before < 0.3

    def files(self) -> list[str]:
        """The files in the temporary folder, relative to it."""
        return sorted(str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*") if path.is_file())

    def stop(self, number: signal.Signals = signal.SIGINT, timeout: float = 60) -> int:
        """Ends the process by a signal, and returns its exit code."""
        self._process.send_signal(number)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
