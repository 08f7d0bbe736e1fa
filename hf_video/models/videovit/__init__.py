"""VideoViT: the video vision transformer of VideoMAE, VideoMAE V2 and STMixer."""

from .configuration_videovit import VideoViTConfig
from .modeling_videovit import (
    VideoViTBackbone,
    VideoViTForImageClassification,
    VideoViTForPreTraining,
    VideoViTForVideoClassification,
    VideoViTModel,
    VideoViTPreTrainedModel,
)

__all__ = [
    "VideoViTBackbone",
    "VideoViTConfig",
    "VideoViTForImageClassification",
    "VideoViTForPreTraining",
    "VideoViTForVideoClassification",
    "VideoViTModel",
    "VideoViTPreTrainedModel",
]
