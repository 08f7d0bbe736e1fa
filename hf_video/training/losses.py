"""The losses of the classification of videos and frames: of labels, soft targets and values, and of a teacher."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import BaseVideoProcessor, PreTrainedModel
from transformers.utils import ModelOutput

from hf_video.inference.frame_scoring import is_frame_classifier
from hf_video.inference.prediction import problem_type_of
from hf_video.loading.class_names import class_names_of
from hf_video.loading.classifiers import load_trained_classifier
from hf_video.loading.clip_size import clip_size, set_input_size
from hf_video.loading.models import locate_model
from hf_video.loading.processors import load_processor

_NORMALISATION = ("do_normalize", "image_mean", "image_std", "do_rescale", "rescale_factor")


def classification_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    problem_type: str = "single_label_classification",
    *,
    label_smoothing: float = 0.0,
    num_label_values: torch.Tensor | int | None = None,
    class_weights: torch.Tensor | None = None,
    focal_gamma: float | None = None,
) -> torch.Tensor:
    """Cross-entropy, binary cross-entropy or squared error; `problem_type` decides.

    The classifiers of Transformers guess the `problem_type` from the dtype of the labels, and would take soft targets
    for those of multi-label classification. This loss never guesses.

    The loss is linear in the targets, with weights and as focal loss, too: that of a mixed clip is the mixture of
    those for its labels. As in `torch.nn.functional.cross_entropy`, the term of each class has the weight of the
    class. But the sum of the terms is divided by the number of videos, and there by the sum of their weights. So a
    video counts as much whatever else is in its batch, and the parts of an accumulated batch add up.

    Args:
        logits: (batch_size, num_classes); the loss is computed in float32.
        labels: (batch_size,) class ids, or (batch_size, num_classes) float: soft targets that sum to 1, the targets of
            multi-label classification, or values for regression.
        problem_type: the one in the model's configuration; see `problem_type_of`.
        label_smoothing: share of a hard target that is spread over all classes; class ids only.
        num_label_values: how many numbers the labels of the whole accumulated batch have, over all processes. The sum
            of the losses is divided by it. By default it is the size of `labels`.
        class_weights: (num_classes,) float, the factor of each class's term. In multi-label classification it is the
            factor of the term for its presence, the `pos_weight` of `torch.nn.BCEWithLogitsLoss`.
        focal_gamma: each term is multiplied by (1 - p)^focal_gamma, where p is the probability whose logarithm it has
            (https://arxiv.org/abs/1708.02002; `class_weights` are alpha there). None for no focal loss.

    Returns:
        The mean, a float32 scalar: over videos for single labels, over all values otherwise.

    Raises:
        ValueError: the problem type is unknown, shapes do not fit each other, or values are to be weighted.
    """
    logits = logits.float()
    labels = labels.to(logits.device)
    if num_label_values is None:
        num_label_values = labels.numel()
    weights = None if class_weights is None else class_weights.to(logits)
    if problem_type == "single_label_classification":
        num_videos: Any = num_label_values
        if is_soft := labels.is_floating_point():
            num_videos, label_smoothing = num_label_values / logits.shape[1], 0.0
        if focal_gamma is None:
            options: dict[str, Any] = {"weight": weights, "reduction": "sum", "label_smoothing": label_smoothing}
            return F.cross_entropy(logits, labels, **options) / num_videos
        targets = labels if is_soft else F.one_hot(labels, logits.shape[1]).to(logits)
        targets = targets * (1 - label_smoothing) + label_smoothing / logits.shape[1]
        targets = targets if weights is None else targets * weights
        return _focal_sum(logits.log_softmax(-1), targets, focal_gamma) / num_videos
    if problem_type not in ("multi_label_classification", "regression"):
        raise ValueError(
            f"problem_type is {problem_type!r}; single_label_classification, multi_label_classification or regression "
            "is expected."
        )
    if labels.numel() != logits.numel():
        raise ValueError(f"Labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(logits.shape)}.")
    labels = labels.to(logits).view_as(logits)
    if problem_type == "regression":
        if weights is not None or focal_gamma is not None:
            raise ValueError("class_weights and focal_gamma are for classes, and a regression has values.")
        return F.mse_loss(logits, labels, reduction="sum") / num_label_values
    if focal_gamma is None:
        summed = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum", pos_weight=weights)
        return summed / num_label_values
    present = labels if weights is None else labels * weights
    summed = _focal_sum(F.logsigmoid(logits), present, focal_gamma)
    return (summed + _focal_sum(F.logsigmoid(-logits), 1 - labels, focal_gamma)) / num_label_values


def _focal_sum(log_probabilities: torch.Tensor, targets: torch.Tensor, gamma: float) -> torch.Tensor:
    # Without a lower bound, the gradient of 0^gamma would be infinite for a gamma below 1.
    missed = (-torch.expm1(log_probabilities)).clamp_min(torch.finfo(log_probabilities.dtype).tiny)
    return -(targets * missed**gamma * log_probabilities).sum()


def soft_target_loss(
    outputs: ModelOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """The `compute_loss_func` of a plain `Trainer` whose collator is a `MixingCollator`.

    Without it, the classifiers of Transformers take float labels for those of a multi-label model, and change the
    `problem_type` of their configuration accordingly. Arguments and errors are those of [`classification_loss`].
    """
    return classification_loss(outputs["logits"], labels, num_label_values=num_items_in_batch)


def multi_label_loss(
    outputs: ModelOutput, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """The `compute_loss_func` of a plain `Trainer` for a multi-label classifier of Transformers with gradient
    accumulation. The models of this package do not need it.

    Without it, the gradient of a step is the sum over the parts of an accumulated batch, not their mean: the loss of
    these classifiers ignores `num_items_in_batch`. Arguments and errors are those of [`classification_loss`].
    """
    return classification_loss(
        outputs["logits"], labels, "multi_label_classification", num_label_values=num_items_in_batch
    )


class Distillation:
    """The loss between a student and its teacher. The whole loss is (1 - weight) * loss of the labels + weight * this.

    It is temperature² * KL divergence of the student's classes from the teacher's, both at `temperature`
    (https://arxiv.org/abs/1503.02531). Where there may be several classes, it is the mean divergence of each class's
    presence. Of a classifier of frames each frame counts as a clip does.

    The teacher is frozen and in evaluation mode. It is not a part of the student, so optimizers, averages and
    checkpoints do not contain it.

    Args:
        teacher: a classifier of videos, or of frames if the student is one; changed in place.
        student: the classifier to train.
        weight: above 0, up to 1.
        temperature: above 0.

    Raises:
        ValueError: the teacher does not know a class of the student, is of another kind, or its answers are later, or
            the student has values in place of classes.
    """

    def __init__(self, teacher: PreTrainedModel, student: nn.Module, *, weight: float = 0.5, temperature: float = 1.0):
        self.teacher = teacher.eval().requires_grad_(False)
        self.weight, self.temperature = weight, temperature
        config: Any = student.config
        kind, taught = problem_type_of(config), problem_type_of(teacher.config)
        if kind == "regression":
            raise ValueError("A regression has no classes to learn from a teacher: leave out distillation_teacher.")
        if kind != taught or is_frame_classifier(student) != is_frame_classifier(teacher):
            raise ValueError(
                f"The teacher is a {type(teacher).__name__} for {taught} and the student a "
                f"{type(student).__name__} for {kind}: one kind is expected."
            )
        self._is_multi = kind == "multi_label_classification"
        self._delay = getattr(config, "frame_delay", 0) - getattr(teacher.config, "frame_delay", 0)
        if self._delay < 0:
            raise ValueError(f"The answers of the teacher are {-self._delay} frames later than the student's.")
        known, wanted = class_names_of(teacher.config), class_names_of(config)
        if unknown := [name for name in wanted if name not in known]:
            raise ValueError(
                f"The teacher does not know {len(unknown)} of {len(wanted)} classes, such as {unknown[0]!r}: take one "
                "that was trained on the same classes."
            )
        self._class_order = [known.index(name) for name in wanted]

    def loss(
        self, pixel_values: torch.Tensor, logits: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The mean loss of the clips of a batch, or of their frames, a float32 scalar.

        Args:
            pixel_values: (num_clips, num_frames, num_channels, height, width), the clips that the student saw.
            logits: (num_clips, num_classes), the student's logits; those of frames (num_clips, t, num_classes).
            attention_mask: (num_clips, t), 1 for frames and 0 for padding, of classifiers of frames.
        """
        teacher = self.teacher.to(pixel_values.device)
        mask = {} if attention_mask is None else {"attention_mask": attention_mask}
        with torch.no_grad():
            known = teacher(**{teacher.main_input_name: pixel_values.to(teacher.dtype)}, **mask).logits
        known = known[..., self._class_order]
        if attention_mask is not None:
            # The student answers for the frame `_delay` before.
            is_real = attention_mask[:, self._delay :].bool()
            known, logits = known[:, : is_real.shape[1]][is_real], logits[:, self._delay :][is_real]
        expected, learned = (self._log_probabilities(each.float()) for each in (known, logits))
        return self.temperature**2 * F.kl_div(learned, expected, reduction="batchmean", log_target=True)

    def _log_probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """(n, outcomes): those of the classes, or of the presence and absence of each."""
        logits = logits / self.temperature
        if self._is_multi:
            return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)], dim=-1).flatten(0, -2)
        return logits.log_softmax(-1)


def make_distillation(args: Any, student: Any, processor: BaseVideoProcessor | None = None) -> Distillation | None:
    """The distillation that the `distillation_*` fields of `VideoTrainingArguments` ask for; None without a teacher.
    The teacher sees the frames of the student's processor: it is a `ValueError` if it cannot take their size or
    expects another normalisation."""
    name = getattr(args, "distillation_teacher", None)
    if name is None:
        return None
    name = locate_model(name, "--distillation-teacher")
    teacher = load_trained_classifier(name, part="any classifier" if is_frame_classifier(student) else "classifier")
    set_input_size(teacher, **clip_size(student.config)._asdict())
    if processor is not None:
        own = load_processor(name, teacher.config)
        for option in _NORMALISATION:
            wanted, given = (
                tuple(value) if isinstance(value, list) else value
                for value in (getattr(own, option), getattr(processor, option))
            )
            if wanted != given:
                raise ValueError(
                    f"The teacher {name} wants {option}={wanted}, the student gets {given}: both see the same frames."
                )
    weight, temperature = args.distillation_weight, args.distillation_temperature
    return Distillation(teacher, student, weight=weight, temperature=temperature)
