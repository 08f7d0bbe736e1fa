"""One computation over many videos: parts, resuming, this machine or Ray, and the files that are written."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "extract_to_folder": ".feature_folder",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
