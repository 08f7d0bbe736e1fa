"""Runs trained models on videos: windows, features, class scores, segments."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "Clip": ".clip_reading",
    "Features": ".features",
    "LabelledSegment": ".segment_files",
    "Sample": ".windows",
    "SampleGroup": ".windows",
    "ScoredWindow": ".timeline",
    "Segment": ".segments",
    "SegmentFinder": ".segments",
    "TimelineFolder": ".timeline_folder",
    "Window": ".windows",
    "WindowBatch": ".window_batching",
    "WindowFeatures": ".window_features",
    "annotate_video": ".annotated_video",
    "draw_heat_maps": ".heat_map_picture",
    "draw_timeline": ".timeline_picture",
    "evaluate_segments": ".segment_evaluation",
    "explain": ".explanation",
    "extract_features": ".features",
    "extract_to_folder": ".feature_folder",
    "extract_window_features": ".window_features",
    "find_segments": ".timeline",
    "frame_shares": ".heat_maps",
    "group_samples": ".windows",
    "overlay_heat_maps": ".heat_maps",
    "predict_scores": ".prediction",
    "read_clip": ".clip_reading",
    "read_ground_truth": ".segment_files",
    "read_predictions": ".segment_files",
    "score_windows": ".timeline",
    "segments_of": ".segments",
    "sliding_windows": ".windows",
    "timed_samples": ".windows",
    "watch_features": ".features",
    "top_frames": ".heat_maps",
    "weights_digest": ".feature_key",
    "window_batches": ".window_batching",
    "write_heat_map_video": ".heat_map_video",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
