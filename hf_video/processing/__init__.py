"""From video files to the input of a model."""

from importlib import import_module
from typing import Any

# Importing Transformers registers the processor, which imports its module: it must be complete before that module
# starts to load, or it would find it half-loaded.
import transformers  # noqa: F401

_PUBLIC_NAMES = {
    "CenterCropImageProcessor": ".image_processing_center_crop",
    "sample_clip_indices": ".clip_sampling",
    "SAMPLING_STRATEGIES": ".clip_sampling",
    "VideoClipProcessor": ".video_processing_clip",
    "VideoClipProcessorKwargs": ".video_processing_clip",
    "VideoDetectionProcessor": ".video_processing_detection",
    "VideoDetectionProcessorKwargs": ".video_processing_detection",
}

__all__ = list(_PUBLIC_NAMES)
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC_NAMES:
        return getattr(import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
