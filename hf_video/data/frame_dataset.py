"""A PyTorch data set of clips of long videos with a label for each token frame, and the batches of a frame
classifier."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import BaseVideoProcessor

from hf_video.reading.video_reading import read_video_at

from .augmentation import ClipAugmentation
from .batches import SAMPLE_KEY
from .clip_dataset import ClipDataset
from .frame_labels import UNKNOWN, AnnotatedVideo
from .rows import BYTES, open_video


class FrameDataset(ClipDataset):
    """Clips of `num_frames` of the processor, cut from videos with labels of frames.

    An item has `pixel_values` (num_frames, num_channels, height, width) float32, and `labels`: (t,) int64 class ids of
    the token frames, or (t, num_classes) float32 where a frame may have several; -100 is unknown. A token frame has
    the label of the middle of the time that it stands for. The last clip of a video may be shorter, and a clip without
    a known label is left out. `dataset` has a row for each clip, with `video`, `start`, `num_frames` and
    `frame_labels`.

    In training the clips are cropped and changed at random, each the same for all its frames. Every draw depends on
    (seed, epoch, index) alone, as in a [`ClipDataset`].

    Args:
        videos: as of `annotated_videos`.
        processor: says how many frames a clip has, and their size.
        class_names: names by class id.
        fps: samples a second.
        tubelet_size: samples of a token frame.
        training: whether clips are changed at random.
        overlap: share of a clip that the next one shows again.
        background: the class of frames outside of all segments; by default they are unknown.
        several: whether a frame may have several classes.
        frame_delay: token frames by which labels are late, so that a causal model sees what follows.
        seed, augmentation, on_error: see [`ClipDataset`].

    Raises:
        ValueError: no frame has a known label, or a clip has no whole token frame.
    """

    def __init__(
        self,
        videos: Sequence[AnnotatedVideo],
        processor: BaseVideoProcessor,
        class_names: Sequence[str],
        *,
        fps: float,
        tubelet_size: int,
        training: bool,
        overlap: float = 0.0,
        background: str | None = None,
        several: bool = False,
        frame_delay: int = 0,
        seed: int = 0,
        augmentation: ClipAugmentation | None = None,
        on_error: str = "error",
    ):
        self.fps, self.tubelet_size = fps, tubelet_size
        num_tokens = processor.num_frames // tubelet_size
        if not num_tokens:
            raise ValueError(f"num_frames={processor.num_frames} is less than a token frame of {tubelet_size} frames.")
        outside = None if background is None else list(class_names).index(background)
        step = max(round(num_tokens * (1 - overlap)), 1)
        seconds = tubelet_size / fps
        stored = [BYTES] if videos and BYTES in videos[0].row else []
        names = ("video", "start", "end", "num_frames", "frame_labels", *stored)
        clips: dict[str, list[Any]] = {name: [] for name in names}
        for video in videos:
            # Samples are taken as long as the video shows something.
            total = math.ceil((video.end - video.begin) * fps - 1e-3) // tubelet_size
            for first in range(0, max(total - num_tokens + step, 1), step):
                length = min(num_tokens, total - first)
                start = video.begin + first * seconds
                middles = start + (np.arange(length) + 0.5 - frame_delay) * seconds
                labels = video.labels_at(middles, len(class_names), outside, several)
                # What came before the clip is not in it.
                labels[:frame_delay] = UNKNOWN
                if (labels == UNKNOWN).all():
                    continue
                row = {"video": video.row["video"], "start": start, "end": start + length * seconds}
                row |= {"num_frames": length * tubelet_size, "frame_labels": labels.tolist()}
                row |= {name: video.row[name] for name in stored}
                for name, value in row.items():
                    clips[name].append(value)
        if not clips["video"]:
            raise ValueError("No frame of the videos has a known label: give segments, or a background.")
        changes: dict[str, Any] = {"augmentation": augmentation} if training else {}
        rows = Dataset.from_dict(clips)
        super().__init__(rows, processor, training=training, seed=seed, on_error=on_error, **changes)

    def make_item(self, index: int, key: tuple[int, ...]) -> Any:
        row = self.dataset[index]
        times = row["start"] + np.arange(row["num_frames"]) / self.fps
        frames = read_video_at(open_video(row), times.tolist()).frames
        item: dict[str, Any] = {"labels": torch.tensor(row["frame_labels"])}
        if self.training:
            generator = np.random.default_rng(np.random.SeedSequence(key))
            return item | {"pixel_values": self._draw_view(frames, generator, None)[0], SAMPLE_KEY: key}
        return item | {"pixel_values": self._process(frames, num_crops=1)[0]}


class FrameCollator:
    """Joins clips of unequal length into a batch: `pixel_values` (B, T, C, H, W), padded with zeros at the end;
    `labels`, padded with -100; and `attention_mask` (B, t) int64, 1 for token frames and 0 for padding.
    None stands for a video that could not be read."""

    def __call__(self, items: Sequence[Mapping[str, Any] | None]) -> dict[str, torch.Tensor]:
        readable = [item for item in items if item is not None]
        labels = [item["labels"] for item in readable]
        return {
            "pixel_values": pad_sequence([item["pixel_values"] for item in readable], batch_first=True),
            "labels": pad_sequence(labels, batch_first=True, padding_value=UNKNOWN),
            "attention_mask": pad_sequence([torch.ones(len(each), dtype=torch.int64) for each in labels], True),
        }
