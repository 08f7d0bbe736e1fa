"""`TrainingArguments` with defaults that suit videos."""

import argparse
import dataclasses
import difflib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from transformers import HfArgumentParser, SchedulerType, TrainingArguments
from transformers.integrations import integration_utils
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_video.metrics import METRICS, metrics_of

from .bounds import check_bounds
from .optimization import NO_WEIGHT_DECAY

DEFAULT_METRIC = "top1_accuracy"
# Metrics, or ends of their names, of which less is better, besides losses.
ERRORS = tuple(metric.name for metric in METRICS.values() if not metric.greater_is_better)
# What needs another argument to have an effect, by that one.
_COMPANIONS = {
    "distillation_teacher": ("distillation_target", "distillation_weight", "distillation_temperature"),
    "lora_rank": ("lora_alpha",),
}


@dataclass
class VideoTrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` with other defaults: evaluate and save once an epoch, keep the best checkpoint
    by top-1 accuracy (see `choose_metric` for models that have none) beside the last one, and load it at the end;
    AdamW with weight decay 0.05 and a cosine schedule after a tenth of the steps as warm-up, the schedule of
    VideoMAE's and VideoMamba's fine-tuning. And what `VideoTrainer` adds: layer decay, an average of the weights,
    training only a part of the model, and a teacher.

    The order of the videos depends on `seed` alone (`data_seed` defaults to it), so that a resumed run sees the same
    clips as one that was never interrupted.
    """

    learning_rate: float = field(default=1e-4, metadata={"help": "The peak learning rate of AdamW."})
    weight_decay: float = field(default=0.05, metadata={"help": "Weight decay of AdamW."})
    lr_scheduler_type: SchedulerType | str = field(
        default="cosine", metadata={"help": "The learning rate schedule after the warm-up."}
    )
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Steps of linear warm-up; below 1, a share of all steps."}
    )
    logging_steps: float = field(
        default=0.01, metadata={"help": "Steps between two logged training losses; below 1, a share of all steps."}
    )
    eval_strategy: IntervalStrategy | str = field(default="epoch", metadata={"help": "When to evaluate."})
    save_strategy: SaveStrategy | str = field(default="epoch", metadata={"help": "When to save a checkpoint."})
    save_total_limit: int | None = field(
        default=2, metadata={"help": "Checkpoints kept; with 2 they are the best one and the last one."}
    )
    load_best_model_at_end: bool = field(default=True, metadata={"help": "Return to the best checkpoint at the end."})
    metric_for_best_model: str | None = field(
        default=DEFAULT_METRIC, metadata={"help": "The metric that makes a checkpoint the best."}
    )
    greater_is_better: bool | None = field(
        default=None, metadata={"help": "Whether more of it is better; by default it is, but for losses and errors."}
    )
    report_to: None | str | list[str] = field(
        default="none", metadata={"help": "Experiment trackers to log to, such as tensorboard or trackio."}
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Take from the items what the model has no argument for: the sample keys."}
    )
    label_names: list[str] | None = field(
        default_factory=lambda: ["labels"], metadata={"help": "The inputs that are labels."}
    )

    data_seed: int | None = field(default=None, metadata={"help": "Seed of the order of videos; defaults to `seed`."})

    base_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Sets `learning_rate` to this times (videos a step, over all processes) / 256."},
    )
    warmup_epochs: float | None = field(
        default=None, metadata={"help": "Epochs of warm-up, in place of warmup_steps."}
    )
    layer_decay: float = field(
        default=1.0, metadata={"help": "Factor of the learning rate from a layer to the one before it."}
    )
    layer_decay_only: list[str] = field(
        default_factory=list, metadata={"help": "Parts of parameter names that layer_decay is for; default all."}
    )
    no_weight_decay: list[str] = field(
        default_factory=lambda: list(NO_WEIGHT_DECAY),
        metadata={"help": "Parts of parameter names without weight decay, besides biases and norms."},
    )
    ema_decay: float | None = field(
        default=None, metadata={"help": "Evaluate and save an exponential moving average of the weights."}
    )
    linear_probe: bool = field(
        default=False, metadata={"help": "Train a new head on batch-normalised features, and nothing else."}
    )
    freeze_layers: int = field(
        default=0, metadata={"help": "Layer groups, counted from the input, that are not trained; 1: the embeddings."}
    )
    lora_rank: int = field(default=0, metadata={"help": "Train adapters of this rank and the head; 0: no adapters."})
    lora_alpha: float | None = field(default=None, metadata={"help": "Their weight; default twice the rank."})
    distillation_teacher: str | None = field(
        default=None, metadata={"help": "A trained classifier to learn from beside the labels: a folder or Hub name."}
    )
    distillation_target: Literal["logits", "features_cosine", "features_mse"] = field(
        default="logits", metadata={"help": "What is learned from the teacher: its classes or its features."}
    )
    distillation_weight: float = field(
        default=0.5, metadata={"help": "Share of the teacher in the loss; the labels have the rest."}
    )
    distillation_temperature: float = field(
        default=1.0, metadata={"help": "Temperature of the teacher's and the student's classes."}
    )

    def __post_init__(self) -> None:
        if isinstance(self.report_to, str):
            self.report_to = self.report_to.split(",")
        self._check_values()
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith(ERRORS):
            self.greater_is_better = False
        super().__post_init__()
        _check_trackers(cast(list[str], self.report_to))
        if self.data_seed is None:
            self.data_seed = self.seed
        if self.linear_probe and (self.lora_rank or self.freeze_layers):
            raise ValueError("linear_probe freezes all but the head already: leave out lora_rank and freeze_layers.")
        if self.linear_probe and self.train_batch_size == 1:
            raise ValueError("linear_probe normalises over the videos of a batch: take a batch size of at least 2.")
        if self.linear_probe and self.distillation_teacher and self.distillation_target != "logits":
            raise ValueError("linear_probe leaves the features as they are: use distillation_target=logits with it.")
        if self.base_learning_rate is not None:
            videos_per_step = self.train_batch_size * self.gradient_accumulation_steps * self.world_size
            self.learning_rate = self.base_learning_rate * videos_per_step / 256

    def _check_values(self) -> None:
        check_bounds(self)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for needed, names in _COMPANIONS.items():
            for name in names:
                if not getattr(self, needed) and getattr(self, name) != defaults[name]:
                    raise ValueError(f"{name} is {getattr(self, name)}, which has no effect without {needed}.")

    def check_problem_type(self, problem_type: str | None) -> None:
        """Refuses what suits one class a video alone.

        Raises:
            ValueError: labels are to be smoothed, and a video may have several, or has values.
        """
        if problem_type in ("multi_label_classification", "regression") and self.label_smoothing_factor:
            what = "a video may have several classes" if problem_type != "regression" else "a video has values"
            raise ValueError(
                f"label_smoothing_factor is {self.label_smoothing_factor}, but {what}: their targets are not "
                "smoothed, set it to 0."
            )

    def check_metric(self, problem_type: str | None, num_labels: int, eval_sets: Collection[str] = ()) -> None:
        """Refuses a `metric_for_best_model` that `hf_video.training.compute_metrics` or `regression_metrics` does not
        measure.

        Args:
            problem_type: that of the model.
            num_labels: its classes or values.
            eval_sets: the names of several evaluation sets, with which those of their metrics begin.

        Raises:
            ValueError: it does not, for models of this problem type and so many classes; the message lists the others.
        """
        known = [metric.name for metric in metrics_of(problem_type, num_labels)]
        known = [f"{name}_{metric}" for name in eval_sets for metric in (*known, "loss")] or [*known, "loss"]
        name = (self.metric_for_best_model or "").removeprefix("eval_")
        # The default stands for what is measured in place of it.
        if name and self.eval_strategy != IntervalStrategy.NO and name not in (DEFAULT_METRIC, *known):
            raise ValueError(
                f"metric_for_best_model is {self.metric_for_best_model!r}, which is not measured: use "
                f"{', '.join(known[:-1])} or {known[-1]}."
            )

    def choose_metric(self, problem_type: str | None, eval_sets: Sequence[str] = (), loss_alone: bool = False) -> None:
        """Puts the first metric of the problem type, or the loss, in place of a `metric_for_best_model` that was left
        at its default. If there are several evaluation sets, it is measured on the first.

        Args:
            problem_type: that of the model.
            eval_sets: the names of several evaluation sets.
            loss_alone: whether nothing else is measured.
        """
        if (self.metric_for_best_model or "").removeprefix("eval_") != DEFAULT_METRIC:
            return
        metric = "loss" if loss_alone else metrics_of(problem_type)[0].name
        self.metric_for_best_model = "_".join([*eval_sets[:1], metric])
        if metric.endswith(("loss", *ERRORS)):
            self.greater_is_better = False

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """As in the base class, but `warmup_epochs` goes first where it is given."""
        if self.warmup_epochs is None:
            return super().get_warmup_steps(num_training_steps)
        return math.ceil(num_training_steps * self.warmup_epochs / self.num_train_epochs)


def parse_arguments(words: Sequence[str], kinds: Sequence[type], **values: Any) -> list[Any]:
    """Reads `name=value` words into dataclasses, each value by the type of its field.

    Args:
        words: such as `["weight_decay=0.1", "bf16=true"]`; they win over `values`, and the last of a name over those
            before it. Values of lists are separated by commas.
        kinds: the dataclasses, without a field name in common.
        values: values of fields, taken as they are.

    Returns:
        One object for each of `kinds`.

    Raises:
        ValueError: a name is no field, or a value is not of its type, not a number or not allowed.
    """
    known = [field.name for kind in kinds for field in dataclasses.fields(kind) if field.init]
    for name in [word.partition("=")[0] for word in words]:
        check_name(name, known, "a training argument")
    parser = HfArgumentParser(list(kinds), exit_on_error=False)
    lists = {field.name for kind in kinds for field in dataclasses.fields(kind) if field.type == list[str]}
    chosen = {name: value for name, _, value in (word.partition("=") for word in words)}
    # A flag cannot say that a list is empty.
    parser.set_defaults(**values | {name: [] for name in lists & set(chosen)})
    flags: list[str] = []
    for name, value in chosen.items():
        if name not in lists:
            flags.append(f"--{name}={value}")
        elif value:
            flags += [f"--{name}", *value.split(",")]
    try:
        parsed = list(parser.parse_args_into_dataclasses(flags, look_for_args_file=False))
    except argparse.ArgumentError as error:
        raise ValueError(f"Wrong training argument: {error}") from error
    for name in chosen:
        for found in (getattr(part, name, None) for part in parsed):
            if isinstance(found, float) and math.isnan(found):
                raise ValueError(f"{name} is nan; a number is expected.")
    return parsed


def parse_training_arguments(words: Sequence[str], **values: Any) -> VideoTrainingArguments:
    """`parse_arguments` for `VideoTrainingArguments` alone."""
    return parse_arguments(words, [VideoTrainingArguments], **values)[0]


def check_name(name: str, known: Sequence[str], what: str) -> None:
    """Refuses a name that is not among those known, and says which are close to it.

    Raises:
        ValueError: it is not.
    """
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]}?" if close else "See the documentation of TrainingArguments."
        raise ValueError(f"{name!r} is not {what}. {hint}")


def _check_trackers(names: Sequence[str]) -> None:
    for name in names:
        check_name(name, list(integration_utils.INTEGRATION_TO_CALLBACK), "an experiment tracker of Transformers")
        is_available = getattr(integration_utils, f"is_{name}_available", None)
        if is_available is not None and not is_available():
            raise ImportError(f"report_to={name} needs a package that is not installed: pip install {name}.")
