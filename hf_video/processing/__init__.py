"""From video files to the input of a model."""

# Importing Transformers registers the processor, which imports its module: it must be complete before that module
# starts to load, or it would find it half-loaded.
import transformers  # noqa: F401

from hf_video.lazy_names import lazy_names

_PUBLIC_NAMES = {
    "clip_sampling": "sample_clip_indices SAMPLING_STRATEGIES",
    "image_processing_center_crop": "CenterCropImageProcessor",
    "video_processing_clip": "VideoClipProcessor VideoClipProcessorKwargs",
    "video_processing_detection": "VideoDetectionProcessor VideoDetectionProcessorKwargs",
}

__all__, __dir__, __getattr__ = lazy_names(__name__, _PUBLIC_NAMES.items())
