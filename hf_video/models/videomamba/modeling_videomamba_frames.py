"""PyTorch VideoMamba that classifies frames."""

from dataclasses import dataclass

from transformers.modeling_outputs import TokenClassifierOutput

from ..shared_frames import FrameClassifierMixin
from .modeling_videomamba import VideoMambaClassifier
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


__all__ = ["VideoMambaForFrameClassification", "VideoMambaFrameClassifierOutput"]
