"""PyTorch VideoViT that classifies frames."""

from torch import nn

from ..shared_frames import FrameClassifierMixin
from .configuration_videovit import VideoViTConfig
from .modeling_videovit import VideoViTModel, VideoViTPreTrainedModel


class VideoViTForFrameClassification(FrameClassifierMixin, VideoViTPreTrainedModel):
    """VideoViT with a linear classifier on the feature of each token frame: `config.frame_pooling` of its patches."""

    def __init__(self, config: VideoViTConfig):
        config = config.with_final_norm()
        super().__init__(config)
        self.num_labels = config.num_labels
        self.videovit = VideoViTModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.post_init()


__all__ = ["VideoViTForFrameClassification"]
