"""Writes files that are whole or do not exist, opens folders on any storage, and reads the text files of users.

An error of reading a text file is one sentence that begins with its name.
"""

import csv
import errno
import hashlib
import io
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from pydantic import BaseModel

logger = logging.getLogger(__name__)

# Error numbers: the disk is full, a quota is used up, or the process may not write so large a file.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# A Hub that takes longer to answer counts as out of reach.
SECONDS_FOR_AN_ANSWER = 10


def replace_file(path: str | os.PathLike, write: Callable[[Path], Any]) -> None:
    """Calls `write` with the path that [`replacing_file`] gives."""
    with replacing_file(path) as unfinished:
        write(unfinished)


@contextmanager
def replacing_file(path: str | os.PathLike) -> Iterator[Path]:
    """Gives the path of a temporary file to write, `.NAME.PID.partial` beside `path`, and moves it to `path` after the
    block. Whenever the process is killed or the power fails, `path` is the old file or the whole new one. An error
    removes the temporary file. If `path` is a link, the file that it points to is replaced. An `OSError` names `path`
    if writing failed, or if it is a folder, a pipe or a device, such as /dev/null."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{os.fspath(path)} is not a regular file, so it cannot be replaced. Choose another name.")
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
    """Writes a text in UTF-8 as a whole; see [`replacing_file`]."""
    replace_file(path, partial(Path.write_text, data=text, encoding="utf-8"))


def read_own_json(path: Path) -> Any:
    """The content of a JSON file that this package wrote; None if there is no whole file."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError):
        return None


@contextmanager
def replacing_files(folder: str | os.PathLike) -> Iterator[Path]:
    """Gives a temporary folder to fill, and moves each of its files to its place in `folder` after the block; after an
    error, none. Weights are moved last, because they complete a model. An `OSError` of writing names `folder`."""
    folder = Path(folder)
    unfinished = folder / f".{os.getpid()}.partial"
    unfinished.mkdir(parents=True)
    try:
        with naming_disk_errors(folder):
            yield unfinished
            files = [path for path in sorted(unfinished.rglob("*")) if path.is_file()]
            for path in files:
                sync_file(path)
            for path in sorted(files, key=lambda path: path.match("*.safetensors")):
                target = folder / path.relative_to(unfinished)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
                sync_folder(target.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Gives a temporary folder to fill, `.NAME.*.partial` beside `path`, and moves it to `path` after the block.
    Whenever the process is killed or the power fails, `path` is a whole folder or does not exist. An error removes the
    temporary folder. A mount point cannot be replaced: its new content is moved up from a folder inside of it."""
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


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: str | os.PathLike, flags: int = os.O_RDWR) -> None:
    """Waits until a file is on the disk."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: str | os.PathLike) -> None:
    """Makes the names in a folder survive a power failure, if the system and the file system can do that."""
    # Windows and some network file systems cannot open or sync folders.
    with suppress(OSError):
        sync_file(folder, os.O_RDONLY)


@contextmanager
def naming_disk_errors(path: str | os.PathLike) -> Iterator[None]:
    """Replaces a write error that does not name a file, as of `file.write`, safetensors or `torch.save`, by an
    `OSError` with `errno` and the `filename` `path`."""
    try:
        yield
    except Exception as error:
        number = write_error_number(error)
        if number is None or getattr(error, "filename", None) is not None:
            raise
        raise OSError(number, os.strerror(number), os.fspath(path)) from error


@contextmanager
def naming(about: str | os.PathLike) -> Iterator[None]:
    """Gives an error of the block an attribute `about`, the file or model that the block opens or loads, and a note.
    Commands name it in their messages."""
    try:
        yield
    except Exception as error:
        if "about" not in vars(error):
            vars(error)["about"] = os.fspath(about)
            error.add_note(f"This is about {about}.")
        raise


def write_error_number(error: BaseException) -> int | None:
    """The `errno` of a write error; None for any other error."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    # safetensors gives the number only in its message.
    if type(error).__name__ == "SafetensorError" and (match := re.search(r"\(os error (\d+)\)", str(error))):
        return int(match[1])
    # A failed `torch.save` gives no number. A full disk is the usual reason.
    is_torch = re.search(r"inline_container.*unexpected pos|PytorchStreamWriter", str(error))
    return errno.ENOSPC if isinstance(error, RuntimeError) and is_torch else None


class StoredFolder:
    """A folder by its path or URL. Its `path` is the local folder; None if it is elsewhere. For a protocol that is not
    installed fsspec raises `ImportError` or `ValueError`."""

    def __init__(self, where: str | os.PathLike):
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self.where = os.fspath(where)
        system, path = url_to_fs(os.path.expanduser(self.where))
        self.path = Path(path) if isinstance(system, LocalFileSystem) else None

    def __str__(self) -> str:
        return self.where if self.path is None else str(self.path)

    def find(self, name: str = "") -> tuple[Any, str]:
        """The file system, and the path there of a file, or of this folder."""
        from fsspec.core import url_to_fs

        # Looked up in each access: connections do not survive a fork.
        system, path = url_to_fs(str(self))
        return system, f"{path.rstrip('/')}/{name}" if name else path

    def names(self) -> list[str]:
        """The names of files and folders directly inside, sorted."""
        system, path = self.find()
        system.invalidate_cache()
        with suppress(FileNotFoundError):
            return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in system.ls(path, detail=False))
        return []

    def open(self, name: str) -> Any:
        """Opens a file to read. A local file is read from the disk, not from the system's memory, if possible."""
        system, path = self.find(name)
        file = system.open(path, "rb") if self.path is None else open(path, "rb")
        if self.path is not None and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if the file does not exist."""
        system, path = self.find(name)
        with suppress(FileNotFoundError, NotADirectoryError):
            return system.cat_file(path)
        return None

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Opens a file to fill. After the block it is complete, after an error the old one or none."""
        if self.path is not None:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            with replacing_file(self.path / name) as unfinished, open(unfinished, "wb") as file:
                yield file
            return
        system, path = self.find(name)
        with system.transaction, system.open(path, "wb") as file:
            yield file

    def remove(self, name: str) -> None:
        """Removes a file, or a folder and its content."""
        system, path = self.find(name)
        with suppress(FileNotFoundError):
            system.rm(path, recursive=True)


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Asks the Hub once before a block that reads from it. If it does not answer, the block has what is in the cache,
    or raises the error of asking: by itself, each request is tried for half a minute."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session, httpx

    try:
        if not constants.HF_HUB_OFFLINE:
            get_session().head(constants.ENDPOINT, timeout=SECONDS_FOR_AN_ANSWER)
    except httpx.TransportError as unreached:
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        except OSError:
            raise unreached from None
        finally:
            constants.HF_HUB_OFFLINE = False
    else:
        yield


def check_regular_file(path: str | os.PathLike) -> None:
    """Refuses a path where nothing is (`FileNotFoundError`), and a folder or something else that is neither a file nor
    a link to one (`ValueError`), without opening it."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist.")
    if not os.path.isfile(path):
        raise ValueError(f"{path} is {'a folder' if os.path.isdir(path) else 'no file'}; a file is expected.")


def read_text(path: str | os.PathLike) -> str:
    """The text of a UTF-8 file with its line ends, without a byte order mark. Errors are those of
    [`check_regular_file`], and a `ValueError` if it is not UTF-8."""
    check_regular_file(path)
    content = Path(path).read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, content, error) from None


def read_table(path: str | os.PathLike) -> str:
    """The text of a table as [`decode_table`] gives it. Errors are those of [`read_text`]."""
    check_regular_file(path)
    return decode_table(path, Path(path).read_bytes())


def decode_table(path: str | os.PathLike, content: bytes) -> str:
    """The text of a table in UTF-8, or else in Windows-1252, as Excel saves CSV, which a line of the log says."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        with suppress(UnicodeDecodeError):
            text = content.decode("cp1252")
            if "\0" not in text:  # UTF-16 has them
                line = content.count(b"\n", 0, error.start)
                example = shorten(text.split("\n")[line], 80)
                logger.warning(f"{path} is not UTF-8, and is read as Windows-1252: line {line + 1} is {example!r}.")
                return text
        raise _not_utf8(path, content, error) from None


def _not_utf8(path: str | os.PathLike, content: bytes, error: UnicodeDecodeError) -> ValueError:
    line = content.count(b"\n", 0, error.start) + 1
    place = f"byte 0x{content[error.start]:02x} in line {line}"
    return ValueError(f"{path} is not UTF-8: {place}. Save it with UTF-8 encoding.")


def lines_of(text: str) -> list[str]:
    """The lines of a text with the line ends of any system."""
    # str.splitlines also splits at characters that may be part of a name.
    return re.split(r"\r\n?|\n", text)


def read_json(path: str | os.PathLike) -> Any:
    """The content of a JSON file. Errors are those of [`read_text`], and a `ValueError` if the file is not JSON."""
    return _parse_json(path, read_text(path))


def read_json_lines(path: str | os.PathLike) -> list[tuple[int, Any]]:
    """(line number, content) for each line of a JSON Lines file that is not blank. Lines count from 1. It raises the
    errors of [`read_json`]."""
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(number, _parse_json(path, line, number)) for number, line in lines if line.strip()]


def _parse_json(path: str | os.PathLike, text: str, first_line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno + first_line - 1}, column {error.colno}"
        raise ValueError(f"{path} cannot be read as JSON: {error.msg} ({place}).") from error


def read_object(path: str | os.PathLike, kind: "type[BaseModel] | None" = None) -> dict[str, Any]:
    """The content of a JSON file that holds one object, whose fields have the types of a model of pydantic. Errors are
    those of [`read_json`], and a `ValueError` for another content."""
    from pydantic import ValidationError

    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold one JSON object, got a {type(content).__name__}.")
    try:
        if kind is not None:
            kind.model_validate(content, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        place, expected = ".".join(map(str, wrong["loc"])), wrong["msg"].partition(" should ")[2]
        problem = f"must {expected}, got {shorten(repr(wrong['input']), 200)}" if expected else "is missing"
        raise ValueError(f"{path}: `{place}` {problem}.") from None
    return content


def read_yaml(path: str | os.PathLike) -> Any:
    """The content of a YAML file as mappings, lists and strings. Numbers stay strings, as they are written. Errors are
    those of [`read_text`], and a `ValueError` if the file is not YAML, or has a name twice."""
    import yaml

    class Loader(yaml.BaseLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
            content = super().construct_mapping(node, deep)
            names = [name.value for name, _ in node.value]
            for name, _ in reversed(node.value):
                if names.count(name.value) > 1:
                    raise yaml.MarkedYAMLError(None, None, f"{name.value!r} is given twice", name.start_mark)
            return content

    try:
        return yaml.load(read_text(path), Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read as YAML: {problem}{place}.") from error


def read_csv(path: str | os.PathLike) -> Iterator[tuple[int, list[str]]]:
    """What [`parse_csv`] gives of a file with commas. Errors are also those of [`read_table`]."""
    return parse_csv(path, read_table(path))


def parse_csv(path: str | os.PathLike, text: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) for each row of the text of a CSV file that has a cell that is not blank, the header
    included. Lines count from 1; a row of several lines has the number of its last one. Line ends inside quotes are
    part of a cell. A `ValueError` if a quote is not closed."""
    # Without `strict`, a quote that is never closed would take in the rest of the file.
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    first = 1
    try:
        for row in rows:
            if any(map(str.strip, row)):  # Excel writes rows of empty cells after the last one
                yield rows.line_num, row
            first = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as CSV: {error} in the row from line {first} on.") from error
