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
        ValueError: If no item is left, the shapes of `pixel_values` differ, or only some items have `labels`.
    """
    readable = only_readable(items)
    awaiting = [name for name in ("pixel_values", CHANGES) if CHANGES in readable[0]]
    shapes = set() if awaiting else {tuple(item["pixel_values"].shape) for item in readable}
    if {len(shape) for shape in shapes} == {4}:
        raise ValueError(
            f"The pixel_values of an item have the shape {min(shapes)}, which lacks the axis of views in front; "
            "(views, frames, channels, height, width) is expected. Give a single clip as clip[None]."
        )
    if len(shapes) > 1 or any(len(shape) != 5 for shape in shapes):
        raise ValueError(
            f"The pixel_values of a batch have the shapes {sorted(shapes)}; one shape (views, frames, channels, "
            "height, width) for all is expected. Let the processor crop (`do_center_crop=True`), and give every video "
            "the same number of views."
        )
    if len({"labels" in item for item in readable}) > 1:
        raise ValueError("Some items have labels and others have not; all or none are expected.")
    batch = default_data_collator(
        [{name: item[name] for name in item if name not in (SAMPLE_KEY, *awaiting)} for item in readable]
    )
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
    labels = [item["labels"] for item in readable]
    batch: dict[str, Any] = {
        "pixel_values": [item["pixel_values"] for item in readable],
        "labels": pad_sequence(labels, batch_first=True, padding_value=UNKNOWN),
        "attention_mask": pad_sequence([torch.ones(len(each), dtype=torch.int64) for each in labels], True),
    }
    if CHANGES in readable[0]:
        return batch | {CHANGES: [item[CHANGES] for item in readable]}
    return batch | {"pixel_values": pad_sequence(batch["pixel_values"], batch_first=True)}


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
    """The items that are not None. If there is none, it is a `ValueError`."""
    readable = [item for item in items if item is not None]
    if not readable:
        raise ValueError(
            "There is nothing to collate: at least one readable video is expected. Call drop_broken() of the "
            "VideoDataset before an evaluation."
        )
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
        if not mixing.is_on:
            raise ValueError("mixup_alpha and cutmix_alpha are both 0: use collate_clips, which mixes nothing.")
        self.mixing = mixing
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """As `collate_clips`, but `labels` of training clips are (B * V, num_classes) float32. Views of a video are B
        rows apart, so that neighbours show different videos.

        Raises:
            ValueError: as `collate_clips`; if training clips have no labels; or if they may have several labels and
                `label_smoothing` is on.
        """
        items = [item for item in items if item is not None]
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
        generator = np.random.default_rng(np.random.SeedSequence(seed))
        with DrawsFrom(generator):
            clips, targets = self._transform()(tv_tensors.Video(clips), targets)
        return batch | {"pixel_values": clips.as_subclass(torch.Tensor), "labels": targets}

    def _targets(self, labels: torch.Tensor) -> torch.Tensor:
        if labels.is_floating_point():
            if self.label_smoothing:
                raise ValueError(
                    f"label_smoothing={self.label_smoothing} is for class ids: leave it out where a clip may have "
                    "several classes."
                )
            return labels
        hard = one_hot(labels, self.num_classes).float()
        return hard * (1 - self.label_smoothing) + self.label_smoothing / self.num_classes

    def _transform(self) -> v2.Transform:
        mixing = self.mixing
        shares = {
            v2.MixUp: (mixing.mixup_alpha, 1 - mixing.cutmix_prob),
            v2.CutMix: (mixing.cutmix_alpha, mixing.cutmix_prob),
        }
        used = {kind(alpha=alpha): share for kind, (alpha, share) in shares.items() if alpha > 0}
        choice = next(iter(used)) if len(used) == 1 else v2.RandomChoice(list(used), p=list(used.values()))
        return v2.RandomApply([choice], p=mixing.mixing_prob)
