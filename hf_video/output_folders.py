"""Guards what is written: files of the user are kept, and one process writes a folder at a time."""

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from hf_video.io import read_own_json
from hf_video.processes import is_first_process
from hf_video.settings import few

# What a training says of its settings and data, in its folder.
OPTIONS_FILE = "train_options.json"
LOCK_FILE = ".hf-video.lock"
KEEP = "Choose another folder: results are never overwritten."
# Seconds to wait for the lock of a run that has died: its processes that read videos hold the lock until they end.
_PATIENCE = 15


def require_fresh(
    folder: Path,
    ways_out: str,
    *,
    option: str = "--output-dir",
    is_leftover: Callable[[Path], bool] = lambda path: False,
) -> None:
    """Refuses (`ValueError`) a file, and a folder with files that are not leftovers. The error names the option with
    which the user gave the folder, and has a sentence with the ways out."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"{option} {folder} is a file; a folder is expected.")
    found = sorted(path.name for path in folder.iterdir() if not is_leftover(path)) if folder.exists() else []
    if found:
        raise ValueError(f"{option} {folder} is not empty ({few(found)}). {ways_out}")


def check_output_file(name: str, file: str | None) -> Path | None:
    """The path of a file to write, for the option `name`; None if there is to be none. It is a `ValueError` if
    something is there already, or its folder does not exist or cannot be written to."""
    if file is None:
        return None
    path = Path(file).expanduser()
    if os.path.lexists(path):
        raise ValueError(f"--{name} {path} exists, and nothing is overwritten. Delete it, or choose another name.")
    folder = path.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        why = "nothing can be written to it" if folder.is_dir() else "it does not exist"
        raise ValueError(f"--{name} {path}: look at the folder {folder}; {why}.")
    return path


class RunLock:
    """The right of a run to write its folder, which the first process holds until the block or the process ends. If an
    error ends the block, `on_error` is called before the lock is given back. It is not called after an interrupt."""

    def __init__(self) -> None:
        self._lock: Any = None
        self.folder: Path | None = None
        self.on_error: Callable[[], Any] | None = None

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, Exception) and self.on_error is not None:
            self.on_error()
        self.release()

    def take(self, folder: Path, patience: float = 0) -> None:
        """Takes the lock of a folder that exists, and deletes the files that a killed run was writing in it. Another
        run that has it is waited for `patience` seconds, one that has died on this machine in any case; then a
        `ValueError` names it."""
        if self.folder == folder or not is_first_process():
            return
        from filelock import FileLock, Timeout

        file = folder / LOCK_FILE
        lock = FileLock(file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _wait_for(lock, folder, patience)
        for path in [path for path in folder.rglob(".*.partial") if is_unfinished_file(path)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        file.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), encoding="utf-8")
        self._lock, self.folder = lock, folder

    def release(self) -> None:
        """Gives the lock back and removes its file."""
        if self._lock is not None and self.folder is not None:
            (self.folder / LOCK_FILE).unlink(missing_ok=True)
            self._lock.release()
        self._lock = self.folder = None


def _wait_for(lock: Any, folder: Path, patience: float) -> None:
    import psutil
    from filelock import Timeout

    holder = read_own_json(folder / LOCK_FILE)
    who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
    if holder and holder["host"] == socket.gethostname() and not psutil.pid_exists(holder["pid"]):
        patience = max(patience, _PATIENCE)
    if patience:
        print(f"{folder} is being written by {who}: waiting up to {patience:g} s for its end.", file=sys.stderr)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise ValueError(
            f"{folder} is being written by {who}: wait for it, end it, or choose another output folder."
        ) from None


def is_unfinished_file(path: Path) -> bool:
    """Whether this is a file or folder that `hf_video.io` had not finished when the process was killed."""
    return re.fullmatch(r"\.(.+\.)?\d+\.partial", path.name) is not None


@contextmanager
def collected(errors: list[Exception]) -> Iterator[None]:
    """Collects an error of the block, so that what comes after it is still written."""
    try:
        yield
    except Exception as error:
        errors.append(error)
