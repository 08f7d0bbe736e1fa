"""Frames of videos, wherever they are: files, addresses, folders, streams, windows."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "group_samples": ".windows",
    "probe_video": ".video",
    "read_video": ".video",
    "Sample": ".windows",
    "SampleGroup": ".windows",
    "timed_samples": ".windows",
    "VideoReader": ".video",
    "VideoReadError": ".sources",
}

__all__ = list(_PUBLIC_NAMES)
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
