"""The clips of labelled videos as a PyTorch data set: random ones for training, fixed views for evaluation."""

from collections.abc import Callable
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional as F
from transformers import BaseVideoProcessor

from hf_video.processing import read_video

Transform = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]


class ClipDataset(Dataset):
    """Reads and prepares the clips of a data set of `load_video_dataset`.

    An item is `pixel_values`, float32 (V, T, C, H, W) with V views of one video, and `labels`, an int, where the data
    set has labels. With `training=False` the views are those of the processor, num_clips * num_crops of them, clips
    first. With `training=True` there is one view, drawn anew every epoch: a random clip, resized as the processor does
    and cropped at a random place, the same for all its frames.

    Every draw depends on (seed, epoch, index) alone, so it does not matter which worker or machine makes it, nor
    whether the run was interrupted.

    Args:
        dataset: Rows with `video` (a path) and, optionally, `label`, `start` and `end` (seconds, or None).
        processor: A `VideoClipProcessor`; its options decide everything that is not random.
        training: Whether to draw clips and crops at random.
        seed: Seed of all draws.
        horizontal_flip: Mirror half of the training clips. Off by default, as it turns left into right and so changes
            the class of many motions.
        transform: Called in training as `transform(frames, generator)` with the cropped frames, uint8 (T, C, H, W),
            and a NumPy generator to draw from; returns frames of the same dtype and layout.

    Raises:
        ValueError: If `dataset` has no column `video`, or `horizontal_flip` or `transform` is given for evaluation.
        VideoReadError: On access to an item, if its video cannot be read.
    """

    def __init__(
        self,
        dataset: datasets.Dataset,
        processor: BaseVideoProcessor,
        *,
        training: bool,
        seed: int = 0,
        horizontal_flip: bool = False,
        transform: Transform | None = None,
    ):
        if "video" not in dataset.column_names:
            raise ValueError(
                f"The data set has the columns {dataset.column_names}, but not 'video', the paths of videos. "
                "Make it with load_video_dataset, or rename a column: dataset.rename_column(name, 'video')."
            )
        if not training and (horizontal_flip or transform is not None):
            raise ValueError("horizontal_flip and transform are for training; leave them out where training=False.")
        self.dataset = dataset
        self.processor = processor
        self.training = training
        self.seed = seed
        self.horizontal_flip = horizontal_flip
        self.transform = transform
        # Shared memory, because persistent DataLoader workers keep the copy of the data set they started with.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose clips are drawn, in this process and in its DataLoader workers."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = range(len(self))[index]
        row = self.dataset[index]
        if self.training:
            generator = np.random.default_rng(np.random.SeedSequence((self.seed, int(self._epoch), index)))
            clips = self._read_clips(row, partial(self.processor.sample_frames, num_clips=1, generator=generator))
            item = {"pixel_values": self._draw_view(clips[0], generator)}
        else:
            clips = self._read_clips(row, self.processor.sample_frames)
            item = {"pixel_values": self._process(list(clips))}
        if "label" in row:
            item["labels"] = row["label"]
        return item

    def _read_clips(self, row: dict[str, Any], sample_indices_fn: Callable[..., np.ndarray]) -> np.ndarray:
        """(num_clips, T, H, W, 3) uint8."""
        clips, _ = read_video(row["video"], sample_indices_fn, start=row.get("start"), end=row.get("end"))
        return clips

    def _draw_view(self, clip: np.ndarray, generator: np.random.Generator) -> torch.Tensor:
        """(1, T, C, H, W) float32 from a clip (T, H, W, 3) uint8."""
        processor = self.processor
        frames = self._process(clip, num_crops=1, do_center_crop=False, do_rescale=False, do_normalize=False)[0]
        if processor.do_center_crop:
            height, width = processor.crop_size["height"], processor.crop_size["width"]
            top, left = (
                int(generator.integers(0, max(room, 0), endpoint=True))
                for room in (frames.shape[-2] - height, frames.shape[-1] - width)
            )
            frames = F.crop(frames, top, left, height, width)
        if self.horizontal_flip and generator.random() < 0.5:
            frames = F.horizontal_flip(frames)
        if self.transform is not None:
            frames = self.transform(frames, generator)
        return self._process(frames, num_crops=1, do_resize=False, do_center_crop=False)

    def _process(self, videos: Any, **options: Any) -> torch.Tensor:
        return self.processor(videos, do_sample_frames=False, return_tensors="pt", **options)["pixel_values"]
