"""Runs trained models on videos: windows, features, class scores, segments."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "detection": "detect_actions KeyFrame Person",
    "explanation": "Clip explain frame_shares read_clip top_frames",
    "features": "extract_window_features weights_digest WindowFeatures",
    "inference_settings": (
        "AuditSettings DetectSettings EvaluateSettings ExtractSettings IndexSettings PredictSettings "
        "SearchSettings SuggestSettings TimelineSettings"
    ),
    "scores": "predict_scores score_frames score_windows ScoredWindow",
    "segments": "find_segments Segment SegmentFinder segments_of",
    "suggestion": "choose_stretches Stretch suggest",
    "timeline": "make_timeline Timeline",
    "video_search": "Hit open_index search SearchResult VideoIndex VideoSearch",
    "windows": "window_batches WindowBatch",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
