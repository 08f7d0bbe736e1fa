"""Masked pre-training, in which VideoViT reconstructs pixels and VideoMamba a teacher's features: the task
`pretraining`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, PreTrainedModel

from hf_video.data import ClipAugmentation, ClipTask, VideoDataset, collate_clips, load_unlabelled_videos
from hf_video.data.mixing import SAMPLE_KEY
from hf_video.loading.clip_size import clip_size
from hf_video.loading.configurations import loading
from hf_video.loading.heads import load_pretraining_model
from hf_video.loading.models import locate_model
from hf_video.models.videomamba.modeling_videomamba_pretraining import VideoMambaTeacher
from hf_video.texts import count

from .arguments import PreTrainingArguments
from .classification import VideoTrainer
from .data import require_training
from .model_loading import load_model, sizes_of
from .report import Measured, assess
from .report_pictures import ShownClip, plot_clips
from .run import RunPlan
from .task import Task, TaskData
from .task_settings import MaskedModelSettings, MaskedScratchSettings, ScratchSettings
from .values import make

MASK_SEEDS = "mask_seeds"


def collate_for_masks(items: Sequence[Mapping[str, Any] | None]) -> dict[str, torch.Tensor]:
    """`collate_clips` without labels, and with `mask_seeds` (B * V,) int64 if the items have sample keys, from which
    the masks are drawn."""
    readable = [{name: item[name] for name in item if name != "labels"} for item in items if item is not None]
    batch = collate_clips(readable)
    if all(SAMPLE_KEY in item for item in readable):
        keys = [(*item[SAMPLE_KEY], view) for item in readable for view in range(len(item["pixel_values"]))]
        drawn = [np.random.SeedSequence(key).generate_state(1, np.uint64)[0] for key in keys]
        batch[MASK_SEEDS] = torch.tensor([int(seed >> np.uint64(1)) for seed in drawn])
    return batch


def draw_masks(model: Any, args: Any, pixel_values: torch.Tensor, seeds: Sequence[int]) -> dict[str, Any]:
    """The masks of a batch by the `draw_masks` of a model and the arguments, from a seed for each clip."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return model.draw_masks(pixel_values, generators, args.mask_type, args.decoder_mask_ratio)


def check_masks(model: Any, args: Any) -> None:
    """Draws masks for a blank clip of the model's size, whose `ValueError` says what does not fit."""
    if not hasattr(model, "draw_masks"):
        raise ValueError(f"{type(model).__name__} draws no masks: a model for pre-training is expected.")
    num_frames, image_size = clip_size(model.config)
    height, width = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size or ())
    blank = torch.zeros(1, num_frames or 1, model.config.num_channels, height, width)
    draw_masks(model, args, blank, [0])


class PreTrainer(VideoTrainer):
    """[`VideoTrainer`] for masked pre-training, with `PreTrainingArguments`.

    A `VideoViTForPreTraining` reconstructs the pixels that a mask hides (https://arxiv.org/abs/2203.12602; with
    `decoder_mask_ratio` the dual masking of https://arxiv.org/abs/2303.16727). A `VideoMambaForPreTraining` with a
    teacher learns the teacher's features of the visible patches (https://arxiv.org/abs/2403.06977). Labels are not
    used. Masks follow from the sample keys of a [`VideoDataset`], so that a resumed run sees the same ones.

    Raises:
        ValueError: the model draws no masks, or does not fit its teacher or the settings of masks.
    """

    def __init__(self, model: Any = None, args: Any = None, *more: Any, **kwargs: Any) -> None:
        check_masks(model, args)
        super().__init__(model, args, *more, **{"compute_metrics": None, "compute_loss_func": None} | kwargs)

    def default_collator(self) -> Any:
        return collate_for_masks

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = dict(inputs)
        pixel_values, seeds = inputs["pixel_values"], inputs.pop(MASK_SEEDS, None)
        if seeds is None:
            seeds = torch.randint(2**62, (len(pixel_values),))
        with torch.no_grad(), self.accelerator.autocast():
            inputs |= draw_masks(self.model, self.args, pixel_values, seeds.tolist())
        return super().compute_loss(model, inputs, *args, **kwargs)


class PretrainingTask(Task):
    """Learns from the videos alone: hidden pixels, or a teacher's features."""

    arguments, trainer, sizes = PreTrainingArguments, PreTrainer, MaskedScratchSettings
    holds_out = False
    measured_splits = ("train",)
    try_it = "hf-video train LABELLED_VIDEOS --model {model} --output-dir DIR"

    def load_data(self, run: RunPlan) -> TaskData:
        splits = load_unlabelled_videos(run.chosen.data, video_root=run.chosen.video_root)
        require_training(run.chosen.data, splits)
        return TaskData({"train": splits["train"]})

    def load_model(self, run: RunPlan, data: TaskData, arguments: Any) -> tuple[Any, Any]:
        chosen = run.chosen
        teacher = _load_teacher(chosen.teacher)
        channels = None if teacher is None else VideoMambaTeacher(teacher).num_features
        # Training takes one view of a video.
        chosen.num_clips = chosen.num_crops = 1
        load, begin = partial(load_pretraining_model, dtype="float32"), partial(_begin, chosen, channels)
        network: Any
        network, processor = load_model(chosen, run.checkpoint, load, begin, (MaskedModelSettings,))
        if teacher is not None:
            if not hasattr(network, "set_teacher"):
                raise ValueError("A VideoViT learns from pixels, without a teacher: leave out --teacher.")
            network.set_teacher(teacher)
        check_masks(network, arguments)
        return network, processor

    def item_task(self, run: RunPlan, data: TaskData, processor: Any) -> ClipTask:
        return ClipTask(processor, augmentation=make(ClipAugmentation, run.chosen))

    def measure(self, trainer: PreTrainer, dataset: VideoDataset) -> Measured:
        """`first` and `last`, means of the loss between two logs, and `steps`, the loss after each logged step."""
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        losses = [entry["loss"] for entry in history] or [trainer.state.log_history[-1].get("train_loss", math.nan)]
        steps = [{name: entry[name] for name in ("step", "epoch", "loss")} for entry in history]

        def draw(split: str) -> Iterator[tuple[str, Any]]:
            if clips := _reconstructed(trainer):
                yield "reconstruction.png", plot_clips(clips, "A training video, what is seen of it, and the output")

        return Measured(
            {"first": losses[0], "last": losses[-1], "num_videos": len(dataset)},
            by_class={"steps": steps},
            pictures=draw,
        )

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> list[str]:
        line = f"loss {metrics['first']:.4g} -> {metrics['last']:.4g} on {count(metrics['num_videos'], 'video')}"
        return [line, *assess(metrics)]


def _begin(chosen: Any, projection_dim: int | None, changes: dict[str, Any]) -> PreTrainedModel:
    """A model from scratch of the family that is chosen; `projection_dim` are the channels of a teacher's features."""
    sizes = sizes_of(chosen, ScratchSettings)
    width, heads = sizes["hidden_size"], sizes.pop("num_attention_heads")
    default = AutoConfig.for_model(chosen.family)
    if unknown := [name for name in changes if not hasattr(default, name)]:
        raise ValueError(f"A {chosen.family} has no {unknown[0]}: leave it out.")
    if chosen.family == "videomamba":
        of_family: dict[str, Any] = {"projection_dim": projection_dim or 512}
    else:
        decoder_width = chosen.decoder_hidden_size or max(width // 2, 1)
        of_family = {
            "num_attention_heads": heads,
            "intermediate_size": chosen.intermediate_size or 4 * width,
            "decoder_hidden_size": decoder_width,
            "decoder_num_hidden_layers": chosen.decoder_num_hidden_layers,
            "decoder_num_attention_heads": chosen.decoder_num_attention_heads or max(heads // 2, 1),
            "decoder_intermediate_size": 4 * decoder_width,
            "weight_init": "xavier_uniform",
        }
    return AutoModelForPreTraining.from_config(AutoConfig.for_model(chosen.family, **sizes, **changes, **of_family))


def _load_teacher(name: str | None) -> PreTrainedModel | None:
    if name is None:
        return None
    name = locate_model(name, "--teacher")
    # The masks are drawn by the attention, which only the eager implementation returns.
    with loading(name):
        return AutoModel.from_pretrained(name, attn_implementation="eager", dtype="float32")


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
    autoencoder with a mask (1, num_patches): the clip, its visible patches on grey, and the clip with the output in
    place of hidden patches, each (num_frames, height, width, num_channels) float32 from 0 to 1. A standardised output
    gets the mean and the deviation of the true patch."""
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
