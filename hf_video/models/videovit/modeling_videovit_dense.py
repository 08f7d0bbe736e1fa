"""PyTorch VideoViT with dense outputs: classes of frames, and feature maps."""

from torch import nn

from ..shared_dense import FrameClassifierMixin, VideoBackboneMixin
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


class VideoViTBackbone(VideoBackboneMixin, VideoViTPreTrainedModel):
    """
    VideoViT that returns feature maps. STMixer takes the last map four times: `list(outputs.feature_maps) * 4`.
    """

    def __init__(self, config: VideoViTConfig):
        config = config.with_final_norm()
        super().__init__(config)
        self.videovit = VideoViTModel(config)
        config.check_layers()
        self.num_features = [config.hidden_size] * (config.num_hidden_layers + 1)
        self.post_init()


__all__ = ["VideoViTBackbone", "VideoViTForFrameClassification"]
