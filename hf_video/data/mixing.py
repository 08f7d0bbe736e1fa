"""Joins clips into batches, and mixes the clips of a batch by MixUp and CutMix, with soft targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence
from torchvision import tv_tensors
from torchvision.transforms import v2
from transformers import default_data_collator

from hf_video.settings import check_values

from .augmentation import DrawsFrom, apply_changes
from .video_settings import ClipMixingSettings

# The name of (seed, epoch, index), or (seed, epoch, row, repetition), in the item of a training clip; it seeds the
# draws for the clip's batch.
SAMPLE_KEY = "sample_key"
# The label of a frame that nobody annotated, which no loss counts.
UNKNOWN = -100
# The name of the changes that each view of an item awaits, and of what mixes a batch after them, if training clips are
# changed on the device. Then `pixel_values` are a list of frames, uint8 (T, C, H, W), of any size.
CHANGES, MIX = "changes", "mix"


def collate_clips(items: Sequence[Mapping[str, Any] | None]) -> dict[str, torch.Tensor]:
    """Join the items of a `ClipTask` into a batch.

    Args:
        items: B mappings with `pixel_values`, a float tensor (V, T, C, H, W) of V views, and, for labelled data,
            `labels`: an int, or a list of floats for multi-label data. None stands for a video that could not be
            read and is left out.

    Returns:
        `pixel_values` (B, T, C, H, W), or (B, V, T, C, H, W) with several views, which a classifier averages; and
        `labels`, (B,) int64 or (B, num_classes) float32, if the items have them. Items of training have a sample key.
        Then each view is a clip of its own, next to the other views of its video: `pixel_values` is (B * V, T, C, H,
        W), and there are B * V labels. With `augment_on="device"` they are as [`augment_batch`] takes them.

    Raises:
        ValueError: If no item is left, or the shapes of `pixel_values` differ.
    """
    readable = only_readable(items)
    awaiting = ["pixel_values", CHANGES] if CHANGES in readable[0] else []
    shapes = set() if awaiting else {tuple(item["pixel_values"].shape) for item in readable}
    if len(shapes) > 1 or any(len(shape) != 5 for shape in shapes):
        raise ValueError(
            f"The pixel_values of a batch have the shapes {sorted(shapes)}; one shape (views, frames, channels, "
            "height, width) is expected. Let the processor crop (`do_center_crop=True`)."
        )
    others = [{name: item[name] for name in item if name not in (SAMPLE_KEY, *awaiting)} for item in readable]
    batch = default_data_collator(others)
    batch |= {name: [view for item in readable for view in item[name]] for name in awaiting}
    num_views = len(readable[0]["pixel_values"])
    if num_views == 1 or SAMPLE_KEY in readable[0]:
        if not awaiting:
            batch["pixel_values"] = batch["pixel_values"].flatten(0, 1)
        if "labels" in batch:
            batch["labels"] = batch["labels"].repeat_interleave(num_views, dim=0)
    return batch


def collate_frames(items: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """The batch of items of a `FrameTask`."""
    readable = only_readable(items)
    batch: dict[str, Any] = {name: [item[name] for item in readable] for name in readable[0] if name != SAMPLE_KEY}
    batch["attention_mask"] = pad_sequence(
        [torch.ones(len(each), dtype=torch.int64) for each in batch["labels"]], True
    )
    batch["labels"] = pad_sequence(batch["labels"], batch_first=True, padding_value=UNKNOWN)
    if CHANGES not in batch:
        batch["pixel_values"] = pad_sequence(batch["pixel_values"], batch_first=True)
    return batch


def augment_batch(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Changes and mixes the clips of a batch where its tensors are, all frames of a clip at once.

    Args:
        batch: as of the collators. If its items are of `augment_on="device"`, `pixel_values` is a list of frames,
            uint8 (T, C, H, W), `changes` says what becomes of each, and `mix`, if it is there, mixes them. Other
            batches stay as they are.

    Returns:
        `pixel_values` (B, T, C, H, W) float32, padded with zeros at the end of shorter clips, and the other inputs.
    """
    if CHANGES not in batch:
        return batch
    rest = {name: value for name, value in batch.items() if name not in (CHANGES, MIX)}
    clips = [*map(apply_changes, batch["pixel_values"], batch[CHANGES])]
    changed = rest | {"pixel_values": pad_sequence(clips, batch_first=True)}
    return batch[MIX](changed) if MIX in batch else changed


def only_readable(items: Sequence[Mapping[str, Any] | None]) -> list[Mapping[str, Any]]:
    """The items that are not None."""
    readable = [item for item in items if item is not None]
    if not readable:
        raise ValueError("There is nothing to collate: at least one readable video is expected. Call drop_broken().")
    return readable


@dataclass
class ClipMixing(ClipMixingSettings):
    """How the clips of a training batch are mixed; off by default.

    Raises:
        ValueError: a value is out of its range.
    """

    def __post_init__(self) -> None:
        check_values(self, ClipMixing)

    @property
    def is_on(self) -> bool:
        return self.mixing_prob > 0 and (self.mixup_alpha > 0 or self.cutmix_alpha > 0)


class MixingCollator:
    """`collate_clips` with the training clips of a batch mixed (https://arxiv.org/abs/1710.09412,
    https://arxiv.org/abs/1905.04899).

    One weight and one box are drawn for a whole batch, as in timm's batch mode. Each clip is mixed with its neighbour.
    The draws are seeded by the sample keys of the batch, so that they do not depend on the worker or process. Items
    without a sample key, those of evaluation, are not mixed.

    `VideoTrainer` has the loss for the soft targets that result. A plain `Trainer` needs
    `compute_loss_func=hf_video.training.CrossEntropy()`: models of Transformers would take such targets for several
    labels of a video, and pipelines would then use a sigmoid.

    Args:
        mixing: the settings.
        num_classes: width of the soft targets.
        label_smoothing: share of each target that is spread over all classes before mixing.
    """

    def __init__(self, mixing: ClipMixing, num_classes: int, label_smoothing: float = 0.0):
        self.mixing, self.num_classes, self.label_smoothing = mixing, num_classes, label_smoothing
        kinds = {v2.MixUp: (mixing.mixup_alpha, 1 - mixing.cutmix_prob)}
        kinds[v2.CutMix] = mixing.cutmix_alpha, mixing.cutmix_prob
        used = {kind(alpha=alpha): share for kind, (alpha, share) in kinds.items() if alpha > 0}
        choice = next(iter(used)) if len(used) == 1 else v2.RandomChoice(list(used), p=list(used.values()))
        self._transform = v2.RandomApply([choice], p=mixing.mixing_prob)

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """As `collate_clips`, but `labels` of training clips are (B * V, num_classes) float32. Views of a video are B
        rows apart, so that neighbours show different videos.

        Raises:
            ValueError: as `collate_clips`; or training clips have no labels, or several labels and `label_smoothing`.
        """
        items = only_readable(items)
        batch = collate_clips(items)
        keys = [item[SAMPLE_KEY] for item in items if SAMPLE_KEY in item]
        if len(keys) < len(items):
            return batch
        if "labels" not in batch:
            raise ValueError("Mixing needs labels, but the clips have none.")
        mix = partial(self._mix, seed=[number for key in keys for number in key], num_videos=len(items))
        return batch | {MIX: mix} if CHANGES in batch else mix(batch)

    def _mix(self, batch: dict[str, Any], seed: Sequence[int], num_videos: int) -> dict[str, Any]:
        clips, targets = (
            rearrange(rows, "(videos views) ... -> (views videos) ...", videos=num_videos)
            for rows in (batch["pixel_values"], self._targets(batch["labels"]))
        )
        with DrawsFrom(np.random.default_rng(np.random.SeedSequence(seed))):
            clips, targets = self._transform(tv_tensors.Video(clips), targets)
        return batch | {"pixel_values": clips.as_subclass(torch.Tensor), "labels": targets}

    def _targets(self, labels: torch.Tensor) -> torch.Tensor:
        if not labels.is_floating_point():
            labels = one_hot(labels, self.num_classes).float()
            return labels * (1 - self.label_smoothing) + self.label_smoothing / self.num_classes
        if self.label_smoothing:
            raise ValueError(
                f"label_smoothing={self.label_smoothing} is for class ids, and clips have several classes."
            )
        return labels
