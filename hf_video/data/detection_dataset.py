"""A PyTorch data set of clips around key frames with boxes and actions, and the batches of an action detector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import torch

from hf_video.processing import VideoDetectionProcessor

from .augmentation import has_direction
from .boxes import action_names
from .clip_dataset import ClipDataset
from .key_frames import read_key_frame_clip
from .rows import open_video


class DetectionDataset(ClipDataset):
    """The clips around the key frames of rows of `load_detections`.

    An item has `pixel_values` (num_frames, 3, height, width) float32 and `original_sizes` (2,) int64, height and width
    before padding; and `labels`: `boxes` (n, 4) float32, left, top, right and bottom in pixels of the clip,
    `class_labels` (n, num_classes) float32 of zeros and ones, and `image_id`, the number of the row.

    With `training=True` the shorter side is the processor's times one of `scales`, and half of the clips are mirrored,
    except where a person does something whose name says left or right. Every draw depends on (seed, epoch, index)
    alone, as in a [`ClipDataset`].

    Args:
        dataset: Rows with `video`, `second`, `boxes` and `actions`.
        processor: Says which frames a clip has, and their size.
        training: Whether clips are resized and mirrored at random.
        seed: Seed of all draws.
        scales: Factors of the shorter side in training; STMixer's recipe has 256 and 320 pixels.
        flip_prob: Share of training clips that are mirrored.
        on_error: What happens to a video that cannot be read, or that ends before its key frame: "error", "skip" or
            "replace", as in a [`ClipDataset`].
    """

    def __init__(
        self,
        dataset: datasets.Dataset,
        processor: VideoDetectionProcessor,
        *,
        training: bool,
        seed: int = 0,
        scales: Sequence[float] = (1, 1.25),
        flip_prob: float = 0.5,
        on_error: str = "error",
    ):
        super().__init__(dataset, processor, training=training, seed=seed, on_error=on_error)
        self.scales, self.flip_prob = scales, flip_prob
        names = action_names(dataset)
        self._num_classes = len(names)
        self._directed = {number for number, name in enumerate(names) if has_direction(name)}

    def make_item(self, index: int, key: tuple[int, ...]) -> Any:
        row = self.dataset[index]
        clip = read_key_frame_clip(open_video(row), row["second"], self.processor)
        height, width = clip.shape[1:3]
        class_labels = torch.zeros(len(row["actions"]), self._num_classes)
        for labels, actions in zip(class_labels, row["actions"], strict=True):
            labels[actions] = 1
        annotation = {"boxes": np.array(row["boxes"]) * [width, height, width, height], "class_labels": class_labels}
        options: dict[str, Any] = {}
        if self.training:
            generator = np.random.default_rng(np.random.SeedSequence(key))
            scale, is_flipped = generator.choice(self.scales), generator.random() < self.flip_prob
            options["size"] = {"shortest_edge": round(self.processor.size["shortest_edge"] * scale)}
            options["flip"] = [is_flipped and self._directed.isdisjoint(sum(row["actions"], []))]
        batch = self.processor([clip], annotations=[annotation], return_tensors="pt", **options)
        item = {name: batch[name][0] for name in ("pixel_values", "original_sizes", "labels")}
        item["labels"]["image_id"] = torch.tensor(index)
        return item


@dataclass
class DetectionCollator:
    """
    Joins items of a [`DetectionDataset`] into the inputs of an action detector.

    Args:
        processor: Says how clips are padded.
    """

    processor: VideoDetectionProcessor

    def __call__(self, items: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
        """
        Args:
            items: Items of the data set. None stands for a video that could not be read, and is left out.

        Returns:
            `pixel_values` (B, num_frames, 3, height, width), padded to the largest clip; `original_sizes` (B, 2); and
            `labels`, a list of B mappings.

        Raises:
            ValueError: If no item is left.
        """
        readable = [item for item in items if item is not None]
        if not readable:
            raise ValueError("There is nothing to collate: none of these videos could be read.")
        return {
            "pixel_values": self.processor.pad_clips([item["pixel_values"] for item in readable]),
            "original_sizes": torch.stack([item["original_sizes"] for item in readable]),
            "labels": [item["labels"] for item in readable],
        }
