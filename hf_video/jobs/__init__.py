"""One resumable runner over many videos: a task says what is computed, an engine does it, a sink keeps it.

task = PredictTask(processor, class_names, top_k=5)
run(task, list_videos(["my_videos"]), ParquetParts("my_classes", task.key(model)), LocalEngine(model))
"""

from importlib import import_module
from typing import Any

_PUBLIC_NAMES = {
    "BulkResult": ".bulk",
    "build_index": ".indexing",
    "detect": ".detection",
    "DetectionFiles": ".detection",
    "DetectionResult": ".detection",
    "DetectTask": ".detection",
    "extract": ".extraction",
    "extract_features": ".feature_cache",
    "extract_to_folder": ".feature_folder",
    "ExtractTask": ".tasks",
    "FeatureFolder": ".feature_folder",
    "Features": ".feature_cache",
    "IndexTask": ".indexing",
    "LocalEngine": ".runner",
    "ParquetParts": ".parquet_parts",
    "predict": ".classification",
    "Prediction": ".classification",
    "PredictTask": ".tasks",
    "RayEngine": ".ray_engine",
    "run": ".runner",
    "Sink": ".runner",
    "Task": ".tasks",
    "ZeroShotTask": ".zero_shot",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
