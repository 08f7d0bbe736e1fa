"""Positions of VideoViT: tables added to the tokens, and rotations of queries and keys."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .configuration_videovit import VideoViTConfig

TokenGrid = tuple[int, int, int]
RotaryEmbedding = tuple[torch.Tensor, torch.Tensor]


def sinusoidal_positions(num_positions: int, hidden_size: int) -> torch.Tensor:
    """
    Table of sines on even and cosines on odd channels, `(1, num_positions, hidden_size)`, computed in double precision
    and rounded to float32 (VideoMAE, `get_sinusoid_encoding_table`; "Attention Is All You Need", section 3.5).
    """
    channels = torch.arange(hidden_size, dtype=torch.float64, device="cpu")
    wavelengths = 10000 ** (2 * (channels // 2) / hidden_size)
    angles = torch.arange(num_positions, dtype=torch.float64, device="cpu")[:, None] / wavelengths
    table = torch.where(channels % 2 == 0, angles.sin(), angles.cos())
    return table.float()[None]


def resize_positions(positions: torch.Tensor, old_grid: TokenGrid, new_grid: TokenGrid) -> torch.Tensor:
    """
    Resize a table of positions `(1, t * h * w, hidden_size)` from one token grid to another: every temporal slice by
    bicubic interpolation (without antialiasing, corners not aligned), then linearly over time.
    """
    dtype = torch.promote_types(positions.dtype, torch.float32)
    table = positions[0].to(dtype).unflatten(0, old_grid)
    if new_grid[1:] != old_grid[1:]:
        table = table.permute(0, 3, 1, 2)
        table = F.interpolate(table, size=new_grid[1:], mode="bicubic", align_corners=False).permute(0, 2, 3, 1)
    if new_grid[0] != old_grid[0]:
        table = F.interpolate(table.permute(1, 2, 3, 0).flatten(0, 1), size=new_grid[0], mode="linear")
        table = table.unflatten(0, new_grid[1:]).permute(3, 0, 1, 2)
    return table.flatten(0, 2)[None].to(positions.dtype)


class VideoViTPositionEmbeddings(nn.Module):
    """
    A table with one position per token, added to the tokens. A learned table is a parameter and has a row for the
    class token, too; a sinusoidal one is a float32 buffer outside the state dict, rebuilt from the configuration.
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
        """The table of the configured input size, resized from `position_embedding_grid` where there is one."""
        t, h, w = self.config.position_embedding_grid or self.grid
        table = sinusoidal_positions(t * h * w, self.hidden_size)
        return self.resize(table, (t, h, w), self.grid)

    def forward(self, grid: TokenGrid, interpolate_pos_encoding: bool = True) -> torch.Tensor:
        """Positions `(1, prefix + t * h * w, hidden_size)` for a token grid, resized as the configuration says."""
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
        return self.resize(table, self.grid, grid)

    def resize(self, table: torch.Tensor, old_grid: TokenGrid, new_grid: TokenGrid) -> torch.Tensor:
        """A table of one token grid for another one, as `position_embedding_resize` says."""
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
        """Bake another token grid in; the configuration has it already."""
        if isinstance(self.weight, nn.Parameter):
            table = self.resize(self.weight, self.grid, grid).clone()
            self.grid, self.weight = grid, nn.Parameter(table, requires_grad=self.weight.requires_grad)
        else:
            self.grid = grid
            self.weight = self.sinusoidal_table().to(self.weight.device)


class VideoViTRotaryEmbedding(nn.Module):
    """
    Axial rotary positions: the channels of a head are shared out over time, rows and columns, and each part is rotated
    by the token's coordinate along its axis (RoFormer, https://arxiv.org/abs/2104.09864, along three axes).
    """

    def __init__(self, config: VideoViTConfig, head_dim: int):
        super().__init__()
        pairs = head_dim // 2
        self.pairs_of_axis = (pairs - 2 * (pairs // 3), pairs // 3, pairs // 3)
        self.theta = config.rope_theta

    @torch.no_grad()
    def forward(self, grid: TokenGrid, device: torch.device) -> torch.Tensor:
        """Angles in radians, `(1, t * h * w, head_dim // 2)`, float32."""
        axes = [torch.arange(size, device=device, dtype=torch.float32) for size in grid]
        angles = []
        for positions, pairs in zip(torch.meshgrid(*axes, indexing="ij"), self.pairs_of_axis, strict=True):
            frequencies = self.theta ** -(torch.arange(pairs, device=device, dtype=torch.float32) / pairs)
            angles.append(positions.flatten()[:, None] * frequencies)
        return torch.cat(angles, dim=-1)[None]


def rotate(states: torch.Tensor, rotary: RotaryEmbedding) -> torch.Tensor:
    """Rotate the channel pairs (i, i + head_dim / 2) of `(batch_size, heads, sequence_length, head_dim)`."""
    cos, sin = rotary
    first, second = states.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(states.dtype)
