"""Loads models and their processors from folders and from the Hub."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "choose_device": ".models",
    "load_answering_model": ".models",
    "load_classifier": ".classifiers",
    "load_processor": ".processors",
    "load_released": ".models",
    "load_trained_model": ".models",
    "load_video_text_model": ".models",
    "locate_model": ".models",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
