"""The loss of a classifier, of which the parts of an accumulated batch add up."""

from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.loss.loss_utils import ForSequenceClassificationLoss


def classification_loss(
    labels: torch.Tensor,
    logits: torch.Tensor,
    config: PreTrainedConfig,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """
    The loss of Transformers' classifiers, which divides by `num_items_in_batch` for single labels alone. `Trainer`
    expects it of every loss: it sums up what it gets for the parts of an accumulated batch.

    Args:
        labels: `(batch_size,)` class ids or values, or `(batch_size, num_labels)` targets or values.
        logits: `(batch_size, num_labels)`.
        config: has the `problem_type`; without one it is chosen by the labels, and set.
        num_items_in_batch: numbers in the labels of the whole accumulated batch, by which the sum is divided; by
            default those of `labels`.

    Returns:
        The mean, a scalar: over clips for single labels, over all values otherwise.
    """
    loss = ForSequenceClassificationLoss(labels, logits, config, num_items_in_batch=num_items_in_batch)
    if num_items_in_batch is None or config.problem_type == "single_label_classification":
        return loss
    whole = torch.as_tensor(num_items_in_batch, device=loss.device)
    return loss * (labels.numel() / whole)
