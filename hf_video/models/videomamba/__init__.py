"""VideoMamba: bidirectional state spaces over the patches of a video, at a cost that is linear in its length."""

from .configuration_videomamba import VideoMambaConfig
from .modeling_videomamba import (
    VideoMambaClassifierOutput,
    VideoMambaForImageClassification,
    VideoMambaForVideoClassification,
    VideoMambaModel,
    VideoMambaOutput,
    VideoMambaPreTrainedModel,
)
from .modeling_videomamba_dense import (
    VideoMambaBackbone,
    VideoMambaForFrameClassification,
    VideoMambaFrameClassifierOutput,
)
from .modeling_videomamba_pretraining import VideoMambaForPreTraining
from .state_videomamba import VideoMambaState

__all__ = [
    "VideoMambaBackbone",
    "VideoMambaClassifierOutput",
    "VideoMambaConfig",
    "VideoMambaForFrameClassification",
    "VideoMambaForImageClassification",
    "VideoMambaForPreTraining",
    "VideoMambaForVideoClassification",
    "VideoMambaFrameClassifierOutput",
    "VideoMambaModel",
    "VideoMambaOutput",
    "VideoMambaPreTrainedModel",
    "VideoMambaState",
]
