"""Decides how a training starts: from the beginning, from a checkpoint, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hf_video.loading.models import choose_device
from hf_video.output_folders import RunLock
from hf_video.processes import decided_by_first, is_first_process, join_processes, launched_processes
from hf_video.settings import settings_of

from .checkpoints import best_of
from .model_choice import ModelChoice
from .output_folder import (
    OPTIONS_FILE,
    begin_writing,
    check_none_inside,
    checkpoint_to_resume,
    saying_what_was_kept,
    withdraw,
    withdraw_options,
)
from .resuming import (
    check_same_batch,
    check_same_settings,
    check_same_start,
    choose_values,
    default_of,
    given_values,
    read_saved,
    recipe_values,
    save,
)
from .run_settings import RunSettings
from .training_data import check_same_data, describe_data, warn_of_repetitions

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from hf_video.training import VideoTrainer

T = TypeVar("T", bound=Any)
# What a resumed run needs, by name of setting, and the value with which it is not written.
_WITHOUT_CHECKPOINTS = {"save_strategy": "no", "save_only_model": True}


@dataclass
class RunStart(Generic[T]):
    """How a training starts, the same on all processes of a launcher.

    Attributes:
        settings: what the user gave.
        chosen: a value for each setting.
        checkpoint: where the run goes on; None if it begins.
        saved_data: the description of the data of a run that goes on.
        model_sentence: says what model was chosen where none is named, and why; empty otherwise.
        lock: the lock of the output folder.
    """

    settings: T
    chosen: T
    checkpoint: Path | None
    saved_data: dict[str, Any] | None
    model_sentence: str
    lock: RunLock
    _described: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def output_dir(self) -> Path:
        return _output_dir(self.chosen)

    @property
    def way_on(self) -> str:
        return way_on(self.settings)

    def check_not_from_scratch(self, sizes: type) -> None:
        """Refuses (`ValueError`) the sizes of a model from scratch, which a dataclass declares, beside a model that
        has its own."""
        if self.chosen.model is None or self.checkpoint is not None:
            return
        given = given_values(self.settings).keys() | recipe_values(self.settings).keys()
        for name, each in settings_of(sizes).items():
            if name in given:
                raise ValueError(f"{each.flag} is for a model from scratch, not for --model.")

    def of_this_machine(self) -> dict[str, Any]:
        """The fields of `TrainingArguments` that say where the run computes and writes."""
        on_cpu = choose_device(self.chosen.device).type == "cpu"
        found: dict[str, Any] = {"output_dir": str(self.output_dir), "use_cpu": on_cpu}
        if self.chosen.dataloader_pin_memory is None:
            found["dataloader_pin_memory"] = not on_cpu
        return found

    @contextmanager
    def train(self, trainer: VideoTrainer) -> Iterator[None]:
        """Trains from the checkpoint or from the beginning, then enters the block. An error in either says which
        checkpoint is kept."""
        from transformers import ProgressCallback
        from transformers.utils.logging import disable_progress_bar

        from hf_video.training.callbacks import EpochLineCallback

        if not trainer.args.disable_tqdm:
            trainer.remove_callback(ProgressCallback)
            trainer.add_callback(EpochLineCallback())
        disable_progress_bar()  # for writing each checkpoint; the trainer has its own progress bar
        with saying_what_was_kept(self.output_dir, self.way_on), self._keeping_frames(trainer):
            trainer.train(resume_from_checkpoint=self.checkpoint and str(self.checkpoint))
            yield

    @contextmanager
    def _keeping_frames(self, trainer: VideoTrainer) -> Iterator[None]:
        from hf_video.data.kept_frames import keeping_frames

        from .time_estimate import TimeEstimateCallback

        args, sets = trainer.args, [trainer.train_dataset, trainer.eval_dataset]
        num_epochs = args.num_train_epochs
        if args.max_steps > 0 and isinstance(trainer.train_dataset, Sized):
            in_a_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            num_epochs = args.max_steps * in_a_step / len(trainer.train_dataset)
        gib = getattr(self.chosen, "kept_frames_gib", 0.0)
        # A name that the next run deletes if this one is killed.
        with keeping_frames(sets, self.output_dir / ".frames.0.partial", gib, num_epochs) as kept:
            if (line := str(kept)) and is_first_process():
                print(line, flush=True)
            trainer.add_callback(TimeEstimateCallback(kept))
            yield

    def check_data(self, splits: DatasetDict, class_names: list[str] | None = None, commit: str | None = None) -> None:
        """Refuses (`ValueError`) data of another run, and data that would be renamed with the output folder. The first
        process looks at them for all. The commit of a data set of the Hub is recorded with them."""
        if not is_first_process():
            return
        self._described = describe_data(self.chosen.data, splits, class_names)
        if commit is not None:
            self._described["commit"] = commit
        check_same_data(self._described, self.saved_data)
        if self.settings.overwrite_output_dir:
            check_none_inside(chain(*map(_files, splits.values())), self.output_dir)

    def describe(self, **facts: Any) -> None:
        """Records what the run was begun with beside the description of its data."""
        self._described |= facts

    def check_texts(self, splits: DatasetDict) -> None:
        """Refuses (`ValueError`) videos with texts that have no training split, warns of repetitions, and does
        `check_data`."""
        if "train" not in splits:
            raise ValueError(f"{self.chosen.data} has no training split, only {', '.join(splits)}. Add train.json.")
        warn_of_repetitions(splits)
        self.check_data(splits)

    def without_validation(self, splits: DatasetDict) -> dict[str, Any]:
        """The fields of `TrainingArguments` that a training needs if there is no validation split."""
        without = {} if "validation" in splits else {"eval_strategy": "no", "load_best_model_at_end": False}
        # A recipe is for any data; what a word asks for is an error of Transformers.
        return {name: value for name, value in without.items() if name not in self.settings.given}

    def begin_writing(self) -> None:
        """Makes the output folder, and writes the settings and the description of the data into it, on the first
        process. An error before the first checkpoint takes them away again."""
        if not is_first_process():
            return
        folder, overwrite = self.output_dir, self.settings.overwrite_output_dir
        is_new = overwrite or not folder.exists()
        begin_writing(folder, self.lock, resume=self.checkpoint is not None, overwrite=overwrite)
        file = folder / OPTIONS_FILE
        if self.checkpoint is None:
            self.lock.on_error = partial(withdraw, folder, self.lock, is_new=is_new)
        elif file.is_file():
            options = file.read_text(encoding="utf-8")
            self.lock.on_error = partial(withdraw_options, folder, self.checkpoint, options)
        save(file, self.chosen, self._described, launched_processes())


def _files(split: Dataset) -> list[str]:
    """The files that hold the videos; none for videos inside a table."""
    from hf_video.data.rows import arrow_column

    column = next((name for name in ("bytes", "shard", "video") if name in split.column_names), "video")
    return [] if column == "bytes" else arrow_column(split, column).drop_null().unique().to_pylist()


def way_on(settings: RunSettings) -> str:
    """What continues the run after an interruption."""
    return f"run the same command {'again' if settings.resume == 'auto' else 'with --resume'}"


def start_run(settings: T, lock: RunLock, *, choose_model: Callable[[T, T], ModelChoice] | None = None) -> RunStart[T]:
    """Decides how a training starts, before anything is written. The first process of a launcher looks at the output
    folder and tells the others. With `resume="auto"` a run goes on only if each setting has the value that is given or
    left at its default, except for those that a resumed run may change. `choose_model` gets the given and the chosen
    settings of a run that begins and names no model, which otherwise begins with random weights."""
    values = recipe_values(settings) | given_values(settings)
    launch = {name: values.get(name, default_of(name, settings)) for name in ("device", "ddp_backend", "ddp_timeout")}
    device = choose_device(launch["device"])
    join_processes(use_cpu=device.type == "cpu", backend=launch["ddp_backend"], timeout=launch["ddp_timeout"])
    chosen, checkpoint, saved_data, sentence = decided_by_first(lambda: _decide(settings, lock, choose_model))
    if launched_processes() > 1 and choose_device(chosen.device).type != device.type:
        raise ValueError(
            f"The run being resumed has --device {chosen.device}: give it again. Several processes choose their "
            "device before they read its settings."
        )
    return RunStart(settings, chosen, checkpoint, saved_data, sentence, lock)


def _decide(
    settings: T, lock: RunLock, choose_model: Callable[[T, T], ModelChoice] | None
) -> tuple[T, Path | None, dict[str, Any] | None, str]:
    number = launched_processes()
    folder = _output_dir(choose_values(settings))
    if settings.overwrite_output_dir:
        check_none_inside([choose_values(settings).data], folder)
    checkpoint = checkpoint_to_resume(folder, lock, resume=settings.resume, overwrite=settings.overwrite_output_dir)
    is_auto = settings.resume == "auto"
    saved = None if checkpoint is None else read_saved(folder / OPTIONS_FILE, type(settings))
    choice = ModelChoice(None, "")
    if saved is not None:
        check_same_start(saved)
        choice = ModelChoice(saved.values.get("model"), "")
    elif choose_model is not None and "model" not in given_values(settings) | recipe_values(settings):
        choice = choose_model(settings, choose_values(settings))
    chosen = choose_values(settings, None if is_auto else saved, number, model=choice.model)
    if is_auto:
        _check_leaves_checkpoints(chosen)
    if checkpoint is not None and getattr(chosen, "load_best_model_at_end", False):
        best_of(checkpoint)
    if saved is not None:
        if is_auto:
            check_same_settings(settings, chosen, saved, number)
        check_same_batch(chosen, saved, number)
    return chosen, checkpoint, None if saved is None else saved.data, choice.sentence


def _output_dir(chosen: Any) -> Path:
    return Path(chosen.output_dir).expanduser().absolute()


def _check_leaves_checkpoints(chosen: Any) -> None:
    for name, value in _WITHOUT_CHECKPOINTS.items():
        if getattr(chosen, name) == value:
            shown = str(value).lower()
            raise ValueError(f"With {name}={shown} there is nothing that --resume auto can go on from: leave it out.")
