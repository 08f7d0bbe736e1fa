"""VideoMamba model configuration."""

import math
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig

from ..shared_configuration import (
    FRAME_LIMITS,
    CheckedConfigMixin,
    EncoderConfigMixin,
    FrameLabelsConfigMixin,
    check_limits,
    pair,
)

PRESETS = {
    "tiny": {"hidden_size": 192, "num_hidden_layers": 24},
    "small": {"hidden_size": 384, "num_hidden_layers": 24},
    "middle": {"hidden_size": 576, "num_hidden_layers": 32},
    "base": {"hidden_size": 768, "num_hidden_layers": 24},
}

LIMITS = {
    "at least 1": ["num_channels", "num_frames", "tubelet_size", "hidden_size", "state_size", "conv_kernel"]
    + ["time_step_rank", "projection_dim", "num_aligned_layers"],
    "at least 0": ["num_hidden_layers", "time_step_floor", "time_step_scale"],
    "above 0": ["expand", "layer_norm_eps", "initializer_range", "aligned_layer_interval"]
    + ["time_step_min", "time_step_max"],
    "in [0, 1)": ["hidden_dropout_prob", "drop_path_rate", "classifier_dropout"],
    "between 0 and 1": ["mask_ratio"],
}


@strict
class VideoMambaConfig(CheckedConfigMixin, FrameLabelsConfigMixin, EncoderConfigMixin, PreTrainedConfig):
    r"""
    Configuration of the VideoMamba family (https://arxiv.org/abs/2403.06977): a video is a sequence of patches, and
    bidirectional selective state spaces mix it at a cost that grows linearly with its length. The defaults are
    VideoMamba-Ti on 8 frames of 224 x 224 pixels; [`VideoMambaConfig.preset`] has all published sizes.

    `image_size`, `patch_size`, `num_channels`, `num_frames`, `tubelet_size`, `hidden_size`, `num_hidden_layers`,
    `hidden_act`, `hidden_dropout_prob`, `initializer_range` and `layer_norm_eps` are those of Transformers' VideoMAE;
    height and width may differ. `state_size`, `conv_kernel`, `expand`, `use_bias`, `use_conv_bias`,
    `residual_in_fp32`, `time_step_rank`, `time_step_min`, `time_step_max`, `time_step_floor` and `time_step_scale` are
    those of its Mamba; labels of frames have the fields of [`FrameLabelsConfigMixin`]. The others:

    Args:
        patch_stride (`int` or `(int, int)`, *optional*):
            Rows and columns of pixels from one patch to the next, by default `patch_size`. If it is smaller than
            `patch_size`, patches overlap.
        use_temporal_position_embeddings (`bool`, *optional*):
            Whether patches get a position in time. By default they do unless `num_frames` is 1.
        use_single_frame_position (`bool`, defaults to `True`):
            Whether the patches of a clip with one token frame get a position in time, that of the table resized to one
            row. The original's multimodal models give them none.
        time_step_init_scheme (`"zero_bias"`, `"random"` or `"constant"`, defaults to `"zero_bias"`):
            Initialisation of the projection to time steps. `"zero_bias"` is VideoMamba's: that of every other linear
            layer. The others are Mamba's, which the fields `time_step_*` describe.
        bidirectional (`bool`, defaults to `True`):
            Whether a second scan runs from the last token to the first. Without it the class token, which comes first,
            sees no pixels: then set `use_mean_pooling=True`.
        scan_order (`"spatial_first"`, `"temporal_first"` or `"spatiotemporal"`, defaults to `"spatial_first"`):
            Order in which the scans visit the patches after the class token. `"spatial_first"` goes frame by frame;
            all released weights have it. `"temporal_first"` goes place by place, through all frames of a place.
            `"spatiotemporal"`, the paper's v1, goes forward frame by frame and backward place by place. The last two
            are this library's reading of figure 4 of the paper: no original code or weights exist for them, nor for
            v2, which is left out.
        drop_path_rate (`float`, defaults to 0.0):
            Probability that the last block skips its residual branch in training (stochastic depth). From the first
            block on, where it is 0, it grows linearly.
        classifier_dropout (`float`, defaults to 0.0):
            Dropout before the classifier.
        norm_type (`"rms_norm"` or `"layer_norm"`, defaults to `"rms_norm"`):
            Normalisation before every mixer and after the last one.
        gradient_checkpointing_layers (`int` or `list[int]`, *optional*):
            Layers that are recomputed in the backward pass while gradient checkpointing is on: the first n, those with
            the given indices, or by default all. If the call that switches it on has `every_n_layers` above 1, that
            call chooses the layers.
        use_mean_pooling (`bool`, defaults to `False`):
            Whether the feature of a clip is the mean over its patch tokens. Otherwise it is the class token.
        use_pool_norm (`bool`, defaults to `False`):
            Whether [`VideoMambaModel`] returns a vector for each token frame: a layer norm of the class token plus the
            mean over the patches of the frame, as multimodal models compare it with text.
        projection_dim (`int`, defaults to 512):
            Width of the features that [`VideoMambaForPreTraining`] aligns with a teacher's.
        num_aligned_layers (`int`, defaults to 1), aligned_layer_interval (`int` or `float`, defaults to 1):
            Number of layers whose features are aligned, the last layer among them, and the distance between two of
            them. Distances from the last layer are rounded down to whole layers.
        last_aligned_feature (`"normalized"`, `"raw"` or `"unmixed"`, defaults to `"normalized"`):
            Which feature of the last layer is aligned. `"normalized"` is its output after the final norm, as with
            other layers. `"raw"` is its output before the norm, as in the original without fused norms. `"unmixed"` is
            its input, as in the original with fused norms, by which the released weights were trained. The mixer of
            the last layer then gets no gradient.
        normalize_features (`bool`, defaults to `True`):
            Whether the features of the model and of the teacher have unit length.
        alignment_loss (`"cosine"`, `"mse"` or `"smooth_l1"`, defaults to `"cosine"`):
            Loss of pre-training: 2 - 2 * cosine, or the PyTorch loss of that name between the features. Without
            `normalize_features` it must be one of PyTorch's.
        mask_ratio (`float`, defaults to 0.8):
            Share of patches that [`VideoMambaForPreTraining`] hides from the encoder if it draws the mask.
        out_features (`list[str]`, *optional*), out_indices (`list[int]`, *optional*):
            Stages (`"stem"`, `"stage1"`, ...) whose feature maps [`VideoMambaBackbone`] returns; by default the last.

    Raises:
        ValueError: for values that do not exist or contradict each other. The message names them.
    """

    model_type = "videomamba"
    keys_to_ignore_at_inference = ["state"]
    # A scan needs all of its inner channels, from which `x_proj` makes its B, C and time steps: each process runs the
    # scans in full, and the two large products by half.
    base_model_tp_plan = {
        "layers.*.mixer.in_proj": "colwise_gather_output",
        "layers.*.mixer.out_proj": "rowwise_split_input",
    }
    base_model_fsdp_plan = {"layers.*": "free_full_weight"}

    image_size: int | list[int] | tuple[int, int] = 224
    patch_size: int | list[int] | tuple[int, int] = 16
    patch_stride: int | list[int] | tuple[int, int] | None = None
    num_channels: int = 3
    num_frames: int = 8
    tubelet_size: int = 1
    use_temporal_position_embeddings: bool | None = None
    use_single_frame_position: bool = True
    hidden_size: int = 192
    num_hidden_layers: int = 24
    state_size: int = 16
    conv_kernel: int = 4
    expand: int | float = 2
    time_step_rank: int | Literal["auto"] = "auto"
    time_step_init_scheme: Literal["zero_bias", "random", "constant"] = "zero_bias"
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4
    time_step_scale: float | int = 1.0
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: str = "silu"
    bidirectional: bool = True
    scan_order: Literal["spatial_first", "temporal_first", "spatiotemporal"] = "spatial_first"
    hidden_dropout_prob: float | int = 0.0
    drop_path_rate: float | int = 0.0
    classifier_dropout: float | int = 0.0
    initializer_range: float = 0.02
    norm_type: Literal["rms_norm", "layer_norm"] = "rms_norm"
    layer_norm_eps: float = 1e-5
    residual_in_fp32: bool = True
    gradient_checkpointing_layers: int | list[int] | None = None
    use_mean_pooling: bool = False
    use_pool_norm: bool = False
    projection_dim: int = 512
    num_aligned_layers: int = 1
    aligned_layer_interval: int | float = 1
    last_aligned_feature: Literal["normalized", "raw", "unmixed"] = "normalized"
    normalize_features: bool = True
    alignment_loss: Literal["cosine", "mse", "smooth_l1"] = "cosine"
    mask_ratio: float = 0.8
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs):
        if self.use_temporal_position_embeddings is None:
            self.use_temporal_position_embeddings = self.num_frames > 1
        if self.time_step_rank == "auto":
            self.time_step_rank = math.ceil(self.hidden_size / 16)
        super().__post_init__(**kwargs)

    @classmethod
    def preset(cls, size: str, **kwargs: Any) -> "VideoMambaConfig":
        """
        The configuration of a published size.

        Args:
            size: `"tiny"`, `"small"`, `"middle"` or `"base"`.
            kwargs: other fields, such as `num_frames` and `num_labels`.

        Raises:
            ValueError: for another size.
        """
        if size not in PRESETS:
            raise ValueError(f"There is no VideoMamba of size {size!r}; choose one of {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[size], **kwargs})

    @property
    def intermediate_size(self) -> int:
        """Channels of a mixer."""
        return int(self.expand * self.hidden_size)

    @property
    def patch_steps(self) -> tuple[int, int, int]:
        """Frames, rows and columns of pixels from one patch to the next."""
        return (self.tubelet_size, *pair(self.patch_size if self.patch_stride is None else self.patch_stride))

    def token_grid_of(self, num_frames: int, height: int, width: int) -> tuple[int, int, int]:
        """Token grid (t, h, w) of `num_frames` frames of `height` x `width` pixels; what fills no patch is dropped."""
        sizes = zip((num_frames, height, width), self.patch_shape, self.patch_steps, strict=True)
        t, h, w = ((size - patch) // step + 1 for size, patch, step in sizes)
        return t, h, w

    @property
    def aligned_layers(self) -> list[int]:
        """Indices of the layers whose features [`VideoMambaForPreTraining`] aligns, in rising order."""
        last = self.num_hidden_layers - 1
        return sorted(last - int(i * self.aligned_layer_interval) for i in range(self.num_aligned_layers))

    def validate_architecture(self):
        """Part of the validation by `@strict`: raises `ValueError` for values that contradict each other."""
        check_limits(self, LIMITS, FRAME_LIMITS)
        self.check_encoder("image_size", "patch_size", "patch_stride")
        if self.intermediate_size < 1:
            raise ValueError(
                f"`intermediate_size` must be at least 1, got {self.intermediate_size}: it is `expand` "
                f"({self.expand}) times `hidden_size` ({self.hidden_size})."
            )
        if self.scan_order == "spatiotemporal" and not self.bidirectional:
            raise ValueError("`scan_order='spatiotemporal'` is one order a direction: it needs `bidirectional=True`.")
        if self.time_step_min > self.time_step_max:
            raise ValueError(
                f"`time_step_min` must be not above `time_step_max`, got {self.time_step_min}, {self.time_step_max}."
            )
        if self.alignment_loss == "cosine" and not self.normalize_features:
            raise ValueError(
                "`alignment_loss='cosine'` needs features of unit length: set `normalize_features=True`, or "
                '`alignment_loss` to "mse" or "smooth_l1".'
            )
        layers = self.aligned_layers
        if self.num_hidden_layers and (layers[0] < 0 or len(set(layers)) < len(layers)):
            raise ValueError(
                f"{self.num_aligned_layers} aligned layers, {self.aligned_layer_interval} apart, are the layers "
                f"{layers} of {self.num_hidden_layers}: change `num_aligned_layers` or `aligned_layer_interval`."
            )


__all__ = ["VideoMambaConfig"]
