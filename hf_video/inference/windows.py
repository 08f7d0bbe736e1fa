"""Windows of a video as batches of a model's input; each frame is decoded and processed once."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.utils import logging
from transformers.video_utils import VideoMetadata

from hf_video.processing import VideoClipProcessor
from hf_video.processing.clip_sampling import STRIDED_STRATEGIES
from hf_video.reading.frame_streaming import StreamedFrame
from hf_video.reading.windows import LastWindow, Sample, group_samples, timed_samples, until_error

from .inference_settings import WindowSettings

logger = logging.get_logger(__name__)

# A distance of samples this many times larger or smaller than that of training shows motion at another speed. Clips of
# whole videos have the distances that the lengths of the videos give, in training too.
FAR, FAR_OF_WHOLE_VIDEOS = 1.5, 4

# What has no meaning where no window slides, and what it means to leave it out.
_OF_WINDOWS = {"window": None, "stride": None, "last_window": "pad"}

# Is called with each frame that a model sees, its seconds and its image (height, width, 3) uint8, where it is read.
Watcher = Callable[[float, np.ndarray], object]


class Piece(NamedTuple):
    """A part of a video, from `start` to `end` in seconds after its first frame, which a model takes at once: a clip,
    a window or a key frame. `pixel_values` is (num_frames, num_channels, height, width), a tensor or an array, or
    (num_views, num_frames, ...)."""

    pixel_values: Any
    start: float = 0.0
    end: float = 0.0


class WindowBatch(NamedTuple):
    """Some windows of a video, in their order: when the first sample of each starts, and when the last one that is not
    padding ends, in seconds after the first frame; and (batch_size, num_frames, num_channels, height, width), as a
    model takes them."""

    starts: list[float]
    ends: list[float]
    pixel_values: torch.Tensor


def window_batches(
    processor: VideoClipProcessor,
    source: Any,
    *,
    batch_size: int = 1,
    num_frames: int | None = None,
    stride: int | None = None,
    fps: float | None = None,
    frame_sampling_rate: float | None = None,
    last: LastWindow = "pad",
    source_fps: float | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    watch: Watcher | None = None,
) -> Iterator[WindowBatch]:
    """Sliding windows of a video, resized, cropped and normalised for a model, one clip with one crop each.

    Each frame is decoded, processed and moved to the device once, however many windows hold it. A batch is given as
    soon as it is full; the last one may be smaller. Memory does not grow with the length of the video. A line of the
    log says if samples are more than `FAR` times as far apart as the frames that the model learned from, or as close.

    Args:
        processor: says how a frame is resized, cropped and normalised.
        source, source_fps, last: see `timed_samples` and `group_samples`.
        num_frames, stride, fps, frame_sampling_rate: see `choose_windows`.
        batch_size: windows in a batch.
        device, dtype: those of `pixel_values`.
        watch: sees the frames before they are processed.

    Raises:
        ValueError, TypeError: an option is out of range; see `timed_samples` and `group_samples`.
        VideoReadError: the video cannot be read, or is damaged. The windows before the damage have been given.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1.")
    windows = choose_windows(processor, num_frames, stride, fps, frame_sampling_rate)
    num_frames, stride = windows.pop("num_frames"), windows.pop("stride")
    if processor.num_frames not in (None, num_frames):
        logger.warning_once(
            f"The windows have {num_frames} frames, the clips in training had {processor.num_frames}: leave window "
            "and num_frames (--window) out to take as many as the model learned from."
        )
    samples = warn_if_far(timed_samples(source, **windows, source_fps=source_fps), num_frames, processor)
    process = image_transform(processor, device, dtype, watch)
    groups = group_samples(samples, num_frames, stride, last, transform=process)

    def batches() -> Iterator[WindowBatch]:
        errors: list[Exception] = []
        # Damage lies behind the last windows, which may not fill a batch.
        undamaged = until_error(groups, errors)
        while batch := list(islice(undamaged, batch_size)):
            pixel_values = torch.stack([frame for group in batch for frame in group.values])
            starts, ends = [group.start for group in batch], [group.end for group in batch]
            yield WindowBatch(starts, ends, pixel_values.unflatten(0, (len(batch), -1)))
        if errors:
            raise errors[0]

    return batches()


def image_transform(
    processor: VideoClipProcessor, device: torch.device | str, dtype: torch.dtype, watch: Watcher | None = None
) -> Callable[[list[StreamedFrame]], Sequence[torch.Tensor]]:
    """A function of frames that gives each as a model takes it: (num_channels, height, width) on a device."""

    def process(frames: list[StreamedFrame]) -> Sequence[torch.Tensor]:
        if not frames:
            return []
        for frame in frames:
            if watch is not None:
                watch(frame.seconds, frame.image)
        images = np.stack([frame.image for frame in frames])
        inputs = processor(images, do_sample_frames=False, num_crops=1, return_tensors="pt")
        return inputs[processor.model_input_names[0]][0].to(device, dtype).unbind()

    return process


def choose_windows(
    processor: VideoClipProcessor,
    num_frames: int | None = None,
    stride: int | None = None,
    fps: float | None = None,
    frame_sampling_rate: float | None = None,
) -> dict[str, Any]:
    """These options of windows, as given, else as the processor takes clips from a video: its `num_frames`, half of
    them as `stride`, and its `frame_interval`, that of the clips in training. If that is unknown, a line of the log
    says what is taken: the rate of its clips if its sampling strategy keeps one, otherwise every frame. For `fps` and
    `frame_sampling_rate` see `timed_samples`."""
    if fps is None and frame_sampling_rate is None:
        if (interval := _learned_interval(processor)) is not None:
            fps = 1 / interval
        else:
            is_strided = processor.sampling_strategy in STRIDED_STRATEGIES
            frame_sampling_rate = processor.frame_sampling_rate if is_strided else 1
            logger.warning_once(
                "It is unknown how many seconds lay between the frames of a clip in training (`frame_interval` of "
                f"the processor): windows take one frame of {frame_sampling_rate or 1:g}. fps and frame_sampling_rate "
                "(--fps, --frame-sampling-rate) set another distance."
            )
    num_frames = (processor.num_frames or 16) if num_frames is None else num_frames
    return {
        "num_frames": num_frames,
        "stride": max(num_frames // 2, 1) if stride is None else stride,
        "fps": fps,
        "frame_sampling_rate": frame_sampling_rate or 1,
    }


def windows_of(settings: WindowSettings, processor: VideoClipProcessor, of_frames: bool = False) -> dict[str, Any]:
    """The options of [`window_batches`] that settings name; those of [`score_frames`] for a classifier `of_frames`. It
    is a `ValueError` if they name two rates, or windows where none slides."""
    fps, step = settings.fps, settings.frame_sampling_rate
    if fps is not None and step is not None:
        raise ValueError(f"--fps {fps:g} and --frame-sampling-rate {step:g} both set the rate of samples; give one.")
    windows = choose_windows(processor, settings.window, settings.stride, fps, step)
    if not of_frames:
        return windows | {"last": settings.last_window, "source_fps": settings.source_fps}
    for name, default in _OF_WINDOWS.items():
        if (value := getattr(settings, name)) != default:
            raise ValueError(
                f"--{name.replace('_', '-')} {value} is for classifiers of clips; this model is one of frames, which "
                "gives scores of every frame: leave it out."
            )
    return {name: windows[name] for name in ("fps", "frame_sampling_rate")} | {"source_fps": settings.source_fps}


def warn_if_far(
    samples: Iterator[Sample[StreamedFrame]], num_frames: int, processor: VideoClipProcessor
) -> Iterator[Sample[StreamedFrame]]:
    """The samples. Logs whether the first `num_frames` lie far from each other or close to each other, compared with
    the frames that the model learned from."""
    begin, interval = 0.0, _learned_interval(processor)
    for number, sample in enumerate(samples):
        if number == 0:
            begin = sample.start
        elif number == num_frames - 1 and interval is not None:
            distance = (sample.start - begin) / number
            if not interval / FAR <= distance <= interval * FAR:
                logger.warning_once(
                    f"The samples are {distance:.2g} s apart, the frames of a clip in training were {interval:.2g} s "
                    "apart: leave fps and frame_sampling_rate (--fps, --frame-sampling-rate) out to take the distance "
                    "that the model learned."
                )
        yield sample


def warn_if_sparse(processor: VideoClipProcessor, metadata: VideoMetadata, video: str) -> str | None:
    """Logs, and returns, a sentence if a clip of a whole video, with the metadata that the processor gives of it, has
    frames that are more than `FAR_OF_WHOLE_VIDEOS` times as far apart as those that the model learned from: it then
    sees moments, and no motion."""
    interval, count = _learned_interval(processor), processor.num_frames or 0
    clip = (metadata.frames_indices or [])[:count]
    if interval is None or not metadata.fps or len(clip) < 2:
        return None
    distance = (clip[-1] - clip[0]) / (count - 1) / metadata.fps
    if distance <= interval * FAR_OF_WHOLE_VIDEOS:
        return None
    said = (
        f"{video}: the model sees {len(clip)} frames, {distance:.2g} s apart, but it learned from frames "
        f"{interval:.2g} s apart, so its answer may be wrong. `hf-video timeline` looks at all of the video, with "
        "frames as far apart as in training."
    )
    logger.warning(said)
    return said


def _learned_interval(processor: VideoClipProcessor) -> float | None:
    """Seconds between the frames of a clip in training, as far as the processor says it."""
    if processor.frame_interval is None and processor.sampling_strategy in STRIDED_STRATEGIES and processor.fps:
        return 1 / processor.fps
    return processor.frame_interval
