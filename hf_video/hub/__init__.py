"""Publishes models on the Hugging Face Hub, self-contained, checked and with a card, and verifies published ones."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "Publication": ".publishing",
    "publish": ".publishing",
    "PublishError": ".folder_checks",
    "push": ".publishing",
    "stage": ".publishing",
    "Finding": ".self_test",
    "Verification": ".self_test",
    "verify_model": ".self_test",
}

__all__ = list(_PUBLIC_NAMES)
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
