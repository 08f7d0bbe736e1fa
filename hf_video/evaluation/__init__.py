"""Measures predictions: classes of clips and frames, segments, detections, and search by texts."""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "annotated_boxes": ".detections",
    "audit_model": ".audit",
    "CaptionedVideos": ".retrieval",
    "Compared": ".agreement",
    "detected_boxes": ".detections",
    "evaluate_dataset": ".classes",
    "evaluate_detection_file": ".detections",
    "evaluate_detections": ".detections",
    "evaluate_frames": ".frames",
    "evaluate_points": ".points",
    "evaluate_retrieval": ".retrieval",
    "evaluate_segments": ".segments",
    "frame_mean_ap": ".detections",
    "group_captions": ".retrieval",
    "measure_agreement": ".agreement",
    "read_ground_truth": ".segments",
    "read_predictions": ".segments",
    "retrieval_scores": ".retrieval",
    "RetrievalScores": ".retrieval",
    "write_predictions": ".classes",
}

__all__ = list(_PUBLIC_NAMES)
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
