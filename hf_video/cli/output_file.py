"""Checks the file that a command is to write, before it computes anything."""

import os
from pathlib import Path


def check_output_file(name: str, file: str | None) -> Path | None:
    """The path of a file to write; None if there is to be none.

    Args:
        name: name of the option, for the error.
        file: the file as the user gave it.

    Raises:
        ValueError: something is there already, or its folder does not exist or cannot be written to.
    """
    if file is None:
        return None
    path = Path(file).expanduser()
    if os.path.lexists(path):
        raise ValueError(f"--{name} {path} exists. Choose another name: results are never overwritten.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"--{name} {path}: the folder {folder} does not exist.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"--{name} {path}: nothing can be written to the folder {folder}.")
    return path
