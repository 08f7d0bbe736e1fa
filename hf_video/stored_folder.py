"""A folder to write to: a local one, or any that fsspec knows by its URL, such as `s3://bucket/pack`.

A file there is whole or does not exist, whenever the process is killed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from hf_video.files import replacing_file
from hf_video.reading.sources import is_url


class StoredFolder:
    """A folder by its path or URL.

    Args:
        where: the path or URL. A protocol that is not installed raises `ImportError` or `ValueError`, by fsspec.

    Attributes:
        path: the local folder; None if it is elsewhere.
    """

    def __init__(self, where: str | os.PathLike):
        self.where = os.fspath(where)
        system, path = url_to_fs(self.where if is_url(self.where) else os.path.expanduser(self.where))
        self.path = Path(path) if isinstance(system, LocalFileSystem) else None

    def __str__(self) -> str:
        return self.where if self.path is None else str(self.path)

    def names(self, inside: str = "") -> list[str]:
        """The names of files and folders directly inside, or directly inside a folder there, sorted."""
        system, path = self.find(inside)
        system.invalidate_cache()
        with suppress(FileNotFoundError):
            return sorted(found.rstrip("/").rsplit("/", 1)[-1] for found in system.ls(path, detail=False))
        return []

    def open(self, name: str) -> Any:
        """A file to read, of a local folder from the disk if the system can forget what it keeps of it in memory."""
        if self.path is not None:
            file = open(self.path / name, "rb")
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return file
        system, path = self.find(name)
        return system.open(path, "rb")

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None if there is none."""
        system, path = self.find(name)
        try:
            return system.cat_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A file to fill, which has its name after the block. After an error it does not exist, or is the old one."""
        if self.path is not None:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            with replacing_file(self.path / name) as unfinished, open(unfinished, "wb") as file:
                yield file
            return
        system, path = self.find(name)
        with system.transaction, system.open(path, "wb") as file:
            yield file

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with what is in it."""
        system, path = self.find(name)
        with suppress(FileNotFoundError):
            system.rm(path, recursive=True)

    def find(self, name: str = "") -> tuple[Any, str]:
        """The file system, and the path there of a file, or of this folder."""
        # Looked up in each access: connections do not survive a fork.
        system, path = url_to_fs(self.where) if self.path is None else (LocalFileSystem(), str(self.path))
        return system, f"{path.rstrip('/')}/{name}" if name else path
