"""PyTorch VideoViT: the video vision transformer of VideoMAE, VideoMAE V2, STMixer and V-JEPA 2."""

import copy
import math
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.videomae.modeling_videomae import eager_attention_forward
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..shared_video import (
    ImageClassifierMixin,
    LayeredPreTrainedModel,
    VideoClassifierMixin,
    VideoDropPath,
    check_frame_mask,
    mask_of_tokens,
    sinusoidal_positions,
    take_tokens,
    token_grid,
    visible_places,
)
from .configuration_videovit import VideoViTConfig

TokenGrid = tuple[int, int, int]
RotaryEmbedding = tuple[torch.Tensor, torch.Tensor]
Interpolation = bool | Literal["space"]


def patchify(pixel_values: torch.Tensor, patch_shape: tuple[int, int, int], axes: str) -> torch.Tensor:
    """
    Cut videos into patches. Frames and pixels that fill no patch are dropped.

    Args:
        pixel_values: `(batch_size, num_frames, num_channels, height, width)`.
        patch_shape: frames, rows and columns of a patch.
        axes: the axes of the result for `einops.rearrange`: batch `b`, token grid `t h w`, patch `dt dh dw` and
            channels `c`.

    Returns:
        The same values with these axes.
    """
    for dim, size in zip((1, 3, 4), patch_shape, strict=True):
        pixel_values = pixel_values.narrow(dim, 0, pixel_values.shape[dim] // size * size)
    dt, dh, dw = patch_shape
    return rearrange(pixel_values, f"b (t dt) c (h dh) (w dw) -> {axes}", dt=dt, dh=dh, dw=dw)


class VideoViTPatchEmbeddings(nn.Module):
    """
    Turns patches into tokens by one linear layer. It computes what the original's `Conv3d` does, whose stride is its
    kernel's size.
    """

    def __init__(self, config: VideoViTConfig, tubelet_size: int | None = None):
        super().__init__()
        self.config = config
        self.patch_shape = (tubelet_size or config.tubelet_size, *config.patch_shape[1:])
        self.projection = nn.Linear(config.num_channels * math.prod(self.patch_shape), config.hidden_size)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Tokens `(batch_size, t * h * w, hidden_size)`."""
        token_grid(pixel_values, self.config)  # raises for a shape or dtype that does not fit
        return self.projection(patchify(pixel_values, self.patch_shape, "b (t h w) (c dt dh dw)"))


class VideoViTEmbeddings(nn.Module):
    """Turns patches into tokens, adds the table of positions if there is one, and puts a class token in front."""

    def __init__(self, config: VideoViTConfig):
        super().__init__()
        self.config = config
        self.patch_embeddings = VideoViTPatchEmbeddings(config)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size)) if config.use_class_token else None
        self.image_patch_embeddings = self.video_embedding = self.image_embedding = None
        if config.use_image_patch_embeddings:
            self.image_patch_embeddings = VideoViTPatchEmbeddings(config, tubelet_size=1)
        if config.use_modality_embeddings:
            self.video_embedding = nn.Parameter(torch.empty(1, 1, config.hidden_size))
            self.image_embedding = nn.Parameter(torch.empty(1, 1, config.hidden_size))
        self.position_embeddings = None
        if config.position_embedding_type in ("sinusoidal", "learned"):
            learned = config.position_embedding_type == "learned"
            self.position_embeddings = VideoViTPositionEmbeddings(config, config.hidden_size, learned)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        pixel_values: torch.Tensor,
        places: torch.Tensor | None = None,
        interpolate_pos_encoding: Interpolation = True,
    ) -> torch.Tensor:
        """Tokens of all patches, or of those with the numbers `places` `(batch_size, num_visible)`."""
        is_image = self.image_patch_embeddings is not None and pixel_values.shape[1] == 1
        patch_embeddings = cast(nn.Module, self.image_patch_embeddings) if is_image else self.patch_embeddings
        tokens = patch_embeddings(pixel_values)
        if self.video_embedding is not None:
            tokens = tokens + (self.image_embedding if is_image else self.video_embedding)
        prefix = tokens[:1, :0] if self.cls_token is None else self.cls_token
        if self.position_embeddings is not None:
            grid = token_grid(pixel_values, self.config)
            positions = self.position_embeddings(grid, interpolate_pos_encoding).to(tokens)
            num_prefix_tokens = self.position_embeddings.num_prefix_tokens
            tokens = tokens + positions[:, num_prefix_tokens:]
            if num_prefix_tokens:
                prefix = prefix + positions[:, :num_prefix_tokens]
        if places is not None:
            tokens = take_tokens(tokens, places)
        if self.cls_token is not None:
            tokens = put_in_front(prefix.to(tokens), tokens)
        return self.dropout(tokens)


def put_in_front(prefix: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
    """Put the same tokens `(1, num_prefix_tokens, channels)` in front of every clip's."""
    # `len` would be a fixed number in an exported program.
    return torch.cat([prefix.expand(patches.shape[0], -1, -1), patches], dim=1)


def resize_positions(positions: torch.Tensor, old_grid: TokenGrid, new_grid: TokenGrid) -> torch.Tensor:
    """
    Resize a table of positions `(1, t * h * w, hidden_size)` from one token grid to another: every temporal slice by
    bicubic interpolation (without antialiasing, corners not aligned), then linearly over time.
    """
    dtype = torch.promote_types(positions.dtype, torch.float32)
    table = rearrange(positions.to(dtype), "1 (t h w) c -> t c h w", t=old_grid[0], h=old_grid[1])
    if new_grid[1:] != old_grid[1:]:
        table = F.interpolate(table, size=new_grid[1:], mode="bicubic", align_corners=False)
    if new_grid[0] != old_grid[0]:
        table = F.interpolate(rearrange(table, "t c h w -> (h w) c t"), size=new_grid[0], mode="linear")
        table = rearrange(table, "(h w) c t -> t c h w", h=new_grid[1])
    return rearrange(table, "t c h w -> 1 (t h w) c").to(positions.dtype)


class VideoViTPositionEmbeddings(nn.Module):
    """
    A table with one row per token, which is added to the tokens. A learned table is a parameter; it also has a row for
    the class token. A sinusoidal table is a float32 buffer that is not saved: the configuration tells how to build it.
    """

    def __init__(self, config: VideoViTConfig, hidden_size: int, learned: bool):
        super().__init__()
        self.config = config
        self.hidden_size = hidden_size
        self.num_prefix_tokens = int(learned and config.use_class_token)
        self.grid = config.token_grid
        if learned:
            num_positions = self.num_prefix_tokens + math.prod(self.grid)
            self.weight = nn.Parameter(torch.empty(1, num_positions, hidden_size))
        else:
            self.register_buffer("weight", self.sinusoidal_table(), persistent=False)

    def sinusoidal_table(self) -> torch.Tensor:
        """The table for the configured input size, resized from `position_embedding_grid` if it is set."""
        t, h, w = self.config.position_embedding_grid or self.grid
        table = sinusoidal_positions(t * h * w, self.hidden_size)
        return self.resize(table, (t, h, w), self.grid)

    def forward(self, grid: TokenGrid, interpolate_pos_encoding: Interpolation = True) -> torch.Tensor:
        """Positions `(1, num_prefix_tokens + t * h * w, hidden_size)` for a token grid; see `resize`."""
        # A sinusoidal table is resized in float32 whatever the model's dtype, as the originals do.
        table: torch.Tensor = self.weight
        if not isinstance(table, nn.Parameter):
            table = table.float()
        elif self.config.detach_position_embeddings:
            table = table.detach()
        if grid != self.grid and not interpolate_pos_encoding:
            raise ValueError(
                f"The input has a token grid (t, h, w) of {grid}, the positions one of {self.grid}: pass "
                f"`interpolate_pos_encoding=True`, resize the input, or call `set_input_size`."
            )
        if interpolate_pos_encoding != "space":
            return self.resize(table, self.grid, grid)
        if grid[0] > self.grid[0]:
            raise ValueError(
                f"The input has {grid[0]} token frames, but there are positions for {self.grid[0]}, which are not "
                "interpolated over time: pass fewer frames, or call `set_input_size(num_frames=...)`."
            )
        table = self.resize(table, self.grid, (self.grid[0], *grid[1:]))
        return table[:, : self.num_prefix_tokens + math.prod(grid)]

    def resize(self, table: torch.Tensor, old_grid: TokenGrid, new_grid: TokenGrid) -> torch.Tensor:
        """Turn a table for one token grid into one for another, as `position_embedding_resize` says."""
        mode = self.config.position_embedding_resize
        if new_grid == old_grid or (mode == "token_count" and math.prod(new_grid) == math.prod(old_grid)):
            return table
        if mode == "rebuild":
            return sinusoidal_positions(math.prod(new_grid), self.hidden_size).to(table)
        if mode == "token_count" and new_grid[0] != old_grid[0]:
            raise ValueError(
                f"This model resizes positions over space only (position_embedding_resize='token_count'): the input "
                f"has {new_grid[0]} token frames, expected {old_grid[0]}."
            )
        prefix, positions = table.split([self.num_prefix_tokens, math.prod(old_grid)], dim=1)
        return torch.cat([prefix, resize_positions(positions, old_grid, new_grid)], dim=1)

    @torch.no_grad()
    def set_grid(self, grid: TokenGrid) -> None:
        """Resize the table to the token grid of a configuration that has just changed."""
        if isinstance(self.weight, nn.Parameter):
            table = self.resize(self.weight, self.grid, grid).clone()
            self.grid, self.weight = grid, nn.Parameter(table, requires_grad=self.weight.requires_grad)
        else:
            self.grid = grid
            self.weight = self.sinusoidal_table().to(self.weight.device)


class VideoViTRotaryEmbedding(nn.Module):
    """
    Axial rotary positions. Time, rows and columns each have a share of a head's channels, which are rotated by the
    token's coordinate along that axis (RoFormer, https://arxiv.org/abs/2104.09864, along three axes).

    With `rope_layout="vjepa2"` the two channels of a pair have different frequencies, as V-JEPA 2 was trained
    (facebookresearch/vjepa2, `src/models/utils/modules.py`, `rotate_queries_or_keys`).
    """

    def __init__(self, config: VideoViTConfig, head_dim: int):
        super().__init__()
        self.config = config
        self.pairs = head_dim // 2
        share = self.pairs // 3 if config.rope_layout == "axial" else head_dim // 3 // 2
        # Further pairs are of time, or not rotated.
        self.pairs_of_axis = (self.pairs - 2 * share if config.rope_layout == "axial" else share, share, share)

    @torch.no_grad()
    def forward(self, grid: TokenGrid, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Angles in radians of all channels of a head, `(1, t * h * w, head_dim)`, of a dtype."""
        axes = [torch.arange(size, device=device, dtype=dtype) for size in grid]
        if (largest := self.config.rope_grid_size) is not None:
            axes[1:] = [axis * ((largest - 1) / max(len(axis) - 1, 1)) for axis in axes[1:]]
        angles: tuple[list[torch.Tensor], ...] = ([], [])
        for positions, pairs in zip(torch.meshgrid(*axes, indexing="ij"), self.pairs_of_axis, strict=True):
            frequencies = self.config.rope_theta ** -(torch.arange(pairs, device=device, dtype=dtype) / pairs)
            of_halves = (frequencies, frequencies)
            if self.config.rope_layout == "vjepa2":
                of_halves = frequencies.repeat(2).unflatten(0, (-1, 2)).unbind(dim=1)
            for half, each in zip(angles, of_halves, strict=True):
                half.append(positions.flatten()[:, None] * each)
        rest = self.pairs - sum(self.pairs_of_axis)
        return torch.cat([F.pad(torch.cat(half, dim=-1), (0, rest)) for half in angles], dim=-1)[None]


def rotate(states: torch.Tensor, rotary: RotaryEmbedding) -> torch.Tensor:
    """Rotate the channel pairs (i, i + head_dim / 2) of `(batch_size, heads, sequence_length, head_dim)`."""
    (first_cos, second_cos), (first_sin, second_sin) = (each.chunk(2, dim=-1) for each in rotary)
    first, second = states.to(torch.promote_types(states.dtype, torch.float32)).chunk(2, dim=-1)
    rotated = [first * first_cos - second * first_sin, second * second_cos + first * second_sin]
    return torch.cat(rotated, dim=-1).to(states.dtype)


def make_norm(config: VideoViTConfig, size: int, eps: float | None = None) -> nn.Module:
    """A norm over `size` channels, of the configured type."""
    norm = nn.LayerNorm if config.norm_type == "layer_norm" else nn.RMSNorm
    return norm(size, eps=config.layer_norm_eps if eps is None else eps)


class VideoViTAttention(nn.Module):
    """
    Multi-head self-attention, with the names of VideoMAE in Transformers. The attention mask is for padding.

    In cosine attention (VideoMAE V2) scores are cosines of queries and keys times `exp(min(logit_scale, 4.6052))`.
    """

    def __init__(self, config: VideoViTConfig, hidden_size: int, num_attention_heads: int, head_dim: int):
        super().__init__()
        self.config = config
        self.head_dim = head_dim
        scaling = head_dim**-0.5 if config.qk_scale is None else config.qk_scale
        self.scaling = 1.0 if config.use_cosine_attention else scaling
        self.is_causal = False
        # The original keeps its zeros for the keys out of training: a layer without bias has the same gradients.
        self.query = nn.Linear(hidden_size, num_attention_heads * head_dim, bias=config.qkv_bias)
        self.key = nn.Linear(hidden_size, num_attention_heads * head_dim, bias=config.key_bias)
        self.value = nn.Linear(hidden_size, num_attention_heads * head_dim, bias=config.qkv_bias)
        self.q_norm = make_norm(config, head_dim) if config.use_qk_norm else nn.Identity()
        self.k_norm = make_norm(config, head_dim) if config.use_qk_norm else nn.Identity()
        self.logit_scale = None
        if config.use_cosine_attention:
            self.logit_scale = nn.Parameter(torch.empty(num_attention_heads, 1, 1))
        self.o_proj = nn.Linear(num_attention_heads * head_dim, hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotary: RotaryEmbedding | None = None,
        attention_mask: Any = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.query(hidden_states).view(shape).transpose(1, 2))
        key = self.k_norm(self.key(hidden_states).view(shape).transpose(1, 2))
        value = self.value(hidden_states).view(shape).transpose(1, 2)
        if self.logit_scale is not None:
            query = F.normalize(query, dim=-1) * self.logit_scale.clamp(max=4.6052).exp().to(query.dtype)
            key = F.normalize(key, dim=-1)
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)

        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        kwargs |= {"dropout": dropout, "scaling": self.scaling}
        context, weights = attention_interface(self, query, key, value, attention_mask, **kwargs)
        return self.o_proj(context.flatten(2)), weights


class VideoViTMLP(nn.Module):
    def __init__(self, config: VideoViTConfig, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, intermediate_size)
        self.activation_fn = ACT2FN[config.hidden_act]
        self.fc2 = nn.Linear(intermediate_size, hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.activation_fn(self.fc1(hidden_states)))


class VideoViTLayer(GradientCheckpointingLayer):
    """Pre-norm transformer block. If the configuration has layer scale, both residual branches are scaled."""

    def __init__(
        self,
        config: VideoViTConfig,
        hidden_size: int,
        num_attention_heads: int,
        head_dim: int,
        intermediate_size: int,
        drop_path_rate: float = 0.0,
        eps: float | None = None,
    ):
        super().__init__()
        self.layernorm_before = make_norm(config, hidden_size, eps)
        self.attention = VideoViTAttention(config, hidden_size, num_attention_heads, head_dim)
        self.layernorm_after = make_norm(config, hidden_size, eps)
        self.mlp = VideoViTMLP(config, hidden_size, intermediate_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.drop_path = VideoDropPath(drop_path_rate)
        self.layer_scale1 = self.layer_scale2 = None
        if config.layer_scale_init_value > 0:
            self.layer_scale1 = nn.Parameter(torch.empty(hidden_size))
            self.layer_scale2 = nn.Parameter(torch.empty(hidden_size))

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotary: RotaryEmbedding | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        branch, _ = self.attention(self.layernorm_before(hidden_states), rotary, **kwargs)
        hidden_states = hidden_states + self.finish_branch(branch, self.layer_scale1)
        branch = self.mlp(self.layernorm_after(hidden_states))
        return hidden_states + self.finish_branch(branch, self.layer_scale2)

    def finish_branch(self, branch: torch.Tensor, layer_scale: torch.Tensor | None) -> torch.Tensor:
        branch = self.dropout(branch)
        return self.drop_path(branch if layer_scale is None else branch * layer_scale)


def make_layers(config: VideoViTConfig, num_layers: int, **sizes: int) -> nn.ModuleList:
    """A list of `num_layers` blocks. Their rate of drop path grows linearly from 0 to the configured one."""
    rates = [config.drop_path_rate * i / max(num_layers - 1, 1) for i in range(num_layers)]
    return nn.ModuleList([VideoViTLayer(config, drop_path_rate=rate, **sizes) for rate in rates])


class VideoViTAttentivePooler(nn.Module):
    """
    Turns tokens into one feature: layers without positions, then a learned query that attends to the tokens
    (facebookresearch/vjepa2, `src/models/attentive_pooler.py`, `AttentivePooler`).
    """

    def __init__(self, config: VideoViTConfig):
        super().__init__()
        self.config = config
        size, eps = config.hidden_size, config.head_norm_eps
        self.head_dim = size // config.pooler_num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = False
        sizes = {"hidden_size": size, "intermediate_size": 4 * size, "head_dim": self.head_dim}
        sizes["num_attention_heads"] = config.pooler_num_attention_heads
        layers = [VideoViTLayer(config, eps=eps, **sizes) for _ in range(config.pooler_num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.query_token = nn.Parameter(torch.empty(1, 1, size))
        self.layernorm_before = make_norm(config, size, eps)
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.layernorm_after = make_norm(config, size, eps)
        self.mlp = VideoViTMLP(config, size, 4 * size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The feature `(batch_size, hidden_size)` of tokens `(batch_size, sequence_length, hidden_size)`."""
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        hidden_states = self.layernorm_before(hidden_states)
        pooled = self.query_token.expand(hidden_states.shape[0], -1, -1)
        pairs = ((self.query, pooled), (self.key, hidden_states), (self.value, hidden_states))
        query, key, value = (
            project(states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project, states in pairs
        )
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        context, _ = attention_interface(self, query, key, value, None, dropout=0.0, scaling=self.scaling)
        pooled = pooled + context.flatten(2)
        return (pooled + self.mlp(self.layernorm_after(pooled)))[:, 0]


class VideoViTPreTrainedModel(LayeredPreTrainedModel):
    config: VideoViTConfig
    base_model_prefix = "videovit"
    input_modalities = ("video",)
    _supports_views = True
    _no_split_modules = ["VideoViTPatchEmbeddings", "VideoViTEmbeddings", "VideoViTLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": VideoViTLayer, "attentions": VideoViTAttention}
    _input_embed_layer = "patch_embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            scale = self.config.classifier_init_scale if module is getattr(self, "classifier", None) else 1.0
            if scale == 0:
                init.zeros_(module.weight)
            else:
                init.trunc_normal_(module.weight, std=std * scale)
        elif isinstance(module, VideoViTPositionEmbeddings):
            if isinstance(module.weight, nn.Parameter):
                init.trunc_normal_(module.weight, std=std)
            else:
                init.copy_(module.weight, module.sinusoidal_table())
        elif isinstance(module, VideoViTEmbeddings):
            for vector in (module.cls_token, module.video_embedding, module.image_embedding):
                if vector is not None:
                    init.trunc_normal_(vector, std=std)
        elif isinstance(module, VideoViTAttentivePooler):
            init.trunc_normal_(module.query_token, std=std)
            # The original divides what is added to the tokens by the square root of twice its depth.
            layers = cast(list[VideoViTLayer], list(module.layers))
            for depth, layer in enumerate(layers, start=1):
                for linear in (layer.attention.o_proj, layer.mlp.fc2):
                    init.trunc_normal_(linear.weight, std=std / math.sqrt(2 * depth))
            init.trunc_normal_(module.mlp.fc2.weight, std=std / math.sqrt(2 * max(len(module.layers), 1)))
        elif isinstance(module, VideoViTAttention):
            if module.logit_scale is not None:
                init.constant_(module.logit_scale, math.log(10))
        elif isinstance(module, VideoViTLayer) and module.layer_scale1 is not None:
            init.constant_(module.layer_scale1, self.config.layer_scale_init_value)
            init.constant_(module.layer_scale2, self.config.layer_scale_init_value)

    def _resize_positions(self, grid: TokenGrid) -> None:
        config = self.config
        tables = [module for module in self.modules() if isinstance(module, VideoViTPositionEmbeddings)]
        with torch.no_grad():
            for module in tables:
                module(grid)  # raises before any table is changed
        if config.position_embedding_type != "learned" and config.position_embedding_resize != "rebuild":
            config.position_embedding_grid = list(config.position_embedding_grid or config.token_grid)
        for module in tables:
            module.set_grid(grid)


class VideoViTModel(VideoViTPreTrainedModel):
    """The bare encoder."""

    def __init__(self, config: VideoViTConfig):
        super().__init__(config)
        pools_tokens = config.use_mean_pooling and config.pooler_type is None
        use_final_norm = not pools_tokens if config.use_final_norm is None else config.use_final_norm
        self.embeddings = VideoViTEmbeddings(config)
        self.layers = make_layers(
            config,
            config.num_hidden_layers,
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            head_dim=cast(int, config.head_dim),
            intermediate_size=config.intermediate_size,
        )
        self.layernorm = make_norm(config, config.hidden_size) if use_final_norm else None
        self.intermediate_norms = nn.ModuleDict(
            {str(index): make_norm(config, config.hidden_size) for index in config.intermediate_norm_layers}
        )
        self.rotary_embedding = None
        if config.position_embedding_type == "rope":
            self.rotary_embedding = VideoViTRotaryEmbedding(config, cast(int, config.head_dim))
        self.post_init()
        if config.use_cosine_attention:
            # The scales are cut as the heads are, and the attention takes its own.
            cut = {"layers.*.attention.logit_scale": "embedding_rowwise", "layers.*.attention": "local_params"}
            self._tp_plan |= cut

    def norm_of(self, stage: str) -> nn.Module:
        """The norm after the last layer of a stage: its own one, or the final norm if there is one."""
        index = str(self.config.stage_names.index(stage) - 1)
        if index in self.intermediate_norms:
            return self.intermediate_norms[index]
        return nn.Identity() if self.layernorm is None else self.layernorm

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        interpolate_pos_encoding: Interpolation = True,
        frame_mask: torch.Tensor | None = None,
        num_masked: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames. Frames and pixels that fill no patch are dropped.
            bool_masked_pos (`torch.BoolTensor` of shape `(batch_size, num_patches)`, *optional*):
                True for patches that are hidden, as many in every clip; only the others become tokens.
                `still_patches` makes one for a camera that does not move.
            interpolate_pos_encoding (`bool` or `"space"`, defaults to `True`):
                Whether to resize the positions for an input of another size than configured. With `"space"` only rows
                and columns are resized, and the frames get the positions of the first frames.
            frame_mask (`torch.Tensor` of shape `(batch_size, t)`, *optional*):
                1 or true for token frames, 0 or false for padding behind them, which no token sees. Positions are
                those of `interpolate_pos_encoding="space"`, so that a clip gives the same alone and padded.
            num_masked (`int`, *optional*):
                Number of true entries in every row of `bool_masked_pos`. By default it is counted, for which a GPU is
                waited for, and which `torch.compile(fullgraph=True)` cannot do.

        Returns:
            [`BaseModelOutput`]. `last_hidden_state` is `(batch_size, sequence_length, hidden_size)`: the class token
            if there is one, then the patches in the order time, row, column. `hidden_states` are those before the
            final norm.

        Raises:
            ValueError: for an input of another rank or number of channels, of a dtype that is not floating point, or
                smaller than a patch; for masks of another shape or with unequal counts; for an input size that the
                positions cannot be resized to.
        """
        grid = token_grid(pixel_values, self.config)
        places = None
        if bool_masked_pos is not None:
            places = visible_places(bool_masked_pos, pixel_values.shape[0], math.prod(grid), num_masked)
        if frame_mask is not None:
            check_frame_mask(frame_mask, pixel_values.shape[0], grid[0], bool_masked_pos)
            interpolate_pos_encoding = interpolate_pos_encoding and "space"
        pixel_values = pixel_values.to(self.embeddings.patch_embeddings.projection.weight.dtype)
        hidden_states = self.embeddings(pixel_values, places, interpolate_pos_encoding)
        rotary = None
        if self.rotary_embedding is not None:
            dtype = torch.promote_types(hidden_states.dtype, torch.float32)
            angles = self.rotary_embedding(grid, hidden_states.device, dtype)
            angles = angles if places is None else angles[0, places]
            # The class token has no place in the grid: an angle of zero does not rotate it.
            prefix = angles.new_zeros(1, int(self.config.use_class_token), angles.shape[-1])
            angles = put_in_front(prefix, angles)[:, None]
            rotary = angles.cos(), angles.sin()
        if frame_mask is not None:
            real_tokens = mask_of_tokens(frame_mask, grid, int(self.config.use_class_token))
            kwargs["attention_mask"] = create_bidirectional_mask(self.config, hidden_states, real_tokens)
        for layer in self.layers:
            hidden_states = layer(hidden_states, rotary, **kwargs)
        if self.layernorm is not None:
            hidden_states = self.layernorm(hidden_states)
        return BaseModelOutput(last_hidden_state=hidden_states)


class VideoViTForVideoClassification(VideoClassifierMixin, VideoViTPreTrainedModel):
    """VideoViT with a linear classifier on the pooled feature. With `num_labels=0` the output is that feature."""

    def __init__(self, config: VideoViTConfig):
        if config.architectures == ["VideoViTForPreTraining"]:
            # With mean pooling `fc_norm` takes the place of the pre-trained encoder's final norm (VideoMAE).
            config = copy.deepcopy(config)
            config.architectures = config.use_final_norm = None
        super().__init__(config)
        self.num_labels = config.num_labels
        self.videovit = VideoViTModel(config)
        eps = config.layer_norm_eps if config.head_norm_eps is None else config.head_norm_eps
        takes_mean = config.use_mean_pooling and config.pooler_type is None
        self.fc_norm = make_norm(config, config.hidden_size, eps) if takes_mean else None
        self.pooler = VideoViTAttentivePooler(config) if config.pooler_type == "attentive" else None
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.post_init()

    def pool(self, tokens: torch.Tensor) -> torch.Tensor:
        """Turn tokens `(batch_size, sequence_length, hidden_size)` into features `(batch_size, hidden_size)`."""
        if self.pooler is not None:
            return self.pooler(tokens)
        if self.fc_norm is None:
            return tokens[:, 0]
        return self.fc_norm(tokens[:, int(self.config.use_class_token) :].mean(dim=1))

    def read_clips(
        self, pixel_values: torch.Tensor, num_views: int, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple[BaseModelOutput, torch.Tensor]:
        """The outputs of the encoder, and the features `(batch_size, hidden_size)`; a pooler joins the clips of a
        view."""
        layers = self.config.pooler_out_layers
        if layers is not None:
            asked = kwargs.get("output_hidden_states")
            kwargs["output_hidden_states"] = True
        outputs: BaseModelOutput = self.videovit(pixel_values, return_dict=True, **kwargs)
        tokens = outputs.last_hidden_state
        if layers is not None:
            # The stem is before the first layer.
            read = [(self.config.stage_names[index + 1], outputs.hidden_states[index + 1]) for index in layers]
            tokens = torch.cat([self.videovit.norm_of(stage)(states) for stage, states in read], dim=1)
            if not (self.config.output_hidden_states if asked is None else asked):
                outputs.hidden_states = None
        if self.pooler is None:
            prefix = int(self.config.use_class_token)
            return outputs, tokens[:, 0] if self.fc_norm is None else self.fc_norm(tokens[:, prefix:].mean(dim=1))
        num_clips = self.config.pooler_num_clips if num_views > 1 else 1
        if num_views % num_clips:
            raise ValueError(
                f"The pooler joins {num_clips} clips (`pooler_num_clips`), and a video has {num_views} views: set "
                "`num_clips` of the processor to a multiple."
            )
        # The crops of a clip are next to each other.
        tokens = tokens.unflatten(0, (-1, num_clips, num_views // num_clips))
        return outputs, self.pooler(tokens.transpose(1, 2).flatten(2, 3).flatten(0, 1))


class VideoViTForImageClassification(ImageClassifierMixin, VideoViTForVideoClassification):
    """VideoViT for single images. The configuration needs `num_frames=1` and `tubelet_size=1`."""


__all__ = [
    "VideoViTForImageClassification",
    "VideoViTForVideoClassification",
    "VideoViTModel",
    "VideoViTPreTrainedModel",
]
