"""Makes a clip of a row: reads the video, samples frames, and in training crops and changes them at random."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from transformers import BaseVideoProcessor, BatchFeature

from hf_video.reading import read_video

from .augmentation import ClipAugmentation
from .batches import SAMPLE_KEY
from .rows import open_video
from .video_settings import OnError

Transform = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]


class ClipMaker:
    """What a `ClipDataset` and a `ClipStream` share: their options, and the item of a row. See there."""

    def __init__(
        self,
        processor: BaseVideoProcessor,
        *,
        training: bool,
        seed: int,
        augmentation: ClipAugmentation | None,
        transform: Transform | None,
        on_error: str,
    ):
        if not training and (augmentation is not None or transform is not None or on_error == "replace"):
            raise ValueError(
                'augmentation, transform and on_error="replace" are for training; leave them out where training=False.'
            )
        if on_error not in get_args(OnError):
            raise ValueError(f"on_error={on_error!r} is unknown; choose from {', '.join(get_args(OnError))}.")
        augmentation = augmentation or ClipAugmentation()
        # A processor without a crop squeezes frames to `size`, as that of MA-LMM.
        size = processor.crop_size if processor.do_center_crop else processor.size
        if augmentation.crops_whole_frames and not size.get("height"):
            name = "multi_scale_crop" if augmentation.multi_scale_crop else "crop_min_area"
            raise ValueError(
                f"{name} needs a size to crop to: use a processor with do_center_crop=True, or with height and width "
                "in size."
            )
        self.processor = processor
        self.training = training
        self.seed = seed
        self.augmentation = augmentation
        self.transform = transform
        self.on_error = on_error

    def make_clip(
        self,
        row: Mapping[str, Any],
        key: tuple[int, ...],
        class_names: Sequence[str] | None = None,
        name: str | None = None,
    ) -> BatchFeature:
        """The item of a row, drawn by a key. What it shows is named by its classes, or else by `name`. An error of
        reading is raised."""
        labels = row.get("labels", row.get("label"))
        if self.training:
            generator = np.random.default_rng(np.random.SeedSequence(key))
            clips = self._read_clips(row, partial(self.processor.sample_frames, num_clips=1, generator=generator))
            if class_names is not None:
                name = ", ".join(class_names[each] for each in np.atleast_1d(labels))
            views = [self._draw_view(clips[0], generator, name) for _ in range(self.augmentation.num_augmentations)]
            # `Trainer` would remove the key from a dict, because no argument of the model has its name.
            item = BatchFeature({"pixel_values": torch.cat(views), SAMPLE_KEY: key})
        else:
            clips = self._read_clips(row, self.processor.sample_frames)
            item = BatchFeature({"pixel_values": self._process(list(clips)).flatten(0, -5)})
        if "labels" in row:
            item["labels"] = torch.zeros(len(class_names or ()))
            item["labels"][labels] = 1
        elif "label" in row:
            item["labels"] = labels
        return item

    def _read_clips(self, row: Mapping[str, Any], sample_indices_fn: Callable[..., np.ndarray]) -> np.ndarray:
        """The clips of a row, (num_clips, T, H, W, 3) uint8."""
        clips, _ = read_video(open_video(row), sample_indices_fn, start=row.get("start"), end=row.get("end"))
        return clips

    def _draw_view(self, clip: np.ndarray, generator: np.random.Generator, label: str | None) -> torch.Tensor:
        """A random view, (1, T, C, H, W) float32, of a clip (T, H, W, 3) uint8."""
        processor, augmentation = self.processor, self.augmentation
        frames = self._process(
            clip,
            num_crops=1,
            do_resize=processor.do_resize and not augmentation.crops_whole_frames,
            do_center_crop=False,
            do_rescale=False,
            do_normalize=False,
        )[0]
        frames = augmentation.rand_augment(frames, generator)
        if processor.do_center_crop or augmentation.crops_whole_frames:
            sizes = processor.crop_size if processor.do_center_crop else processor.size
            size = sizes["height"], sizes["width"]
            frames = augmentation.crop(frames, size, processor.antialias, generator, processor.resample)
        frames = augmentation.change_pixels(frames, generator, label)
        if self.transform is not None:
            frames = self.transform(frames, generator)
        frames = self._process(frames, num_crops=1, do_resize=False, do_center_crop=False)[0]
        return augmentation.erase(frames, generator)[None]

    def _process(self, videos: Any, **options: Any) -> torch.Tensor:
        inputs = self.processor(videos, do_sample_frames=False, return_tensors="pt", **options)
        return inputs[self.processor.model_input_names[0]]
