"""The loss of video classification for hard, soft, multi-label and regression targets."""

import torch
import torch.nn.functional as F
from transformers.utils import ModelOutput


def classification_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    problem_type: str = "single_label_classification",
    *,
    label_smoothing: float = 0.0,
    num_label_values: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """Cross-entropy, binary cross-entropy or squared error; `problem_type` decides.

    The classifiers of Transformers guess the `problem_type` from the dtype of the labels, and would take soft targets
    for those of multi-label classification. This loss never guesses.

    Args:
        logits: (batch_size, num_classes); the loss is computed in float32.
        labels: (batch_size,) class ids, or (batch_size, num_classes) float: soft targets that sum to 1, the targets of
            multi-label classification, or values for regression.
        problem_type: the one in the model's configuration; see `problem_type_of`.
        label_smoothing: share of a hard target that is spread over all classes; class ids only.
        num_label_values: how many numbers the labels of the whole accumulated batch have, over all processes. The sum
            of the losses is divided by it. By default it is the size of `labels`.

    Returns:
        The mean, a float32 scalar: over videos for single labels, over all values otherwise.

    Raises:
        ValueError: the problem type is unknown, or shapes do not fit each other.
    """
    logits = logits.float()
    labels = labels.to(logits.device)
    num_label_values = labels.numel() if num_label_values is None else num_label_values
    if problem_type == "single_label_classification":
        if labels.is_floating_point():
            return F.cross_entropy(logits, labels, reduction="sum") / num_label_values * logits.shape[1]
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing) / num_label_values
    if problem_type not in ("multi_label_classification", "regression"):
        raise ValueError(
            f"problem_type is {problem_type!r}; single_label_classification, multi_label_classification or regression "
            "is expected."
        )
    if labels.numel() != logits.numel():
        raise ValueError(f"Labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(logits.shape)}.")
    per_value = F.mse_loss if problem_type == "regression" else F.binary_cross_entropy_with_logits
    return per_value(logits, labels.to(logits).view_as(logits), reduction="sum") / num_label_values


def soft_target_loss(
    outputs: ModelOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """The `compute_loss_func` of a plain `Trainer` whose collator is a `MixingCollator`.

    Without it, the classifiers of Transformers take float labels for those of a multi-label model, and change the
    `problem_type` of their configuration accordingly.

    Args:
        outputs: outputs of the model, with `logits` (batch_size, num_classes).
        labels: (batch_size, num_classes) soft targets, or (batch_size,) class ids in evaluation.
        num_items_in_batch: see `num_label_values` of `classification_loss`.
    """
    return classification_loss(outputs["logits"], labels, num_label_values=num_items_in_batch)


def multi_label_loss(
    outputs: ModelOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """The `compute_loss_func` of a plain `Trainer` for a multi-label classifier of Transformers with gradient
    accumulation.

    Without it, the gradient of a step is the sum over the parts of an accumulated batch, not their mean: the loss of
    these classifiers ignores `num_items_in_batch`. The models of this package do not need it.

    Args:
        outputs: outputs of the model, with `logits` (batch_size, num_classes).
        labels: (batch_size, num_classes), zeros and ones.
        num_items_in_batch: see `num_label_values` of `classification_loss`.
    """
    return classification_loss(
        outputs["logits"], labels, "multi_label_classification", num_label_values=num_items_in_batch
    )
