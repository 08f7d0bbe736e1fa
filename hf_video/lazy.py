"""Public names of packages that are imported at their first use, so that commands can be named without PyTorch."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: dict[str, str]) -> tuple[list[str], Callable[[], list[str]], Callable[[str], Any]]:
    """The `__all__`, `__dir__` and `__getattr__` of a package, from the names of its modules and what each defines."""
    module_of = {name: f".{module}" for module, defined in names.items() for name in defined.split()}

    def find(name: str) -> Any:
        if name in module_of:
            return getattr(import_module(module_of[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return [*module_of], lambda: [*module_of], find
