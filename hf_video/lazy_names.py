"""The public names of a folder, whose files are imported when one of their names is used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, files: Mapping[str, str]
) -> tuple[list[str], Callable[[], list[str]], Callable[[str], Any]]:
    """`__all__`, `__dir__` and `__getattr__` of a package, for a table of its public names and their files, such as
    {"VideoReader": ".video"}."""
    names = list(files)

    def find(name: str) -> Any:
        if name in files:
            return getattr(import_module(files[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return names, names.copy, find
