"""The public names of a folder, whose files are imported when one of their names is used."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, files: Iterable[tuple[str, str]]
) -> tuple[list[str], Callable[[], list[str]], Callable[[str], Any]]:
    """`__all__`, `__dir__` and `__getattr__` of a package, for pairs of a file and public names in it, such as
    ("sources", "name_of VideoReadError")."""
    file_of = {name: f".{file}" for file, defined in files for name in defined.split()}

    def find(name: str) -> Any:
        if name in file_of:
            return getattr(import_module(file_of[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    names = list(file_of)
    return names, names.copy, find
