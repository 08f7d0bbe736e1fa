"""The same over many videos: rows in, rows out, one row a piece, in this process or on Ray."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "build_index": ".commands",
    "detect": ".commands",
    "DetectionResult": ".export",
    "extract": ".commands",
    "extract_features": ".feature_cache",
    "Features": ".feature_cache",
    "predict": ".commands",
    "Prediction": ".commands",
    "read_detections": ".rows",
    "RowsResult": ".commands",
}

__all__ = list(_PUBLIC_NAMES)
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
