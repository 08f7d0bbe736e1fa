"""The same over many videos: rows in, rows out, one row a piece, in this process or on Ray."""

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "commands": "build_index detect extract predict Prediction RowsResult",
    "export": "DetectionResult",
    "feature_cache": "extract_features Features",
    "rows": "read_detections",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
