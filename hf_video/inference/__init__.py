"""Runs trained models on videos: windows, features, class scores, segments."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "AuditSettings": ".inference_settings",
    "Clip": ".explanation",
    "choose_stretches": ".suggestion",
    "detect_actions": ".detection",
    "DetectSettings": ".inference_settings",
    "EvaluateSettings": ".inference_settings",
    "explain": ".explanation",
    "extract_window_features": ".features",
    "ExtractSettings": ".inference_settings",
    "find_segments": ".segments",
    "frame_shares": ".explanation",
    "Hit": ".video_search",
    "IndexSettings": ".inference_settings",
    "KeyFrame": ".detection",
    "make_timeline": ".timeline",
    "open_index": ".video_search",
    "Person": ".detection",
    "predict_scores": ".scores",
    "PredictSettings": ".inference_settings",
    "read_clip": ".explanation",
    "score_windows": ".scores",
    "score_frames": ".scores",
    "ScoredWindow": ".scores",
    "search": ".video_search",
    "SearchResult": ".video_search",
    "SearchSettings": ".inference_settings",
    "Segment": ".segments",
    "SegmentFinder": ".segments",
    "segments_of": ".segments",
    "Stretch": ".suggestion",
    "suggest": ".suggestion",
    "SuggestSettings": ".inference_settings",
    "TimelineSettings": ".inference_settings",
    "Timeline": ".timeline",
    "top_frames": ".explanation",
    "VideoIndex": ".video_search",
    "VideoSearch": ".video_search",
    "weights_digest": ".features",
    "window_batches": ".windows",
    "WindowBatch": ".windows",
    "WindowFeatures": ".features",
}

__all__ = list(_PUBLIC_NAMES)
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
