"""VideoEncoder model configuration."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..shared_configuration import FRAME_LIMITS, CheckedConfigMixin, FrameLabelsConfigMixin, check_limits

# The encoders of Transformers, and how many tokens precede those of the patches.
PREFIX_TOKENS = {"videomae": 0, "timesformer": 1, "vivit": 1, "vjepa2": 0, "videoprism_vision_model": 0}
LIMITS = FRAME_LIMITS | {"in [0, 1)": ["classifier_dropout"]}


@strict
class VideoEncoderConfig(CheckedConfigMixin, FrameLabelsConfigMixin, PreTrainedConfig):
    r"""
    Configuration of [`VideoEncoderForFrameClassification`], which is made around a video encoder of Transformers.
    Labels of frames have the fields of [`FrameLabelsConfigMixin`].

    Args:
        encoder_config (`PreTrainedConfig` or `dict`, *optional*):
            The encoder: VideoMAE (the default), TimeSformer, ViViT, V-JEPA 2 or VideoPrism. A VideoMAE always has its
            final norm (`use_mean_pooling=False`).
        classifier_dropout (`float`, defaults to 0.0):
            Dropout before the classifier.

    Raises:
        ValueError: if a value is out of range, or the encoder is another one. The message names it.
    """

    model_type = "video_encoder"
    sub_configs_defaults = {"encoder_config": SubConfigSpec(AutoConfig, model_type="videomae")}

    # `__post_init__` turns it into a configuration.
    encoder_config: Any = None
    classifier_dropout: float | int = 0.0

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        if self.encoder_config.model_type == "videomae":
            self.encoder_config.use_mean_pooling = False

    @property
    def num_frames(self) -> int:
        """Frames of a clip."""
        return getattr(self.encoder_config, "frames_per_clip", None) or self.encoder_config.num_frames

    @property
    def image_size(self) -> Any:
        """Height and width of a frame, one number or two."""
        return getattr(self.encoder_config, "crop_size", None) or self.encoder_config.image_size

    @property
    def tubelet_size(self) -> int:
        """Frames of a token frame. TimeSformer has patches of single frames; others say height and width as well."""
        size = getattr(self.encoder_config, "tubelet_size", 1)
        return size if isinstance(size, int) else size[0]

    def validate_architecture(self):
        """Raise `ValueError` for values out of range, and for another encoder; `@strict` calls it."""
        check_limits(self, LIMITS)
        if self.encoder_config.model_type not in PREFIX_TOKENS:
            raise ValueError(
                f"`encoder_config` must be that of {', '.join(PREFIX_TOKENS)}, got {self.encoder_config.model_type!r}."
            )


__all__ = ["VideoEncoderConfig"]
