"""Masks of VideoViT's pre-training: their use and their check."""

import torch


def select_tokens(tokens: torch.Tensor, selected: torch.BoolTensor) -> torch.Tensor:
    """
    Gather the selected tokens of every clip, in raster order.

    Args:
        tokens: `(batch_size or 1, sequence_length, hidden_size)`.
        selected: `(batch_size, sequence_length)`, bool, with as many true entries in every row.

    Returns:
        `(batch_size, num_selected, hidden_size)`.
    """
    return tokens.expand(selected.shape[0], -1, -1)[selected].unflatten(0, (selected.shape[0], -1))


def check_mask(mask: torch.Tensor, name: str, batch_size: int, num_patches: int) -> None:
    """Raise `ValueError` unless `mask` is bool `(batch_size, num_patches)` with as many true entries in every row."""
    if mask.dtype != torch.bool or mask.shape != (batch_size, num_patches):
        raise ValueError(
            f"`{name}` must be a bool tensor of shape (batch_size, num_patches) = ({batch_size}, {num_patches}), got "
            f"{mask.dtype} of shape {tuple(mask.shape)}."
        )
    counts = mask.sum(dim=1)
    if (counts != counts[0]).any():
        raise ValueError(
            f"Every clip of a batch must have as many true entries in `{name}`, got {counts.tolist()}: draw the masks "
            "with an exact count, as `tube_mask` does."
        )
