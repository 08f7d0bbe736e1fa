"""Runs trained models on videos: windows and features."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "Features": ".features",
    "Sample": ".windows",
    "SampleGroup": ".windows",
    "Window": ".windows",
    "extract_features": ".features",
    "group_samples": ".windows",
    "sliding_windows": ".windows",
    "timed_samples": ".windows",
    "watch_features": ".features",
    "weights_digest": ".features",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
