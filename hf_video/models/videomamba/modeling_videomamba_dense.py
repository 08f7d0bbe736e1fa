"""PyTorch VideoMamba with dense outputs: classes of frames, and feature maps."""

from dataclasses import dataclass

from transformers.modeling_outputs import TokenClassifierOutput

from ..shared_dense import FrameClassifierMixin, VideoBackboneMixin
from .configuration_videomamba import VideoMambaConfig
from .modeling_videomamba import VideoMambaClassifier, VideoMambaModel, VideoMambaPreTrainedModel
from .state_videomamba import VideoMambaState


@dataclass
class VideoMambaFrameClassifierOutput(TokenClassifierOutput):
    """Output of [`VideoMambaForFrameClassification`]. `state` is the one to go on with, if the call had a state."""

    state: VideoMambaState | None = None


class VideoMambaForFrameClassification(FrameClassifierMixin, VideoMambaClassifier):
    """
    VideoMamba with a linear classifier on the feature of each token frame: `config.frame_pooling` of its patches. With
    a [`VideoMambaState`] as `state` it goes on with the videos that it saw before.
    """

    _output_class = VideoMambaFrameClassifierOutput


class VideoMambaBackbone(VideoBackboneMixin, VideoMambaPreTrainedModel):
    """VideoMamba that returns feature maps."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        self.videomamba = VideoMambaModel(config)
        config.check_layers()
        self.num_features = [config.hidden_size] * (config.num_hidden_layers + 1)
        self.post_init()


__all__ = ["VideoMambaBackbone", "VideoMambaForFrameClassification", "VideoMambaFrameClassifierOutput"]
