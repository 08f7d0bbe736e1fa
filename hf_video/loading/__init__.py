"""Loads models and their processors from folders and from the Hub."""

from importlib import import_module
from typing import Any

_HOMES = {"load_classifier": ".heads", "load_processor": ".processors"} | dict.fromkeys(
    (
        *("choose_device", "load_answering_model", "load_released", "load_trained_model", "load_video_text_model"),
        "locate_model",
    ),
    ".models",
)
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
