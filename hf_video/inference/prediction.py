"""Class scores of clips and of the windows of a video, by any video classifier of Transformers."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_video.data.loader import iterate_ahead
from hf_video.processing import VideoClipProcessor

from .window_batching import window_batches


@torch.inference_mode()
def predict_scores(model: PreTrainedModel, pixel_values: torch.Tensor) -> torch.Tensor:
    """Class probabilities of a batch of videos. For a regression model they are its values.

    Args:
        model: a video classifier in evaluation mode.
        pixel_values: (batch_size, num_frames, num_channels, height, width), or (batch_size, num_views, ...), where the
            model averages over the views. It is moved to the model's device and dtype.

    Returns:
        (batch_size, num_classes) float32 on the CPU.
    """
    outputs = model(**{model.main_input_name: pixel_values.to(model.device, model.dtype)})
    return scores_of(outputs.logits, model.config)


def scores_of(logits: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """Probabilities (..., num_classes) float32 on the CPU of logits, or the values of a regression model."""
    logits = logits.float().cpu()
    problem_type = problem_type_of(config)
    if problem_type == "regression":
        return logits
    return logits.sigmoid() if problem_type == "multi_label_classification" else logits.softmax(-1)


def problem_type_of(config: PreTrainedConfig) -> str:
    """The `problem_type` of a configuration. If it is None: regression for a model with a single output, otherwise
    classification by a single label."""
    return config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")


def require_classes(model: str, config: PreTrainedConfig) -> None:
    """Refuses (`ValueError`) a regression model where classes are needed."""
    if problem_type_of(config) == "regression":
        raise ValueError(f"{model} is a regression model, which has no classes. Choose a classifier.")


class ScoredWindow(NamedTuple):
    """
    A window of a video and its class scores.

    Attributes:
        start: time of its first sample in seconds after the first frame.
        end: time at which its last real sample ends.
        scores: (num_classes,) float32 probabilities.
        clip: (num_frames, num_channels, height, width) as the model took it.
        begins_anew: whether a classifier of frames began anew with it, at the start or after a gap.
    """

    start: float
    end: float
    scores: np.ndarray
    clip: torch.Tensor
    begins_anew: bool = False


def score_windows(
    model: PreTrainedModel, processor: VideoClipProcessor, video: Any, **windows: Any
) -> Iterator[ScoredWindow]:
    """The class scores of the windows of a video, in their order. The next batch is read while the model computes.

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
    return (
        ScoredWindow(*row)
        for batch in iterate_ahead(batches)
        for scores in [predict_scores(model, batch.pixel_values).numpy()]
        for row in zip(batch.starts, batch.ends, scores, batch.pixel_values, strict=True)
    )
