"""`TrainingArguments` of each task, and the checks before a training begins."""

import inspect
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, cast

import torch
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.integrations import integration_utils
from transformers.trainer_utils import IntervalStrategy, SchedulerType

from hf_video.metrics import METRICS, metrics_of
from hf_video.settings import check_values, closest

from .parallelism import check_device, prepare_sharding
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
        if values.dataloader_persistent_workers and not values.dataloader_num_workers:
            raise ValueError("dataloader_persistent_workers has no effect without dataloader_num_workers.")
        if isinstance(values.report_to, str):
            values.report_to = values.report_to.split(",")
        # Transformers declares `fsdp` as text, for its older form, and takes no word for true or false.
        if str(values.fsdp).lower() in ("true", "false"):
            values.fsdp = str(values.fsdp).lower() == "true"
        check_device(self)
        if values.greater_is_better is None and (values.metric_for_best_model or "").endswith(ERRORS):
            values.greater_is_better = False
        super().__post_init__()
        prepare_sharding(self)
        _check_trackers(values.report_to)
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
    teacher, weights and draws of classes, and training of a part only. `choose_metric` says which metric chooses the
    checkpoints of models without a top-1 accuracy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampler != "random" and self.train_sampling_strategy != "random":
            raise ValueError(
                f"sampler={self.sampler} and train_sampling_strategy={self.train_sampling_strategy} are two orders of "
                "the videos: choose one of them."
            )
        if self.linear_probe and (self.lora_rank or self.freeze_layers):
            raise ValueError("linear_probe freezes all but the head already: leave out lora_rank and freeze_layers.")
        if self.linear_probe and self.train_batch_size == 1:
            raise ValueError("linear_probe normalises over the videos of a batch: take a batch size of at least 2.")
        self.scale_learning_rate(self.train_batch_size)

    def scale_learning_rate(self, train_batch_size: int) -> None:
        """Sets `learning_rate` by `base_learning_rate`, if it is given, for such batches of a process."""
        if self.base_learning_rate is not None:
            videos_per_step = train_batch_size * self.gradient_accumulation_steps * self.world_size
            self.learning_rate = self.base_learning_rate * videos_per_step / 256

    def check_problem_type(self, problem_type: str | None) -> None:
        """Refuses (`ValueError`) label smoothing for models that do not have exactly one class for each video, and
        weights and draws of classes for models without classes."""
        if problem_type in ("multi_label_classification", "regression") and self.label_smoothing_factor:
            what = "a video has values" if problem_type == "regression" else "a video may have several classes"
            raise ValueError(
                f"label_smoothing_factor is {self.label_smoothing_factor}, but {what}, which are not smoothed: set it "
                "to 0."
            )
        rare = {"loss": "cross_entropy", "class_weights": None, "sampler": "random"}
        for name, default in rare.items() if problem_type == "regression" else ():
            if (value := getattr(self, name)) != default:
                raise ValueError(f"{name} is {value}, but a video has values and no class: leave it out.")

    def check_metric(self, problem_type: str | None, num_labels: int, eval_sets: Collection[str] = ()) -> None:
        """Refuses (`ValueError`) a `metric_for_best_model` that is not measured for such a model. If there are several
        evaluation sets, names of metrics begin with theirs."""
        known = [metric.name for metric in metrics_of(problem_type, num_labels)]
        known = [f"{name}_{metric}" for name in eval_sets for metric in (*known, "loss")] or [*known, "loss"]
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_strategy != IntervalStrategy.NO or self.load_best_model_at_end or self.save_strategy == "best":
            raise ValueError(
                "Pre-training evaluates nothing, and its result is the last model: leave out eval_strategy, "
                "load_best_model_at_end and save_strategy=best."
            )


@dataclass
class AnswerTrainingArguments(AnswerTrainingSettings, BaseTrainingArguments):
    """[`BaseTrainingArguments`] with the defaults of MA-LMM, and with the settings that `AnswerTrainer` adds: the
    trained parts, the texts, and the options of generation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora_rank and self.train_language_model:
            raise ValueError("lora_rank adapts a frozen language model: leave out train_language_model.")
        if self.lr_by_epoch:
            _require_schedule(self, SchedulerType.COSINE_WARMUP_WITH_MIN_LR, "lr_by_epoch")
        if self.lr_by_epoch and (unknown := set(self.lr_scheduler_kwargs or ()) - {"warmup_lr_rate", "min_lr_rate"}):
            raise ValueError(
                f"lr_scheduler_kwargs has {sorted(unknown)}; lr_by_epoch takes warmup_lr_rate and min_lr_rate."
            )
        metric = (self.metric_for_best_model or "").removeprefix("eval_")
        if metric in TrainAnswersSettings.metrics and not self.predict_with_generate:
            raise ValueError(f"metric_for_best_model={metric} needs predict_with_generate=true, which measures it.")
        if self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences is {self.num_return_sequences}; from 1 to num_beams ({self.num_beams}) is "
                "expected."
            )
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens is {self.min_new_tokens}; at most max_new_tokens ({self.max_new_tokens}) is expected."
            )

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr_drop_epochs:
            _require_schedule(self, SchedulerType.CONSTANT_WITH_WARMUP, "lr_drop_epochs")
        if self.lr_drop_epochs != sorted(self.lr_drop_epochs):
            raise ValueError(f"lr_drop_epochs is {self.lr_drop_epochs}; ascending numbers are expected.")


@dataclass
class FrameTrainingArguments(FrameTrainingSettings, BaseTrainingArguments):
    """[`BaseTrainingArguments`] with the settings that `FrameClassificationTrainer` adds. The best checkpoint is the
    one with the highest F1 at an overlap of 50 %."""


def check_optimization(arguments: TrainingArguments, model: Any) -> None:
    """Makes an optimizer of one parameter and its schedule, as training will, so that their errors come early."""
    parameter = torch.nn.Parameter(torch.zeros(1, device=arguments.device))
    try:
        optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
        if not inspect.isclass(optimizer_class) or {"params", "model", "optimizer_dict"} & set(options):
            return
        optimizer = cast(Any, optimizer_class)([parameter], **options)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise ValueError(f"optim={_plain(arguments.optim)} cannot be used: {error}") from error
    steps = arguments.max_steps if arguments.max_steps > 0 else 100
    try:
        get_scheduler(
            arguments.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=arguments.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"lr_scheduler_type={_plain(arguments.lr_scheduler_type)} cannot be used: {error} Its options are "
            "lr_scheduler_kwargs."
        ) from error


def _require_schedule(arguments: Any, needed: SchedulerType, name: str) -> None:
    if arguments.lr_scheduler_type != needed:
        raise ValueError(f"lr_scheduler_type is {_plain(arguments.lr_scheduler_type)}; {name} needs {needed.value}.")


def _check_trackers(names: Sequence[str]) -> None:
    """Refuses experiment trackers that Transformers does not know, or whose packages are missing."""
    known = list(integration_utils.INTEGRATION_TO_CALLBACK)
    for name in names:
        if name not in known:
            hint = closest(name, known) or f"Known are {', '.join(known)}."
            raise ValueError(f"{name!r} is not an experiment tracker of Transformers. {hint}")
        is_available = getattr(integration_utils, f"is_{name}_available", None)
        if is_available is not None and not is_available():
            raise ImportError(f"report_to={name} needs a package that is not installed: pip install {name}.")


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
