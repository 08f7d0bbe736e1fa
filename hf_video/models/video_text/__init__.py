"""VideoTextDualEncoder: a video and a text encoder with one space of features, and a fusion encoder over both."""

from .configuration_video_text import VideoTextDualEncoderConfig
from .modeling_video_text import (
    VideoTextDualEncoderModel,
    VideoTextDualEncoderOutput,
    VideoTextDualEncoderPreTrainedModel,
)
from .processing_video_text import VideoTextDualEncoderProcessor, clean_caption

__all__ = [
    "VideoTextDualEncoderConfig",
    "VideoTextDualEncoderModel",
    "VideoTextDualEncoderOutput",
    "VideoTextDualEncoderPreTrainedModel",
    "VideoTextDualEncoderProcessor",
    "clean_caption",
]
