"""Lists videos with captions, reads them as clips with their captions, and joins these into batches."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import datasets
import torch
from transformers import ProcessorMixin

from .batches import collate_clips
from .clip_dataset import ClipDataset
from .stored_videos import BYTES
from .tables import find_dataset, known_splits, with_video_names
from .video_texts import load_video_texts

_TIMES = ("start", "end")
_CLIP = ("video", *_TIMES)
_OF_TEXT = ("text", "video_ids")


def load_captions(
    data: str | os.PathLike | datasets.DatasetDict | datasets.Dataset,
    *,
    video_root: str | os.PathLike | None = None,
) -> datasets.DatasetDict:
    """List the captions of videos.

    Args:
        data: A file of rows with `video`, `caption` and, optionally, `start` and `end` in seconds, or a folder of such
            files named after splits, see `load_video_texts`. Or a data set of the `datasets` library, as an object, as
            a folder of `save_to_disk` or Parquet files, or by its name on the Hub, with a column `video` of the
            feature `Video` or of paths, and a column `caption`. In JSON and in a data set, a caption may be a list of
            captions.
        video_root: The folder that relative paths of a file count from; by default that of the file.

    Returns:
        The splits found among "train", "validation" and "test"; data without splits are "train". A row is a caption.
        Columns: `video` (path), `caption`, `start` and `end` (float64, seconds, or None); if videos are stored inside
        the data set, `bytes` holds them and `video` is a name.

    Raises:
        FileNotFoundError: If `data`, or a video that a file names, does not exist.
        ValueError: If a file is not as `load_video_texts` expects it, or a data set lacks a column.
    """
    is_object = isinstance(data, datasets.Dataset | datasets.DatasetDict)
    found = data if is_object else find_dataset(cast(Any, data))
    if found is None:
        splits = load_video_texts(cast(Any, data), video_root=video_root)
        if asked := next((name for name, rows in splits.items() if any(rows["question"])), None):
            raise ValueError(f"The {asked} split of {data} has questions; captions are expected.")
        return splits.remove_columns("question").rename_column("answer", "caption")
    splits = found if isinstance(found, datasets.DatasetDict) else {"train": found}
    return datasets.DatasetDict({name: _caption_rows(rows) for name, rows in known_splits(splits, None, None).items()})


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


def _caption_rows(rows: datasets.Dataset) -> datasets.Dataset:
    """The rows of `load_captions` of a data set with columns of videos and captions."""
    if missing := {"video", "caption"}.difference(rows.column_names):
        raise ValueError(
            f"The data set has the columns {', '.join(rows.column_names)}: {min(missing, key=len)!r} is missing."
        )
    rows = rows.select_columns([name for name in ("video", "caption", BYTES, *_TIMES) if name in rows.column_names])
    rows = with_video_names(rows)
    for name in set(_TIMES).difference(rows.column_names):
        rows = rows.add_column(name, [None] * len(rows), feature=datasets.Value("float64"))
    lists = [each if isinstance(each, list) else [each] for each in rows["caption"]]
    rows = rows.select([index for index, captions in enumerate(lists) for _ in captions])
    return rows.remove_columns("caption").add_column("caption", [each for captions in lists for each in captions])
