"""When a long video shows which class: scores of its windows, and the segments in them."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_video.data.read_ahead import iterate_ahead
from hf_video.processing import VideoClipProcessor

from .prediction import predict_scores, problem_type_of
from .segments import Segment, SegmentFinder, segments_of
from .window_batching import WindowBatch, window_batches


class ScoredWindow(NamedTuple):
    """
    A window of a video and its class scores.

    Attributes:
        start: time of its first sample in seconds after the first frame.
        end: time at which its last real sample ends.
        scores: (num_classes,) float32 probabilities.
        clip: (num_frames, num_channels, height, width) as the model took it.
    """

    start: float
    end: float
    scores: np.ndarray
    clip: torch.Tensor


def find_segments(
    model: PreTrainedModel,
    processor: VideoClipProcessor,
    video: Any,
    *,
    onset: float = 0.5,
    offset: float | None = None,
    min_duration_on: float = 0.0,
    min_duration_off: float = 0.0,
    background: Collection[str] = (),
    **windows: Any,
) -> Iterator[Segment]:
    """
    The segments of a video, each as soon as it is complete: when it shows which class. Time and memory for a window do
    not grow with the video, which may be a stream without an end.

    Args:
        model: a video classifier in evaluation mode.
        processor: its processor.
        video: see [`window_batches`].
        onset, offset, min_duration_on, min_duration_off, background: see [`SegmentFinder`].
        windows: options of [`window_batches`], such as `num_frames`, `stride`, `fps` and `batch_size`.

    Raises:
        ValueError: the model is a regression model, an option is out of its bounds, or scores are not finite.
        VideoReadError: the video cannot be read, or is damaged. The segments before the damage have been given; one
            that is open then ends there.
    """
    options = {"min_duration_on": min_duration_on, "min_duration_off": min_duration_off, "background": background}
    finder = make_finder(model, onset=onset, offset=offset, **options)
    scored = score_windows(model, processor, video, **windows)
    return segments_of(((window.start, window.end, window.scores) for window in scored), finder)


def make_finder(model: PreTrainedModel, **options: Any) -> SegmentFinder:
    """
    What finds segments in the scores of a model. They exclude each other unless the model is multi-label.

    Args:
        model: a video classifier.
        options: of [`SegmentFinder`], without `exclusive`.

    Raises:
        ValueError: the model is a regression model, or an option is out of its bounds.
    """
    problem_type = problem_type_of(model.config)
    if problem_type == "regression":
        raise ValueError(
            f"{model.config.name_or_path or type(model).__name__} is a regression model: its values are no scores of "
            "classes, so it has no segments. Choose a classifier."
        )
    names = [model.config.id2label[index] for index in range(model.config.num_labels)]
    return SegmentFinder(names, exclusive=problem_type == "single_label_classification", **options)


def score_windows(
    model: PreTrainedModel, processor: VideoClipProcessor, video: Any, **windows: Any
) -> Iterator[ScoredWindow]:
    """
    The class scores of the windows of a video, in their order. The next batch is read while the model computes.

    Args:
        model: a video classifier in evaluation mode.
        processor: its processor.
        video: see [`window_batches`].
        windows: options of [`window_batches`].

    Raises:
        ValueError: an option is out of its bounds.
        VideoReadError: the video cannot be read, or is damaged. The windows before the damage have been given.
    """
    batches = window_batches(processor, video, device=model.device, dtype=model.dtype, **windows)
    return _scored(model, batches)


def _scored(model: PreTrainedModel, batches: Iterator[WindowBatch]) -> Iterator[ScoredWindow]:
    for batch in iterate_ahead(batches):
        scores = predict_scores(model, batch.pixel_values).numpy()
        for row in zip(batch.starts, batch.ends, scores, batch.pixel_values, strict=True):
            yield ScoredWindow(*row)
