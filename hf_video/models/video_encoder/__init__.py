"""Classes of frames by any video encoder of Transformers."""

from .configuration_video_encoder import VideoEncoderConfig
from .modeling_video_encoder import VideoEncoderForFrameClassification

__all__ = ["VideoEncoderConfig", "VideoEncoderForFrameClassification"]
