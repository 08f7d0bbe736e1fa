"""What classifiers of videos share: several views of a video, clips and crops, and the loss."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig
from transformers.loss.loss_utils import ForSequenceClassificationLoss


def average_views(logits: torch.Tensor, pixel_values: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """
    Turn logits of views `(batch_size * num_views, num_labels)` into those of videos `(batch_size, num_labels)`, at
    least float32, if the pixels have an axis of views. The softmax of the result is the mean of the views' softmaxes,
    the published protocol of VideoMAE and VideoMamba; in multi-label classification the same holds for the sigmoid.
    The values of a regression are averaged, and so are features if there are no labels.
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
    The mean loss of Transformers' classifiers, for batches that `Trainer` accumulates. `Trainer` adds up the losses of
    the parts of such a batch, so each part divides by `num_items_in_batch`, the number of labels in the whole.
    Transformers does so for single labels alone. A `problem_type` that is not set follows from the labels.
    """
    loss = ForSequenceClassificationLoss(labels, logits, config, num_items_in_batch=num_items_in_batch)
    if num_items_in_batch is None or config.problem_type == "single_label_classification":
        return loss
    whole = torch.as_tensor(num_items_in_batch, device=loss.device)
    return loss * (labels.numel() / whole)
