"""Runs trained models on videos: windows, features, class scores, segments."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "Clip": ".clip_reading",
    "evaluate_segments": ".segment_evaluation",
    "explain": ".explanation",
    "extract_window_features": ".features",
    "find_segments": ".timeline",
    "frame_shares": ".heat_maps",
    "LabelledSegment": ".segment_files",
    "overlay_heat_maps": ".heat_maps",
    "predict_scores": ".prediction",
    "read_clip": ".clip_reading",
    "read_ground_truth": ".segment_files",
    "read_predictions": ".segment_files",
    "score_windows": ".timeline",
    "ScoredWindow": ".timeline",
    "Segment": ".segments",
    "SegmentFinder": ".segments",
    "segments_of": ".segments",
    "top_frames": ".heat_maps",
    "watch_features": ".features",
    "weights_digest": ".feature_key",
    "window_batches": ".window_batching",
    "WindowBatch": ".window_batching",
    "WindowFeatures": ".features",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
