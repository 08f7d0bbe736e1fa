"""Videos that are seen in several views, clips and crops, and classified by all of them together."""

import math

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig


def flatten_views(pixel_values: torch.Tensor) -> torch.Tensor:
    """The views of a batch `(batch_size, num_views, num_frames, ...)` as clips `(batch_size * num_views, num_frames,
    ...)`; a batch of clips as it is."""
    return pixel_values.flatten(0, 1) if pixel_values.ndim == 6 else pixel_values


def average_views(logits: torch.Tensor, pixel_values: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """
    Logits of videos from those of their views: the softmax of the result is the mean over views of their softmaxes,
    the published protocol of VideoMAE and VideoMamba; in multi-label classification so is its sigmoid. Values of a
    regression, and features where there are no labels, are averaged as they are.

    Args:
        logits: `(batch_size * num_views, num_labels)`, of `flatten_views(pixel_values)`.
        pixel_values: `(batch_size, num_views, num_frames, num_channels, height, width)`, or clips without views, whose
            logits are returned as they are.
        config: tells the `problem_type`; without one it is classification by a single label.

    Returns:
        `(batch_size, num_labels)`, at least float32.
    """
    if pixel_values.ndim != 6:
        return logits
    views = logits.to(torch.promote_types(logits.dtype, torch.float32)).unflatten(0, pixel_values.shape[:2])
    if config.problem_type == "multi_label_classification":
        # The log-odds of the mean probability, from logarithms: probabilities near one have no digits left.
        return F.logsigmoid(views).logsumexp(1) - F.logsigmoid(-views).logsumexp(1)
    if config.problem_type == "regression" or config.num_labels < 2:
        return views.mean(1)
    return views.log_softmax(-1).logsumexp(1) - math.log(views.shape[1])
