"""`TrainingArguments` of each task."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal

from transformers import GenerationConfig, TrainingArguments
from transformers.integrations import integration_utils
from transformers.trainer_utils import IntervalStrategy

from hf_video.metrics import METRICS, metrics_of
from hf_video.settings import check_values

from .parallelism import prepare_sharding
from .settings import (
    AnswerTrainingSettings,
    DetectionTrainingSettings,
    FrameTrainingSettings,
    MaskSettings,
    OptimizationSettings,
    RetrievalTrainingSettings,
    VideoTrainingSettings,
)
from .task_settings import TrainAnswersSettings

DEFAULT_METRIC = "top1_accuracy"
# Ends of the names of metrics, besides losses, whose lower values are better.
ERRORS = tuple(metric.name for metric in METRICS.values() if not metric.greater_is_better)


@dataclass
class BaseTrainingArguments(OptimizationSettings, TrainingArguments):
    """`transformers.TrainingArguments` with the defaults and settings of all trainings here.

    A run evaluates and saves once an epoch, keeps the last checkpoint and the best one, and loads the best one at the
    end. It uses AdamW with weight decay 0.05, and a cosine schedule after a tenth of the steps as warm-up, as the
    fine-tuning of VideoMAE and VideoMamba.

    The order of the videos depends on `seed` alone (`data_seed` defaults to it), so that a resumed run sees the same
    clips as one that was never interrupted.
    """

    def __post_init__(self) -> None:
        # The errors of Transformers name no setting.
        for group in type(self).__mro__:
            if is_dataclass(group) and not issubclass(group, TrainingArguments):
                check_values(self, group)
        values: Any = self
        if isinstance(values.report_to, str):
            values.report_to = values.report_to.split(",")
        if values.greater_is_better is None and (values.metric_for_best_model or "").endswith(ERRORS):
            values.greater_is_better = False
        super().__post_init__()
        prepare_sharding(self)
        for name in values.report_to:
            if not getattr(integration_utils, f"is_{name}_available", lambda: True)():
                raise ImportError(f"report_to={name} needs a package that is not installed: pip install {name}.")
        if values.data_seed is None:
            values.data_seed = values.seed

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """As in the base class, but `warmup_epochs` replaces `warmup_steps` if it is given."""
        if self.warmup_epochs is None:
            return super().get_warmup_steps(num_training_steps)
        return math.ceil(num_training_steps * self.warmup_epochs / self.num_train_epochs)


@dataclass
class VideoTrainingArguments(VideoTrainingSettings, BaseTrainingArguments):
    """[`BaseTrainingArguments`] with the settings that `VideoTrainer` adds: layer decay, an average of the weights, a
    teacher, weights and draws of classes, and training of a part only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linear_probe and (self.lora_rank or self.freeze_layers):
            raise ValueError("linear_probe freezes all but the head already: leave out lora_rank and freeze_layers.")
        self.scale_learning_rate(self.train_batch_size)

    def scale_learning_rate(self, train_batch_size: int) -> None:
        """Sets `learning_rate` by `base_learning_rate`, if it is given, for such batches of a process."""
        if self.base_learning_rate is not None:
            videos_per_step = train_batch_size * self.gradient_accumulation_steps * self.world_size
            self.learning_rate = self.base_learning_rate * videos_per_step / 256

    def check_metric(self, problem_type: str | None, num_labels: int, eval_sets: Collection[str] = ()) -> None:
        """Refuses (`ValueError`) a `metric_for_best_model` that is not measured for such a model. If there are several
        evaluation sets, names of metrics begin with theirs."""
        known = [*(metric.name for metric in metrics_of(problem_type, num_labels)), "loss"]
        known = [f"{name}_{metric}" for name in eval_sets for metric in known] or known
        name = (self.metric_for_best_model or "").removeprefix("eval_")
        # `choose_metric` replaces the default if it is not measured.
        if name and self.eval_strategy != IntervalStrategy.NO and name not in (DEFAULT_METRIC, *known):
            raise ValueError(
                f"metric_for_best_model is {self.metric_for_best_model!r}, which is not measured: use "
                f"{', '.join(known[:-1])} or {known[-1]}."
            )

    def choose_metric(self, problem_type: str | None, eval_sets: Sequence[str] = (), loss_alone: bool = False) -> None:
        """Puts the first metric of the problem type, or the loss, in place of a `metric_for_best_model` that was left
        at its default. If there are several evaluation sets, it is measured on the first."""
        if (self.metric_for_best_model or "").removeprefix("eval_") != DEFAULT_METRIC:
            return
        metric = "loss" if loss_alone else metrics_of(problem_type)[0].name
        self.metric_for_best_model = "_".join([*eval_sets[:1], metric])
        if metric.endswith(("loss", *ERRORS)):
            self.greater_is_better = False


@dataclass
class PreTrainingArguments(MaskSettings, VideoTrainingArguments):
    """[`VideoTrainingArguments`] for masked pre-training: how masks are drawn, and by default no evaluation."""

    eval_strategy: Literal["no", "steps", "epoch"] = "no"
    load_best_model_at_end: bool = False


@dataclass
class AnswerTrainingArguments(AnswerTrainingSettings, BaseTrainingArguments):
    """[`BaseTrainingArguments`] with the defaults of MA-LMM, and with the settings that `AnswerTrainer` adds: the
    trained parts, the texts, and the options of generation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora_rank and self.train_language_model:
            raise ValueError("lora_rank adapts a frozen language model: leave out train_language_model.")
        metric = (self.metric_for_best_model or "").removeprefix("eval_")
        if metric in TrainAnswersSettings.metrics and not self.predict_with_generate:
            raise ValueError(f"metric_for_best_model={metric} needs predict_with_generate=true, which measures it.")
        GenerationConfig(**self.generation_settings(), num_return_sequences=self.num_return_sequences)  # checks them

    def generation_settings(self) -> dict[str, Any]:
        """The options for the `generation_config` of the trained model."""
        names = ("max_new_tokens", "min_new_tokens", "num_beams", "length_penalty", "repetition_penalty")
        return {name: getattr(self, name) for name in names} | {"do_sample": False}


@dataclass
class RetrievalTrainingArguments(RetrievalTrainingSettings, BaseTrainingArguments):
    """[`BaseTrainingArguments`] with the settings that `RetrievalTrainer` adds. The best checkpoint is the one whose
    first video is most often the right one."""


@dataclass
class DetectionTrainingArguments(DetectionTrainingSettings, BaseTrainingArguments):
    """[`BaseTrainingArguments`] with the settings that `ActionDetectionTrainer` adds. The best checkpoint is the one
    with the highest mean average precision."""


@dataclass
class FrameTrainingArguments(FrameTrainingSettings, BaseTrainingArguments):
    """[`BaseTrainingArguments`] with the settings that `FrameClassificationTrainer` adds. The best checkpoint is the
    one with the highest F1 at an overlap of 50 %."""
