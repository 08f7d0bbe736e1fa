"""Joins the items of a `ClipDataset` into a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import default_data_collator

# The name of (seed, epoch, index) in the item of a training clip; it seeds the draws for the clip's batch.
SAMPLE_KEY = "sample_key"


def collate_clips(items: Sequence[Mapping[str, Any] | None]) -> dict[str, torch.Tensor]:
    """Join the items of a `ClipDataset` into a batch.

    Args:
        items: B mappings with `pixel_values`, a float tensor (V, T, C, H, W) of V views, and, for labelled data,
            `labels`: an int, or a list of floats for multi-label data. None stands for a video that could not be
            read and is left out.

    Returns:
        `pixel_values` (B, T, C, H, W), or (B, V, T, C, H, W) with several views, which a classifier averages; and
        `labels`, (B,) int64 or (B, num_classes) float32, if the items have them. Items of training have a sample key.
        Then each view is a clip of its own, next to the other views of its video: `pixel_values` is (B * V, T, C, H,
        W), and there are B * V labels.

    Raises:
        ValueError: If no item is left, the shapes of `pixel_values` differ, or only some items have `labels`.
    """
    readable = [item for item in items if item is not None]
    if not readable:
        raise ValueError(
            "There is nothing to collate: at least one readable video is expected. Call drop_broken() of the "
            "ClipDataset before an evaluation."
        )
    shapes = {tuple(item["pixel_values"].shape) for item in readable}
    if {len(shape) for shape in shapes} == {4}:
        raise ValueError(
            f"The pixel_values of an item have the shape {min(shapes)}, which lacks the axis of views in front; "
            "(views, frames, channels, height, width) is expected. Give a single clip as clip[None]."
        )
    if len(shapes) > 1 or len(next(iter(shapes))) != 5:
        raise ValueError(
            f"The pixel_values of a batch have the shapes {sorted(shapes)}; one shape (views, frames, channels, "
            "height, width) for all is expected. Let the processor crop (`do_center_crop=True`), and give every video "
            "the same number of views."
        )
    if len({"labels" in item for item in readable}) > 1:
        raise ValueError("Some items have labels and others have not; all or none are expected.")
    batch = default_data_collator(
        [{name: value for name, value in item.items() if name != SAMPLE_KEY} for item in readable]
    )
    num_views = batch["pixel_values"].shape[1]
    if num_views == 1 or SAMPLE_KEY in readable[0]:
        batch["pixel_values"] = batch["pixel_values"].flatten(0, 1)
        if "labels" in batch:
            batch["labels"] = batch["labels"].repeat_interleave(num_views, dim=0)
    return batch
