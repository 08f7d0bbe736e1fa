"""What is in a folder, and things in the place of a file: folders, FIFOs and broken links."""

import os
import socket
from contextlib import chdir
from pathlib import Path

# What each is called, and the words of a message about it.
ODD_FILES = {
    "folder": "is a folder",
    "FIFO": "is a FIFO",
    "device": "is a device",
    "socket": "is a socket",
    "link to nothing": "is a link to .*, which does not exist",
    "link to itself": "is a link that leads back to itself",
}


def files_of(folder: Path) -> dict[str, bytes]:
    """The contents of all files in a folder, by their paths below it."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def make_odd_file(path: Path, kind: str) -> Path:
    """Makes a thing of a kind of `ODD_FILES` at the path, in a folder that exists."""
    if kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    elif kind == "link to nothing":
        path.symlink_to("gone")
    elif kind == "link to itself":
        path.symlink_to(path)
    return path
