"""Measures predictions: classes of clips and frames, segments, detections, and search by texts."""

from hf_video.lazy_names import lazy_names

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

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES)
