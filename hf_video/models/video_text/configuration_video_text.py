"""VideoTextDualEncoder model configuration."""

import math
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, BertConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from ..shared_configuration import CheckedConfigMixin, check_limits

LOSSES = ("vtc", "vtm", "mlm", "uta")
LIMITS = {
    "at least 1": ["projection_dim", "fusion_layer"],
    "at least 0": ["cls_token_id", "mask_token_id", "initializer_range"],
    "above 0": ["pool_norm_eps", "temperature"],
    "between 0 and 1": ["mlm_probability"],
    "in [0, 1)": ["video_mask_ratio", "image_mask_ratio"],
}

MaskType = Literal["attention", "random", "tube", "none"]


@strict
class VideoTextDualEncoderConfig(CheckedConfigMixin, PreTrainedConfig):
    r"""
    Configuration of the VideoTextDualEncoder family: the multimodal models of VideoMamba
    (https://arxiv.org/abs/2403.06977, after UMT, https://arxiv.org/abs/2303.16058) with any video encoder.

    Args:
        vision_config (`PreTrainedConfig` or `dict`, *optional*):
            The video encoder, [`VideoMambaConfig`] or [`VideoViTConfig`]; by default the former.
        text_config (`BertConfig` or `dict`, *optional*):
            The text encoder and, from the layer `fusion_layer` on, the fusion encoder.
        fusion_layer (`int`, defaults to 9):
            Index of the first fusion layer.
        projection_dim (`int`, defaults to 512):
            Width of the space in which videos and texts are compared.
        pooling (`"cls+avg"`, `"cls_cat_avg"`, `"avg"` or `"cls"`, defaults to `"cls+avg"`):
            Vectors of a video. `"avg"` is the mean over the patches, `"cls"` the class token, `"cls+avg"` their sum.
            `"cls_cat_avg"` keeps both, as two vectors; with `keep_temporal` it is `"cls+avg"`.
        keep_temporal (`bool`, defaults to `True`):
            Whether there is a vector for each frame, the mean over its patches. Under a mask there is one for the
            video, unless both mask types are `"tube"`.
        split_by_input_frames (`bool`, defaults to `False`):
            Whether `keep_temporal` splits the patches into as many parts as the input has frames, as the original
            does. By default it splits them into token frames. Both are the same if `tubelet_size` is 1.
        pool_norm_eps (`float`, defaults to 1e-5):
            Epsilon of the layer norm of the vectors.
        temperature (`float`, defaults to 0.07), temperature_bounds (`list[float]`, defaults to `[0.001, 0.5]`):
            Initial divisor of the cosines, which is learned; and its lowest and highest value, to which it is clamped
            whenever a loss is computed.
        use_mlm_head (`bool`, defaults to `True`):
            Whether there is a head that predicts masked words.
        use_alignment_heads (`bool`, defaults to `False`):
            Whether the video encoder has the heads of masked feature alignment. It then is
            [`VideoMambaForPreTraining`], whose configuration chooses the layers, the features and their loss.
        loss_weights (`dict[str, float]`, *optional*):
            Weights of the losses: `"vtc"` (contrast of videos and texts), `"vtm"` (matching), `"mlm"` (masked words)
            and `"uta"` (alignment with a teacher). A loss that is not named or has weight 0 is not computed. By
            default all have weight 1 for which the model has a head.
        vtm_hard_negatives (`bool`, defaults to `True`):
            Whether the negatives of matching are drawn in proportion to their similarity, otherwise uniformly.
        mlm_probability (`float`, defaults to 0.5):
            Probability that a token is to be predicted.
        cls_token_id (`int`, *optional*, defaults to 101), mask_token_id (`int`, *optional*, defaults to 103):
            Ids of the tokens `[CLS]`, which is never masked, and `[MASK]`.
        gather_negatives (`bool`, defaults to `True`):
            Whether the contrast is with the videos and texts of all processes. Matching stays within one process.
        original_gradient_scale (`bool`, defaults to `False`):
            Whether the gathered features of other processes get no gradient, as in the original. The encoders then
            get the true gradient divided by the number of processes.
        video_mask_type, image_mask_type (`"attention"`, `"random"`, `"tube"` or `"none"`, defaults to `"attention"`):
            How masks of videos, and of single images, are drawn if there is a teacher.
        video_mask_ratio (`float`, defaults to 0.8), image_mask_ratio (`float`, defaults to 0.5):
            Shares of patches that are hidden.
        align_images_only (`bool`, defaults to `False`):
            Whether only single images are aligned with the teacher. Videos are masked all the same.
        initializer_range (`float`, defaults to 0.02):
            Standard deviation of the normal initialisation.
        tie_word_embeddings (`bool`, defaults to `True`):
            Whether the head of masked words shares its weight with the word embeddings.

    Raises:
        ValueError: if a value is out of range, or values contradict each other. The message names them.
    """

    model_type = "video_text_dual_encoder"
    keys_to_ignore_at_inference = ["loss_dict"]
    sub_configs_defaults = {
        "vision_config": SubConfigSpec(AutoConfig, model_type="videomamba"),
        "text_config": BertConfig,
    }

    # `__post_init__` turns these two into configurations, and fills in what is `None`.
    vision_config: Any = None
    text_config: Any = None
    fusion_layer: int = 9
    projection_dim: int = 512
    pooling: Literal["cls+avg", "cls_cat_avg", "avg", "cls"] = "cls+avg"
    keep_temporal: bool = True
    split_by_input_frames: bool = False
    pool_norm_eps: float = 1e-5
    temperature: float | int = 0.07
    temperature_bounds: list[float | int] | tuple[float | int, float | int] | None = None
    use_mlm_head: bool = True
    use_alignment_heads: bool = False
    loss_weights: dict[str, float | int] | None = None
    vtm_hard_negatives: bool = True
    mlm_probability: float = 0.5
    cls_token_id: int | None = 101
    mask_token_id: int | None = 103
    gather_negatives: bool = True
    original_gradient_scale: bool = False
    video_mask_type: MaskType = "attention"
    image_mask_type: MaskType = "attention"
    video_mask_ratio: float = 0.8
    image_mask_ratio: float = 0.5
    align_images_only: bool = False
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs):
        if self.temperature_bounds is None:
            self.temperature_bounds = [0.001, 0.5]
        if self.loss_weights is None:
            self.loss_weights = {"vtc": 1.0, "vtm": 1.0}
            self.loss_weights |= {"mlm": float(self.use_mlm_head), "uta": float(self.use_alignment_heads)}
        super().__post_init__(**kwargs)

    @property
    def has_class_token(self) -> bool:
        """Whether the first token of the video encoder is a class token."""
        return getattr(self.vision_config, "use_class_token", True)

    def weight_of(self, loss: str) -> float:
        """The weight of one of the losses."""
        return (self.loss_weights or {}).get(loss, 0.0)

    def validate_architecture(self):
        """Raise `ValueError` for values that contradict each other; `@strict` calls it."""
        check_limits(self, LIMITS)
        num_layers = self.text_config.num_hidden_layers
        if self.fusion_layer >= num_layers:
            raise ValueError(f"`fusion_layer` must be below the {num_layers} layers of text, got {self.fusion_layer}.")
        low, high = self.temperature_bounds or (0, 0)
        if not 0 < low <= high < math.inf:
            raise ValueError(f"`temperature_bounds` must be (lowest, highest) above 0, got {self.temperature_bounds}.")
        if unknown := sorted(set(self.loss_weights or {}) - set(LOSSES)):
            raise ValueError(f"`loss_weights` must name some of {', '.join(LOSSES)}, got {', '.join(unknown)}.")
        for loss, part in (("mlm", "use_mlm_head"), ("uta", "use_alignment_heads")):
            if self.weight_of(loss) and not getattr(self, part):
                raise ValueError(f"`loss_weights` has a weight for {loss!r}: set `{part}=True`, or the weight to 0.")
        if self.pooling != "avg" and not self.has_class_token:
            raise ValueError(
                f'`pooling` {self.pooling!r} needs a class token, and there is none: set `pooling="avg"`.'
            )


__all__ = ["VideoTextDualEncoderConfig"]
