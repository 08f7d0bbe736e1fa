"""Patches of videos as tokens with positions in space and time, and the orders in which a scan visits them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .configuration_videomamba import VideoMambaConfig

TokenGrid = tuple[int, int, int]


class VideoMambaPatchEmbeddings(nn.Module):
    """Patches to tokens by a convolution over time, rows and columns."""

    def __init__(self, config: VideoMambaConfig):
        super().__init__()
        self.config = config
        self.projection = nn.Conv3d(
            config.num_channels, config.hidden_size, kernel_size=config.patch_shape, stride=config.patch_steps
        )

    def grid_of(self, pixel_values: torch.Tensor) -> TokenGrid:
        """Token grid (t, h, w) of an input; raises `ValueError` if its shape is not one this model can take."""
        if pixel_values.ndim != 5 or pixel_values.shape[2] != self.config.num_channels:
            raise ValueError(
                f"`pixel_values` must be (batch_size, num_frames, num_channels={self.config.num_channels}, height, "
                f"width), got {tuple(pixel_values.shape)}."
            )
        num_frames, _, height, width = pixel_values.shape[1:]
        grid = self.config.token_grid_of(num_frames, height, width)
        if min(grid) < 1:
            raise ValueError(
                f"{num_frames} frames of {height} x {width} pixels hold no patch of {self.config.patch_shape} (frames,"
                " height, width)."
            )
        return grid

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Tokens `(batch_size, t, h * w, hidden_size)`."""
        return self.projection(pixel_values.transpose(1, 2)).flatten(3).permute(0, 2, 3, 1)


class VideoMambaEmbeddings(nn.Module):
    """
    Patch tokens, frame by frame, behind a class token. Positions are learned: one table over the places of a frame,
    which the class token leads, and one over time for the patches alone.
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
        self, grid: TokenGrid, interpolate_pos_encoding: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """
        The tables `(1, 1 + h * w, hidden_size)` and `(1, t, hidden_size)` for a token grid: over space by bicubic,
        over time by linear interpolation, corners not aligned (`run_class_finetuning.py` of the original).
        """
        spatial: torch.Tensor = self.position_embeddings
        temporal: torch.Tensor | None = self.temporal_position_embeddings
        built_for = self.config.token_grid
        # A model without a table over time sees frames that differ only by their order.
        differs = grid != built_for if temporal is not None else grid[1:] != built_for[1:]
        if differs and not interpolate_pos_encoding:
            raise ValueError(
                f"The input has a token grid (t, h, w) of {grid}, the configuration one of {built_for}: pass "
                f"`interpolate_pos_encoding=True`, resize the input, or call `set_input_size`."
            )
        dtype = torch.promote_types(spatial.dtype, torch.float32)
        if grid[1:] != built_for[1:]:
            class_position, table = spatial.split([1, spatial.shape[1] - 1], dim=1)
            table = table.to(dtype).mT.unflatten(-1, built_for[1:])
            table = F.interpolate(table, size=grid[1:], mode="bicubic", align_corners=False)
            spatial = torch.cat([class_position, table.flatten(2).mT.to(spatial.dtype)], dim=1)
        if temporal is not None and grid[0] != built_for[0]:
            resized = F.interpolate(temporal.to(dtype).mT, size=grid[0], mode="linear", align_corners=False)
            temporal = resized.mT.to(temporal.dtype)
        return spatial, temporal

    def forward(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        interpolate_pos_encoding: bool = True,
    ) -> torch.Tensor:
        grid = self.patch_embeddings.grid_of(pixel_values)
        spatial, temporal = self.positions(grid, interpolate_pos_encoding)
        tokens = self.patch_embeddings(pixel_values) + spatial[:, None, 1:]
        if temporal is not None:
            tokens = tokens + temporal[:, :, None]
        tokens = tokens.flatten(1, 2)
        if bool_masked_pos is not None:
            tokens = select_tokens(tokens, ~bool_masked_pos)
        class_token = (self.cls_token + spatial[:, :1]).expand(tokens.shape[0], -1, -1)
        return self.dropout(torch.cat([class_token.to(tokens.dtype), tokens], dim=1))


def temporal_first_order(
    grid: TokenGrid, bool_masked_pos: torch.Tensor | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The order that visits the class token and then, place by place, all frames of each.

    Args:
        grid: token grid (t, h, w).
        bool_masked_pos: `(batch_size, t * h * w)`, true for patches that are not in the sequence.
        device: of the result.

    Returns:
        For each step the token that it visits, and for each token the step that visits it: both `(batch_size or 1,
        sequence_length)`, int64.
    """
    t, h, w = grid
    rank = torch.arange(math.prod(grid), device=device).unflatten(0, (h * w, t)).mT.flatten()[None, :, None]
    if bool_masked_pos is not None:
        rank = select_tokens(rank, ~bool_masked_pos)
    order = F.pad(rank[..., 0].argsort(dim=1) + 1, (1, 0))
    return order, order.argsort(dim=1)


def select_tokens(tokens: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """
    Gather the selected tokens of every clip, in their order.

    Args:
        tokens: `(batch_size or 1, sequence_length, hidden_size)`.
        selected: `(batch_size, sequence_length)`, bool, with as many true entries in every row.

    Returns:
        `(batch_size, num_selected, hidden_size)`.
    """
    return tokens.expand(selected.shape[0], -1, -1)[selected].unflatten(0, (selected.shape[0], -1))
