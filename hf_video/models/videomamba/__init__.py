"""VideoMamba: bidirectional state spaces over the patches of a video, at a cost that is linear in its length."""

from .configuration_videomamba import VideoMambaConfig
from .modeling_videomamba import (
    VideoMambaBackbone,
    VideoMambaForImageClassification,
    VideoMambaForVideoClassification,
    VideoMambaModel,
    VideoMambaPreTrainedModel,
)
from .modeling_videomamba_frames import VideoMambaForFrameClassification
from .modeling_videomamba_pretraining import VideoMambaForPreTraining

__all__ = [
    "VideoMambaBackbone",
    "VideoMambaConfig",
    "VideoMambaForFrameClassification",
    "VideoMambaForImageClassification",
    "VideoMambaForPreTraining",
    "VideoMambaForVideoClassification",
    "VideoMambaModel",
    "VideoMambaPreTrainedModel",
]
