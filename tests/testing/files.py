"""What is in a folder, and things in the place of a file: folders, FIFOs and broken links."""

import os
from pathlib import Path

# What is said of each.
ODD_FILES = {"folder": "is a folder", "FIFO": "is no file", "link to nothing": "does not exist"}


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
    else:
        path.symlink_to("gone")
    return path
