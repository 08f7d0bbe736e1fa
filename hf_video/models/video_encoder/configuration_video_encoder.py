"""VideoEncoder model configuration."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..shared_configuration import CheckedConfigMixin, check_limits

# The encoders of Transformers, and how many tokens precede those of the patches.
PREFIX_TOKENS = {"videomae": 0, "timesformer": 1, "vivit": 1, "vjepa2": 0, "videoprism_vision_model": 0}
LIMITS = {
    "at least 0": ["smoothing_loss_weight", "frame_delay", "point_width"],
    "in [0, 1)": ["classifier_dropout"],
}


@strict
class VideoEncoderConfig(CheckedConfigMixin, PreTrainedConfig):
    r"""
    Configuration of [`VideoEncoderForFrameClassification`], which is made around a video encoder of Transformers.

    Args:
        encoder_config (`PreTrainedConfig` or `dict`, *optional*):
            The encoder: VideoMAE (the default), TimeSformer, ViViT, V-JEPA 2 or VideoPrism. A VideoMAE always has its
            final norm (`use_mean_pooling=False`).
        classifier_dropout (`float`, defaults to 0.0):
            Dropout before the classifier.
        frame_pooling (`"mean"` or `"last"`, defaults to `"mean"`):
            Which feature is classified: the mean of a frame's patches, or the last.
        smoothing_loss_weight (`float`, defaults to 0.0):
            Weight of the loss by which neighbouring frames get similar log-probabilities; MS-TCN has 0.15.
        frame_delay (`int`, defaults to 0):
            Token frames by which the logits are late: those of a frame are for the one `frame_delay` before it.
        background_label (`str`, *optional*):
            Class of frames in which nothing happens: a run of them is no segment.
        point_labels (`list[str]`, *optional*):
            Classes of instants, such as a whistle: a run of their frames is no segment, but has one instant.
        point_width (`float`, *optional*):
            Seconds around an instant that were labelled with its class.

    Raises:
        ValueError: if a value is out of range, or the encoder is another one. The message names it.
    """

    model_type = "video_encoder"
    sub_configs_defaults = {"encoder_config": SubConfigSpec(AutoConfig, model_type="videomae")}

    # `__post_init__` turns it into a configuration.
    encoder_config: Any = None
    classifier_dropout: float | int = 0.0
    frame_pooling: Literal["mean", "last"] = "mean"
    smoothing_loss_weight: float | int = 0.0
    frame_delay: int = 0
    background_label: str | None = None
    point_labels: list[str] | None = None
    point_width: float | int | None = None

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
