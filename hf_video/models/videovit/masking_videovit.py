"""Masks of patches: how to draw those of pre-training, and find still patches."""

import math

import torch
import torch.nn.functional as F

from .configuration_videovit import VideoViTConfig


def tube_mask(
    batch_size: int,
    grid: tuple[int, int, int],
    mask_ratio: float,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """
    Draw masks that hide the same patches in every token frame (VideoMAE, `TubeMaskingGenerator`; arXiv 2203.12602,
    section 3.3).

    Args:
        batch_size: number of clips. Each has a mask of its own.
        grid: token grid (t, h, w).
        mask_ratio: share of the patches of a frame to hide. Their number is rounded down.
        generator: source of random numbers, on `device`.
        device: device of the masks.

    Returns:
        `(batch_size, t * h * w)`, bool, true = hidden, with `t * int(mask_ratio * h * w)` true entries in every row.

    Raises:
        ValueError: if the ratio hides no patch of a frame, or all of them.
    """
    t, h, w = grid
    num_masked = int(mask_ratio * h * w)
    if not 0 < num_masked < h * w:
        raise ValueError(
            f"`mask_ratio`={mask_ratio} hides {num_masked} of {h * w} patches of a frame: hide some, and leave some."
        )
    order = torch.rand(batch_size, h * w, generator=generator, device=device).argsort(dim=1)
    return (order.argsort(dim=1) < num_masked).repeat(1, t)


def running_cell_mask(
    batch_size: int, grid: tuple[int, int, int], mask_ratio: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """
    Draw masks that drop the same cells of every 2 x 2 square of patches. From one token frame to the next they move on
    by one cell (VideoMAE V2, `RunningCellMaskingGenerator`; arXiv 2303.16727, section 3.2).

    Args:
        batch_size: number of clips. Each has a starting cell of its own.
        grid: token grid (t, h, w), h and w even.
        mask_ratio: share of the patches to drop: 0.25, 0.5 or 0.75.
        generator: source of random numbers.

    Returns:
        `(batch_size, t * h * w)`, bool, true = dropped by the decoder.

    Raises:
        ValueError: for another ratio, or an odd height or width of the grid.
    """
    t, h, w = grid
    if mask_ratio not in (0.25, 0.5, 0.75):
        raise ValueError(f"`mask_ratio` must be 0.25, 0.5 or 0.75, a share of four cells, got {mask_ratio}.")
    if h % 2 or w % 2:
        raise ValueError(f"Squares of 2 x 2 patches need an even grid, got {h} x {w} patches.")
    phase = torch.randint(4, (batch_size, 1, 1), generator=generator)
    cell = 2 * (torch.arange(h)[:, None] % 2) + torch.arange(w) % 2
    place_in_queue = (phase + torch.arange(t)[:, None] + 1 + cell.flatten()) % 4
    return (place_in_queue < int(4 * mask_ratio)).flatten(1)


def still_patches(
    pixel_values: torch.Tensor,
    patch_shape: tuple[int, int, int],
    *,
    threshold: float | None = None,
    num_kept: int | None = None,
) -> torch.Tensor:
    """
    A mask for `bool_masked_pos` that hides patches which show what the camera showed before. The last frame of a patch
    is compared with the first frame of the patch before it in time ("Don't Look Twice", arXiv 2411.05222, section 3).
    Patches of the first token frame are always kept.

    Args:
        pixel_values: `(batch_size, num_frames, num_channels, height, width)`.
        patch_shape: `config.patch_shape`: frames, rows and columns of a patch.
        threshold: hides the patches of which the mean absolute difference of pixels is at most this. Clips of a batch
            may keep different numbers of patches then, which no model takes together.
        num_kept: keeps so many patches of every clip, those that change most.

    Returns:
        `(batch_size, t * h * w)`, bool, true = hidden.

    Raises:
        ValueError: unless one of `threshold` and `num_kept` is given, or if `num_kept` is less than a frame or more
            than a clip has.
    """
    tubelet_size, *patch_size = patch_shape
    t = pixel_values.shape[1] // tubelet_size
    # Before the subtraction, which wraps around in uint8 and rounds in bfloat16.
    pixels = pixel_values.to(torch.promote_types(pixel_values.dtype, torch.float32))
    first, last = pixels[:, : (t - 1) * tubelet_size : tubelet_size], pixels[:, 2 * tubelet_size - 1 :: tubelet_size]
    changes = F.avg_pool2d((last - first).abs().flatten(0, 1), tuple(patch_size)).mean(dim=1).flatten(1)
    num_places = changes.shape[1]
    changes = F.pad(changes.unflatten(0, (pixel_values.shape[0], t - 1)).flatten(1), (num_places, 0), value=math.inf)
    if threshold is not None and num_kept is None:
        return changes <= threshold
    if num_kept is None or threshold is not None:
        raise ValueError(f"Give either threshold or num_kept, got {threshold} and {num_kept}.")
    if not num_places <= num_kept <= changes.shape[1]:
        raise ValueError(f"num_kept must be from {num_places}, a frame, to {changes.shape[1]}, got {num_kept}.")
    kept = changes.topk(num_kept, dim=1).indices
    return torch.ones_like(changes, dtype=torch.bool).scatter(1, kept, False)


class DrawsMasks:
    """A part of [`VideoViTForPreTraining`]: draws the masks that a trainer passes to it."""

    config: VideoViTConfig

    def draw_masks(
        self,
        pixel_values: torch.Tensor,
        generators: list[torch.Generator],
        mask_type: str | None = None,
        decoder_mask_ratio: float = 0.0,
    ) -> dict[str, torch.Tensor | int]:
        """
        Arguments for `forward`: masks with `config.mask_ratio`, each clip's from a generator of its own, and how much
        they hide.

        Args:
            pixel_values: `(batch_size, num_frames, num_channels, height, width)`.
            generators: one for each clip, on the CPU.
            mask_type: `"tube"`, the default, or `"random"` for any patches of the clip.
            decoder_mask_ratio: share of the patches that the decoder drops: 0, 0.25, 0.5 or 0.75.

        Raises:
            ValueError: for another mask type, or a ratio that hides nothing or everything.
        """
        grid = self.config.token_grid_of(pixel_values.shape[1], *pixel_values.shape[-2:])
        ratio = self.config.mask_ratio
        if mask_type not in (None, "tube", "random"):
            raise ValueError(f"mask_type is {mask_type!r}, and a VideoViT has no teacher: take tube or random.")
        # A clip of one frame with all patches has the masks of any patches.
        own = (1, grid[0] * grid[1], grid[2]) if mask_type == "random" else grid
        masks = [tube_mask(1, own, ratio, generator) for generator in generators]
        drawn = {"masked": torch.cat(masks)}
        if decoder_mask_ratio:
            cells = [running_cell_mask(1, grid, decoder_mask_ratio, generator) for generator in generators]
            drawn["decoder_masked"] = torch.cat(cells)
        inputs: dict[str, torch.Tensor | int] = {}
        for name, mask in drawn.items():
            inputs[f"bool_{name}_pos"] = mask.to(pixel_values.device, non_blocking=True)
            inputs[f"num_{name}"] = int(mask[0].sum())
        return inputs
