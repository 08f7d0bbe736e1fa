"""Masked pre-training with `transformers.Trainer`: VideoViT reconstructs pixels, VideoMamba a teacher's features."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import nn
from transformers import PreTrainedModel, TrainingArguments

from hf_video.data import VideoDataset, collate_clips
from hf_video.data.batches import SAMPLE_KEY
from hf_video.drawing.report_pictures import ShownClip, plot_clips, plot_curves
from hf_video.io import replace_text
from hf_video.loading.clip_size import clip_size

from .evaluation import throughput_of, write_summary
from .trainer import VideoTrainer

MASK_SEEDS = "mask_seeds"


def collate_for_masks(items: Sequence[Mapping[str, Any] | None]) -> dict[str, torch.Tensor]:
    """`collate_clips` without labels, and with `mask_seeds` (B * V,) int64 if the items have sample keys. The masks of
    a clip are drawn from its seed, so that they depend on (seed, epoch, index) and the view alone."""
    readable = [{name: item[name] for name in item if name != "labels"} for item in items if item is not None]
    batch = collate_clips(readable)
    if all(SAMPLE_KEY in item for item in readable):
        keys = [(*item[SAMPLE_KEY], view) for item in readable for view in range(len(item["pixel_values"]))]
        drawn = [np.random.SeedSequence(key).generate_state(1, np.uint64)[0] for key in keys]
        batch[MASK_SEEDS] = torch.tensor([int(seed >> np.uint64(1)) for seed in drawn])
    return batch


def draw_masks(model: Any, args: Any, pixel_values: torch.Tensor, seeds: Sequence[int]) -> dict[str, torch.Tensor]:
    """The masks of a batch by the `draw_masks` of a model and the arguments, from a seed for each clip."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return model.draw_masks(pixel_values, generators, args.mask_type, args.decoder_mask_ratio)


def check_masks(model: Any, args: Any) -> None:
    """Refuses (`ValueError`) a model that has no masks, lacks its teacher, or does not fit the teacher or the mask
    type, and a ratio that hides nothing or everything. It draws masks for a blank clip of the model's size."""
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
    teacher learns the teacher's features of the visible patches (https://arxiv.org/abs/2403.06977). The training set
    gives `pixel_values`, and sample keys as a [`VideoDataset`] for training does; labels are not used. Masks follow
    from the sample keys, so that a resumed run sees the same ones.

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

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = dict(inputs)
        pixel_values, seeds = inputs["pixel_values"], inputs.pop(MASK_SEEDS, None)
        if seeds is None:
            seeds = torch.randint(2**62, (len(pixel_values),))
        with torch.no_grad(), self.accelerator.autocast():
            inputs |= draw_masks(self.model, self.args, pixel_values, seeds.tolist())
        return super().compute_loss(model, inputs, *args, **kwargs)


def write_pretraining_report(folder: Path, trainer: PreTrainer, details: dict[str, Any]) -> dict[str, Any]:
    """Writes `losses.json` and `report.md`, and with matplotlib `curves.png` and, for a VideoViT whose weights are not
    sharded, `reconstruction.png`. Returns the contents of `losses.json`: `first` and `last`, means of the steps
    between two logs; `num_videos`; the details; and `steps`, the loss after each logged step."""
    folder.mkdir(parents=True, exist_ok=True)
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    details = details | throughput_of(history)
    losses = [entry["loss"] for entry in history] or [trainer.state.log_history[-1].get("train_loss", float("nan"))]
    result = {"first": losses[0], "last": losses[-1], "num_videos": len(trainer.train_dataset), **details}
    steps = [{name: entry[name] for name in ("step", "epoch", "loss")} for entry in history]
    replace_text(folder / "losses.json", json.dumps({**result, "steps": steps}, indent=2) + "\n")

    def draw() -> Iterator[tuple[str, Any]]:
        if history:
            yield "curves.png", plot_curves(history)
        if clips := _reconstructed(trainer):
            yield "reconstruction.png", plot_clips(clips, "A training video, what is seen of it, and the output")

    shown = {"first loss": f"{losses[0]:.4g}", "last loss": f"{losses[-1]:.4g}"}
    head = ["# Pre-training report", "", f"Trained on {result['num_videos']} videos without labels.", ""]
    write_summary(folder, head, shown, details, draw)
    return result


def _reconstructed(trainer: PreTrainer) -> list[ShownClip]:
    """The first training video, its visible patches, and the output; nothing if there is no output."""
    model, dataset = trainer.model, trainer.train_dataset
    if not hasattr(model, "reconstruction_targets") or trainer.is_sharded or not isinstance(dataset, VideoDataset):
        return []
    rows = dataset.rows.select([0])
    item = VideoDataset(rows, dataset.task, training=False, on_error="skip")[0]
    if item is None:
        return []
    pixel_values = item["pixel_values"][:1].to(model.device)
    mask = draw_masks(model, trainer.args, pixel_values, [0])["bool_masked_pos"]
    clip, seen, output = reconstruct(model, pixel_values, mask)
    hidden = mask.float().mean().item()
    return [
        ShownClip(("input",), clip),
        ShownClip((f"mask, {hidden:.0%} hidden",), seen),
        ShownClip(("output",), output),
    ]


@torch.no_grad()
def reconstruct(
    model: Any, pixel_values: torch.Tensor, mask: torch.Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The reconstruction of normalised pixel values (1, num_frames, num_channels, height, width) by a masked
    autoencoder, which does not see the patches where the mask (1, num_patches) is true: the clip, its visible patches
    on grey, and the clip with the output in place of hidden patches, each (num_frames, height, width, num_channels)
    float32 from 0 to 1, without pixels that fill no patch. A standardised output gets the mean and the deviation of
    the true patch."""
    config = model.config
    grid = config.token_grid_of(pixel_values.shape[1], *pixel_values.shape[-2:])
    sizes = dict(zip(("t", "h", "w", "dt", "dh", "dw"), (*grid, *config.patch_shape), strict=True))
    mean, std = (torch.tensor(each).to(pixel_values)[:, None, None] for each in (config.image_mean, config.image_std))
    height, width = grid[1] * sizes["dh"], grid[2] * sizes["dw"]
    pixels = (pixel_values * std + mean)[:, : grid[0] * sizes["dt"], :, :height, :width]
    patches = rearrange(pixels, "b (t dt) c (h dh) (w dw) -> b (t h w) (dt dh dw) c", **sizes)
    logits = model.eval()(pixel_values, mask).logits.to(patches).unflatten(-1, patches.shape[2:]).flatten(0, 1)
    if config.norm_pix_loss:
        deviation, average = torch.std_mean(patches, dim=2, keepdim=True)
        logits = logits * (deviation[mask] + 1e-6) + average[mask]
    seen, output = patches.clone(), patches.clone()
    seen[mask], output[mask] = 0.5, logits
    pattern = "1 (t h w) (dt dh dw) c -> (t dt) (h dh) (w dw) c"
    clip, visible, filled = (
        rearrange(each, pattern, **sizes).clamp(0, 1).cpu().float().numpy() for each in (patches, seen, output)
    )
    return clip, visible, filled
