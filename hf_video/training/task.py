"""One run for every task: what differs between tasks, the run that is the same for all, and the table of tasks.

Nothing here imports PyTorch, so that `--help` is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from hf_video.output_folders import RunLock
from hf_video.processes import failing_together, is_first_process
from hf_video.settings import Settings

from .run import ModelChoice, RunPlan, plan_run
from .task_settings import (
    PretrainSettings,
    TrainAnswersSettings,
    TrainDetectionSettings,
    TrainFrameSettings,
    TrainRetrievalSettings,
    TrainSettings,
)

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from hf_video.data import Task as ItemTask
    from hf_video.inference import EvaluateSettings

    from .report import Measured


@dataclass
class TaskData:
    """What a training learns from and is measured on.

    Attributes:
        splits: rows by the name of their split: "train", and "validation" and "test" if there are any.
        class_names: by class id; None for videos without classes.
        commit: that of a data set of the Hub, if a resumed run must find it again.
        broken: sentences about the videos that are left out.
    """

    splits: DatasetDict | dict[str, Dataset]
    class_names: list[str] | None = None
    commit: str | None = None
    broken: list[str] = field(default_factory=list)


class Task:
    """What differs from one training to another. [`train`] calls the methods in their order, on every process. A task
    is made anew for each run, and may keep on itself what a later method needs.

    Attributes:
        arguments: the class of `TrainingArguments`.
        trainer: the class of `transformers.Trainer`.
        sizes: the dataclass of settings that are for a model from random weights alone.
        needs_model: the error where no model is named; "" if the task has a default.
        holds_out: whether a validation split is held out where the data have none.
        measured_splits: the first of these that the data have is measured at the end.
        measures_training: whether some training clips are measured, too.
        enough_clips: how many clips, counted in each epoch, teach the bundled model; None if it takes all epochs.
        try_it: the command that uses the result; {model} stands for its folder.
    """

    arguments: ClassVar[type[TrainingArguments]]
    trainer: ClassVar[type[Trainer]]
    sizes: ClassVar[type | None] = None
    needs_model: ClassVar[str] = ""
    holds_out: ClassVar[bool] = True
    measured_splits: ClassVar[Sequence[str]] = ("test", "validation")
    measures_training: ClassVar[bool] = False
    enough_clips: ClassVar[int | None] = None
    try_it: ClassVar[str] = ""

    def choose_model(self, named: Collection[str], chosen: Any) -> ModelChoice:
        """What a training begins with for which no model is named: by default random weights. `named` are the names of
        the settings that the user named, and `chosen` has a value for each."""
        return ModelChoice(None)

    def load_data(self, run: RunPlan) -> TaskData:
        """The rows of the data, and their classes. No process may wait for others here.

        Args:
            run: `run.chosen` has a value for each setting.

        Raises:
            ValueError, OSError: the data cannot be used.
        """
        raise NotImplementedError

    def load_model(self, run: RunPlan, data: TaskData, arguments: Any) -> tuple[Any, Any]:
        """The model to train, right after the seed is set, and its processor. `arguments` may be changed."""
        raise NotImplementedError

    def make_splits(self, run: RunPlan, data: TaskData, processor: Any) -> None:
        """Changes `data.splits` into the rows to train on and to measure, such as by holding a part out."""

    def item_task(self, run: RunPlan, data: TaskData, processor: Any) -> ItemTask:
        """Says what a `VideoDataset` makes of rows."""
        raise NotImplementedError

    def datasets(self, run: RunPlan, data: TaskData, processor: Any) -> dict[str, Any]:
        """The data set of each split, by default `VideoDataset`s of `item_task`. No process may wait for others
        here."""
        from hf_video.data import VideoDataset

        item_task = self.item_task(run, data, processor)
        on_error = getattr(run.chosen, "on_error", "error")
        # In an evaluation no video takes the place of another.
        measured_on_error = "skip" if on_error == "replace" else on_error
        return {
            name: VideoDataset(rows, item_task, training=True, seed=run.chosen.seed, on_error=on_error)
            if name == "train"
            else VideoDataset(rows, item_task, training=False, on_error=measured_on_error)
            for name, rows in data.splits.items()
        }

    def trainer_options(self, run: RunPlan, data: TaskData, arguments: Any, model: Any, processor: Any) -> dict:
        """Further arguments of the trainer. No process may wait for others here."""
        return {}

    def finish(self, run: RunPlan, trainer: Any) -> None:
        """Changes the trained model before it is saved, such as by merging adapters."""

    def measure(self, trainer: Any, dataset: Any) -> Measured:
        """The figures of a data set, tables and pictures. All processes take part."""
        raise NotImplementedError

    def describe(self, run: RunPlan, trainer: Any) -> dict[str, Any]:
        """Further lines of the report, by name."""
        return {}

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> list[str]:
        """The lines that are printed of what `metrics.json` holds."""
        from .report import assess

        return assess(metrics)


def _run(task: Task, run: RunPlan, callbacks: Sequence[TrainerCallback]) -> tuple[Any, dict[str, Any]]:
    from transformers import set_seed

    from hf_video.data.checks import readable_videos

    from .optimization import settings_by_arguments
    from .report import report_run
    from .values import make

    chosen = run.chosen
    with failing_together():
        if chosen.model is None and task.needs_model:
            raise ValueError(task.needs_model)
        if task.sizes is not None:
            run.check_not_from_scratch(task.sizes)
        data = task.load_data(run)
        run.check_data(data.splits, data.class_names, data.commit)
        if run.model_sentence and is_first_process():
            print(run.model_sentence, flush=True)
        if getattr(chosen, "per_device_eval_batch_size", 0) is None:
            chosen.per_device_eval_batch_size = chosen.per_device_train_batch_size
        without = {} if task.holds_out else run.without_validation(data.splits)
        arguments = make(task.arguments, chosen, **run.of_this_machine(), **without)
        set_seed(arguments.seed)
        model, processor = task.load_model(run, data, arguments)
        settings_by_arguments(model, arguments)  # for its errors: the optimizer is made after the folder is begun
    if hasattr(chosen, "on_error"):
        data.splits, data.broken = readable_videos(data.splits, chosen.on_error)
    with failing_together():
        task.make_splits(run, data, processor)
        datasets = task.datasets(run, data, processor)
        options = task.trainer_options(run, data, arguments, model, processor)
        if task.enough_clips is not None:
            run.limit_epochs(arguments, len(datasets["train"]), task.enough_clips)
        run.begin_writing()
    if "validation" in datasets:
        datasets["validation"].drop_broken()
    trainer = task.trainer(
        model=model,
        args=arguments,
        train_dataset=datasets["train"],
        eval_dataset=datasets.get("validation"),
        processing_class=processor,
        callbacks=[*callbacks],
        **options,
    )
    with run.train(trainer):
        task.finish(run, trainer)
        trainer.save_model()
        return trainer, report_run(task, run, data, trainer, datasets)


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """A task by its name. What is imported when it is used is written as "module:name".

    Attributes:
        name: of the task, as `--task` takes it.
        aliases: other names.
        settings: what `train` takes; None for a task that is only evaluated.
        task: a subclass of [`Task`].
        evaluate: the function that measures a model of the task. It gets `EvaluateSettings` and a function to call
            with the result, and returns the result.
        show: the function that gives the lines to print of such a result.
    """

    name: str
    aliases: Sequence[str] = ()
    settings: type[Settings] | None = None
    task: str | type[Task] | None = None
    evaluate: str | Callable[..., dict[str, Any]] | None = None
    show: str | Callable[[Mapping[str, Any]], list[str]] | None = None

    def load(self, what: str) -> Any:
        """What the attribute `what` names."""
        named = getattr(self, what)
        if named is None:
            raise ValueError(f"There is no {what} for the task {self.name}.")
        return resolve_name(named) if isinstance(named, str) else named


_ROWS = (
    TaskRow(
        name="classification",
        settings=TrainSettings,
        task="hf_video.training.classification:ClassificationTask",
        evaluate="hf_video.evaluation.classes:evaluate_classes",
        show="hf_video.evaluation.classes:tell_classes",
    ),
    TaskRow(
        name="frames",
        aliases=("frame-classification",),
        settings=TrainFrameSettings,
        task="hf_video.training.frames:FramesTask",
        evaluate="hf_video.evaluation.frames:evaluate_frame_classes",
        show="hf_video.evaluation.frames:tell_frames",
    ),
    TaskRow(
        name="detection",
        aliases=("action-detection",),
        settings=TrainDetectionSettings,
        task="hf_video.training.detection:DetectionTask",
        evaluate="hf_video.evaluation.detections:evaluate_detections",
        show="hf_video.evaluation.detections:tell_precisions",
    ),
    TaskRow(
        name="retrieval",
        settings=TrainRetrievalSettings,
        task="hf_video.training.retrieval:RetrievalTask",
        evaluate="hf_video.evaluation.retrieval:evaluate_retrieval",
        show="hf_video.evaluation.retrieval:tell_recalls",
    ),
    TaskRow(name="answers", settings=TrainAnswersSettings, task="hf_video.training.answers:AnswersTask"),
    TaskRow(name="pretraining", settings=PretrainSettings, task="hf_video.training.pretraining:PretrainingTask"),
    TaskRow(
        name="segments",
        evaluate="hf_video.evaluation.segments:evaluate_segment_file",
        show="hf_video.evaluation.segments:tell_segments",
    ),
    TaskRow(
        name="agreement",
        evaluate="hf_video.evaluation.segments:evaluate_agreement",
        show="hf_video.evaluation.agreement:tell_agreement",
    ),
)
TASKS = {row.name: row for row in _ROWS}
"""The rows of all tasks by name; [`register_task`] adds one."""


def register_task(row: TaskRow) -> None:
    """Makes a task known by its name to [`train`], [`evaluate`] and the commands."""
    TASKS[row.name] = row


def find_task(name: str) -> TaskRow:
    """The row of a task by its name or an alias; a `ValueError` names those that are known."""
    for row in TASKS.values():
        if name in (row.name, *row.aliases):
            return row
    raise ValueError(f"There is no task {name!r}. Known are {', '.join(TASKS)}.")


def row_of(settings: Any) -> TaskRow:
    """The row of the task that takes settings of this class, or of a class that it inherits from."""
    rows = {row.settings: row for row in TASKS.values() if row.settings}
    for kind in type(settings).__mro__:
        if kind in rows:
            return rows[kind]
    raise TypeError(f"{type(settings).__name__} are settings of no training.")


def train(settings: Any, callbacks: Sequence[TrainerCallback] = ()) -> tuple[Any, dict[str, Any]]:
    """Trains a model, as `hf-video train`, `hf-video train-answers` and `hf-video pretrain`. The class of the settings
    says which task is learned. Settings and data are checked before anything is written. Model, checkpoints and report
    are in the output folder.

    Args:
        settings: the data, the output folder, and what differs from the defaults.
        callbacks: as of `transformers.Trainer`.

    Returns:
        The trainer, with the model that is kept, and the contents of `report/metrics.json`.

    Raises:
        ValueError, OSError: a setting or a video cannot be used, or the output folder is not empty.
    """
    row = row_of(settings)
    make_task = cache(lambda: row.load("task")())  # imports PyTorch, which many errors come before
    with RunLock() as lock:
        run = plan_run(settings, lock, choose_model=lambda *named: make_task().choose_model(*named))
        return _run(make_task(), run, callbacks)


def evaluate(
    settings: EvaluateSettings, tell: Callable[[dict[str, Any]], object] = lambda result: None
) -> dict[str, Any]:
    """Measures a model on data of its task, as `hf-video evaluate`.

    Args:
        settings: the task, the data, the model, and what differs from the defaults.
        tell: is called with the result, even if a table of it cannot be written.

    Returns:
        What `hf-video evaluate --json` prints.

    Raises:
        ValueError, OSError: a setting or a video cannot be used, there is no such model, or it was trained for another
            kind of data.
    """
    return find_task(settings.task).load("evaluate")(settings, tell)
