"""Video processor of action detectors: resizes and pads clips around key frames, with their boxes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers.image_processing_utils import BatchFeature
from transformers.image_utils import PILImageResampling, SizeDict
from transformers.processing_utils import Unpack, VideosKwargs
from transformers.video_utils import VideoInput

from .option_checks import check_shapes, check_statistics, is_number, require, require_count, require_positive
from .uint8_resize import resize_bilinear
from .video_inputs import TensorVideoProcessor, check_values, flatten_videos, is_array

# Without a person above the threshold, the original returns so many queries.
_NUM_FALLBACK = 3


class VideoDetectionProcessorKwargs(VideosKwargs, total=False):  # type: ignore[call-arg]
    """
    Keyword arguments of `VideoDetectionProcessor`, on top of those of every video processor.

    Attributes:
        frame_sampling_rate (`float`, *optional*, defaults to 4):
            Distance between the frames of a clip, in frames of a video of `fps` frames per second.
        pad_size_divisor (`int`, *optional*, defaults to 32):
            Height and width of a batch are multiples of it.
        person_threshold (`float`, *optional*, defaults to 0.6):
            Smallest score of a person, unless `post_process_action_detection` gets another one.
    """

    frame_sampling_rate: int | float | None
    pad_size_divisor: int | None
    person_threshold: float | None


class VideoDetectionProcessor(TensorVideoProcessor):
    r"""
    Constructs a video processor for action detectors such as STMixer. A clip lies around a key frame, whose persons
    are detected; it is resized with its boxes, normalised, and padded at the right and bottom.

    Clips of one size share a batch without loss. Unequal clips are padded to the largest one, and the model sees the
    padding, as in the original: the result for a clip then depends on its batch.

    Args:
        kwargs (`VideoDetectionProcessorKwargs`):
            Defaults of the options. `num_frames`, `frame_sampling_rate` and `fps` say which frames a clip has; `size`
            is the shorter side in pixels.

    Raises:
        `ValueError`: for an option out of range, or something that is not a clip; the message names the value.

    Example:

    ```python
    >>> from hf_video import VideoDetectionProcessor
    >>> from hf_video.data import read_key_frame_clip

    >>> processor = VideoDetectionProcessor()
    >>> clip = read_key_frame_clip("street.mp4", 2.0, processor)
    >>> inputs = processor([clip], return_tensors="pt")
    >>> outputs = model(**inputs)
    >>> persons = processor.post_process_action_detection(
    ...     outputs, original_sizes=inputs["original_sizes"], target_sizes=[clip.shape[1:3]]
    ... )
    ```
    """

    valid_kwargs = VideoDetectionProcessorKwargs
    model_input_names = ["pixel_values", "original_sizes"]

    do_sample_frames = False
    num_frames = 16
    frame_sampling_rate = 4
    fps = 30

    do_convert_rgb = True
    do_resize = True
    size = {"shortest_edge": 256}
    default_to_square = False
    resample = PILImageResampling.BILINEAR
    do_rescale = True
    rescale_factor = 1 / 255
    do_normalize = True
    image_mean = [0.45, 0.45, 0.45]
    image_std = [0.225, 0.225, 0.225]
    pad_size_divisor = 32
    person_threshold = 0.6

    def __init__(self, **kwargs: Unpack[VideoDetectionProcessorKwargs]):
        check_shapes(kwargs)
        super().__init__(**kwargs)
        for name in ("num_frames", "pad_size_divisor"):
            require_count(name, getattr(self, name))
        for name in ("frame_sampling_rate", "fps"):
            require_positive(name, getattr(self, name))
        threshold = self.person_threshold
        require("person_threshold", threshold, is_number(threshold) and 0 <= threshold <= 1, "a number from 0 to 1")
        check_statistics(self.image_mean, self.image_std)

    def key_frame_times(self, second: float) -> np.ndarray:
        """The times of the frames of a clip, (num_frames,) float64 in seconds, whose frame `num_frames // 2` is at
        `second`. Those outside of the video stand for its first or last frame."""
        return second + (np.arange(self.num_frames) - self.num_frames // 2) * self.frame_sampling_rate / self.fps

    def preprocess(
        self,
        videos: VideoInput,
        annotations: Sequence[Mapping[str, Any]] | None = None,
        flip: Sequence[bool] | None = None,
        **kwargs: Unpack[VideoDetectionProcessorKwargs],
    ) -> BatchFeature:
        """
        Turn clips into a batch.

        Args:
            videos:
                A clip or a list of clips, arrays or tensors (num_frames, height, width, 3) or (num_frames, 3, height,
                width) of uint8. Their heights and widths may differ.
            annotations (`Sequence[Mapping]`, *optional*):
                For each clip `boxes`, (n, 4), left, top, right and bottom in pixels of the clip, and `class_labels`,
                (n, num_labels) zeros and ones. Boxes are cut at the border of the clip.
            flip (`Sequence[bool]`, *optional*):
                Whether each clip is mirrored, with its boxes.
            kwargs (`VideoDetectionProcessorKwargs`):
                Options for this call.

        Returns:
            `BatchFeature`: `pixel_values` (batch, num_frames, channels, height, width) float32; `original_sizes`
            (batch, 2) int64, height and width of each clip before padding; with annotations `labels`, a list of
            `boxes`, (n, 4) float32 in pixels of the clip before padding, and `class_labels`, (n, num_labels) float32.
        """
        return_tensors = kwargs.pop("return_tensors", None)
        divisor = kwargs.get("pad_size_divisor")
        prepared = super().preprocess(videos, **kwargs)
        clips, raw_sizes = prepared["clips"], prepared["raw_sizes"]
        _check_lengths(len(clips), annotations=annotations, flip=flip)
        flips = [False] * len(clips) if flip is None else flip
        sizes = [tuple(clip.shape[-2:]) for clip in clips]
        clips = [clip.flip(-1) if is_flipped else clip for clip, is_flipped in zip(clips, flips, strict=True)]
        data: dict[str, Any] = {"pixel_values": self.pad_clips(clips, divisor), "original_sizes": torch.tensor(sizes)}
        batch = BatchFeature(data, tensor_type=return_tensors)
        if annotations is not None:
            batch["labels"] = [
                {
                    "boxes": _move_boxes(each["boxes"], raw, size, is_flipped),
                    "class_labels": torch.as_tensor(each["class_labels"], dtype=torch.float32),
                }
                for each, raw, size, is_flipped in zip(annotations, raw_sizes, sizes, flips, strict=True)
            ]
        return batch

    def pad_clips(self, clips: Sequence[torch.Tensor], pad_size_divisor: int | None = None) -> torch.Tensor:
        """
        Join clips (num_frames, channels, height, width) to (batch, num_frames, channels, height, width), zero at the
        right and bottom. Height and width are the largest ones, rounded up to multiples of `pad_size_divisor`, by
        default that of the processor. Raises `ValueError` for clips of unequal numbers of frames.
        """
        lengths = sorted({len(clip) for clip in clips})
        if len(lengths) > 1:
            raise ValueError(f"Clips of {lengths} frames do not fit into one batch; num_frames of each are expected.")
        divisor = self.pad_size_divisor if pad_size_divisor is None else pad_size_divisor
        require_count("pad_size_divisor", divisor)
        height, width = (-(-max(clip.shape[dim] for clip in clips) // divisor) * divisor for dim in (-2, -1))
        batch = clips[0].new_zeros(len(clips), *clips[0].shape[:2], height, width)
        for canvas, clip in zip(batch, clips, strict=True):
            canvas[..., : clip.shape[-2], : clip.shape[-1]] = clip
        return batch

    def post_process_action_detection(
        self,
        outputs: Any,
        threshold: float | None = None,
        original_sizes: Any = None,
        target_sizes: Any = None,
        original: bool = False,
    ) -> list[dict[str, torch.Tensor]]:
        """
        The persons of each clip, and what they do.

        Args:
            outputs:
                Outputs of an action detector with `logits`, `action_logits` and `pred_boxes`.
            threshold (`float`, *optional*, defaults to `self.person_threshold`):
                Smallest score of a person.
            original_sizes (`torch.Tensor` or list of pairs, *optional*):
                Height and width of each clip before padding. Boxes are cut at width - 1 and height - 1. Without it
                they are as predicted.
            target_sizes (`torch.Tensor` or list of pairs, *optional*):
                Height and width of each video; boxes are scaled to it. Needs `original_sizes`.
            original (`bool`, defaults to `False`):
                The form of STMixer's own code: boxes are divided by width and height, and where nobody passes the
                threshold, the three best are returned, best first. Needs `original_sizes`.

        Returns:
            `list[dict]`: for each clip `boxes` (n, 4), left, top, right and bottom in pixels; `scores` (n,), of being
            a person; and `action_scores` (n, num_labels), each in [0, 1] for itself. Rows are in the
            order of queries, values at least float32.

        Raises:
            `ValueError`: for `target_sizes` or `original` without `original_sizes`, for both of them, or if there are
                not as many sizes as clips.
        """
        threshold = self.person_threshold if threshold is None else threshold
        if original_sizes is None and (original or target_sizes is not None):
            raise ValueError("Boxes are scaled from the size of the clip: give original_sizes, as the processor does.")
        if original and target_sizes is not None:
            raise ValueError("original=True gives shares of width and height, and target_sizes pixels; use one.")
        logits, action_logits, boxes = (
            each.to(torch.promote_types(each.dtype, torch.float32))
            for each in (outputs.logits, outputs.action_logits, outputs.pred_boxes)
        )
        scores, action_scores = logits.softmax(dim=-1)[..., 0], action_logits.sigmoid()
        _check_lengths(len(boxes), original_sizes=original_sizes, target_sizes=target_sizes)
        if original_sizes is not None:
            whwh = _whwh(original_sizes, boxes)
            boxes = boxes.clamp(min=0).minimum(whwh - 1)
            if original:
                boxes = boxes / whwh
            elif target_sizes is not None:
                boxes = boxes * (_whwh(target_sizes, boxes) / whwh)
        results = []
        for clip, of_clip in enumerate(scores):
            chosen = (of_clip >= threshold).nonzero().flatten()
            if original and not len(chosen):
                chosen = of_clip.topk(min(_NUM_FALLBACK, len(of_clip))).indices
            found = {"boxes": boxes[clip, chosen], "scores": of_clip[chosen]}
            results.append({**found, "action_scores": action_scores[clip, chosen]})
        return results

    def _decode_and_sample_videos(self, videos: VideoInput, **kwargs: Any) -> tuple[list[Any], None]:
        clips = flatten_videos(videos)
        for clip in clips:
            if not is_array(clip):
                raise ValueError(
                    f"{clip!r} is not a clip: an array (num_frames, height, width, 3) is expected, as "
                    "hf_video.data.read_key_frame_clip reads it from a video."
                )
        return clips, None

    def _preprocess(self, videos: list[torch.Tensor], **options: Any) -> BatchFeature:
        clips = []
        for video in videos:
            check_values(video, options["do_rescale"])
            clip = self.resize(video, options["size"]) if options["do_resize"] else video
            clips.append(self.normalize_frames(clip, options))
        return BatchFeature({"clips": clips, "raw_sizes": [tuple(video.shape[-2:]) for video in videos]})

    def resize(self, image: torch.Tensor, size: SizeDict, **kwargs: Any) -> torch.Tensor:
        """Frames (..., channels, height, width) uint8, whose shorter side becomes `size.shortest_edge`. The longer one
        is rounded, as in the original, and not rounded down."""
        if not size.shortest_edge:
            raise ValueError(f"size={dict(size)} must have shortest_edge: boxes are scaled by the shorter side.")
        if image.dtype != torch.uint8:
            raise ValueError(f"A clip is uint8, got {image.dtype}; convert it first, or use do_resize=False.")
        sides = image.shape[-2:]
        height, width = (int(side / min(sides) * size.shortest_edge + 0.5) for side in sides)
        return resize_bilinear(image, height, width)


def _check_lengths(num_clips: int, **options: Any) -> None:
    for name, values in options.items():
        if values is not None and len(values) != num_clips:
            raise ValueError(f"There are {num_clips} clips, but {len(values)} {name}; one for each is expected.")


def _move_boxes(boxes: Any, raw_size: tuple[int, int], size: tuple[int, int], is_flipped: bool) -> torch.Tensor:
    """Boxes (n, 4) of a clip of `raw_size` (height, width), in the clip of `size`. Both axes are scaled as the shorter
    side is, as in the original."""
    moved = torch.as_tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    moved = _cut(moved, raw_size) * (min(size) / min(raw_size))
    if is_flipped:
        left, top, right, bottom = moved.unbind(-1)
        moved = torch.stack([size[1] - right - 1, top, size[1] - left - 1, bottom], dim=-1)
    return _cut(moved, size).float()


def _cut(boxes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    height, width = size
    return boxes.clamp(min=0).minimum(boxes.new_tensor([width, height, width, height]) - 1)


def _whwh(sizes: Any, boxes: torch.Tensor) -> torch.Tensor:
    """Width, height, width and height of each clip, (batch, 1, 4), of heights and widths."""
    return torch.as_tensor(sizes).to(boxes)[:, [1, 0, 1, 0]][:, None]


__all__ = ["VideoDetectionProcessor", "VideoDetectionProcessorKwargs"]
