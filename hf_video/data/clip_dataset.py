"""A PyTorch data set of clips of labelled videos: random clips for training, fixed views for evaluation."""

from collections.abc import Mapping
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BaseVideoProcessor, BatchFeature
from transformers.video_utils import VideoMetadata

from hf_video.reading import VideoReadError, probe_video

from .augmentation import ClipAugmentation
from .checks import find_broken
from .clip_making import ClipMaker, Transform
from .rows import DURATION, FRAMES, is_multi_label, label_names, open_video, rows_without

# A row, or a row and the number of its repetition.
Index = int | tuple[int, int]
NUM_VIDEOS, NUM_CLIPS = 100, 32


class ClipDataset(ClipMaker, Dataset):
    """Reads and prepares the clips of a data set of `load_video_dataset`.

    An item is `pixel_values`, float32 (V, T, C, H, W) with V views of one video, and `labels` if the data set has
    them: an int, or float32 (num_classes,) of zeros and ones if a clip may have several classes. With
    `training=False` the views are those of the processor, num_clips * num_crops of them, the crops of a clip next to
    each other. With `training=True` there is one view, or `augmentation.num_augmentations`, drawn again every epoch: a
    random clip that is resized as by the processor and cropped at a random place, the same for all its frames. Then
    an item also has a `sample_key`, (seed, epoch, index), which a collator can seed its own draws by.

    Every draw depends on (seed, epoch, index) alone. So it does not matter which worker or machine draws, nor whether
    the run was interrupted. The index may be a pair of a row and a number of its repetition in the epoch, as
    `ClassSampler` gives it: each repetition is another clip.

    Args:
        dataset: Rows of `load_video_dataset`: `video` (a path, or a name if there are `bytes`) and, optionally,
            `label` or `labels`, `start` and `end` (seconds, or None).
        processor: A `VideoClipProcessor`. Its options decide everything that is not random.
        training: Whether to draw clips and crops at random.
        seed: Seed of all draws.
        augmentation: Further random changes of training clips; none by default.
        transform: Called in training as `transform(frames, generator)` with the augmented frames, uint8 (T, C, H, W),
            and a NumPy generator to draw from; returns frames of the same dtype and layout.
        on_error: What happens to a video that cannot be read: "error" raises, "skip" makes the item None, which
            `collate_clips` leaves out, "replace" takes another video of the data set, drawn from (seed, epoch, index).
            In training, a batch that would be empty gets one replacement also with "skip". `broken_videos` lists the
            unreadable videos. An evaluation never replaces a video, because a score must belong to its video: call
            `drop_broken` before it.

    Raises:
        ValueError: If `dataset` has no column `video`, an option is unknown or for training alone, or the augmentation
            resizes its crops and the processor does not crop.
        VideoReadError: On access to an item, if its video cannot be read and `on_error` is "error", or no other video
            can be read.
    """

    def __init__(
        self,
        dataset: datasets.Dataset,
        processor: BaseVideoProcessor,
        *,
        training: bool,
        seed: int = 0,
        augmentation: ClipAugmentation | None = None,
        transform: Transform | None = None,
        on_error: str = "error",
    ):
        if "video" not in dataset.column_names or isinstance(dataset.features["video"], datasets.Video):
            raise ValueError(
                f"The data set has the columns {dataset.column_names}, but not 'video' with the paths of videos: make "
                "it with load_video_dataset, which also takes data sets with a column of the feature Video."
            )
        super().__init__(
            processor,
            training=training,
            seed=seed,
            augmentation=augmentation,
            transform=transform,
            on_error=on_error,
        )
        self.dataset = dataset
        # Shared memory, because persistent DataLoader workers keep the copy of the data set that they started with.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._is_broken = torch.zeros(len(dataset), dtype=torch.bool).share_memory_()
        self._dropped: set[str] = set()

    @property
    def epoch(self) -> int:
        """The epoch whose clips are drawn."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose clips are drawn, in this process and in its DataLoader workers."""
        self._epoch.fill_(epoch)

    def broken_videos(self) -> list[str]:
        """Paths of the videos that this process and its DataLoader workers could not read so far, and of those that
        `drop_broken` left out."""
        return sorted(self._dropped.union(self.dataset.select(self._is_broken.nonzero().flatten())["video"]))

    def drop_broken(self, num_workers: int = 1) -> "ClipDataset":
        """Leave out the rows of every video that cannot be read to its end or lacks a segment of one of its rows. Then
        no batch of an evaluation is empty, and the batches of several processes have the same size.

        Every video is decoded once in full. If there are several processes, each of them must call this: each decodes
        its share. With `on_error="error"` nothing is decoded.

        Args:
            num_workers: Processes that read videos; this one reads them if it is 0 or 1.

        Returns:
            This data set.

        Raises:
            VideoReadError: If no video can be read.
        """
        if self.on_error == "error":
            return self
        broken = find_broken(self.dataset, decode=True, num_workers=num_workers)
        self._dropped.update(broken)
        if not broken:
            return self
        kept = rows_without(self.dataset, broken)
        if not len(kept):
            raise self._nothing_readable(next(iter(broken.values())))
        self.dataset = self.dataset.select(kept)
        self._is_broken = self._is_broken[kept].share_memory_()
        return self

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Index) -> BatchFeature | None:
        key = self._key(index)
        index = key[2]
        try:
            return self.make_item(index, key)
        except VideoReadError:
            self._is_broken[index] = True
            if self.on_error == "error":
                raise
        return self._replacement(key) if self.on_error == "replace" else None

    def __getitems__(self, indices: list[Index]) -> list[BatchFeature | None]:
        """The items of a batch, for a DataLoader. In training at least one of them is not None."""
        return self.complete_batch([self[index] for index in indices], indices)

    def complete_batch(self, items: list[BatchFeature | None], indices: list[Index]) -> list[BatchFeature | None]:
        """What `__getitems__` returns, of what `__getitem__` returned for each index; see `ReadAheadLoader`."""
        if self.training and all(item is None for item in items):
            items[0] = self._replacement(self._key(indices[0]))
        return items

    def _key(self, index: Index) -> tuple[int, ...]:
        row, repetition = index if isinstance(index, tuple) else (index, 0)
        key = self.seed, self.epoch, range(len(self))[row]
        return (*key, repetition) if repetition else key

    def make_item(self, index: int, key: tuple[int, ...]) -> BatchFeature:
        """The item of a row, drawn by a key. An error of reading is raised."""
        return self.make_clip(self.dataset[index], key, self._class_names())

    def _replacement(self, key: tuple[int, ...]) -> BatchFeature:
        """Another item, drawn from the key of the broken one."""
        reason = ""
        for index in np.random.default_rng(np.random.SeedSequence(key)).permutation(len(self)).tolist():
            # A video that is known to be broken is tried again: the draw must not depend on what was read before.
            try:
                return self.make_item(index, key)
            except VideoReadError as error:
                self._is_broken[index] = True
                reason = str(error)
        raise self._nothing_readable(reason)

    def _nothing_readable(self, reason: str) -> VideoReadError:
        return VideoReadError(f"None of the {len(self)} videos can be read. Of one of them: {reason}")

    def _class_names(self) -> list[str] | None:
        """The names of the classes by id; None for rows without labels, or whose labels have no names."""
        has_names = is_multi_label(self.dataset) or isinstance(self.dataset.features.get("label"), datasets.ClassLabel)
        return label_names(self.dataset) if has_names else None


def median_frame_interval(clips: ClipDataset) -> float | None:
    """The seconds between two frames next to each other in a training clip: the median over clips of their mean.

    Clips are drawn as in training, `NUM_CLIPS` of each of at most `NUM_VIDEOS` videos, but not decoded: a table, or
    the packets of the file, say how many frames a video has and how long it lasts. The same data give the same
    result.

    Args:
        clips: the training set.

    Returns:
        Seconds; None if no video has times, as folders of frames, or a clip has one frame.

    Raises:
        ValueError: a clip does not fit into a video, and the processor repeats no frames.
    """
    generator = np.random.default_rng(0)
    num_videos = len(clips.dataset)
    chosen = np.sort(generator.choice(num_videos, min(num_videos, NUM_VIDEOS), replace=False))
    intervals: list[float] = []
    for row in clips.dataset.select(chosen):
        metadata = _metadata(row)
        if metadata is not None and metadata.fps:
            frames = clips.processor.sample_frames(metadata, num_clips=NUM_CLIPS, generator=generator)
            intervals.extend(_mean_distances(frames) / metadata.fps)
    return round(float(np.median(intervals)), 6) if intervals else None


def _metadata(row: Mapping[str, Any]) -> VideoMetadata | None:
    """Frames and rate of the segment of a row; None if the video cannot be read."""
    num_frames, duration = row.get(FRAMES), row.get(DURATION)
    if not num_frames or not duration:
        try:
            probed = probe_video(open_video(row))
        except (VideoReadError, OSError):
            return None
        num_frames, duration = probed.total_num_frames, probed.duration
    if not duration:
        return None
    fps = num_frames / duration
    start, end = row.get("start") or 0.0, row.get("end") or duration
    return VideoMetadata(total_num_frames=max(round((min(end, duration) - start) * fps), 1), fps=fps)


def _mean_distances(frames: np.ndarray) -> np.ndarray:
    """The mean distance in frames of the clips (num_clips, num_frames) that have several frames. A clip that ends by
    repeating its last frame counts up to where that comes first."""
    steps = np.argmax(frames == frames[:, -1:], axis=1)
    spans = frames[:, -1] - frames[:, 0]
    return spans[steps > 0] / steps[steps > 0]
