"""The training losses of classifiers: objects that a `Trainer` calls, and what is learned from a teacher."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BaseVideoProcessor, PreTrainedModel
from transformers.utils import ModelOutput

from hf_video.inference.scores import is_frame_classifier, problem_type_of
from hf_video.loading.class_names import class_names_of
from hf_video.loading.clip_size import clip_size, set_input_size
from hf_video.loading.heads import load_trained_classifier
from hf_video.loading.models import locate_model
from hf_video.loading.processors import load_processor

from .settings import LOSSES

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
_NORMALISATION = ("do_normalize", "image_mean", "image_std", "do_rescale", "rescale_factor")


@dataclass
class CrossEntropy:
    """Cross-entropy of single labels, binary cross-entropy of several, or squared error of values, by the
    `problem_type`, which the classifiers of Transformers guess from the dtype of the labels. It is for any trainer:

        Trainer(model, data_collator=MixingCollator(mixing, 10), compute_loss_func=CrossEntropy(), ...)

    The sum of the weighted terms is divided by the number of videos, and in torch's by the sum of their weights. So a
    video counts as much whatever else is in its batch, and the parts of an accumulated batch add up.

    Attributes:
        problem_type: the one in the model's configuration; see `problem_type_of`.
        label_smoothing_factor: share of a hard target that is spread over all classes; class ids only.
        class_weights: (num_classes,) float, the factor of each class's term. In multi-label classification it is the
            factor of the term for its presence, the `pos_weight` of `torch.nn.BCEWithLogitsLoss`.

    Raises:
        ValueError: the problem type is unknown, or values are to be weighted or smoothed.
    """

    problem_type: str = "single_label_classification"
    label_smoothing_factor: float = 0.0
    class_weights: Tensor | None = None

    def __post_init__(self) -> None:
        if self.problem_type not in PROBLEM_TYPES:
            raise ValueError(f"problem_type is {self.problem_type!r}; one of {', '.join(PROBLEM_TYPES)} is expected.")
        if self.problem_type == "regression" and self.class_weights is not None:
            raise ValueError("class_weights are for classes, and a regression has values.")
        if self.problem_type != PROBLEM_TYPES[0] and self.label_smoothing_factor:
            raise ValueError("label_smoothing_factor is for one class a video: set it to 0.")

    def __call__(self, outputs: ModelOutput, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The mean, a float32 scalar: over videos for single labels, over all values otherwise.

        Args:
            outputs: with `logits`, (batch_size, num_classes).
            labels: (batch_size,) class ids, or (batch_size, num_classes) float: soft targets that sum to 1, the
                targets of multi-label classification, or values for regression.
            num_items_in_batch: how many numbers the labels of the whole accumulated batch have, over all processes;
                by default the size of `labels`.
        """
        logits = outputs["logits"].float()
        labels = labels.to(logits.device)
        count: Any = labels.numel() if num_items_in_batch is None else num_items_in_batch
        weights = None if self.class_weights is None else self.class_weights.to(logits)
        if self.problem_type == "single_label_classification":
            count = count / logits.shape[1] if labels.is_floating_point() else count
            return self.sum_of_classes(logits, labels, weights) / count
        labels = labels.to(logits).view_as(logits)
        if self.problem_type == "regression":
            return F.mse_loss(logits, labels, reduction="sum") / count
        return self.sum_of_presences(logits, labels, weights) / count

    def sum_of_classes(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """The summed loss of videos of one class each, whose labels are ids or soft targets."""
        smoothing = 0.0 if labels.is_floating_point() else self.label_smoothing_factor
        return F.cross_entropy(logits, labels, weights, reduction="sum", label_smoothing=smoothing)

    def sum_of_presences(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """The summed loss of videos of several classes each, whose labels are (batch_size, num_classes) float."""
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum", pos_weight=weights)


@dataclass
class FocalLoss(CrossEntropy):
    """[`CrossEntropy`] whose terms are multiplied by (1 - p)^focal_gamma, where p is the probability whose logarithm
    the term has (https://arxiv.org/abs/1708.02002; `class_weights` are alpha there)."""

    focal_gamma: float = 2.0

    def sum_of_classes(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        targets, smoothing = labels, self.label_smoothing_factor
        if not labels.is_floating_point():
            targets = F.one_hot(labels, logits.shape[1]).to(logits) * (1 - smoothing) + smoothing / logits.shape[1]
        return self._sum(logits.log_softmax(-1), targets if weights is None else targets * weights)

    def sum_of_presences(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        present = labels if weights is None else labels * weights
        return self._sum(F.logsigmoid(logits), present) + self._sum(F.logsigmoid(-logits), 1 - labels)

    def _sum(self, log_probabilities: Tensor, targets: Tensor) -> Tensor:
        # Without a lower bound, the gradient of 0^gamma would be infinite for a gamma below 1.
        missed = (-torch.expm1(log_probabilities)).clamp_min(torch.finfo(log_probabilities.dtype).tiny)
        return -(targets * missed**self.focal_gamma * log_probabilities).sum()


def make_loss(arguments: Any, problem_type: str, class_weights: Tensor | None = None) -> Callable[..., Tensor]:
    """The loss that the field `loss` of training arguments names in `LOSSES`. Its class is called with those of
    `problem_type`, `class_weights` and the fields of the arguments that it takes."""
    kind: Any = LOSSES[getattr(arguments, "loss", "cross_entropy")]
    kind = resolve_name(kind) if isinstance(kind, str) else kind
    values = vars(arguments) | {"problem_type": problem_type, "class_weights": class_weights}
    return kind(**{name: values[name] for name in inspect.signature(kind).parameters if name in values})


class Distillation:
    """The loss between a student and its teacher. The whole loss is (1 - weight) * loss of the labels + weight * this.

    It is temperature² * KL divergence of the student's classes from the teacher's, both at `temperature`
    (https://arxiv.org/abs/1503.02531). Where there may be several classes, it is the mean divergence of each class's
    presence. Of a classifier of frames each frame counts as a clip does. The teacher, a classifier like the student,
    is frozen and is no part of it: checkpoints do not contain it.

    Raises:
        ValueError: the teacher does not know a class of the student, is of another kind, or its answers are later, or
            the student has values in place of classes.
    """

    def __init__(self, teacher: PreTrainedModel, student: nn.Module, *, weight: float = 0.5, temperature: float = 1.0):
        self.teacher = teacher.eval().requires_grad_(False)
        self.weight, self.temperature = weight, temperature
        config: Any = student.config
        self.kind, taught = problem_type_of(config), problem_type_of(teacher.config)
        if self.kind == "regression" or (self.kind, is_frame_classifier(student)) != (
            taught,
            is_frame_classifier(teacher),
        ):
            raise ValueError(
                f"The teacher is a {type(teacher).__name__} for {taught} and the student a "
                f"{type(student).__name__} for {self.kind}: one kind of classes is expected."
            )
        self._delay = getattr(config, "frame_delay", 0) - getattr(teacher.config, "frame_delay", 0)
        if self._delay < 0:
            raise ValueError(f"The answers of the teacher are {-self._delay} frames later than the student's.")
        known, wanted = class_names_of(teacher.config), class_names_of(config)
        if unknown := [name for name in wanted if name not in known]:
            raise ValueError(
                f"The teacher does not know {len(unknown)} of {len(wanted)} classes, such as {unknown[0]!r}."
            )
        self._class_order = [known.index(name) for name in wanted]

    def loss(self, pixel_values: Tensor, logits: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The mean loss of the clips (num_clips, num_frames, num_channels, height, width) that the student saw, from
        its logits (num_clips, num_classes), a float32 scalar. Of classifiers of frames the logits are (num_clips, t,
        num_classes), and the mask (num_clips, t) is 0 for padding."""
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

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        """(n, outcomes): those of the classes, or of the presence and absence of each."""
        logits = logits / self.temperature
        if self.kind == "multi_label_classification":
            return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)], dim=-1).flatten(0, -2)
        return logits.log_softmax(-1)


def make_distillation(args: Any, student: Any, processor: BaseVideoProcessor | None = None) -> Distillation | None:
    """The distillation that the `distillation_*` fields of the arguments ask for; None without a teacher. The teacher
    sees the frames of the student's processor: it is a `ValueError` if it expects another normalisation."""
    name = getattr(args, "distillation_teacher", None)
    if name is None:
        return None
    name = locate_model(name, "--distillation-teacher")
    teacher = load_trained_classifier(name, part="any classifier" if is_frame_classifier(student) else "classifier")
    set_input_size(teacher, **clip_size(student.config)._asdict())
    if processor is not None:
        own = load_processor(name, teacher.config)
        for option in _NORMALISATION:
            wanted, given = (str(getattr(each, option)).strip("()[]") for each in (own, processor))
            if wanted != given:
                raise ValueError(
                    f"The teacher {name} wants {option}={wanted}, the student gets {given}: both see the same frames."
                )
    options = {"weight": args.distillation_weight, "temperature": args.distillation_temperature}
    return Distillation(teacher, student, **options)
