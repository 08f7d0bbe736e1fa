"""VideoViT model configuration."""

import copy
import math
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from ..shared_configuration import (
    FRAME_LIMITS,
    CheckedConfigMixin,
    EncoderConfigMixin,
    FrameLabelsConfigMixin,
    check_limits,
)

LIMITS = {
    "at least 1": ["num_channels", "num_frames", "tubelet_size", "hidden_size", "num_attention_heads", "head_dim"]
    + ["intermediate_size", "pooler_num_attention_heads", "pooler_num_clips", "rope_grid_size"],
    "at least 0": ["num_hidden_layers", "pooler_num_hidden_layers", "classifier_init_scale", "layer_scale_init_value"],
    "above 0": ["initializer_range", "layer_norm_eps", "head_norm_eps", "qk_scale", "rope_theta"],
    "in [0, 1)": ["hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate", "classifier_dropout"],
    "between 0 and 1": ["mask_ratio"],
}


@strict
class VideoViTConfig(CheckedConfigMixin, FrameLabelsConfigMixin, EncoderConfigMixin, PreTrainedConfig):
    r"""
    Configuration of the VideoViT family: the video vision transformers of VideoMAE (https://arxiv.org/abs/2203.12602),
    VideoMAE V2 (https://arxiv.org/abs/2303.16727), STMixer (https://arxiv.org/abs/2303.15879) and V-JEPA 2
    (https://arxiv.org/abs/2506.09985). The defaults are VideoMAE ViT-B on 16 frames of 224 x 224 pixels.

    Fields that are not described here are those of Transformers' `VideoMAEConfig`, and for labels of frames those of
    [`FrameLabelsConfigMixin`]. Inputs may have another size than `image_size` and `num_frames`, of which the
    positions are.

    Args:
        image_size, patch_size (`int` or `(int, int)`, default to 224 and 16):
            Height and width in pixels.
        head_dim (`int`, *optional*):
            Width of a head; by default `hidden_size // num_attention_heads`.
        drop_path_rate (`float`, defaults to 0.0):
            Probability that the last block skips a residual branch in training (stochastic depth). From the first
            block on, where it is 0, it grows linearly.
        classifier_dropout (`float`, defaults to 0.0):
            Dropout before the classifier.
        initializer_range (`float`, defaults to 0.02):
            Standard deviation of the truncated normal initialisation.
        weight_init (`"trunc_normal"` or `"xavier_uniform"`, defaults to `"trunc_normal"`):
            Distribution of the initial weights of linear layers in [`VideoViTForPreTraining`]. VideoMAE pre-trains
            with the latter (Glorot and Bengio, 2010), but for the patches and the layer between encoder and decoder,
            which begin as PyTorch makes them. All other models use the former.
        classifier_init_scale (`float`, defaults to 1.0):
            Factor on the initial weights of the classifier; VideoMAE fine-tunes with 0.001.
        norm_type (`"layer_norm"` or `"rms_norm"`, defaults to `"layer_norm"`):
            Type of all norms. Each normalises the channels of one token.
        layer_norm_eps (`float`, defaults to 1e-6):
            Epsilon of the norms.
        head_norm_eps (`float`, *optional*):
            Epsilon of the norms next to a head (`fc_norm` and the decoder's); by default `layer_norm_eps`.
        qkv_bias (`bool`, defaults to `True`):
            Whether queries and values have a bias.
        key_bias (`bool`, defaults to `False`):
            Whether keys have a bias. It matters only with `use_qk_norm`, `use_cosine_attention` or RoPE. In plain
            attention it adds the same number to all scores of a query, which the softmax ignores.
        qk_scale (`float`, *optional*):
            Factor on the attention scores; by default `head_dim ** -0.5`.
        use_qk_norm (`bool`, defaults to `False`):
            Whether queries and keys are normalised per head, before RoPE, with the epsilon `layer_norm_eps`.
        use_cosine_attention (`bool`, defaults to `False`):
            Whether attention scores are cosines times a learned scale per head, an option of VideoMAE V2.
        layer_scale_init_value (`float`, defaults to 0.0):
            Initial value of layer scale, a learned factor per channel on each residual branch. 0 means no layer scale.
        position_embedding_type (`"sinusoidal"`, `"learned"`, `"rope"` or `"none"`, defaults to `"sinusoidal"`):
            `"sinusoidal"` and `"learned"` add a table with a row per token; the sines are those of the token's number
            in the sequence. `"rope"` rotates queries and keys by the token's coordinates (time, row, column).
        position_embedding_resize (`"interpolate"`, `"rebuild"` or `"token_count"`, defaults to `"interpolate"`):
            How the table is resized for an input of another size. `"interpolate"` is bicubic in each token frame, then
            linear over time. `"rebuild"` makes a sinusoidal table for the other number of tokens (VideoMAE).
            `"token_count"` is bicubic over space, and only if the total number of tokens differs (STMixer).
        position_embedding_grid (`(int, int, int)`, *optional*):
            Token grid (t, h, w) that the sinusoidal table is built for, before it is resized to the configured input
            size; by default the grid of that size.
        detach_position_embeddings (`bool`, defaults to `False`):
            Whether learned positions are not trained, as in the originals. In a model that is trained from scratch
            they keep their random initial values.
        rope_theta (`float`, defaults to 100.0):
            Base of the RoPE frequencies.
        rope_layout (`"axial"`, `"vjepa2"` or `"vjepa2_1"`, defaults to `"axial"`):
            How the channels of a head are shared out among time, rows and columns. With `"axial"` all are rotated; in
            V-JEPA 2 the axes have equal shares and the rest is not rotated. `"vjepa2"` gives the two channels of a
            pair different frequencies, as this model was trained; `"vjepa2_1"` rotates.
        rope_grid_size (`int`, *optional*):
            Rows and columns of any input are numbered from 0 to `rope_grid_size - 1` (V-JEPA 2.1); by default by 1.
        use_modality_embeddings (`bool`, defaults to `False`):
            Whether a learned vector is added to all tokens of a video, and another one to those of an image.
        use_image_patch_embeddings (`bool`, defaults to `False`):
            Whether an input of one frame has a patch embedding of its own (V-JEPA 2.1).
        intermediate_norm_layers (`list[int]`, *optional*):
            Layers, counted from 0, after which [`VideoViTBackbone`] has norms of their own.
        pooler_type (`"attentive"`, *optional*):
            What makes the feature of a clip in place of `use_mean_pooling`: `"attentive"` is V-JEPA 2's pooler, whose
            learned query attends to the tokens after the final norm.
        pooler_num_hidden_layers, pooler_num_attention_heads (`int`, default to 3 and 16):
            Layers of the pooler before its query attends, and its heads. Its MLPs are four times as wide as a token.
        pooler_out_layers (`list[int]`, *optional*):
            Layers, counted from 0, whose tokens the pooler reads, one after the other; by default those of the last.
        pooler_num_clips (`int`, defaults to 1):
            Clips of a view whose tokens the pooler reads, one after the other, if a video has several views. So the
            pooler joins the clips, and the mean of probabilities is over the crops.
        use_class_token (`bool`, defaults to `False`):
            Whether a class token leads the sequence.
        use_mean_pooling (`bool`, defaults to `True`):
            Whether the feature of a clip is the mean over its patch tokens followed by `fc_norm`. Otherwise it is the
            first token of the normalised sequence.
        use_final_norm (`bool`, *optional*):
            Whether tokens are normalised after the last block. By default it is the opposite of `use_mean_pooling`,
            and [`VideoViTForPreTraining`], [`VideoViTForFrameClassification`] and [`VideoViTBackbone`] set it to
            `True` in their configuration. In a classifier of clips that is made from a pre-training checkpoint,
            `use_mean_pooling` decides, as in VideoMAE.
        mask_ratio (`float`, defaults to 0.9):
            Share of patches that [`VideoViTForPreTraining`] hides from the encoder if it draws the mask.
        image_mean, image_std (`list[float]`, default to ImageNet's):
            Normalisation of the input. Pre-training undoes it to make the reconstruction target.
        gradient_checkpointing_layers (`int` or `list[int]`, *optional*):
            Layers that are recomputed in the backward pass while gradient checkpointing is on: the first n, those with
            the given indices, or by default all. If the call that switches it on has `every_n_layers` above 1, that
            call chooses the layers. All layers of the pre-training decoder are recomputed: it has the most tokens.
        out_features (`list[str]`, *optional*), out_indices (`list[int]`, *optional*):
            Stages (`"stem"`, `"stage1"`, ...) whose feature maps [`VideoViTBackbone`] returns; by default the last.

    Raises:
        ValueError: for values that do not exist or contradict each other. The message names them.
    """

    model_type = "videovit"
    base_model_tp_plan = {
        "layers.*.attention.query": "colwise",
        "layers.*.attention.key": "colwise",
        "layers.*.attention.value": "colwise",
        "layers.*.attention.q_norm": "replicated_with_grad_allreduce",
        "layers.*.attention.k_norm": "replicated_with_grad_allreduce",
        "layers.*.attention.o_proj": "rowwise",
        "layers.*.mlp.fc1": "colwise",
        "layers.*.mlp.fc2": "rowwise",
    }
    base_model_fsdp_plan = {"embeddings": "free_full_weight", "layers.*": "free_full_weight"}

    image_size: int | list[int] | tuple[int, int] = 224
    patch_size: int | list[int] | tuple[int, int] = 16
    num_channels: int = 3
    num_frames: int = 16
    tubelet_size: int = 2
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    head_dim: int | None = None
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    drop_path_rate: float | int = 0.0
    classifier_dropout: float | int = 0.0
    initializer_range: float = 0.02
    weight_init: Literal["trunc_normal", "xavier_uniform"] = "trunc_normal"
    classifier_init_scale: float | int = 1.0
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    layer_norm_eps: float = 1e-6
    head_norm_eps: float | None = None
    qkv_bias: bool = True
    key_bias: bool = False
    qk_scale: float | int | None = None
    use_qk_norm: bool = False
    use_cosine_attention: bool = False
    layer_scale_init_value: float | int = 0.0
    position_embedding_type: Literal["sinusoidal", "learned", "rope", "none"] = "sinusoidal"
    position_embedding_resize: Literal["interpolate", "rebuild", "token_count"] = "interpolate"
    position_embedding_grid: list[int] | tuple[int, int, int] | None = None
    detach_position_embeddings: bool = False
    rope_theta: float | int = 100.0
    rope_layout: Literal["axial", "vjepa2", "vjepa2_1"] = "axial"
    rope_grid_size: int | None = None
    use_modality_embeddings: bool = False
    use_image_patch_embeddings: bool = False
    intermediate_norm_layers: list[int] | tuple[int, ...] = ()
    pooler_type: Literal["attentive"] | None = None
    pooler_num_hidden_layers: int = 3
    pooler_num_attention_heads: int = 16
    pooler_out_layers: list[int] | tuple[int, ...] | None = None
    pooler_num_clips: int = 1
    use_class_token: bool = False
    use_mean_pooling: bool = True
    use_final_norm: bool | None = None
    decoder_hidden_size: int = 384
    decoder_num_hidden_layers: int = 4
    decoder_num_attention_heads: int = 6
    decoder_intermediate_size: int = 1536
    mask_ratio: float = 0.9
    norm_pix_loss: bool = True
    image_mean: list[float] | tuple[float, ...] = tuple(IMAGENET_DEFAULT_MEAN)
    image_std: list[float] | tuple[float, ...] = tuple(IMAGENET_DEFAULT_STD)
    gradient_checkpointing_layers: int | list[int] | None = None
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs):
        if self.head_dim is None:
            self.head_dim = self.width_of_a_head("hidden_size", "num_attention_heads")
        super().__post_init__(**kwargs)

    def token_grid_of(self, num_frames: int, height: int, width: int) -> tuple[int, int, int]:
        """Token grid (t, h, w) of `num_frames` frames of `height` x `width` pixels. It holds whole patches alone."""
        t, h, w = (size // patch for size, patch in zip((num_frames, height, width), self.patch_shape, strict=True))
        return 1 if num_frames == 1 and self.use_image_patch_embeddings else t, h, w

    def with_final_norm(self) -> "VideoViTConfig":
        """This configuration if it sets `use_final_norm`; otherwise a copy that does, as models may share this one."""
        if self.use_final_norm is not None:
            return self
        config = copy.deepcopy(self)
        config.use_final_norm = True
        return config

    def width_of_a_head(self, size_name: str, heads_name: str) -> int:
        """The channels of a head, by the fields that have their sum and the number of heads."""
        size, heads = getattr(self, size_name), getattr(self, heads_name)
        if heads < 1 or size % heads:
            raise ValueError(f"`{size_name}` ({size}) must be a multiple of `{heads_name}` ({heads}).")
        return size // heads

    def validate_architecture(self):
        """Raise `ValueError` for values that contradict each other; `@strict` calls it."""
        check_limits(self, LIMITS, FRAME_LIMITS)
        self.check_encoder("image_size", "patch_size")
        if self.qk_scale is not None and self.use_cosine_attention:
            raise ValueError("`qk_scale` has no meaning with `use_cosine_attention`: leave one of them out.")
        if self.position_embedding_type == "rope" and self.head_dim not in range(6, 1 << 16, 2):
            raise ValueError(f"RoPE over three axes needs an even `head_dim` of at least 6, got {self.head_dim}.")
        if self.pooler_type is not None:
            self.width_of_a_head("hidden_size", "pooler_num_attention_heads")
        for name in ("intermediate_norm_layers", "pooler_out_layers"):
            if not set(getattr(self, name) or ()) <= set(range(self.num_hidden_layers)):
                raise ValueError(
                    f"`{name}` must be indices of the {self.num_hidden_layers} layers, got {getattr(self, name)}."
                )
        if self.position_embedding_resize == "rebuild" and self.position_embedding_type == "learned":
            raise ValueError('Learned positions cannot be rebuilt: set `position_embedding_resize="interpolate"`.')
        grid = self.position_embedding_grid
        if grid is not None and (len(grid) != 3 or min(grid) < 1):
            raise ValueError(f"`position_embedding_grid` must be (t, h, w), got {self.position_embedding_grid}.")
        kinds = (self.position_embedding_type, self.position_embedding_resize)
        over_space = grid is None or grid[0] == self.token_grid[0] or math.prod(grid) == math.prod(self.token_grid)
        if kinds == ("sinusoidal", "token_count") and not over_space:
            raise ValueError(
                f"`position_embedding_grid` {grid} must have {self.token_grid[0]} token frames, as the input has: "
                '`position_embedding_resize="token_count"` resizes over space only.'
            )


__all__ = ["VideoViTConfig"]
