"""PyTorch VideoMamba: bidirectional state spaces over the patches of a video."""

import math
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..shared_video import (
    ImageClassifierMixin,
    LayeredPreTrainedModel,
    VideoClassifierMixin,
    VideoDropPath,
    check_frame_mask,
    mask_of_tokens,
    take_tokens,
    token_grid,
    visible_places,
)
from .configuration_videomamba import VideoMambaConfig
from .state_videomamba import VideoMambaState, check_state

try:
    from hf_video.ops.causal_conv1d import causal_conv1d
    from hf_video.ops.selective_scan import selective_scan
except ImportError:
    from .selective_scan_videomamba import selective_scan  # type: ignore[assignment]

    causal_conv1d = None  # type: ignore[assignment]

logger = logging.get_logger(__name__)

# On a CPU mixers compute in float32 even if their weights or autocast are narrower: some CPUs multiply bfloat16 15
# times more slowly, and nothing tells which do. `HF_VIDEO_CPU_PRODUCTS=bfloat16` keeps them narrow.
NARROW_ON_CPU = os.environ.get("HF_VIDEO_CPU_PRODUCTS") == "bfloat16"

TokenGrid = tuple[int, int, int]
# The token that each step visits, and the step that visits each token: `(batch_size or 1, sequence_length)`.
ScanOrder = tuple[torch.Tensor, torch.Tensor]
# `(batch_size, intermediate_size, state_size)` and `(batch_size, intermediate_size, conv_kernel - 1)`.
LayerState = tuple[torch.Tensor, torch.Tensor]
Interpolation = bool | Literal["space"]
# Its softplus is zero, in half precision too: a token with this time step leaves the state as it is.
NO_TIME_STEP = -1e4
# Names of SiLU, the activation that kernels of the convolution and of the scan have.
KERNEL_ACTIVATIONS = ("silu", "swish")


class ScanContext(NamedTuple):
    """
    What the scans of a layer need to know besides the tokens.

    Attributes:
        temporal_first: the other order of the tokens, if a scan has it.
        real_tokens: `(batch_size, sequence_length)`, bool, false for padding.
        state: the state of the forward scan before the first token, and the last inputs of its convolution.
    """

    temporal_first: ScanOrder | None = None
    real_tokens: torch.Tensor | None = None
    state: LayerState | None = None


NO_CONTEXT = ScanContext()


@dataclass
class VideoMambaOutput(BaseModelOutputWithPooling):
    """Output of [`VideoMambaModel`]. `state` is the one to go on with, if the call had a state."""

    state: VideoMambaState | None = None


@dataclass
class VideoMambaClassifierOutput(ImageClassifierOutput):
    """Output of classifiers of clips. `state` is the one to go on with, if the call had a state."""

    state: VideoMambaState | None = None


def widen(tokens: torch.Tensor) -> torch.Tensor:
    """The tokens in the dtype in which mixers compute: on a CPU float32 at least."""
    is_wide = tokens.device.type == "cpu" and not NARROW_ON_CPU
    return tokens.to(torch.promote_types(tokens.dtype, torch.float32)) if is_wide else tokens


def without_autocast() -> AbstractContextManager[Any]:
    """Switches the autocast of the CPU off if it is on. An exported graph must not hold the switch."""
    is_on = torch.is_autocast_enabled("cpu") and not NARROW_ON_CPU
    return torch.autocast("cpu", enabled=False) if is_on else nullcontext()


def wide_dtype() -> torch.dtype:
    """The dtype of parameters that stay in float32 if a model is made, or loaded, in half precision."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


class VideoMambaPatchEmbeddings(nn.Module):
    """Turns patches into tokens by one convolution over time, rows and columns, in float32 at least."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.projection = nn.Conv3d(
            config.num_channels, config.hidden_size, config.patch_shape, config.patch_steps, dtype=wide_dtype()
        )

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Tokens `(batch_size, t, h * w, hidden_size)`."""
        pixels = rearrange(pixel_values.to(self.projection.weight.dtype), "b t c h w -> b c t h w")
        return rearrange(self.projection(pixels), "b c t h w -> b t (h w) c")


class VideoMambaEmbeddings(nn.Module):
    """
    The class token, then the patches frame by frame. Positions are learned. One table has a row for the class token
    and a row for each place of a frame. The other has a row for each token frame, and the class token gets none.
    """

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.config = config
        t, h, w = config.token_grid
        self.patch_embeddings = VideoMambaPatchEmbeddings(config)
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size))
        self.position_embeddings = nn.Parameter(torch.empty(1, 1 + h * w, config.hidden_size))
        self.temporal_position_embeddings = None
        if config.use_temporal_position_embeddings:
            self.temporal_position_embeddings = nn.Parameter(torch.empty(1, t, config.hidden_size))
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def positions(
        self, grid: TokenGrid, interpolate_pos_encoding: Interpolation = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        Both tables for a token grid: `(1, 1 + h * w, hidden_size)` over space, and `(1, t, hidden_size)` over time or
        `None`. Where the grid is not the configured one, interpolation is bicubic over space and linear over time,
        corners not aligned (`run_class_finetuning.py` of the original).

        Raises:
            ValueError: if the grid differs and `interpolate_pos_encoding` is false, or if there are more frames than
                positions and it is `"space"`.
        """
        spatial: torch.Tensor = self.position_embeddings
        temporal: torch.Tensor | None = self.temporal_position_embeddings
        built_for = self.config.token_grid
        # Without a table over time, any number of frames is right.
        differs = grid != built_for if temporal is not None else grid[1:] != built_for[1:]
        if differs and not interpolate_pos_encoding:
            raise ValueError(
                f"The input has a token grid (t, h, w) of {grid}, the configuration one of {built_for}: pass "
                f"`interpolate_pos_encoding=True`, resize the input, or call `set_input_size`."
            )
        dtype = torch.promote_types(spatial.dtype, torch.float32)
        if grid[1:] != built_for[1:]:
            class_position, table = spatial.split([1, spatial.shape[1] - 1], dim=1)
            table = rearrange(table.to(dtype), "1 (h w) c -> 1 c h w", h=built_for[1])
            table = F.interpolate(table, size=grid[1:], mode="bicubic", align_corners=False)
            spatial = torch.cat([class_position, table.flatten(2).mT.to(spatial.dtype)], dim=1)
        if temporal is not None and interpolate_pos_encoding == "space":
            if grid[0] > built_for[0]:
                raise ValueError(
                    f"The input has {grid[0]} token frames, but there are positions for {built_for[0]}, which are not "
                    "interpolated over time: pass fewer frames, or call `set_input_size(num_frames=...)`."
                )
            temporal = temporal[:, : grid[0]]
        elif temporal is not None and grid[0] != built_for[0]:
            resized = F.interpolate(temporal.to(dtype).mT, size=grid[0], mode="linear", align_corners=False)
            temporal = resized.mT.to(temporal.dtype)
        return spatial, temporal

    @torch.no_grad()
    def set_grid(self, grid: TokenGrid) -> None:
        """Resize the tables from the configuration's token grid to another one."""
        names = ("position_embeddings", "temporal_position_embeddings")
        for name, table in zip(names, self.positions(grid), strict=True):
            if table is not None:
                requires_grad = getattr(self, name).requires_grad
                setattr(self, name, nn.Parameter(table.clone(), requires_grad=requires_grad))

    def forward(
        self,
        pixel_values: torch.Tensor | None,
        places: torch.Tensor | None = None,
        interpolate_pos_encoding: Interpolation = True,
        with_class_token: bool = True,
    ) -> torch.Tensor:
        """Tokens `(batch_size, sequence_length, hidden_size)` of all patches, or of those at `places` `(batch_size,
        num_visible)`; without pixels the class token alone, for one clip."""
        class_token = self.cls_token + self.position_embeddings[:, :1]
        if pixel_values is None:
            return self.dropout(class_token)
        grid = token_grid(pixel_values, self.config)
        has_time = grid[0] > 1 or self.config.use_single_frame_position
        table_grid = grid if has_time else (self.config.token_grid[0], *grid[1:])
        spatial, temporal = self.positions(table_grid, interpolate_pos_encoding)
        tokens = self.patch_embeddings(pixel_values).to(spatial.dtype) + spatial[:, None, 1:]
        if temporal is not None and has_time:
            tokens = tokens + temporal[:, :, None]
        tokens = tokens.flatten(1, 2)
        if places is not None:
            tokens = take_tokens(tokens, places)
        if with_class_token:
            tokens = torch.cat([class_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        return self.dropout(tokens)


def temporal_first_order(
    grid: TokenGrid,
    places: torch.Tensor | None,
    device: torch.device,
    real_tokens: torch.Tensor | None = None,
) -> ScanOrder:
    """
    The order that visits the class token first, then all frames of the first place, of the second place, and so on.

    Args:
        grid: token grid (t, h, w).
        places: `(batch_size, num_visible)`, those of the patches in the sequence; None for all.
        device: device of the result.
        real_tokens: `(batch_size, 1 + t * h * w)`, bool, false for padding, which is visited last.
    """
    t = grid[0]
    rank = rearrange(torch.arange(math.prod(grid), device=device), "(place t) -> 1 (t place) 1", t=t)
    if places is not None:
        rank = take_tokens(rank, places)
    if real_tokens is not None:
        rank = rank + rank.shape[1] * ~real_tokens[:, 1:, None]
    order = F.pad(rank[..., 0].argsort(dim=1) + 1, (1, 0))
    return order, order.argsort(dim=1)


class VideoMambaNorm(nn.Module):
    """
    RMS norm or layer norm. It computes in the dtype of its input, the residual stream, and returns the dtype of its
    weight, with which the next layer computes.
    """

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.eps = config.layer_norm_eps
        self.weight = nn.Parameter(torch.empty(config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.hidden_size)) if config.norm_type == "layer_norm" else None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(hidden_states.dtype)
        if self.bias is None:
            normalized = F.rms_norm(hidden_states, weight.shape, weight, self.eps)
        else:
            bias = self.bias.to(hidden_states.dtype)
            normalized = F.layer_norm(hidden_states, weight.shape, weight, bias, self.eps)
        return normalized.to(self.weight.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class VideoMambaLinear(nn.Linear):
    """A linear layer that computes in the dtype of its input, which on a CPU may be wider than that of its weight."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(inputs.dtype)
        return F.linear(inputs, self.weight.to(inputs.dtype), bias)


class VideoMambaOutputProjection(VideoMambaLinear):
    """The last layer of a residual branch. The deeper the model is, the smaller are its initial weights."""


class VideoMambaConv1d(nn.Conv1d):
    """
    Depthwise convolution over a token and the tokens that the scan visits before it, then the activation. With
    `reverse` these are the tokens after it in the sequence.
    """

    def __init__(self, config: VideoMambaConfig, reverse: bool):
        channels = config.intermediate_size
        super().__init__(channels, channels, config.conv_kernel, groups=channels, bias=config.use_conv_bias)
        self.reverse = reverse
        self.activation_fn = ACT2FN[config.hidden_act]
        self.has_kernels = config.hidden_act in KERNEL_ACTIVATIONS

    def forward(self, hidden_states: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        """`(batch_size, intermediate_size, sequence_length)`; `state` has the inputs before the first token."""
        if self.has_kernels and causal_conv1d is not None:
            return causal_conv1d(hidden_states, self.weight, self.bias, reverse=self.reverse, initial_state=state)
        weight = (self.weight.flip(-1) if self.reverse else self.weight).to(hidden_states.dtype)
        bias = None if self.bias is None else self.bias.to(hidden_states.dtype)
        if state is None:
            before = weight.shape[-1] - 1
            inputs = F.pad(hidden_states, (0, before) if self.reverse else (before, 0))
        else:
            inputs = torch.cat([state.to(hidden_states.dtype), hidden_states], dim=-1)
        return self.activation_fn(F.conv1d(inputs, weight, bias, groups=self.groups))


class VideoMambaScan(nn.Module):
    """
    One direction of a mixer: convolution, projections to time steps, B and C, and the selective scan (Mamba,
    https://arxiv.org/abs/2312.00752, section 3).
    """

    def __init__(self, config: VideoMambaConfig, reverse: bool):
        super().__init__()
        self.reverse = reverse
        rank, inner = cast(int, config.time_step_rank), config.intermediate_size
        self.sizes = [rank, config.state_size, config.state_size]
        self.conv1d = VideoMambaConv1d(config, reverse)
        self.x_proj = VideoMambaLinear(inner, sum(self.sizes), bias=False)
        # The scan adds the bias, in float32. Here it is no part of the projection, as in Mamba-2, so that whatever
        # takes the place of a linear layer does not add it a second time.
        self.dt_proj = VideoMambaLinear(rank, inner, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(inner, dtype=wide_dtype()))
        self.A_log = nn.Parameter(torch.empty(inner, config.state_size, dtype=wide_dtype()))
        self.D = nn.Parameter(torch.empty(inner, dtype=wide_dtype()))

    def forward(
        self,
        hidden_states: torch.Tensor,
        gate: torch.Tensor | None = None,
        addend: torch.Tensor | None = None,
        is_padding: torch.Tensor | None = None,
        state: LayerState | None = None,
        order: ScanOrder | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        The output, and with a state the one of the scan after the last token. All tensors are `(batch_size,
        intermediate_size, sequence_length)`, in the order of the tokens.

        Args:
            hidden_states: input of the convolution.
            gate: if given, its SiLU multiplies the output.
            addend: if given, it is added before the gate: the output of the other direction.
            is_padding: `(batch_size, 1, sequence_length)`, bool, true for tokens whose input is zero and that leave
                the state as it is.
            state: as [`ScanContext`] has it.
            order: the order in which the tokens are visited, if it is another one.
        """
        if order is not None:
            token_of_step, step_of_token = (index[:, None] for index in order)
            hidden_states = hidden_states.take_along_dim(token_of_step, dim=2)
            gate, addend, is_padding = (
                each if each is None else each.take_along_dim(token_of_step, dim=2)
                for each in (gate, addend, is_padding)
            )
        scan_state, conv_state = state or (None, None)
        u = self.conv1d(hidden_states, conv_state)
        time_steps, B, C = self.x_proj(u.mT).split(self.sizes, dim=-1)
        delta = self.dt_proj(time_steps).mT
        if is_padding is not None:
            delta = delta.masked_fill(is_padding, NO_TIME_STEP)
        A = -self.A_log.to(torch.promote_types(self.A_log.dtype, torch.float32)).exp()
        options: dict[str, Any] = {"initial_state": scan_state, "return_last_state": state is not None}
        options |= {"reverse": self.reverse, "addend": addend}
        found = selective_scan(u, delta, A, B.mT, C.mT, self.D, gate, self.dt_bias, True, **options)
        outputs, last_state = found if isinstance(found, tuple) else (found, None)
        return outputs if order is None else outputs.take_along_dim(step_of_token, dim=2), last_state


class VideoMambaMixer(nn.Module):
    """
    Gated state space layer. With two scans it is that of VideoMamba and Vision Mamba: both read one input projection
    and share one gate. Their outputs are summed, not averaged.

    With a state in its context, the forward scan continues an earlier part of the sequence, and the state after the
    last token is returned, too. The backward scan sees the given tokens alone.
    """

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.reorder_forward = config.scan_order == "temporal_first"
        self.in_proj = VideoMambaLinear(config.hidden_size, 2 * config.intermediate_size, bias=config.use_bias)
        self.forward_scan = VideoMambaScan(config, reverse=False)
        self.backward_scan = VideoMambaScan(config, reverse=True) if config.bidirectional else None
        # The last scan applies a gate with SiLU, some backends without a copy.
        self.gate_fn = None if config.hidden_act in KERNEL_ACTIVATIONS else ACT2FN[config.hidden_act]
        self.out_proj = VideoMambaOutputProjection(config.intermediate_size, config.hidden_size, bias=config.use_bias)

    def forward(
        self, hidden_states: torch.Tensor, context: ScanContext = NO_CONTEXT
    ) -> tuple[torch.Tensor, LayerState | None]:
        temporal_first, real_tokens, state = context
        forward_order = temporal_first if self.reorder_forward else None
        inner, gate = self.in_proj(hidden_states).mT.chunk(2, dim=1)
        is_padding = None if real_tokens is None else ~real_tokens[:, None]
        if is_padding is not None:
            inner = inner.masked_fill(is_padding, 0.0)
        scan_gate = gate if self.gate_fn is None else None
        forward_gate = scan_gate if self.backward_scan is None else None
        mixed, scan_state = self.forward_scan(inner, forward_gate, None, is_padding, state, forward_order)
        if self.backward_scan is not None:
            mixed, _ = self.backward_scan(inner, scan_gate, mixed, is_padding, order=temporal_first)
        if self.gate_fn is not None:
            mixed = mixed * self.gate_fn(gate)
        outputs = self.out_proj(mixed.mT)
        if state is None or scan_state is None:
            return outputs, None
        return outputs, (scan_state, torch.cat([state[1], inner], dim=-1)[..., inner.shape[-1] :])


class VideoMambaLayer(GradientCheckpointingLayer):
    """
    Pre-norm block with a mixer and without an MLP. Its input and its output are the residual stream, which keeps its
    dtype, whatever the mixer computes in. The output also has the next state, if there is a state in the context.
    """

    def __init__(self, config: VideoMambaConfig, drop_path_rate: float):
        super().__init__()
        self.norm = VideoMambaNorm(config)
        self.mixer = VideoMambaMixer(config)
        self.drop_path = VideoDropPath(drop_path_rate)

    def forward(
        self, hidden_states: torch.Tensor, context: ScanContext = NO_CONTEXT
    ) -> tuple[torch.Tensor, LayerState | None]:
        branch, state = self.mixer(widen(self.norm(hidden_states)), context)
        return hidden_states + self.drop_path(branch.to(hidden_states.dtype)), state


class VideoMambaPreTrainedModel(LayeredPreTrainedModel):
    config: VideoMambaConfig
    base_model_prefix = "videomamba"
    input_modalities = ("video",)
    _supports_views = True
    _no_split_modules = ["VideoMambaPatchEmbeddings", "VideoMambaEmbeddings", "VideoMambaLayer"]
    _skip_keys_device_placement = ["state"]
    _keep_in_fp32_modules_strict = ["A_log", "D", "dt_bias", "patch_embeddings.projection"]
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": VideoMambaLayer}
    _input_embed_layer = "patch_embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        config, std = self.config, self.config.initializer_range
        if isinstance(module, nn.Linear):
            if isinstance(module, VideoMambaOutputProjection):
                # PyTorch's default divided by sqrt(num_hidden_layers): the sum of all branches keeps its scale.
                bound = (module.in_features * config.num_hidden_layers) ** -0.5
                init.uniform_(module.weight, -bound, bound)
            else:
                init.trunc_normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Conv1d | nn.Conv3d):
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            if module.bias is not None:
                bound = module.weight[0].numel() ** -0.5
                init.uniform_(module.bias, -bound, bound)
        elif isinstance(module, VideoMambaNorm | nn.LayerNorm):
            init.ones_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, VideoMambaEmbeddings):
            init.zeros_(module.cls_token)
            init.trunc_normal_(module.position_embeddings, std=std)
            if module.temporal_position_embeddings is not None:
                init.zeros_(module.temporal_position_embeddings)
        elif isinstance(module, VideoMambaScan):
            rates = torch.arange(1, config.state_size + 1, dtype=torch.float32, device=module.A_log.device)
            init.copy_(module.A_log, rates.log().expand_as(module.A_log))
            init.ones_(module.D)
            self._init_time_steps(module)

    def _init_time_steps(self, scan: VideoMambaScan) -> None:
        """Zero biases, or Mamba's initialisation (`Mamba.__init__` of mamba-ssm) after that of the linear layer."""
        config = self.config
        if config.time_step_init_scheme == "zero_bias":
            init.zeros_(scan.dt_bias)
            return
        bound = config.time_step_scale * scan.sizes[0] ** -0.5
        if config.time_step_init_scheme == "constant":
            init.constant_(scan.dt_proj.weight, bound)
        else:
            init.uniform_(scan.dt_proj.weight, -bound, bound)
        low, high = math.log(config.time_step_min), math.log(config.time_step_max)
        draws = torch.rand(scan.dt_bias.shape, dtype=torch.float32, device=scan.dt_bias.device)
        steps = torch.exp(low + (high - low) * draws).clamp(min=config.time_step_floor)
        # The inverse of softplus.
        init.copy_(scan.dt_bias, steps + torch.log(-torch.expm1(-steps)))

    def _resize_positions(self, grid: TokenGrid) -> None:
        self.base_model.embeddings.set_grid(grid)


class VideoMambaModel(VideoMambaPreTrainedModel):
    """The bare encoder."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        num_layers = config.num_hidden_layers
        self.embeddings = VideoMambaEmbeddings(config)
        self.layers = nn.ModuleList(
            [VideoMambaLayer(config, config.drop_path_rate * i / max(num_layers - 1, 1)) for i in range(num_layers)]
        )
        self.norm_f = VideoMambaNorm(config)
        self.pool_norm = nn.LayerNorm(config.hidden_size, eps=1e-5) if config.use_pool_norm else None
        self.post_init()

    def norm_of(self, stage: str) -> nn.Module:
        """The norm after a stage: the final one."""
        return self.norm_f

    @merge_with_config_defaults
    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        interpolate_pos_encoding: Interpolation = True,
        frame_mask: torch.Tensor | None = None,
        state: VideoMambaState | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VideoMambaOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames. Frames and pixels that fill no patch are dropped.
            bool_masked_pos (`torch.BoolTensor` of shape `(batch_size, num_patches)`, *optional*):
                True for patches that are hidden, as many in every clip; only the others become tokens.
            interpolate_pos_encoding (`bool` or `"space"`, defaults to `True`):
                Whether to resize the positions for an input of another size than configured. With `"space"` only rows
                and columns are resized, and the frames get the positions of the first frames.
            frame_mask (`torch.Tensor` of shape `(batch_size, t)`, *optional*):
                1 or true for token frames, 0 or false for padding behind them, which no token sees. Positions are
                those of `interpolate_pos_encoding="space"`, so that a clip gives the same alone and padded.
            state ([`VideoMambaState`], *optional*):
                What is known of earlier frames of the same videos. The output has the state to go on with. Positions
                over time count within the call, as with `interpolate_pos_encoding="space"`.

        Returns:
            [`VideoMambaOutput`] whose `last_hidden_state` is `(batch_size, 1 + num_patches, hidden_size)`: the class
            token, then the patches in the order time, row, column, whatever the order of the scans. A causal model
            with a state leaves out the class token, which it reads once a stream, before the first frame.
            `hidden_states` are the residual stream before the final norm. With `config.use_pool_norm` there is a
            `pooler_output`, `(batch_size, t, hidden_size)`, or `(batch_size, 1, hidden_size)` under a mask.

        Raises:
            ValueError: for another rank or number of channels, a dtype that is not floating point, an input smaller
                than a patch, masks of another shape or with unequal counts, another size if
                `interpolate_pos_encoding` is false, or a state that does not fit or that this model cannot continue.
        """
        grid = token_grid(pixel_values, self.config)
        places = None
        if bool_masked_pos is not None:
            places = visible_places(bool_masked_pos, pixel_values.shape[0], math.prod(grid))
        if frame_mask is not None:
            check_frame_mask(frame_mask, pixel_values.shape[0], grid[0], bool_masked_pos)
        if state is not None:
            check_state(state, self.config, pixel_values, bool_masked_pos is not None or frame_mask is not None)
        if state is not None or frame_mask is not None:
            interpolate_pos_encoding = interpolate_pos_encoding and "space"
        kwargs["return_dict"] = True
        with without_autocast():
            if state is not None and state.has_new and not self.config.bidirectional:
                state = self.read_class_token(state)
            return self.encode(pixel_values, grid, places, interpolate_pos_encoding, frame_mask, state, **kwargs)

    @capture_outputs(tie_last_hidden_states=False)
    def encode(
        self,
        pixel_values: torch.Tensor,
        grid: TokenGrid,
        places: torch.Tensor | None,
        interpolate_pos_encoding: Interpolation,
        frame_mask: torch.Tensor | None,
        state: VideoMambaState | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VideoMambaOutput:
        """The outputs of `forward`. In a causal model a state is one that has read the class token."""
        with_class_token = state is None or self.config.bidirectional
        tokens = self.embeddings(pixel_values, places, interpolate_pos_encoding, with_class_token)
        real_tokens = temporal_first = None
        if frame_mask is not None:
            real_tokens = mask_of_tokens(frame_mask, grid, num_prefix_tokens=1)
        if self.config.scan_order != "spatial_first":
            temporal_first = temporal_first_order(grid, places, tokens.device, real_tokens)
        hidden_states, state = self.run_layers(tokens, ScanContext(temporal_first, real_tokens), state)
        tokens = self.norm_f(hidden_states)
        if self.pool_norm is None:
            return VideoMambaOutput(last_hidden_state=tokens, state=state)
        frames = tokens[:, 1:].unflatten(1, (grid[0] if places is None else 1, -1))
        pooled = self.pool_norm(tokens[:, :1] + frames.mean(dim=2))
        return VideoMambaOutput(last_hidden_state=tokens, pooler_output=pooled, state=state)

    def run_layers(
        self, hidden_states: torch.Tensor, context: ScanContext, state: VideoMambaState | None
    ) -> tuple[torch.Tensor, VideoMambaState | None]:
        """The residual stream after all layers, and the state after the last token if there is a state."""
        if self.config.residual_in_fp32:
            hidden_states = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        last_states = []
        for number, layer in enumerate(self.layers):
            if state is not None:
                context = context._replace(state=(state.scan_states[number], state.conv_states[number]))
            hidden_states, last_state = layer(hidden_states, context)
            last_states.append(last_state)
        return hidden_states, None if state is None else state.next(last_states)

    def read_class_token(self, state: VideoMambaState) -> VideoMambaState:
        """The state in which new streams have read the class token, which is the same for all of them."""
        class_token = self.embeddings(None)
        empty = VideoMambaState(self.config, device=class_token.device)
        _, after_class_token = self.run_layers(class_token, NO_CONTEXT, empty)
        return state.where_new(cast(VideoMambaState, after_class_token))


class VideoMambaClassifier(VideoMambaPreTrainedModel):
    """What all classifiers share: the encoder and a linear head."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.videomamba = VideoMambaModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.post_init()


class VideoMambaForVideoClassification(VideoClassifierMixin, VideoMambaClassifier):
    """VideoMamba with a linear classifier on the pooled feature. With `num_labels=0` the output is that feature."""

    _output_class = VideoMambaClassifierOutput

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        if not config.bidirectional and not config.use_mean_pooling:
            logger.warning_once(
                "With `bidirectional=False` the class token comes before all patches and sees none of them, so the "
                "logits do not depend on the pixels: set `use_mean_pooling=True`."
            )

    def read_clips(
        self, pixel_values: torch.Tensor, num_views: int, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple[VideoMambaOutput, torch.Tensor]:
        """The outputs of the encoder, and the features `(batch_size, hidden_size)`."""
        outputs: VideoMambaOutput = self.videomamba(pixel_values, return_dict=True, **kwargs)
        tokens, has_class_token = outputs.last_hidden_state, self.config.bidirectional or outputs.state is None
        if self.config.use_mean_pooling:
            return outputs, tokens[:, int(has_class_token) :].mean(dim=1)
        if not has_class_token:
            raise ValueError("The class token of a causal model sees no frames: with a state, use_mean_pooling=True.")
        return outputs, tokens[:, 0]


class VideoMambaForImageClassification(ImageClassifierMixin, VideoMambaForVideoClassification):
    """VideoMamba for single images. The configuration needs `num_frames=1` and `tubelet_size=1`."""


__all__ = [
    "VideoMambaClassifierOutput",
    "VideoMambaForImageClassification",
    "VideoMambaForVideoClassification",
    "VideoMambaModel",
    "VideoMambaOutput",
    "VideoMambaPreTrainedModel",
]
