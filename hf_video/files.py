"""Writes files and folders as a whole, or not at all."""

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

# Error numbers: the disk is full, a quota is used up, or the process may not write so large a file.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def replace_file(path: str | os.PathLike, write: Callable[[Path], Any]) -> None:
    """Writes a file as a whole; see `replacing_file`.

    Args:
        path: the file to write, in a folder that exists.
        write: called with the path of the temporary file.

    Raises:
        OSError: writing failed, or `path` is a folder, a pipe or a device. The error names `path`.
    """
    with replacing_file(path) as unfinished:
        write(unfinished)


@contextmanager
def replacing_file(path: str | os.PathLike) -> Iterator[Path]:
    """Gives the path of a temporary file beside `path` to write, `.NAME.PID.partial`, and moves it to `path` after the
    block. Whenever the process is killed or the power fails, `path` is the old file or the whole new one. The
    temporary file is removed after an error.

    If `path` is a link, the file that it points to is replaced.

    Args:
        path: the file to write, in a folder that exists.

    Raises:
        OSError: writing failed, or `path` is a folder, a pipe or a device. The error names `path`.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{os.fspath(path)} is no regular file, so it cannot be replaced; choose another name.")
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with naming_disk_errors(path):
            yield unfinished
            sync_file(unfinished)
            os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(target.parent)


def replace_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text in UTF-8 as a whole; see `replace_file`."""
    replace_file(path, partial(Path.write_text, data=text, encoding="utf-8"))


def read_own_json(path: Path) -> Any:
    """The content of a JSON file that this package wrote; None if there is no file, or it is not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None


@contextmanager
def replacing_files(folder: str | os.PathLike, last: str = "*.safetensors") -> Iterator[Path]:
    """Gives a temporary folder to fill. After the block, each of its files is moved to its place in `folder` as a
    whole; after an error, none is.

    Args:
        folder: the destination; made if it does not exist.
        last: pattern of the names that are moved after all others, such as the weights, which complete a model.

    Raises:
        OSError: writing failed. The error names `folder`.
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
    """Gives a temporary folder beside `path` to fill, and moves it to `path` after the block. Whenever the process is
    killed or the power fails, there is a whole folder at `path`, or none. The temporary folder, `.NAME.*.partial`, is
    removed after an error or an interrupt.

    A mount point cannot be replaced. There the temporary folder is inside of `path`, and its content is moved up.

    Args:
        path: a folder that does not exist or is empty; its parents are made.

    Raises:
        OSError: writing failed, or another program has made `path` meanwhile.
    """
    target = Path(os.path.realpath(path))
    is_mounted = os.path.ismount(target)
    place = target if is_mounted else target.parent
    with naming_disk_errors(path):
        place.mkdir(parents=True, exist_ok=True)
        # Only its owner may open a temporary folder. The folder inside has the usual permissions: that one is moved.
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
    """Makes the names in a folder survive a power failure, if the system and the file system can."""
    # Windows and some network file systems cannot open or sync folders. There a power failure may lose a name.
    with suppress(OSError):
        _sync(folder, os.O_RDONLY)


@contextmanager
def naming_disk_errors(path: str | os.PathLike) -> Iterator[None]:
    """Adds `path` to a write error that does not name a file: an error of `file.write`, of safetensors, or of
    `torch.save`.

    Raises:
        OSError: replaces such an error, and has `errno` and `filename`.
    """
    try:
        yield
    except Exception as error:
        number = write_error_number(error)
        if number is None or getattr(error, "filename", None) is not None:
            raise
        raise OSError(number, os.strerror(number), os.fspath(path)) from error


@contextmanager
def naming(about: str | os.PathLike) -> Iterator[None]:
    """Tells which file or model an error of another library is about: its attribute `about`, and a note.

    Commands make their sentences of it. Only the call that opens or loads belongs into the block.
    """
    try:
        yield
    except Exception as error:
        if "about" not in vars(error):
            vars(error)["about"] = os.fspath(about)
            error.add_note(f"This is about {about}.")
        raise


def write_error_number(error: BaseException) -> int | None:
    """The `errno` of a write error; None for any other error.

    safetensors gives the number only in its message. A failed `torch.save` does not give it: it counts as a full disk,
    the usual reason.
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


def few(names: Iterable[object], limit: int = 3) -> str:
    """The first names for a message, with dots if there are more: `a, b, c, ...`."""
    first = list(islice(names, limit + 1))
    return ", ".join(map(str, first[:limit])) + (", ..." if len(first) > limit else "")
