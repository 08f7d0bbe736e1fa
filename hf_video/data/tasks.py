"""Says for each task how a row becomes an item, and items a batch."""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import datasets
import numpy as np
import torch
from transformers import BaseVideoProcessor, BatchFeature, ProcessorMixin

from hf_video.processing import VideoDetectionProcessor
from hf_video.reading import VideoReader

from .augmentation import ClipAugmentation, Crop, has_direction
from .boxes import action_names
from .frame_labels import UNKNOWN, AnnotatedVideo
from .key_frames import read_key_frame_clip
from .mixing import CHANGES, SAMPLE_KEY, collate_clips, collate_frames, only_readable
from .rows import BYTES, declared_names, number_of_clip, open_video
from .video_texts import clean_answer, clean_question

# A tokenizer that pads in one thread must not be used in another.
_TOKENIZING = Lock()


def _generator(key: tuple[int, ...]) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(key))


class Task:
    """What a [`VideoDataset`] or a [`VideoStream`] makes of its rows, which must have some `columns`. A task of your
    own inherits from this class, or from [`ClipTask`], which reads and augments clips.
    """

    columns: tuple[str, ...] = ("video",)

    def for_rows(self, rows: datasets.Dataset | datasets.IterableDataset) -> "Task":
        """This task, or a copy that knows what it needs of the whole of the rows, such as the names of classes."""
        return self

    def make(self, row: Mapping[str, Any], key: tuple[int, ...], training: bool) -> Mapping[str, Any]:
        """The item of a row. Every draw must depend on the key, (seed, epoch, index) and the number of the repetition
        if there is one, alone; without `training` nothing is drawn. A video that cannot be read raises
        `VideoReadError`, and the data set chooses what happens then."""
        raise NotImplementedError

    def collate(self, items: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
        """The batch of items, of which None stands for a video that could not be read. It runs in threads, and must
        not draw from a global generator. Raises `ValueError` if no item is left, or they do not go together."""
        raise NotImplementedError


class ClipTask(Task):
    """Clips of videos with one, several or no labels.

    An item is `pixel_values`, float32 (V, T, C, H, W) with V views of one video, and `labels` if the rows have them:
    an int of a column `label`, or float32 (num_classes,) of zeros and ones of a column `labels`. In evaluation the
    views are those of the processor, num_clips * num_crops of them, the crops of a clip next to each other. In
    training there is one view, or `augmentation.num_augmentations`: a random clip that is resized as by the processor
    and cropped at a random place, the same for all its frames. Then an item also has a `sample_key`, which a collator
    can seed its own draws by. The batch is that of [`collate_clips`]. With `augment_on="device"` an item has whole
    frames and what was drawn for them, from which [`augment_batch`] makes the clips of the batch; trainers call it.

    Args:
        processor: a `VideoClipProcessor`, or a processor with one and a tokenizer. Its options decide everything that
            is not random.
        class_names: names by class id; by default those that the rows declare.
        augmentation: further random changes of training clips; none by default.

    Raises:
        ValueError: the augmentation resizes its crops, or happens on the device, and the processor does not crop.
    """

    # Readers of what is kept, by the video and whether it is to learn from; see `kept_frames`.
    kept: Mapping[tuple[str, bool], VideoReader] = {}

    def __init__(
        self,
        processor: BaseVideoProcessor | ProcessorMixin,
        class_names: Sequence[str] | None = None,
        *,
        augmentation: ClipAugmentation | None = None,
    ):
        self.processor = getattr(processor, "video_processor", processor)
        self.class_names = class_names
        self.augmentation = augmentation or ClipAugmentation()
        # What the processor makes of sizes of frames.
        self._resized: dict[tuple[int, int], Any] = {}
        self.on_device = self.augmentation.augment_on == "device"
        does_crop = self.augmentation.crops_whole_frames
        if (self.on_device or does_crop) and not self._crop_size().get("height"):
            raise ValueError(
                f"{'A crop of whole frames' if does_crop else 'augment_on=device'} needs a size to crop to: use a "
                "processor with do_center_crop=True, or with height and width in size."
            )

    def for_rows(self, rows: datasets.Dataset | datasets.IterableDataset) -> "ClipTask":
        known = copy.copy(self)
        known.class_names = declared_names(rows) if self.class_names is None else self.class_names
        return known

    def named_by(self, row: Mapping[str, Any]) -> str:
        """What the clip of a row is called. If that names a side, the clip is not mirrored."""
        if self.class_names is None:
            return ""
        ids = np.atleast_1d(row.get("labels", row.get("label", ())))
        return ", ".join(self.class_names[each] for each in ids.astype(int))

    def make(self, row: Mapping[str, Any], key: tuple[int, ...], training: bool) -> BatchFeature:
        item = self.make_clip(row, key, training)
        if "labels" in row:
            item["labels"] = torch.zeros(len(self.class_names or ()))
            item["labels"][row["labels"]] = 1
        elif "label" in row:
            item["labels"] = row["label"]
        return item

    def collate(self, items: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
        return collate_clips(items)

    def make_clip(self, row: Mapping[str, Any], key: tuple[int, ...], training: bool) -> BatchFeature:
        """The item of a row without its labels."""
        generator = _generator(key) if training else None
        with self.open_clips(row, training) as reader:
            clips = reader.read(self.choose_frames(reader, row, generator))
        if generator is None:
            return BatchFeature({"pixel_values": self._process(list(clips)).flatten(0, -5)})
        name = self.named_by(row)
        views = [self._draw_view(clips[0], generator, name) for _ in range(self.augmentation.num_augmentations)]
        # `Trainer` would remove the key from a dict, because no argument of the model has its name.
        if self.on_device:
            frames, changes = zip(*views, strict=True)
            return BatchFeature({"pixel_values": frames, CHANGES: changes, SAMPLE_KEY: key})
        return BatchFeature({"pixel_values": torch.cat(views), SAMPLE_KEY: key})

    def open_clips(self, row: Mapping[str, Any], training: bool) -> VideoReader:
        """The reader of the video of a row."""
        kept = self.kept.get((row["video"], training))
        reader = kept or VideoReader(open_video(row))
        if training and kept is None and self.augmentation.decode_to_size:
            reader.resize(self.kept_size(reader.metadata.height, reader.metadata.width, training))
        return reader

    def choose_frames(
        self, reader: VideoReader, row: Mapping[str, Any], generator: np.random.Generator | None
    ) -> np.ndarray:
        """The numbers of the frames of the clips of a row, (num_clips, T); with a generator of a random one."""
        segment = reader.segment(row.get("start"), row.get("end"))
        options = {} if generator is None else {"num_clips": 1, "generator": generator}
        return segment.start + self.processor.sample_frames(reader.metadata_of(segment), **options)

    def possible_frames(self, reader: VideoReader, row: Mapping[str, Any], training: bool) -> np.ndarray:
        """The numbers of all frames that the clips of a row can show."""
        segment = reader.segment(row.get("start"), row.get("end"))
        return np.arange(segment.start, segment.stop) if training else self.choose_frames(reader, row, None)

    def kept_size(self, height: int, width: int, training: bool) -> tuple[int, int]:
        """The smallest size of frames, at most their own, from which items are made as well. Crops of whole frames
        need one in which the smallest has the pixels that it becomes."""
        if training and self.augmentation.crops_whole_frames:
            most = max(self._crop_size()["height"], self._crop_size()["width"])
            scale = most / self.augmentation.smallest_side(height, width)
            new_height, new_width = math.ceil(scale * height), math.ceil(scale * width)
        elif self.processor.do_resize:
            if (height, width) not in self._resized:
                self._resized[height, width] = self._whole(np.zeros((1, height, width, 3), np.uint8), True).shape[-2:]
            new_height, new_width = self._resized[height, width]
        else:
            return height, width
        return (new_height, new_width) if new_height * new_width < height * width else (height, width)

    def shrink(self, frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Frames (n, height, width, 3) uint8 of a size, as the processor resizes."""
        if frames.shape[1:3] == size:
            return frames
        resized = self._whole(frames, True, size={"height": size[0], "width": size[1]})
        return np.ascontiguousarray(resized.movedim(1, -1).numpy())

    def _whole(self, frames: np.ndarray, do_resize: bool, **options: Any) -> torch.Tensor:
        """Frames (n, H, W, 3) uint8 as (n, 3, H, W) uint8, which are resized at most."""
        only = dict.fromkeys(("do_center_crop", "do_rescale", "do_normalize"), False)
        return self._process(frames, num_crops=1, do_resize=do_resize, **only, **options)[0]

    def _draw_view(self, clip: np.ndarray, generator: np.random.Generator, name: str) -> Any:
        """A random view, (1, T, C, H, W) float32, of a clip (T, H, W, 3) uint8; or frames and changes of it."""
        processor, augmentation = self.processor, self.augmentation
        frames = self._whole(clip, processor.do_resize and not augmentation.crops_whole_frames)
        does_crop = processor.do_center_crop or augmentation.crops_whole_frames
        size = (self._crop_size()["height"], self._crop_size()["width"]) if does_crop else None
        crop = None if size is None else Crop(size, processor.antialias, processor.resample)
        if self.on_device:
            names = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
            options = {name: getattr(processor, name) for name in names}
            return augmentation.draw(
                frames, crop, generator, partial(processor.rescale_and_normalize, **options), name
            )
        frames = augmentation.rand_augment(frames, generator)
        if crop is not None:
            frames = augmentation.crop(frames, crop, generator)
        frames = augmentation.change_pixels(frames, generator, name)
        frames = self._process(frames, num_crops=1, do_resize=False, do_center_crop=False)[0]
        return augmentation.erase(frames, generator)[None]

    def _crop_size(self) -> Mapping[str, int]:
        # A processor without a crop squeezes frames to `size`, as that of MA-LMM.
        return self.processor.crop_size if self.processor.do_center_crop else self.processor.size

    def _process(self, videos: Any, **options: Any) -> torch.Tensor:
        inputs = self.processor(videos, do_sample_frames=False, return_tensors="pt", **options)
        return inputs[self.processor.model_input_names[0]]


class TextTask(ClipTask):
    """Clips of videos with captions, or with questions and answers.

    An item has the `pixel_values` and `sample_key` of a [`ClipTask`], with one view of the video. Without a prompt,
    rows have a `caption`. Then an item has `text`, the caption, and `video_ids`, a number that rows of one video
    share, or of one segment of it. With a prompt, rows have `question` and `answer`. Then an item has `text`, the
    prompt, and `text_target`, the answer; both are cleaned as MA-LMM does.

    A batch has `pixel_values` (B, T, C, H, W) and what the processor makes of the texts: `input_ids` and
    `attention_mask` (B, L), and `labels` if there are answers. Captions also have `video_ids` (B,) int64. Where each
    row has a list of captions, for an evaluation, these follow each other, and `num_texts` (B,) says how many it has.

    Args:
        processor: a processor of videos and texts: a [`VideoTextDualEncoderProcessor`] for captions, a
            [`MemoryBankQFormerProcessor`] for answers.
        prompt: the prompt; {} stands for the question.
        max_length, max_target_length: largest number of tokens of a text and of an answer; by default those of the
            processor.
        augmentation: see [`ClipTask`].

    Raises:
        ValueError: a prompt has {} and a row no question, or the other way round.
    """

    def __init__(
        self,
        processor: ProcessorMixin,
        *,
        prompt: str | None = None,
        max_length: int | None = None,
        max_target_length: int | None = None,
        augmentation: ClipAugmentation | None = None,
    ):
        super().__init__(processor, augmentation=augmentation)
        self.text_processor, self.prompt = processor, prompt
        self.max_length, self.max_target_length = max_length, max_target_length
        self.columns = ("video", "caption") if prompt is None else ("video", "question", "answer")

    def for_rows(self, rows: datasets.Dataset | datasets.IterableDataset) -> "TextTask":
        if self.prompt is not None and isinstance(rows, datasets.Dataset):
            has_place, questions = "{}" in self.prompt, set(rows["question"][:])
            if ("" in questions) if has_place else (questions != {""}):
                reason = "a place for questions, but some have none" if has_place else "no place {} for them"
                raise ValueError(f"The prompt {self.prompt!r} of rows with questions has {reason}.")
        return self

    def named_by(self, row: Mapping[str, Any]) -> str:
        # Words name what a clip shows, as a class does.
        return row["caption"] if self.prompt is None else f"{row['question']} {row['answer']}"

    def make(self, row: Mapping[str, Any], key: tuple[int, ...], training: bool) -> BatchFeature:
        item = self.make_clip(row, key, training)
        if self.prompt is None:
            item["text"], item["video_ids"] = row["caption"], number_of_clip(row["video"], row) >> 1
        else:
            item["text"] = self.prompt.replace("{}", clean_question(row["question"]))
            item["text_target"] = clean_answer(row["answer"])
        return item

    def collate(self, items: Sequence[Mapping[str, Any] | None], with_targets: bool = True) -> dict[str, Any]:
        """The batch of items; without targets a model generates the answers. Raises `ValueError` if no item is left,
        the clips differ in their shapes, or have several views."""
        readable = only_readable(items)
        clips = [{name: item[name] for name in item if not name.startswith("text")} for item in readable]
        batch = collate_clips(clips)
        if any(len(clip["pixel_values"]) != 1 for clip in clips):
            raise ValueError("A video with a text has one view: use num_clips=1, num_crops=1, num_augmentations=1.")
        texts = [item["text"] for item in readable]
        if isinstance(texts[0], list):
            batch["num_texts"] = torch.tensor(list(map(len, texts)))
            texts = [text for of_video in texts for text in of_video]
        options: dict[str, Any] = {"text": texts, "max_length": self.max_length}
        if self.prompt is not None:
            options["max_target_length"] = self.max_target_length
            if with_targets:
                options["text_target"] = [item["text_target"] for item in readable]
        with _TOKENIZING:
            return {**batch, **self.text_processor(**options, return_tensors="pt")}


class FrameTask(ClipTask):
    """Clips of rows of [`cut_clips`], with a label for each token frame.

    An item has `pixel_values` (num_frames, num_channels, height, width) float32, and `labels`: (t,) int64 class ids of
    the token frames, or (t, num_classes) float32 where a frame may have several; -100 is unknown. In training clips
    are cropped and changed at random, each the same for all its frames.

    A batch has `pixel_values` (B, T, C, H, W), padded with zeros at the end; `labels`, padded with -100; and
    `attention_mask` (B, t) int64, 1 for token frames and 0 for padding. `fps` are the samples a second of `cut_clips`;
    for the other arguments see [`ClipTask`].
    """

    columns = ("video", "start", "num_frames", "frame_labels")

    def __init__(self, processor: BaseVideoProcessor, class_names: Sequence[str], *, fps: float, **options: Any):
        super().__init__(processor, class_names, **options)
        self.fps = fps

    def named_by(self, row: Mapping[str, Any]) -> str:
        labels = np.asarray(row["frame_labels"])
        ids = np.unique(labels[labels != UNKNOWN]) if labels.ndim == 1 else np.flatnonzero((labels > 0).any(axis=0))
        return ", ".join((self.class_names or ())[each] for each in ids.astype(int))

    def choose_frames(
        self, reader: VideoReader, row: Mapping[str, Any], generator: np.random.Generator | None
    ) -> np.ndarray:
        return reader.shown_at(row["start"] + np.arange(row["num_frames"]) / self.fps)[None]

    def possible_frames(self, reader: VideoReader, row: Mapping[str, Any], training: bool) -> np.ndarray:
        return self.choose_frames(reader, row, None)

    def _process(self, videos: Any, **options: Any) -> torch.Tensor:
        return super()._process(videos, **{"num_crops": 1} | options)

    def make(self, row: Mapping[str, Any], key: tuple[int, ...], training: bool) -> Any:
        item = self.make_clip(row, key, training)
        for view in {"pixel_values", CHANGES}.intersection(item):
            item[view] = item[view][0]
        item["labels"] = torch.tensor(row["frame_labels"])
        return item

    def collate(self, items: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
        return collate_frames(items)


def cut_clips(
    videos: Sequence[AnnotatedVideo],
    processor: BaseVideoProcessor,
    class_names: Sequence[str],
    *,
    fps: float,
    tubelet_size: int,
    overlap: float = 0.0,
    background: str | None = None,
    several: bool = False,
    frame_delay: int = 0,
) -> datasets.Dataset:
    """Cut videos with labels of frames into clips of `num_frames` of the processor, for a [`FrameTask`].

    A token frame has the label of the middle of the time that it stands for. The last clip of a video may be shorter,
    and a clip without a known label is left out.

    Args:
        videos: as of `annotated_videos`.
        processor: says how many frames a clip has.
        class_names: names by class id.
        fps: samples a second.
        tubelet_size: samples of a token frame.
        overlap: share of a clip that the next one shows again.
        background: the class of frames outside of all segments; by default they are unknown.
        several: whether a frame may have several classes.
        frame_delay: token frames by which labels are late, so that a causal model sees what follows.

    Returns:
        A row for each clip, with `video`, `start`, `end`, `num_frames` and `frame_labels`; and of videos with instants
        `instants`, seconds and class id of each for which the clip has an answer.

    Raises:
        ValueError: no frame has a known label.
    """
    num_tokens = processor.num_frames // tubelet_size
    outside = None if background is None else list(class_names).index(background)
    step = max(round(num_tokens * (1 - overlap)), 1)
    seconds = tubelet_size / fps
    clips: list[dict[str, Any]] = []
    for video, (begin, end) in [(each, part) for each in videos for part in each.parts]:
        # Samples are taken as long as the video shows something.
        total = math.ceil((end - begin) * fps - 1e-3) // tubelet_size
        for first in range(0, max(total - num_tokens + step, 1), step):
            length = min(num_tokens, total - first)
            start = begin + first * seconds
            middles = start + (np.arange(length) + 0.5 - frame_delay) * seconds
            labels = video.labels_at(middles, len(class_names), outside, several)
            # What came before the clip is not in it.
            labels[:frame_delay] = UNKNOWN
            if (labels == UNKNOWN).all():
                continue
            row = {"video": video.row["video"], "start": start, "end": start + length * seconds}
            row |= {"num_frames": length * tubelet_size, "frame_labels": labels.tolist()}
            until = row["end"] - frame_delay * seconds
            if any(each.instants for each in videos):
                row["instants"] = [each for each in video.instants if start <= each[0] < until]
            clips.append(row | {name: video.row[name] for name in (BYTES,) if name in video.row})
    if not clips:
        raise ValueError("No frame of the videos has a known label: give segments, or a background.")
    return datasets.Dataset.from_list(clips)


class BoxTask(Task):
    """The clips around the key frames of rows of `load_detections`, with boxes and actions.

    An item has `pixel_values` (num_frames, 3, height, width) float32 and `original_sizes` (2,) int64, height and width
    before padding; and `labels`: `boxes` (n, 4) float32, left, top, right and bottom in pixels of the clip,
    `class_labels` (n, num_classes) float32 of zeros and ones, and `image_id`, the number of the row. In training the
    shorter side is the processor's times one of `scales`, and half of the clips are mirrored, except where a person
    does something whose name says left or right.

    A batch has `pixel_values` (B, num_frames, 3, height, width), padded to the largest clip; `original_sizes` (B, 2);
    and `labels`, a list of B mappings.

    Args:
        processor: says which frames a clip has, their size, and how clips are padded.
        scales: factors of the shorter side in training; STMixer's recipe has 256 and 320 pixels.
        flip_prob: share of training clips that are mirrored.
    """

    columns = ("video", "second", "boxes", "actions")

    def __init__(
        self, processor: VideoDetectionProcessor, *, scales: Sequence[float] = (1, 1.25), flip_prob: float = 0.5
    ):
        self.processor, self.scales, self.flip_prob = processor, scales, flip_prob
        self.class_names: Sequence[str] = ()

    def for_rows(self, rows: datasets.Dataset | datasets.IterableDataset) -> "BoxTask":
        known = copy.copy(self)
        known.class_names = action_names(rows)
        return known

    def make(self, row: Mapping[str, Any], key: tuple[int, ...], training: bool) -> dict[str, Any]:
        clip = read_key_frame_clip(open_video(row), row["second"], self.processor)
        height, width = clip.shape[1:3]
        class_labels = torch.zeros(len(row["actions"]), len(self.class_names))
        for labels, actions in zip(class_labels, row["actions"], strict=True):
            labels[actions] = 1
        annotation = {"boxes": np.array(row["boxes"]) * [width, height, width, height], "class_labels": class_labels}
        options: dict[str, Any] = {}
        if training:
            generator = _generator(key)
            scale, is_flipped = generator.choice(self.scales), generator.random() < self.flip_prob
            options["size"] = {"shortest_edge": round(self.processor.size["shortest_edge"] * scale)}
            done = {self.class_names[each] for actions in row["actions"] for each in actions}
            options["flip"] = [is_flipped and not any(map(has_direction, done))]
        batch = self.processor([clip], annotations=[annotation], return_tensors="pt", **options)
        item = {name: batch[name][0] for name in ("pixel_values", "original_sizes", "labels")}
        item["labels"]["image_id"] = torch.tensor(key[2])
        return item

    def collate(self, items: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
        readable = only_readable(items)
        return {
            "pixel_values": self.processor.pad_clips([item["pixel_values"] for item in readable]),
            "original_sizes": torch.stack([item["original_sizes"] for item in readable]),
            "labels": [item["labels"] for item in readable],
        }
