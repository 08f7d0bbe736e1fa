"""Runs trained models on videos: windows, features, class scores, segments."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "annotated_boxes": ".detection_evaluation",
    "CaptionedVideos": ".retrieval",
    "Clip": ".explanation",
    "detect_actions": ".detection",
    "detected_boxes": ".detection_evaluation",
    "DetectSettings": ".inference_settings",
    "evaluate_detection_file": ".detection_evaluation",
    "evaluate_detections": ".detector_evaluation",
    "evaluate_frames": ".frame_evaluation",
    "evaluate_retrieval": ".retrieval",
    "evaluate_segments": ".segment_evaluation",
    "EvaluateSettings": ".inference_settings",
    "explain": ".explanation",
    "extract_window_features": ".features",
    "ExtractSettings": ".inference_settings",
    "find_segments": ".segments",
    "frame_mean_ap": ".detection_evaluation",
    "frame_shares": ".explanation",
    "group_captions": ".retrieval",
    "Hit": ".video_search",
    "IndexSettings": ".inference_settings",
    "KeyFrame": ".detection",
    "LabelledSegment": ".segment_evaluation",
    "open_index": ".video_index",
    "overlay_heat_maps": ".explanation",
    "Person": ".detection",
    "predict_scores": ".scores",
    "PredictSettings": ".inference_settings",
    "read_clip": ".explanation",
    "read_ground_truth": ".segment_evaluation",
    "read_predictions": ".segment_evaluation",
    "retrieval_scores": ".retrieval",
    "RetrievalScores": ".retrieval",
    "score_windows": ".scores",
    "score_frames": ".scores",
    "ScoredWindow": ".scores",
    "search": ".video_search",
    "SearchResult": ".video_search",
    "SearchSettings": ".inference_settings",
    "Segment": ".segments",
    "SegmentFinder": ".segments",
    "segments_of": ".segments",
    "TimelineSettings": ".inference_settings",
    "timeline": ".timeline",
    "Timeline": ".timeline",
    "top_frames": ".explanation",
    "VideoIndex": ".video_index",
    "VideoSearch": ".video_search",
    "watch_features": ".features",
    "weights_digest": ".features",
    "window_batches": ".windows",
    "WindowBatch": ".windows",
    "WindowFeatures": ".features",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
