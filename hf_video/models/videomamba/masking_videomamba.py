"""Masks of VideoMamba's pre-training: drawing and checking them."""

import torch


def draw_mask(importance: torch.Tensor, mask_ratio: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """
    Draw masks that hide as many patches in every frame, and leave the more important ones visible more often.

    The visible patches of a frame are drawn without replacement, in proportion to their importance. With the attention
    that a teacher's class token pays to them it is VideoMamba's mask type "attention", which is that of UMT
    (https://arxiv.org/abs/2303.16058); equal importance gives random masks.

    Args:
        importance: `(batch_size, t, h * w)`, positive.
        mask_ratio: share of the patches of a frame to hide; their number is rounded down.
        generator: source of the draws.

    Returns:
        `(batch_size, t * h * w)`, bool, true = hidden, with `t * int(mask_ratio * h * w)` true entries in every row.

    Raises:
        ValueError: if the ratio hides no patch of a frame, or all of them.
    """
    batch_size, num_token_frames, num_patches = importance.shape
    num_masked = int(mask_ratio * num_patches)
    if not 0 < num_masked < num_patches:
        raise ValueError(
            f"`mask_ratio`={mask_ratio} hides {num_masked} of {num_patches} patches of a frame: hide some, and leave "
            "some."
        )
    visible = torch.multinomial(importance.flatten(0, 1).float(), num_patches - num_masked, generator=generator)
    mask = torch.ones(batch_size * num_token_frames, num_patches, dtype=torch.bool, device=importance.device)
    return mask.scatter(1, visible, False).view(batch_size, -1)


def check_mask(mask: torch.Tensor, batch_size: int, num_patches: int) -> None:
    """
    Raise `ValueError` unless `bool_masked_pos` is bool `(batch_size, num_patches)` and leaves as many patches visible
    in every row, at least one.
    """
    if mask.dtype != torch.bool or mask.shape != (batch_size, num_patches):
        raise ValueError(
            f"`bool_masked_pos` must be a bool tensor of shape (batch_size, num_patches) = ({batch_size}, "
            f"{num_patches}), without the class token, got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    counts = mask.sum(dim=1)
    if (counts != counts[0]).any():
        raise ValueError(
            f"Every clip of a batch must have as many true entries in `bool_masked_pos`, got {counts.tolist()}: draw "
            "the masks with an exact count, as `draw_mask` does."
        )
    if counts[0] == num_patches:
        raise ValueError("`bool_masked_pos` hides every patch: leave at least one to encode.")
