"""Measures predictions: classes of clips and frames, segments, detections, and search by texts."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "agreement": "Compared measure_agreement",
    "audit": "audit_model",
    "classes": "evaluate_dataset write_predictions",
    "detections": "annotated_boxes detected_boxes evaluate_detection_file evaluate_detections frame_mean_ap",
    "frames": "evaluate_frames",
    "points": "evaluate_points",
    "retrieval": "CaptionedVideos evaluate_retrieval group_captions retrieval_scores RetrievalScores",
    "segments": "evaluate_segments read_ground_truth read_predictions",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
