"""`TrainingArguments` with defaults that suit videos."""

import argparse
import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import HfArgumentParser, SchedulerType, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy


@dataclass
class VideoTrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` with other defaults: evaluate and save once an epoch, keep the best checkpoint
    by top-1 accuracy beside the last one, and load it at the end; AdamW with weight decay 0.05 and a cosine schedule
    after a tenth of the steps as warm-up, the schedule of VideoMAE's and VideoMamba's fine-tuning.

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
        default="top1_accuracy", metadata={"help": "The metric that makes a checkpoint the best."}
    )
    report_to: None | str | list[str] = field(default="none", metadata={"help": "Experiment trackers to log to."})
    label_names: list[str] | None = field(
        default_factory=lambda: ["labels"], metadata={"help": "The inputs that are labels."}
    )

    data_seed: int | None = field(default=None, metadata={"help": "Seed of the order of videos; defaults to `seed`."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data_seed is None:
            self.data_seed = self.seed


def parse_training_arguments(words: Sequence[str], **fields: Any) -> VideoTrainingArguments:
    """Reads `name=value` words into `VideoTrainingArguments`, each value by the type of its field.

    Args:
        words: such as `["weight_decay=0.1", "bf16=true"]`; they win over `fields`.
        fields: values of fields, taken as they are.

    Raises:
        ValueError: a name is no field, or a value is not of its type.
    """
    known = [field.name for field in dataclasses.fields(VideoTrainingArguments) if field.init]
    for word in words:
        name = word.partition("=")[0]
        if name not in known:
            close = difflib.get_close_matches(name, known)
            hint = f"Did you mean {' or '.join(close)}?" if close else "See the documentation of TrainingArguments."
            raise ValueError(f"{word}: {name!r} is not a training argument. {hint}")
    parser = HfArgumentParser(VideoTrainingArguments, exit_on_error=False)
    parser.set_defaults(**fields)
    try:
        (arguments,) = parser.parse_args_into_dataclasses([f"--{word}" for word in words], look_for_args_file=False)
    except argparse.ArgumentError as error:
        raise ValueError(f"Wrong training argument: {error}") from error
    return arguments
