"""The same over many videos: rows in, rows out, one row a piece, in this process or on Ray."""

from hf_video.lazy_names import lazy_names

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

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES)
