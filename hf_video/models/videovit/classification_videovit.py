"""What classifiers of videos share: several views of a video, clips and crops, and the loss."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig
from transformers.loss.loss_utils import ForSequenceClassificationLoss


def flatten_views(pixel_values: torch.Tensor) -> torch.Tensor:
    """
    Turn the views of a batch `(batch_size, num_views, num_frames, ...)` into clips `(batch_size * num_views,
    num_frames, ...)`. A batch of clips stays unchanged.
    """
    return pixel_values.flatten(0, 1) if pixel_values.ndim == 6 else pixel_values


def average_views(logits: torch.Tensor, pixel_values: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """
    Turn the logits of views into logits of videos. The softmax of the result is the mean of the views' softmaxes: this
    is the published protocol of VideoMAE and VideoMamba. In multi-label classification the same holds for the sigmoid.
    The values of a regression are averaged, and so are features if there are no labels.

    Args:
        logits: `(batch_size * num_views, num_labels)`, for `flatten_views(pixel_values)`.
        pixel_values: `(batch_size, num_views, num_frames, num_channels, height, width)`. If these are clips without
            views, the logits are returned unchanged.
        config: gives the `problem_type`. If it has none, every video has a single label.

    Returns:
        `(batch_size, num_labels)`, at least float32.
    """
    if pixel_values.ndim != 6:
        return logits
    views = logits.to(torch.promote_types(logits.dtype, torch.float32)).unflatten(0, pixel_values.shape[:2])
    if config.problem_type == "multi_label_classification":
        # Log-odds of the mean probability. They come from logarithms, because floats near one are too coarse.
        return F.logsigmoid(views).logsumexp(1) - F.logsigmoid(-views).logsumexp(1)
    if config.problem_type == "regression" or config.num_labels < 2:
        return views.mean(1)
    return views.log_softmax(-1).logsumexp(1) - math.log(views.shape[1])


def classification_loss(
    labels: torch.Tensor,
    logits: torch.Tensor,
    config: PreTrainedConfig,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """
    The loss of Transformers' classifiers, for batches that `Trainer` accumulates. `Trainer` adds up the losses of the
    parts of such a batch, so each part divides by the size of the whole. Transformers does so for single labels alone.

    Args:
        labels: `(batch_size,)` class ids or values, or `(batch_size, num_labels)` targets or values.
        logits: `(batch_size, num_labels)`.
        config: gives the `problem_type`. If it has none, the labels decide, and it is set.
        num_items_in_batch: how many numbers the labels of the whole accumulated batch have; by default those of
            `labels`.

    Returns:
        The mean, a scalar: over clips for single labels, over all values otherwise.
    """
    loss = ForSequenceClassificationLoss(labels, logits, config, num_items_in_batch=num_items_in_batch)
    if num_items_in_batch is None or config.problem_type == "single_label_classification":
        return loss
    whole = torch.as_tensor(num_items_in_batch, device=loss.device)
    return loss * (labels.numel() / whole)
