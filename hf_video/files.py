"""How a file is written: as a whole, or not at all."""

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

# A disk, a quota, or the limit of a process on the size of a file.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def replace_file(path: str | os.PathLike, write: Callable[[Path], Any]) -> None:
    """Lets `write` fill a file beside `path` and moves it there: `path` is the old file or the whole new one, whenever
    the process is killed or the power fails. The neighbour is removed where writing fails.

    A link is followed: what it points to is replaced.

    Args:
        path: the file to write, in a folder that exists.
        write: is called with the path of the neighbour, `.NAME.PID.partial`.

    Raises:
        OSError: writing failed, or `path` is a folder, a pipe or a device; names `path`.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{os.fspath(path)} is no regular file, so it cannot be replaced; choose another name.")
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with naming_disk_errors(path):
            write(unfinished)
            sync_file(unfinished)
            os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(target.parent)


def replace_text(path: str | os.PathLike, text: str) -> None:
    """`replace_file` with a text, in UTF-8."""
    replace_file(path, partial(Path.write_text, data=text, encoding="utf-8"))


def read_own_json(path: Path) -> Any:
    """What a JSON file of ours holds; None where there is none, or one that is not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None


@contextmanager
def replacing_files(folder: str | os.PathLike, last: str = "*.safetensors") -> Iterator[Path]:
    """A folder to fill, whose files then take their places in `folder`, each as a whole; none does after an error.

    Args:
        folder: is made if it does not exist.
        last: pattern of the names that follow all others, such as those of the weights that make the others a model.

    Raises:
        OSError: writing failed; names `folder`.
    """
    folder = Path(folder)
    unfinished = folder / f".{os.getpid()}.partial"
    unfinished.mkdir(parents=True)
    try:
        with naming_disk_errors(folder):
            yield unfinished
            files = [path for path in sorted(unfinished.rglob("*")) if path.is_file()]
            for path in files:
                sync_file(path)
            for path in sorted(files, key=lambda path: path.match(last)):
                target = folder / path.relative_to(unfinished)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
                sync_folder(target.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[Path]:
    """A folder beside `path` to fill within, which is moved there behind: `path` is a whole folder or none, whenever
    the process is killed or the power fails. The neighbour, `.NAME.*.partial`, is removed where an error or an
    interrupt comes first.

    A place where a disk is mounted cannot be replaced: there the neighbour is inside, and what it has is moved up.

    Args:
        path: a folder that does not exist or is empty; those above it are made.

    Raises:
        OSError: writing failed, or there is something at `path` by now.
    """
    target = Path(os.path.realpath(path))
    is_mounted = os.path.ismount(target)
    place = target if is_mounted else target.parent
    with naming_disk_errors(path):
        place.mkdir(parents=True, exist_ok=True)
        # A temporary folder is for its owner alone, the one in it is as open as others.
        with tempfile.TemporaryDirectory(dir=place, prefix=f".{target.name}.", suffix=".partial") as temporary:
            unfinished = Path(temporary, target.name or "folder")
            unfinished.mkdir()
            yield unfinished
            for file in unfinished.rglob("*"):
                if file.is_file():
                    sync_file(file)
            if is_mounted:
                for entry in unfinished.iterdir():
                    entry.rename(target / entry.name)
            else:
                if target.is_dir():
                    target.rmdir()
                unfinished.rename(target)
    sync_folder(place)


def sync_file(path: str | os.PathLike) -> None:
    """Waits until a file is on the disk."""
    _sync(path, os.O_RDWR)


def sync_folder(folder: str | os.PathLike) -> None:
    """Makes the names in a folder outlive a power failure, where the system and the file system can."""
    # Some network file systems, and Windows, open or sync no folders: there a name may be lost with the power.
    with suppress(OSError):
        _sync(folder, os.O_RDONLY)


@contextmanager
def naming_disk_errors(path: str | os.PathLike) -> Iterator[None]:
    """Names `path` in an error of writing that does not say where it happened: that of `file.write`, of safetensors,
    or of `torch.save`.

    Raises:
        OSError: with `errno` and `filename`, in place of such an error.
    """
    try:
        yield
    except Exception as error:
        number = write_error_number(error)
        if number is None or getattr(error, "filename", None) is not None:
            raise
        raise OSError(number, os.strerror(number), os.fspath(path)) from error


def write_error_number(error: BaseException) -> int | None:
    """The `errno` of an error of writing a file, None for another error.

    safetensors has the number in its message alone. A failed `torch.save` does not say it: it counts as a full disk,
    which is its usual reason.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if type(error).__name__ == "SafetensorError" and (match := re.search(r"\(os error (\d+)\)", str(error))):
        return int(match[1])
    if isinstance(error, RuntimeError) and re.search(
        "inline_container.*unexpected pos|PytorchStreamWriter", str(error)
    ):
        return errno.ENOSPC
    return None


def _sync(path: str | os.PathLike, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
