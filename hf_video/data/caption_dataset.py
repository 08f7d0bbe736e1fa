"""Reads videos with captions as clips with their captions, and joins these into batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from transformers import ProcessorMixin

from .batches import collate_clips
from .clip_dataset import ClipDataset

_TIMES = ("start", "end")
_CLIP = ("video", *_TIMES)
_OF_TEXT = ("text", "video_ids")


class CaptionDataset(ClipDataset):
    """The clips of a data set of `load_captions` with their captions.

    An item is that of a [`ClipDataset`]. Besides it has `text`, the caption, and `video_ids`, a number that rows of
    one video share, or of one segment of it.

    Args:
        dataset: Rows with `video`, `caption` and, optionally, `start` and `end`.
        processor: A processor of videos and texts, such as a [`VideoTextDualEncoderProcessor`].
        kwargs: Those of [`ClipDataset`].
    """

    def __init__(self, dataset: datasets.Dataset, processor: ProcessorMixin, **kwargs: Any):
        super().__init__(dataset, processor.video_processor, **kwargs)
        clips = zip(*(dataset[name][:] for name in _CLIP), strict=True)
        self._number_of = {clip: number for number, clip in enumerate(dict.fromkeys(clips))}

    def make_item(self, index: int, key: tuple[int, ...]) -> Any:
        row = self.dataset[index]
        # A caption names what a clip shows, as a class does: with a direction in it the clip is not mirrored.
        item = self.make_clip(row, key, name=row["caption"])
        item["text"], item["video_ids"] = row["caption"], self._number_of[tuple(row[name] for name in _CLIP)]
        return item


@dataclass
class CaptionCollator:
    """
    Joins items of a [`CaptionDataset`] into the inputs of a video-text model.

    Args:
        processor: A processor of videos and texts, such as a [`VideoTextDualEncoderProcessor`].
        max_length: Largest number of tokens of a caption; by default that of the processor.
    """

    processor: ProcessorMixin
    max_length: int | None = None

    def __call__(self, items: Sequence[Mapping[str, Any] | None]) -> dict[str, torch.Tensor]:
        """
        Args:
            items: Items of the data set. None stands for a video that could not be read, and is left out.

        Returns:
            `pixel_values` (B, T, C, H, W), `input_ids` and `attention_mask` (B, L), and `video_ids` (B,) int64.

        Raises:
            ValueError: If no item is left, the clips differ in their shapes, or have several views.
        """
        readable = [item for item in items if item is not None]
        batch = collate_clips([{name: item[name] for name in item if name not in _OF_TEXT} for item in readable])
        if len(batch["pixel_values"]) != len(readable) or batch["pixel_values"].ndim != 5:
            raise ValueError("A captioned video has one view: use num_clips=1, num_crops=1, num_augmentations=1.")
        texts = [item["text"] for item in readable]
        inputs = self.processor(text=texts, max_length=self.max_length, return_tensors="pt")
        return {**batch, **inputs, "video_ids": torch.tensor([item["video_ids"] for item in readable])}
