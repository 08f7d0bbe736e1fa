"""PyTorch STMixer: a detector of people and their actions, which samples the feature maps of a video backbone."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoBackbone
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..shared_video import VideoPreTrainedModel
from .configuration_stmixer import STMixerConfig
from .loss_stmixer import check_labels, detection_losses

LATERAL_NORM_EPS = 1e-6
# A level of 0 is that of boxes of 8 pixels, to which the first feature map belongs.
FIRST_LEVEL = 3.0
LEVEL_VARIANCE = 2.0
# Coordinates are divided by these before they are embedded.
EMBEDDING_SCALES = (1000.0, 1000.0, 1.0, 1.0)
# Initial probability of an action.
ACTION_PRIOR = 0.01


@dataclass
class STMixerForActionDetectionOutput(ModelOutput):
    """
    Output of [`STMixerForActionDetection`].

    Args:
        loss (`torch.FloatTensor` of shape `()`, *optional*):
            Mean over the terms of `loss_dict`, each times its weight.
        loss_dict (`dict[str, torch.FloatTensor]`, *optional*):
            `loss_ce`, `loss_bbox`, `loss_giou` and `loss_bce` of the last decoder layer, without their weights, and
            those of the i-th layer before it, whose names end with `_i`.
        logits (`torch.FloatTensor` of shape `(batch_size, num_queries, 2)`):
            Whether there is a person (class 0) or background (class 1).
        action_logits (`torch.FloatTensor` of shape `(batch_size, num_queries, num_labels)`):
            Actions of the person; their sigmoids are probabilities.
        pred_boxes (`torch.FloatTensor` of shape `(batch_size, num_queries, 4)`):
            Left, top, right and bottom in pixels of the input. They may be outside of it.
        auxiliary_outputs (`list[dict[str, torch.FloatTensor]]`):
            `logits`, `action_logits` and `pred_boxes` of the decoder layers before the last, the first layer first.
        hidden_states, attentions (`tuple[torch.FloatTensor]`, *optional*):
            Those of the backbone.
    """

    loss: torch.Tensor | None = None
    loss_dict: dict[str, torch.Tensor] | None = None
    logits: torch.Tensor | None = None
    action_logits: torch.Tensor | None = None
    pred_boxes: torch.Tensor | None = None
    auxiliary_outputs: list[dict[str, torch.Tensor]] | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


def initial_boxes(sizes: torch.Tensor) -> torch.Tensor:
    """The whole frames as boxes (x, y, z, r), see [`decode_boxes`]; `sizes` are `(batch_size, 2)` height and width."""
    height, width = sizes.unbind(-1)
    return torch.stack([width / 2, height / 2, torch.log2(width * height) / 2, torch.log2(height / width)], dim=-1)


def decode_boxes(xyzr: torch.Tensor) -> torch.Tensor:
    """
    Corners of boxes.

    Args:
        xyzr: `(..., 4)`: x and y of the centre in pixels, z = log2(sqrt(width * height)), r = log2(height / width).

    Returns:
        `(..., 4)`: left, top, right, bottom in pixels.
    """
    centers, sides = xyzr[..., :2], sides_of(xyzr)
    return torch.cat([centers - sides / 2, centers + sides / 2], dim=-1)


def sides_of(xyzr: torch.Tensor) -> torch.Tensor:
    """Width and height `(..., 2)` of boxes (x, y, z, r)."""
    z, r = xyzr[..., 2], xyzr[..., 3]
    return torch.stack([torch.exp2(z - r / 2), torch.exp2(z + r / 2)], dim=-1)


def refine_boxes(xyzr: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
    """Boxes (x, y, z, r) after a step, whose x and y are in units of the box's mean side 2^z."""
    centers = xyzr[..., :2] + deltas[..., :2] * torch.exp2(xyzr[..., 2:3])
    return torch.cat([centers, xyzr[..., 2:] + deltas[..., 2:]], dim=-1)


def embed_boxes(xyzr: torch.Tensor, hidden_size: int) -> torch.Tensor:
    """Sines and cosines `(..., hidden_size)` of boxes `(..., 4)`, a quarter of them for each coordinate."""
    channels = torch.arange(hidden_size // 8, device=xyzr.device, dtype=torch.float32)
    divisors = 10000 ** (2 * channels / (hidden_size // 4))
    angles = (xyzr / xyzr.new_tensor(EMBEDDING_SCALES))[..., None] / divisors
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-3)


def intersection_over_foreground(boxes: torch.Tensor) -> torch.Tensor:
    """For boxes `(..., n, 4)`, which share `(..., n, n)` of each (row) each other one (column) covers."""
    left_top = torch.maximum(boxes[..., :, None, :2], boxes[..., None, :, :2])
    right_bottom = torch.minimum(boxes[..., :, None, 2:], boxes[..., None, :, 2:])
    shared = (right_bottom - left_top).clamp(min=0).prod(dim=-1)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1)
    return shared / areas.clamp(min=1e-6)[..., None]


def sample_points(offsets: torch.Tensor, xyzr: torch.Tensor) -> torch.Tensor:
    """
    Points in space and level. Level 0 is that of boxes of one pixel; each level doubles the side.

    Args:
        offsets: `(batch_size, num_queries, num_groups, num_points, 3)`: x and y in units of the box's width and
            height, and levels.
        xyzr: `(batch_size, num_queries, 4)`, boxes.

    Returns:
        `(batch_size, num_queries, num_groups, num_points, 3)`: x and y in pixels, and levels.
    """
    steps = F.pad(sides_of(xyzr), (0, 1), value=1.0)
    return xyzr[:, :, None, None, :3] + offsets * steps[:, :, None, None]


def level_weights(levels: torch.Tensor, num_levels: int) -> torch.Tensor:
    """Weights `(..., num_levels)` of the feature maps for points at `levels`."""
    distances = levels[..., None] - FIRST_LEVEL - torch.arange(num_levels, device=levels.device)
    return (-(distances**2) / LEVEL_VARIANCE).softmax(dim=-1)


def make_table(feature_maps: Sequence[torch.Tensor], num_groups: int, dtype: torch.dtype) -> torch.Tensor:
    """
    The features as rows of a table.

    Args:
        feature_maps: each `(batch_size, hidden_size, t, h, w)`. A group has its own part of the channels.
        num_groups: number of groups.
        dtype: of the table.

    Returns:
        `(batch_size * num_groups * positions, t, hidden_size / num_groups)`: a row has the features of a group at a
        position, in all frames. Positions are those of the first map, row by row, then those of the next ones.
    """
    groups = [feature_map.to(dtype).unflatten(1, (num_groups, -1)).flatten(4) for feature_map in feature_maps]
    return torch.cat([group.permute(0, 1, 4, 3, 2) for group in groups], dim=2).flatten(0, 2)


def find_samples(
    points: torch.Tensor, sizes: Sequence[Sequence[int]], strides: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    What a point reads: the four nearest positions of each map, weighted by their distances in space (bilinearly, with
    zeros outside of the map) and that of the map's level.

    Args:
        points: `(batch_size, num_queries, num_groups, num_points, 3)`: x and y in pixels, and levels.
        sizes: height and width of each map.
        strides: pixels from one position to the next, of each map.

    Returns:
        Rows in the table of [`make_table`], int64, and their weights, both `(batch_size, num_queries, num_groups,
        num_points, 4 * num_maps)`.
    """
    batch_size, num_groups = points.shape[0], points.shape[2]
    # x and y in positions of each map, whose first pixel's centre is at 0: (..., num_maps, 2).
    places = points[..., None, :2] / points.new_tensor(strides)[:, None] - 0.5
    low = places.detach().floor()
    corners = torch.stack([low, low + 1], dim=-1)
    weights = torch.stack([low + 1 - places, places - low], dim=-1)
    ends = points.new_tensor([[width - 1, height - 1] for height, width in sizes])[..., None]
    weights = weights * ((corners >= 0) & (corners <= ends))
    x, y = corners.nan_to_num().clamp(min=0).minimum(ends).long().unbind(-2)

    counts = [height * width for height, width in sizes]
    starts = torch.tensor([0, *itertools.accumulate(counts)], device=points.device)
    widths = torch.tensor([width for _, width in sizes], device=points.device)
    rows = starts[:-1, None, None] + y[..., :, None] * widths[:, None, None] + x[..., None, :]
    groups = torch.arange(batch_size * num_groups, device=points.device).view(batch_size, 1, num_groups, 1, 1)
    weights = weights[..., 1, :, None] * weights[..., 0, None, :]
    weights = weights * level_weights(points[..., 2], len(counts))[..., None, None]
    return groups * starts[-1] + rows.flatten(-3), weights.flatten(-3)


def read_table(table: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sums `(..., t, channels)` of rows `(..., n)` of a table `(num_rows, t, channels)`."""
    sums = F.embedding_bag(
        rows.flatten(0, -2), table.flatten(1), per_sample_weights=weights.flatten(0, -2), mode="sum"
    )
    return sums.view(*rows.shape[:-1], *table.shape[1:])


class STMixerChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of a map `(batch_size, channels, t, h, w)`, at each position."""

    def forward(self, feature_map: torch.Tensor) -> torch.Tensor:
        return super().forward(feature_map.movedim(1, -1)).movedim(-1, 1)


def make_lateral_branches(channels: int, hidden_size: int) -> nn.ModuleList:
    """The branches that make maps `(batch_size, hidden_size, t, h, w)` of twice, once and half the resolution of the
    backbone's map, which has `channels`, and first of four times it."""

    def double(in_channels: int, out_channels: int) -> nn.Module:
        return nn.ConvTranspose3d(in_channels, out_channels, (1, 2, 2), (1, 2, 2))

    def project(in_channels: int) -> list[nn.Module]:
        return [
            nn.Conv3d(in_channels, hidden_size, 1, bias=False),
            STMixerChannelNorm(hidden_size, eps=LATERAL_NORM_EPS),
            nn.Conv3d(hidden_size, hidden_size, 3, padding=1, bias=False),
        ]

    half, quarter = channels // 2, channels // 4
    norm = STMixerChannelNorm(half, eps=LATERAL_NORM_EPS)
    return nn.ModuleList(
        [
            nn.Sequential(double(channels, half), norm, nn.GELU(), double(half, quarter), *project(quarter)),
            nn.Sequential(double(channels, half), *project(half)),
            nn.Sequential(*project(channels)),
            nn.Sequential(nn.MaxPool3d((1, 2, 2)), *project(channels)),
        ]
    )


class STMixerAttention(nn.Module):
    """Self-attention of the queries, with a bias for each pair and head. No fused kernel takes such a bias in float32
    beside states of half precision."""

    def __init__(self, config: STMixerConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.scaling = (config.hidden_size // self.num_heads) ** -0.5
        self.dropout = nn.Dropout(config.attention_dropout)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Takes `(batch_size, num_queries, hidden_size)` and `(batch_size, num_heads, num_queries, num_queries)`."""
        qkv = self.qkv(hidden_states).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        scores = (query * self.scaling) @ key.transpose(2, 3) + bias
        weights = self.dropout(scores.softmax(dim=-1).to(value.dtype))
        return self.o_proj((weights @ value).transpose(1, 2).flatten(2))


class STMixerAdaptiveMixing(nn.Module):
    """Mixes the channels and the points that a query sampled, by matrices that are made of the query."""

    def __init__(self, config: STMixerConfig, num_points: int):
        super().__init__()
        self.num_groups, self.in_points = config.num_groups, num_points
        self.out_points = config.point_multiplier * num_points
        self.channels = config.hidden_size // self.num_groups
        size = self.channels**2 + self.out_points * num_points
        self.parameter_generator = nn.Linear(config.hidden_size, self.num_groups * size)
        self.out_proj = nn.Linear(self.num_groups * self.out_points * self.channels, config.hidden_size)

    def forward(self, sampled: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """
        Args:
            sampled: `(batch_size, num_queries, num_groups, num_points, channels)`.
            queries: `(batch_size, num_queries, hidden_size)`.

        Returns:
            What is added to the queries.
        """
        parameters = self.parameter_generator(queries).unflatten(-1, (self.num_groups, -1))
        channel_matrix, point_matrix = parameters.tensor_split([self.channels**2], dim=-1)
        mixed = sampled @ channel_matrix.unflatten(-1, (self.channels, self.channels))
        mixed = F.layer_norm(mixed, mixed.shape[-2:]).relu()
        mixed = point_matrix.unflatten(-1, (self.out_points, self.in_points)) @ mixed
        mixed = F.layer_norm(mixed, mixed.shape[-2:]).relu()
        return self.out_proj(mixed.flatten(2))


class STMixerBranch(nn.Module):
    """What the spatial and the temporal queries each have of their own in a decoder layer."""

    def __init__(self, config: STMixerConfig, num_points: int):
        super().__init__()
        size = config.hidden_size
        self.attention = STMixerAttention(config)
        self.attention_norm = nn.LayerNorm(size)
        self.mixing = STMixerAdaptiveMixing(config, num_points)
        self.mixing_norm = nn.LayerNorm(size)
        sizes = [size] + [config.intermediate_size] * (config.num_ffn_layers - 1)
        hidden = [nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in zip(sizes, sizes[1:], strict=False)]
        self.ffn = nn.Sequential(*hidden, nn.Linear(sizes[-1], size))
        self.ffn_norm = nn.LayerNorm(size)

    def attend(self, queries: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self.attention_norm(queries + self.attention(queries, bias))

    def mix(self, queries: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        queries = self.mixing_norm(queries + self.mixing(sampled, queries))
        return self.ffn_norm(queries + self.ffn(queries))


class STMixerHead(nn.Module):
    """Hidden layers and a last linear layer."""

    def __init__(self, size: int, num_layers: int, num_outputs: int):
        super().__init__()
        hidden = [
            module for _ in range(num_layers) for module in (nn.Linear(size, size), nn.LayerNorm(size), nn.ReLU())
        ]
        self.layers = nn.Sequential(*hidden)
        self.output = nn.Linear(size, num_outputs)

    def forward(self, queries: torch.Tensor) -> torch.Tensor:
        return self.output(self.layers(queries))


class STMixerLayer(GradientCheckpointingLayer):
    """A decoder layer: queries attend to each other, sample the feature maps around their boxes, mix what they found,
    and tell persons, steps of the boxes, and actions."""

    def __init__(self, config: STMixerConfig):
        super().__init__()
        self.strides, self.num_groups = cast(list[float], config.strides), config.num_groups
        size = config.hidden_size
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.iof_tau = nn.Parameter(torch.empty(config.num_attention_heads, dtype=dtype))
        self.spatial = STMixerBranch(config, config.num_spatial_points)
        self.temporal = STMixerBranch(config, config.num_temporal_points)
        self.offset_generator = nn.Linear(size, config.num_groups * config.num_spatial_points * 3)
        self.person_head = STMixerHead(size, config.num_class_layers, 2)
        self.box_head = STMixerHead(size, config.num_box_layers, 4)
        self.action_head = STMixerHead(2 * size, config.num_action_layers, config.num_labels)

    def forward(
        self,
        xyzr: torch.Tensor,
        spatial_queries: torch.Tensor,
        temporal_queries: torch.Tensor,
        table: torch.Tensor,
        mean_table: torch.Tensor,
        sizes: Sequence[Sequence[int]],
    ) -> tuple[torch.Tensor, ...]:
        """
        Args:
            xyzr: `(batch_size, num_queries, 4)`, boxes, float32 at least.
            spatial_queries, temporal_queries: `(batch_size, num_queries, hidden_size)`.
            table, mean_table: features of all frames, see [`make_table`], and their mean over the frames.
            sizes: height and width of each feature map.

        Returns:
            Boxes and queries for the next layer, logits `(batch_size, num_queries, 2)` of persons, and
            `(batch_size, num_queries, num_labels)` of actions.
        """
        with torch.no_grad():
            embedding = embed_boxes(xyzr, spatial_queries.shape[-1]).to(spatial_queries.dtype)
            log_iof = torch.log(intersection_over_foreground(decode_boxes(xyzr)) + 1e-7)
        bias = log_iof[:, None] * self.iof_tau[:, None, None]
        spatial_queries = self.spatial.attend(spatial_queries + embedding, bias)
        temporal_queries = self.temporal.attend(temporal_queries + embedding, bias)

        offsets = self.offset_generator(spatial_queries).to(xyzr.dtype).unflatten(-1, (self.num_groups, -1, 3))
        rows, weights = find_samples(sample_points(offsets, xyzr), sizes, self.strides)
        # Sampling is linear, so the means over frames and over points are sampled, never each frame at each point.
        of_points = read_table(mean_table, rows, weights).squeeze(-2).to(spatial_queries.dtype)
        num_points = rows.shape[3]
        of_frames = read_table(table, rows.flatten(3), weights.flatten(3) / num_points).to(spatial_queries.dtype)
        spatial_queries = self.spatial.mix(spatial_queries, of_points)
        temporal_queries = self.temporal.mix(temporal_queries, of_frames)

        xyzr = refine_boxes(xyzr, self.box_head(spatial_queries).to(xyzr.dtype))
        action_logits = self.action_head(torch.cat([spatial_queries, temporal_queries], dim=-1))
        return xyzr, spatial_queries, temporal_queries, self.person_head(spatial_queries), action_logits


class STMixerPreTrainedModel(VideoPreTrainedModel):
    config: STMixerConfig
    base_model_prefix = "stmixer"
    input_modalities = ("video",)
    _no_split_modules = ["STMixerLayer"]
    # A factor on logarithms of up to 16, which decide between neighbouring queries.
    _keep_in_fp32_modules_strict = ["iof_tau"]
    # The attention of the queries is written out: "sdpa" is for the backbone, and other kernels are set for it alone.
    _supports_sdpa = True
    _tower = "backbone"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """The original's: PyTorch's defaults, and in the decoder layers Glorot's matrices, with exceptions."""
        if isinstance(module, (nn.Linear, nn.Conv3d, nn.ConvTranspose3d, nn.LayerNorm, nn.Embedding)):
            module.reset_parameters()
        if isinstance(module, STMixerLayer):
            init.uniform_(module.iof_tau, 0.0, 4.0)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            for layer in self.layers:
                self._init_exception(module, layer)

    def _init_exception(self, module: nn.Linear, layer: "STMixerLayer") -> None:
        branches = (layer.spatial, layer.temporal)
        if module is layer.action_head.output:
            init.constant_(module.bias, -math.log(1 / ACTION_PRIOR - 1))
        elif module is layer.box_head.output:
            init.zeros_(module.weight)
            init.zeros_(module.bias)
        elif module is layer.offset_generator:
            init.zeros_(module.weight)
            steps = torch.rand_like(module.bias).view(-1, 3) - 0.5
            init.copy_(module.bias, F.pad(steps[:, :2], (0, 1)).flatten())
        elif any(module is branch.mixing.parameter_generator for branch in branches):
            init.zeros_(module.weight)
        elif any(module in (branch.attention.qkv, branch.attention.o_proj) for branch in branches):
            init.zeros_(module.bias)


class STMixerForActionDetection(STMixerPreTrainedModel):
    """
    Detects the people of a clip at its key frame and their actions. Learned queries start with the whole frame as
    their box; decoder layers refine boxes, and gather from the feature maps what tells persons and actions.
    """

    # For Trainer: the loss is the mean of a call.
    accepts_loss_kwargs = False

    def __init__(self, config: STMixerConfig):
        super().__init__(config)
        self.backbone = AutoBackbone.from_config(config.backbone_config)
        # A backbone may complete its configuration.
        config.backbone_config = self.backbone.config
        self.lateral_branches = make_lateral_branches(self.backbone.channels[-1], config.hidden_size)
        self.spatial_queries = nn.Embedding(config.num_queries, config.hidden_size)
        self.temporal_queries = nn.Embedding(config.num_queries, config.hidden_size)
        self.layers = nn.ModuleList(STMixerLayer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        original_sizes: torch.Tensor | None = None,
        labels: list[dict[str, torch.Tensor]] | None = None,
        num_targets: float | None = None,
        num_clips: float | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> STMixerForActionDetectionOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Normalised frames around the key frame, padded at the right and at the bottom.
            original_sizes (`torch.LongTensor` of shape `(batch_size, 2)`, *optional*):
                Height and width before padding; by default those of the input.
            labels (`list[dict[str, torch.Tensor]]`, *optional*):
                The persons of each clip: `boxes` `(n, 4)`, left, top, right and bottom in pixels, and `class_labels`
                `(n, num_labels)`, ones for their actions and zeros. There may be none.
            num_targets, num_clips (`float`, *optional*):
                Persons and clips of the whole step, over all processes and accumulated batches, divided by the number
                of processes; by default those of this call. The losses are sums divided by what follows from them.
            kwargs: other arguments of the backbone.

        Returns:
            [`STMixerForActionDetectionOutput`].

        Raises:
            ValueError: for clips whose feature map has not `config.num_temporal_points` frames, and for more persons
                in a clip than queries.
        """
        batch_size = len(pixel_values)
        if labels is not None:
            check_labels(labels, batch_size, self.config)
        features = self.backbone(pixel_values, return_dict=True, **kwargs)
        feature_map = features.feature_maps[-1]
        if feature_map.shape[2] != self.config.num_temporal_points:
            raise ValueError(
                f"{pixel_values.shape[1]} frames make a feature map of {feature_map.shape[2]} frames, expected "
                f"{self.config.num_temporal_points}: give clips of another length."
            )
        feature_maps = [branch(feature_map) for branch in self.lateral_branches]

        # Boxes are never in half precision, whose steps are whole pixels.
        dtype = torch.promote_types(feature_map.dtype, torch.float32)
        if original_sizes is None:
            original_sizes = torch.tensor(pixel_values.shape[-2:]).expand(batch_size, -1)
        sizes = original_sizes.to(pixel_values.device, dtype)
        xyzr = initial_boxes(sizes)[:, None].expand(-1, self.config.num_queries, -1)
        spatial_queries, temporal_queries = (
            F.layer_norm(table.weight, table.weight.shape[-1:]).expand(batch_size, -1, -1)
            for table in (self.spatial_queries, self.temporal_queries)
        )
        table = make_table(feature_maps, self.config.num_groups, dtype)
        mean_table = table.mean(dim=1, keepdim=True)
        map_sizes = [tuple(each.shape[-2:]) for each in feature_maps]
        predictions = []
        for layer in self.layers:
            xyzr, spatial_queries, temporal_queries, logits, action_logits = layer(
                xyzr, spatial_queries, temporal_queries, table, mean_table, map_sizes
            )
            predictions.append({"logits": logits, "action_logits": action_logits, "pred_boxes": decode_boxes(xyzr)})
        output = STMixerForActionDetectionOutput(
            **predictions[-1],
            auxiliary_outputs=predictions[:-1],
            hidden_states=features.hidden_states,
            attentions=features.attentions,
        )
        if labels is not None:
            losses = detection_losses(predictions, labels, sizes, self.config, num_targets, num_clips)
            output.loss, output.loss_dict = losses
        return output


__all__ = ["STMixerForActionDetection", "STMixerForActionDetectionOutput", "STMixerPreTrainedModel"]
