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
from transformers.backbone_utils import BackboneMixin, filter_output_hidden_states
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BackboneOutput,
    BaseModelOutputWithPooling,
    ImageClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..shared_video import (
    LayeredPreTrainedModel,
    VideoDropPath,
    average_views,
    check_frame_mask,
    classification_loss,
    mask_of_tokens,
    select_tokens,
    token_grid,
)
from .configuration_videomamba import VideoMambaConfig
from .pretraining_videomamba import check_mask
from .state_videomamba import VideoMambaState, check_state

try:
    from hf_video.ops.mamba_mixer import convolve_and_scan
    from hf_video.ops.selective_scan import selective_scan

    HAS_OPS = True
except ImportError:
    from .selective_scan_videomamba import selective_scan  # type: ignore[assignment]

    HAS_OPS = False

logger = logging.get_logger(__name__)

# On a CPU mixers compute in float32 even if their weights or autocast are narrower: some CPUs multiply bfloat16 15
# times more slowly, and nothing tells which do. `HF_VIDEO_CPU_PRODUCTS=bfloat16` keeps them narrow.
NARROW_ON_CPU = os.environ.get("HF_VIDEO_CPU_PRODUCTS") == "bfloat16"

TokenGrid = tuple[int, int, int]
ScanOrder = tuple[torch.Tensor, torch.Tensor]
# `(batch_size, intermediate_size, state_size)` and `(batch_size, intermediate_size, conv_kernel - 1)`.
LayerState = tuple[torch.Tensor, torch.Tensor]
Interpolation = bool | Literal["space"]
# Its softplus is zero, in half precision too: a token with this time step leaves the state as it is.
NO_TIME_STEP = -1e4


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
    """
    Output of [`VideoMambaModel`].

    Args:
        state ([`VideoMambaState`], *optional*):
            If the call had a state, the one to go on with.
    """

    state: VideoMambaState | None = None


@dataclass
class VideoMambaClassifierOutput(ImageClassifierOutput):
    """
    Output of classifiers of clips.

    Args:
        state ([`VideoMambaState`], *optional*):
            If the call had a state, the one to go on with.
    """

    state: VideoMambaState | None = None


def without_autocast() -> AbstractContextManager[Any]:
    """Switches the autocast of the CPU off if it is on. An exported graph must not hold the switch."""
    return torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()


class VideoMambaPatchProjection(nn.Conv3d):
    """
    A convolution that a CPU computes in float32 at least. Patches are a hundredth of the work, but in bfloat16 PyTorch
    takes many times as long for them on a processor without instructions for it.
    """

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if input.device.type != "cpu":
            return super()._conv_forward(input, weight, bias)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        wide = torch.promote_types(input.dtype, torch.float32)
        with without_autocast():
            bias = None if bias is None else bias.to(wide)
            return super()._conv_forward(input.to(wide), weight.to(wide), bias).to(dtype)


class VideoMambaPatchEmbeddings(nn.Module):
    """Turns patches into tokens by one convolution over time, rows and columns."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.config = config
        self.projection = VideoMambaPatchProjection(
            config.num_channels, config.hidden_size, kernel_size=config.patch_shape, stride=config.patch_steps
        )

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Tokens `(batch_size, t, h * w, hidden_size)`."""
        patches = self.projection(rearrange(pixel_values, "b t c h w -> b c t h w"))
        return rearrange(patches, "b c t h w -> b t (h w) c")


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
            table = rearrange(table, "1 c h w -> 1 (h w) c").to(spatial.dtype)
            spatial = torch.cat([class_position, table], dim=1)
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
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        interpolate_pos_encoding: Interpolation = True,
        with_class_token: bool = True,
    ) -> torch.Tensor:
        grid = token_grid(pixel_values, self.config)
        has_time = grid[0] > 1 or self.config.use_single_frame_position
        table_grid = grid if has_time else (self.config.token_grid[0], *grid[1:])
        spatial, temporal = self.positions(table_grid, interpolate_pos_encoding)
        tokens = self.patch_embeddings(pixel_values) + spatial[:, None, 1:]
        if temporal is not None and has_time:
            tokens = tokens + temporal[:, :, None]
        tokens = tokens.flatten(1, 2)
        if bool_masked_pos is not None:
            tokens = select_tokens(tokens, ~bool_masked_pos)
        if with_class_token:
            tokens = torch.cat([self.class_token(tokens.shape[0]).to(tokens.dtype), tokens], dim=1)
        return self.dropout(tokens)

    def class_token(self, batch_size: int) -> torch.Tensor:
        """The class token with its position, `(batch_size, 1, hidden_size)`."""
        return (self.cls_token + self.position_embeddings[:, :1]).expand(batch_size, -1, -1)


def temporal_first_order(
    grid: TokenGrid,
    bool_masked_pos: torch.Tensor | None,
    device: torch.device,
    real_tokens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The order that visits the class token first, then all frames of the first place, of the second place, and so on.

    Args:
        grid: token grid (t, h, w).
        bool_masked_pos: `(batch_size, t * h * w)`, true for patches that are not in the sequence.
        device: device of the result.
        real_tokens: `(batch_size, 1 + t * h * w)`, bool, false for padding, which is visited last.

    Returns:
        The token that each step visits, and the step that visits each token: both `(batch_size or 1,
        sequence_length)`, int64.
    """
    t = grid[0]
    rank = rearrange(torch.arange(math.prod(grid), device=device), "(place t) -> 1 (t place) 1", t=t)
    if bool_masked_pos is not None:
        rank = select_tokens(rank, ~bool_masked_pos)
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


class VideoMambaConv1d(nn.Conv1d):
    """
    Depthwise convolution over a token and the tokens that the scan visits before it. With `reverse` these are the
    tokens after it in the sequence.
    """

    def __init__(self, config: VideoMambaConfig, reverse: bool):
        super().__init__(
            config.intermediate_size,
            config.intermediate_size,
            config.conv_kernel,
            groups=config.intermediate_size,
            padding=config.conv_kernel - 1,
            bias=config.use_conv_bias,
        )
        self.reverse = reverse

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = (self.weight.flip(-1) if self.reverse else self.weight).to(hidden_states.dtype)
        bias = None if self.bias is None else self.bias.to(hidden_states.dtype)
        padding = cast(int, self.padding[0])
        convolved = F.conv1d(hidden_states, weight, bias, padding=padding, groups=self.groups)
        return convolved.narrow(-1, padding if self.reverse else 0, hidden_states.shape[-1])


class VideoMambaLinear(nn.Linear):
    """A linear layer that computes in the dtype of its input, which on a CPU may be wider than that of its weight."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.multiply(inputs, self.bias)

    def multiply(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if hasattr(self.weight, "__tensor_flatten__"):
            # torchao's quantised weights take inputs of their own dtype.
            return F.linear(inputs.to(self.weight.dtype), self.weight, bias)
        return F.linear(inputs, self.weight.to(inputs.dtype), None if bias is None else bias.to(inputs.dtype))


class VideoMambaTimeStepProjection(VideoMambaLinear):
    """Multiplies by its weight alone. The scan adds the bias, in float32."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.multiply(inputs, None)


class VideoMambaOutputProjection(VideoMambaLinear):
    """The last layer of a residual branch. The deeper the model is, the smaller are its initial weights."""


def fuses(activation_fn: nn.Module) -> bool:
    """Whether kernels have this activation, that of a convolution or of a gate: they have SiLU."""
    return type(activation_fn) in (nn.SiLU, type(ACT2FN["silu"]))


class VideoMambaScan(nn.Module):
    """
    One direction of a mixer: convolution, projections to time steps, B and C, and the selective scan (Mamba,
    https://arxiv.org/abs/2312.00752, section 3).
    """

    def __init__(self, config: VideoMambaConfig, reverse: bool):
        super().__init__()
        self.reverse = reverse
        rank = cast(int, config.time_step_rank)
        self.sizes = [rank, config.state_size, config.state_size]
        self.conv1d = VideoMambaConv1d(config, reverse)
        self.activation_fn = ACT2FN[config.hidden_act]
        self.x_proj = VideoMambaLinear(config.intermediate_size, sum(self.sizes), bias=False)
        self.dt_proj = VideoMambaTimeStepProjection(rank, config.intermediate_size)
        # A model that is made in half precision keeps these in float32, as one that is loaded does.
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.dt_proj.bias = nn.Parameter(torch.empty(config.intermediate_size, dtype=dtype))
        self.A_log = nn.Parameter(torch.empty(config.intermediate_size, config.state_size, dtype=dtype))
        self.D = nn.Parameter(torch.empty(config.intermediate_size, dtype=dtype))

    def rates(self) -> torch.Tensor:
        """Decay rates A of the recurrence `(intermediate_size, state_size)`, in float32 at least."""
        return -self.A_log.to(torch.promote_types(self.A_log.dtype, torch.float32)).exp()

    def project(
        self, inputs: torch.Tensor, is_padding: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Time steps, B and C of the recurrence, with time last. Padding has no time step."""
        time_steps, B, C = self.x_proj(inputs.mT).split(self.sizes, dim=-1)
        delta = self.dt_proj(time_steps).mT
        delta = delta if is_padding is None else delta.masked_fill(is_padding, NO_TIME_STEP)
        return delta, B.mT, C.mT

    def forward(
        self,
        hidden_states: torch.Tensor,
        gate: torch.Tensor | None = None,
        addend: torch.Tensor | None = None,
        is_padding: torch.Tensor | None = None,
        state: LayerState | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """
        All tensors are `(batch_size, intermediate_size, sequence_length)`. With a state, the one of the scan after the
        last token is returned, too.

        Args:
            hidden_states: input of the convolution.
            gate: if given, its SiLU multiplies the output.
            addend: if given, it is added before the gate: the output of the other direction.
            is_padding: `(batch_size, 1, sequence_length)`, bool, true for tokens whose input is zero and that leave
                the state as it is.
            state: as [`ScanContext`] has it.
        """
        A, D, delta_bias = self.rates(), self.D, self.dt_proj.bias
        # What is not plain, such as an adapter around the convolution, has to be called.
        if HAS_OPS and fuses(self.activation_fn) and type(self.conv1d) is VideoMambaConv1d:
            return convolve_and_scan(
                *(hidden_states, self.conv1d.weight, self.conv1d.bias, self.project, A, D, gate, delta_bias),
                reverse=self.reverse,
                addend=addend,
                is_padding=is_padding,
                state=state,
            )
        scan_state, conv_state = state or (None, None)
        if conv_state is None:
            convolved = self.conv1d(hidden_states)
        else:
            convolved = self.conv1d(torch.cat([conv_state.to(hidden_states.dtype), hidden_states], dim=-1))
            convolved = convolved[..., conv_state.shape[-1] :]
        u = self.activation_fn(convolved)
        delta, B, C = self.project(u, is_padding)
        options: dict[str, Any] = {"initial_state": scan_state, "return_last_state": state is not None}
        return selective_scan(
            *(u, delta, A, B, C, D, gate, delta_bias, True), reverse=self.reverse, addend=addend, **options
        )


class VideoMambaMixer(nn.Module):
    """
    Gated state space layer. With two scans it is that of VideoMamba and Vision Mamba: both read one input projection
    and share one gate. Their outputs are summed, not averaged.

    With a state in its context, the forward scan continues an earlier part of the sequence, and the output is a tuple
    with the state after the last token. The backward scan sees the given tokens alone.
    """

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.reorder_forward = config.scan_order == "temporal_first"
        self.in_proj = VideoMambaLinear(config.hidden_size, 2 * config.intermediate_size, bias=config.use_bias)
        self.forward_scan = VideoMambaScan(config, reverse=False)
        self.backward_scan = VideoMambaScan(config, reverse=True) if config.bidirectional else None
        self.gate_fn = ACT2FN[config.hidden_act]
        self.out_proj = VideoMambaOutputProjection(config.intermediate_size, config.hidden_size, bias=config.use_bias)

    def forward(
        self, hidden_states: torch.Tensor, context: ScanContext = NO_CONTEXT
    ) -> torch.Tensor | tuple[torch.Tensor, LayerState]:
        temporal_first, real_tokens, state = context
        hidden_states, gate = self.in_proj(hidden_states).mT.chunk(2, dim=1)
        if state is not None:
            return self.go_on(hidden_states, gate, state)
        is_padding = None
        if real_tokens is not None:
            is_padding = ~real_tokens[:, None]
            hidden_states = hidden_states.masked_fill(is_padding, 0.0)
        if fuses(self.gate_fn) and temporal_first is None:
            gated = self.scan_and_gate(hidden_states, gate, is_padding)
        else:
            order = temporal_first if self.reorder_forward else None
            mixed = scan_in_order(self.forward_scan, hidden_states, is_padding, order)
            if self.backward_scan is not None:
                mixed = mixed + scan_in_order(self.backward_scan, hidden_states, is_padding, temporal_first)
            gated = mixed * self.gate_fn(gate)
        return self.out_proj(gated.mT)

    def scan_and_gate(
        self, hidden_states: torch.Tensor, gate: torch.Tensor, is_padding: torch.Tensor | None
    ) -> torch.Tensor:
        """Let the last scan add the other output and apply the gate. Some backends do this without a copy."""
        if self.backward_scan is None:
            return self.forward_scan(hidden_states, gate, is_padding=is_padding)
        forward = self.forward_scan(hidden_states, is_padding=is_padding)
        return self.backward_scan(hidden_states, gate, forward, is_padding)

    def go_on(
        self, hidden_states: torch.Tensor, gate: torch.Tensor, state: LayerState
    ) -> tuple[torch.Tensor, LayerState]:
        """The output for tokens that continue a sequence, and the state after them."""
        mixed, scan_state = self.forward_scan(hidden_states, state=state)
        if self.backward_scan is not None:
            mixed = self.backward_scan(hidden_states, addend=mixed)
        conv_state = torch.cat([state[1], hidden_states], dim=-1)[..., hidden_states.shape[-1] :]
        return self.out_proj((mixed * self.gate_fn(gate)).mT), (scan_state, conv_state)


def scan_in_order(
    scan: VideoMambaScan, hidden_states: torch.Tensor, is_padding: torch.Tensor | None, order: ScanOrder | None
) -> torch.Tensor:
    """Run a scan over the tokens in another order, and return its output in the order of the tokens."""
    if order is None:
        return scan(hidden_states, is_padding=is_padding)
    token_of_step, step_of_token = (index[:, None] for index in order)
    if is_padding is not None:
        is_padding = is_padding.take_along_dim(token_of_step, dim=2)
    steps = hidden_states.take_along_dim(token_of_step, dim=2)
    return scan(steps, is_padding=is_padding).take_along_dim(step_of_token, dim=2)


class VideoMambaLayer(GradientCheckpointingLayer):
    """
    Pre-norm block with a mixer and without an MLP. Its input and its output are the residual stream. With a state in
    its context it also returns the next one.
    """

    def __init__(self, config: VideoMambaConfig, drop_path_rate: float):
        super().__init__()
        self.norm = VideoMambaNorm(config)
        self.mixer = VideoMambaMixer(config)
        self.drop_path = VideoDropPath(drop_path_rate)

    def forward(
        self, hidden_states: torch.Tensor, context: ScanContext = NO_CONTEXT
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        normalized = self.norm(hidden_states)
        if normalized.device.type == "cpu" and not NARROW_ON_CPU:
            with without_autocast():
                branch = self.mixer(normalized.to(torch.promote_types(normalized.dtype, torch.float32)), context)
        else:
            branch = self.mixer(normalized, context)
        # The residual stream keeps its dtype, whatever the mixer computes in.
        if context.state is None:
            return hidden_states + self.drop_path(branch.to(hidden_states.dtype))
        branch, last_state = branch
        return hidden_states + self.drop_path(branch.to(hidden_states.dtype)), last_state


class VideoMambaPreTrainedModel(LayeredPreTrainedModel):
    config: VideoMambaConfig
    base_model_prefix = "videomamba"
    input_modalities = ("video",)
    _supports_views = True
    _no_split_modules = ["VideoMambaPatchEmbeddings", "VideoMambaEmbeddings", "VideoMambaLayer"]
    _keep_in_fp32_modules_strict = ["A_log", "D", "dt_proj.bias"]
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": VideoMambaLayer}
    _input_embed_layer = "patch_embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        config, std = self.config, self.config.initializer_range
        if isinstance(module, VideoMambaTimeStepProjection) and config.time_step_init_scheme != "zero_bias":
            self._init_time_steps(module)
        elif isinstance(module, nn.Linear):
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

    def set_input_size(self, image_size: int | tuple[int, int] | None = None, num_frames: int | None = None) -> None:
        """
        Change the input size of the model for good. The configuration gets the new size, and the positions are resized
        once. Outputs are those that `interpolate_pos_encoding` gives at run time.

        Args:
            image_size: height and width in pixels; unchanged by default.
            num_frames: number of frames; unchanged by default.

        Raises:
            ValueError: if the new size holds no patch.
        """
        config = self.config
        new_size: dict[str, Any] = {
            "image_size": image_size or config.image_size,
            "num_frames": num_frames or config.num_frames,
        }
        self.base_model.embeddings.set_grid(type(config)(**{**config.to_dict(), **new_size}).token_grid)
        config.image_size, config.num_frames = new_size["image_size"], new_size["num_frames"]

    def _init_time_steps(self, module: nn.Linear) -> None:
        """Mamba's initialisation (`Mamba.__init__` of mamba-ssm)."""
        config = self.config
        bound = config.time_step_scale * module.in_features**-0.5
        if config.time_step_init_scheme == "constant":
            init.constant_(module.weight, bound)
        else:
            init.uniform_(module.weight, -bound, bound)
        low, high = math.log(config.time_step_min), math.log(config.time_step_max)
        draws = torch.rand(module.out_features, dtype=torch.float32, device=module.bias.device)
        steps = torch.exp(low + (high - low) * draws).clamp(min=config.time_step_floor)
        # The inverse of softplus.
        init.copy_(module.bias, steps + torch.log(-torch.expm1(-steps)))


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
        if bool_masked_pos is not None:
            check_mask(bool_masked_pos, pixel_values.shape[0], math.prod(grid))
        if frame_mask is not None:
            check_frame_mask(frame_mask, pixel_values.shape[0], grid[0], bool_masked_pos)
        if state is not None:
            check_state(state, self.config, pixel_values, bool_masked_pos is not None or frame_mask is not None)
            if state.has_new and not self.config.bidirectional:
                state = self.read_class_token(state)
        if state is not None or frame_mask is not None:
            interpolate_pos_encoding = interpolate_pos_encoding and "space"
        kwargs["return_dict"] = True
        return self.encode(pixel_values, grid, bool_masked_pos, interpolate_pos_encoding, frame_mask, state, **kwargs)

    @capture_outputs(tie_last_hidden_states=False)
    def encode(
        self,
        pixel_values: torch.Tensor,
        grid: TokenGrid,
        bool_masked_pos: torch.Tensor | None,
        interpolate_pos_encoding: Interpolation,
        frame_mask: torch.Tensor | None,
        state: VideoMambaState | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VideoMambaOutput:
        """The outputs of `forward`. In a causal model a state is one that has read the class token."""
        hidden_states = self.embeddings(
            pixel_values.to(self.embeddings.patch_embeddings.projection.weight.dtype),
            bool_masked_pos,
            interpolate_pos_encoding,
            with_class_token=state is None or self.config.bidirectional,
        )
        real_tokens = temporal_first = None
        if frame_mask is not None:
            real_tokens = mask_of_tokens(frame_mask, grid, num_prefix_tokens=1)
        if self.config.scan_order != "spatial_first":
            temporal_first = temporal_first_order(grid, bool_masked_pos, hidden_states.device, real_tokens)
        hidden_states, state = self.run_layers(hidden_states, ScanContext(temporal_first, real_tokens), state)
        tokens = self.norm_f(hidden_states)
        if self.pool_norm is None:
            return VideoMambaOutput(last_hidden_state=tokens, state=state)
        frames = tokens[:, 1:].unflatten(1, (grid[0] if bool_masked_pos is None else 1, -1))
        pooled = self.pool_norm(tokens[:, :1] + frames.mean(dim=2))
        return VideoMambaOutput(last_hidden_state=tokens, pooler_output=pooled, state=state)

    def run_layers(
        self, hidden_states: torch.Tensor, context: ScanContext, state: VideoMambaState | None
    ) -> tuple[torch.Tensor, VideoMambaState | None]:
        """The residual stream after all layers, and the state after the last token if there is a state."""
        if self.config.residual_in_fp32:
            hidden_states = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        if state is None:
            for layer in self.layers:
                hidden_states = layer(hidden_states, context)
            return hidden_states, None
        last_states = []
        for layer, *states in zip(self.layers, state.scan_states, state.conv_states, strict=True):
            hidden_states, last_state = layer(hidden_states, context._replace(state=tuple(states)))
            last_states.append(last_state)
        return hidden_states, state.next(*zip(*last_states, strict=True))

    def read_class_token(self, state: VideoMambaState) -> VideoMambaState:
        """The state in which new streams have read the class token, which is the same for all of them."""
        class_token = self.embeddings.dropout(self.embeddings.class_token(1))
        class_token = class_token.to(self.embeddings.patch_embeddings.projection.weight.dtype)
        empty = VideoMambaState(self.config, device=class_token.device)
        _, after_class_token = self.run_layers(class_token, NO_CONTEXT, empty)
        return state.where_new(cast(VideoMambaState, after_class_token))


class VideoMambaClassifier(VideoMambaPreTrainedModel):
    """What the video and the image classifier share: pooling, head and loss."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        if not config.bidirectional and not config.use_mean_pooling:
            logger.warning_once(
                "With `bidirectional=False` the class token comes before all patches and sees none of them, so the "
                "logits do not depend on the pixels: set `use_mean_pooling=True`."
            )
        self.num_labels = config.num_labels
        self.videomamba = VideoMambaModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if config.num_labels > 0 else nn.Identity()
        self.loss_function = classification_loss
        self.post_init()

    def pool(self, tokens: torch.Tensor, has_class_token: bool = True) -> torch.Tensor:
        """Pooled features `(batch_size, hidden_size)` of tokens `(batch_size, sequence_length, hidden_size)`."""
        if self.config.use_mean_pooling:
            return tokens[:, int(has_class_token) :].mean(dim=1)
        if not has_class_token:
            raise ValueError("The class token of a causal model sees no frames: with a state, use_mean_pooling=True.")
        return tokens[:, 0]

    def classify(
        self, pixel_values: torch.Tensor, labels: torch.Tensor | None, **kwargs: Unpack[TransformersKwargs]
    ) -> VideoMambaClassifierOutput:
        clips = pixel_values.flatten(0, 1) if pixel_values.ndim == 6 else pixel_values
        outputs: VideoMambaOutput = self.videomamba(clips, return_dict=True, **kwargs)
        has_class_token = self.config.bidirectional or outputs.state is None
        features = self.dropout(self.pool(outputs.last_hidden_state, has_class_token))
        logits = average_views(self.classifier(features), pixel_values, self.config)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return VideoMambaClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, state=outputs.state
        )


class VideoMambaForVideoClassification(VideoMambaClassifier):
    """VideoMamba with a linear classifier on the pooled feature. With `num_labels=0` the output is that feature."""

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VideoMambaClassifierOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames. For several views of a video (clips and crops) they are `(batch_size, num_views,
                num_frames, num_channels, height, width)`, and `average_views` joins the logits.
            labels (`torch.Tensor`, *optional*):
                Class indices `(batch_size,)`, int64, for the cross-entropy; targets in [0, 1] `(batch_size,
                num_labels)`, float, for multi-label classification; values for regression. `config.problem_type`
                says which; if it is not set, the first labels decide by their dtype.
            kwargs: other arguments of [`VideoMambaModel`].

        Returns:
            [`VideoMambaClassifierOutput`] with `logits` of shape `(batch_size, num_labels)`.
        """
        return self.classify(pixel_values, labels, **kwargs)


class VideoMambaForImageClassification(VideoMambaClassifier):
    """
    VideoMamba for single images, each a clip of one frame. The configuration needs `num_frames=1` and
    `tubelet_size=1`.
    """

    def __init__(self, config: VideoMambaConfig):
        if config.tubelet_size != 1:
            raise ValueError(f"Image classification needs `tubelet_size=1`, got {config.tubelet_size}.")
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VideoMambaClassifierOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_channels, height, width)`):
                Normalised images.
            labels (`torch.Tensor`, *optional*):
                As for [`VideoMambaForVideoClassification`].
            kwargs: other arguments of [`VideoMambaModel`].

        Returns:
            [`VideoMambaClassifierOutput`] with `logits` of shape `(batch_size, num_labels)`.
        """
        if pixel_values.ndim != 4:
            raise ValueError(
                f"`pixel_values` must be (batch_size, num_channels, height, width), got {tuple(pixel_values.shape)}."
            )
        return self.classify(pixel_values[:, None], labels, **kwargs)


class VideoMambaBackbone(BackboneMixin, VideoMambaPreTrainedModel):
    """Feature maps for detection and other dense tasks."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__(config)
        self.videomamba = VideoMambaModel(config)
        config.check_layers()
        self.num_features = [config.hidden_size] * (config.num_hidden_layers + 1)
        self.post_init()

    @can_return_tuple
    @filter_output_hidden_states
    def forward(self, pixel_values: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> BackboneOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames of any size.
            kwargs: other arguments of [`VideoMambaModel`].

        Returns:
            [`BackboneOutput`] whose `feature_maps` are, one for each stage in `config.out_features`, `(batch_size,
            hidden_size, t, h, w)`, after the final norm.
        """
        t, h, _ = token_grid(pixel_values, self.config)
        outputs: VideoMambaOutput = self.videomamba(pixel_values, return_dict=True, **kwargs)
        feature_maps = []
        for stage, hidden_states in zip(self.stage_names, outputs.hidden_states, strict=True):
            if stage in self.out_features:
                tokens = self.videomamba.norm_f(hidden_states)
                feature_maps.append(rearrange(tokens[:, 1:], "b (t h w) c -> b c t h w", t=t, h=h))
        return BackboneOutput(feature_maps=tuple(feature_maps), hidden_states=outputs.hidden_states)


__all__ = [
    "VideoMambaBackbone",
    "VideoMambaClassifierOutput",
    "VideoMambaForImageClassification",
    "VideoMambaForVideoClassification",
    "VideoMambaModel",
    "VideoMambaOutput",
    "VideoMambaPreTrainedModel",
]
