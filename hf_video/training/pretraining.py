"""Masked pre-training with `transformers.Trainer`: VideoViT reconstructs pixels, VideoMamba a teacher's features."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, TrainingArguments

from hf_video.data import collate_clips
from hf_video.data.batches import SAMPLE_KEY
from hf_video.loading.clip_size import clip_size

from .trainer import VideoTrainer

MASK_SEEDS = "mask_seeds"


def collate_for_masks(items: Sequence[Mapping[str, Any] | None]) -> dict[str, torch.Tensor]:
    """`collate_clips` without the labels, and with `mask_seeds`, (B * V,) int64, if the items have sample keys. The
    masks of a clip are drawn from its seed, so that they depend on (seed, epoch, index) and the view alone."""
    readable = [{name: item[name] for name in item if name != "labels"} for item in items if item is not None]
    batch = collate_clips(readable)
    if all(SAMPLE_KEY in item for item in readable):
        keys = [(*item[SAMPLE_KEY], view) for item in readable for view in range(len(item["pixel_values"]))]
        batch[MASK_SEEDS] = torch.tensor([_seed(key) for key in keys])
    return batch


def _seed(key: tuple[int, ...]) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def draw_masks(model: Any, args: Any, pixel_values: torch.Tensor, seeds: Sequence[int]) -> dict[str, torch.Tensor]:
    """What the `draw_masks` of a model draws for a batch, as the arguments say, from a seed for each clip."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return model.draw_masks(pixel_values, generators, args.mask_type, args.decoder_mask_ratio)


def check_masks(model: Any, args: Any) -> None:
    """Draws masks for a blank clip of the model's size, for the errors alone.

    Raises:
        ValueError: the model has no masks, or no teacher although it needs one; the teacher does not fit it; the mask
            type is for another family; or a ratio hides nothing or everything.
    """
    if not hasattr(model, "draw_masks"):
        raise ValueError(f"{type(model).__name__} draws no masks: a model for pre-training is expected.")
    num_frames, image_size = clip_size(model.config)
    height, width = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size or ())
    blank = torch.zeros(1, num_frames or 1, model.config.num_channels, height, width)
    draw_masks(model, args, blank, [0])


class PreTrainer(VideoTrainer):
    """
    [`VideoTrainer`] for masked pre-training.

    A `VideoViTForPreTraining` reconstructs the pixels that a mask hides (https://arxiv.org/abs/2203.12602; with
    `decoder_mask_ratio` the dual masking of https://arxiv.org/abs/2303.16727). A `VideoMambaForPreTraining` with a
    teacher learns the features of what it sees (https://arxiv.org/abs/2403.06977). The training set gives
    `pixel_values`, and sample keys as a [`ClipDataset`] for training does; labels are not used. Masks follow from the
    sample keys, so that a resumed run sees the same ones.

    Args:
        model, *more, **kwargs: see `transformers.Trainer`.
        args: a `PreTrainingArguments`.
        data_collator: defaults to `collate_for_masks`.

    Raises:
        ValueError: see [`check_masks`].
    """

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        *more: Any,
        **kwargs: Any,
    ) -> None:
        check_masks(model, args)
        options = {"compute_metrics": None, "compute_loss_func": None} | kwargs
        super().__init__(model, args, data_collator or collate_for_masks, *more, **options)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        inputs = dict(inputs)
        pixel_values, seeds = inputs["pixel_values"], inputs.pop(MASK_SEEDS, None)
        if seeds is None:
            seeds = torch.randint(2**62, (len(pixel_values),))
        with torch.no_grad(), self.accelerator.autocast():
            inputs |= draw_masks(self.model, self.args, pixel_values, seeds.tolist())
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
