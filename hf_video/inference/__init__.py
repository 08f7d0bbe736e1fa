"""Runs trained models on videos: features and class scores. Measures the segments that are found."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "Features": ".features",
    "LabelledSegment": ".segment_files",
    "WindowBatch": ".window_batches",
    "evaluate_segments": ".segment_evaluation",
    "extract_features": ".features",
    "predict_scores": ".prediction",
    "read_ground_truth": ".segment_files",
    "read_predictions": ".segment_files",
    "watch_features": ".features",
    "weights_digest": ".feature_key",
    "window_batches": ".window_batches",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
