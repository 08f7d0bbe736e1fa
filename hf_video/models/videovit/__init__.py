"""VideoViT: the video vision transformer of VideoMAE, VideoMAE V2 and STMixer."""

from .configuration_videovit import VideoViTConfig
from .modeling_videovit import (
    VideoViTForImageClassification,
    VideoViTForVideoClassification,
    VideoViTModel,
    VideoViTPreTrainedModel,
)
from .modeling_videovit_dense import VideoViTBackbone, VideoViTForFrameClassification
from .modeling_videovit_pretraining import VideoViTForPreTraining

__all__ = [
    "VideoViTBackbone",
    "VideoViTConfig",
    "VideoViTForFrameClassification",
    "VideoViTForImageClassification",
    "VideoViTForPreTraining",
    "VideoViTForVideoClassification",
    "VideoViTModel",
    "VideoViTPreTrainedModel",
]
