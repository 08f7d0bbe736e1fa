"""Decides how a training starts: from the beginning, from a checkpoint, or not at all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.loading.models import choose_device

from .output_folder import (
    OPTIONS_FILE,
    RunLock,
    begin_writing,
    check_none_inside,
    checkpoint_to_resume,
    saying_what_was_kept,
    what_was_kept,
    withdraw,
    withdraw_options,
)
from .processes import decided_by_first, is_first_process, join_processes, launched_processes
from .run_settings import Given, check_same_batch, check_same_settings, choose_values, read_given, read_saved, save
from .stopping import ended_before_first_step
from .training_data import check_same_data, describe_data

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from hf_video.training import VideoTrainer

# What a resumed run needs, by name of setting, and the value with which it is not written.
_WITHOUT_CHECKPOINTS = {"save_strategy": "no", "save_only_model": True}


def add_start_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options for an output folder that has files."""
    parser.add_argument(
        "--resume",
        choices=("must", "auto"),
        metavar="[auto]",
        help="continue an interrupted run, with the settings it had; auto: begin if there is no checkpoint yet, so "
        "that the same command starts and restarts",
    )
    parser.set_defaults(optional_values={"--resume": ("must", "auto")})
    parser.add_argument(
        "--overwrite-output-dir",
        action="store_true",
        help="start afresh although DIR has files; it is renamed to DIR.backup-1 (-2, ...), nothing is deleted",
    )


@dataclass
class RunStart:
    """How a training starts, the same on all processes of a launcher: the parsed options, what the user gave, a value
    for each setting, the checkpoint and the description of its data if the run goes on, and the lock of the output
    folder."""

    args: argparse.Namespace
    given: Given
    values: dict[str, Any]
    checkpoint: Path | None
    saved_data: dict[str, Any] | None
    lock: RunLock
    _described: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def source(self) -> str:
        """The data as the user named them."""
        return self.given.value("data")

    @property
    def output_dir(self) -> Path:
        return _output_dir(self.given)

    @property
    def way_on(self) -> str:
        """What continues the run after an interruption."""
        return f"run the same command {'again' if self.args.resume == 'auto' else 'with --resume'}"

    def check_not_from_scratch(self, sizes: type) -> None:
        """Refuses (`ValueError`) the sizes of a model from scratch, which a dataclass declares, beside a model that
        has its own."""
        if self.given.value("model") is None:
            return
        for each in fields(sizes):
            if self.given.value(each.name) is not None:
                flag = each.name.replace("_", "-")
                raise ValueError(f"--{flag} is for a model from scratch, not for --model.")

    def of_this_machine(self) -> dict[str, Any]:
        """The fields of `TrainingArguments` that say where the run computes and writes."""
        on_cpu = choose_device(self.values["device"]).type == "cpu"
        found: dict[str, Any] = {"output_dir": str(self.output_dir), "use_cpu": on_cpu}
        if self.values["dataloader_pin_memory"] is None:
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
        kept = self.output_dir, self.way_on
        with saying_what_was_kept(*kept):
            with ended_before_first_step(trainer, partial(what_was_kept, *kept)):
                trainer.train(resume_from_checkpoint=self.checkpoint and str(self.checkpoint))
            yield

    def check_data(self, splits: DatasetDict, class_names: list[str] | None = None) -> None:
        """Refuses (`ValueError`) data of another run, and data that would be renamed with the output folder. The first
        process looks at them for all."""
        if not is_first_process():
            return
        self._described = describe_data(self.source, splits, class_names)
        check_same_data(self._described, self.saved_data)
        if self.args.overwrite_output_dir:
            check_none_inside(chain(*map(_files, splits.values())), self.output_dir)

    def begin_writing(self) -> None:
        """Makes the output folder, and writes the settings and the description of the data into it, on the first
        process. An error before the first checkpoint takes them away again."""
        if not is_first_process():
            return
        folder, overwrite = self.output_dir, self.args.overwrite_output_dir
        is_new = overwrite or not folder.exists()
        begin_writing(folder, self.lock, resume=self.checkpoint is not None, overwrite=overwrite)
        file = folder / OPTIONS_FILE
        if self.checkpoint is None:
            self.lock.on_error = partial(withdraw, folder, self.lock, is_new=is_new)
        elif file.is_file():
            options = file.read_text(encoding="utf-8")
            self.lock.on_error = partial(withdraw_options, folder, self.checkpoint, options)
        save(file, self.values, self._described, launched_processes())


def _files(split: Dataset) -> list[str]:
    """The files that hold the videos; none for videos inside a table."""
    from hf_video.data.columns import arrow_column

    column = next((name for name in ("bytes", "shard", "video") if name in split.column_names), "video")
    return [] if column == "bytes" else arrow_column(split, column).drop_null().unique().to_pylist()


def start_run(args: argparse.Namespace, lock: RunLock, *, needs_settings: bool = True) -> RunStart:
    """Decides how a training starts, before anything is written. The first process of a launcher looks at the output
    folder and tells the others. With `--resume auto` a run goes on only if each setting has the value that this
    command gives it or leaves it at, except for those that a resumed run may change. Without `needs_settings`,
    `--resume` takes the given settings if none were saved."""
    given = read_given(args)
    settings = args.settings
    launch = {
        name: settings.default(name) if given.value(name) is None else given.value(name)
        for name in ("device", "ddp_backend", "ddp_timeout")
    }
    device = choose_device(launch["device"])
    join_processes(use_cpu=device.type == "cpu", backend=launch["ddp_backend"], timeout=launch["ddp_timeout"])
    values, checkpoint, saved_data = decided_by_first(lambda: _decide(args, given, lock, needs_settings))
    if launched_processes() > 1 and choose_device(values["device"]).type != device.type:
        raise ValueError(
            f"The run being resumed has --device {values['device']}: give it again. Several processes choose their "
            "device before they read its settings."
        )
    return RunStart(args, given, values, checkpoint, saved_data, lock)


def _decide(
    args: argparse.Namespace, given: Given, lock: RunLock, needs_settings: bool
) -> tuple[dict[str, Any], Path | None, dict[str, Any] | None]:
    folder = _output_dir(given)
    if args.overwrite_output_dir:
        check_none_inside([given.value("data")], folder)
    checkpoint = checkpoint_to_resume(folder, lock, resume=args.resume, overwrite=args.overwrite_output_dir)
    is_auto, number = args.resume == "auto", launched_processes()
    saved = None
    if checkpoint is not None and (needs_settings or is_auto or (folder / OPTIONS_FILE).is_file()):
        saved = read_saved(folder / OPTIONS_FILE, args.settings)
    values = choose_values(args.settings, given, None if is_auto else saved, number)
    if values["model"] is MISSING:
        raise ValueError("The model to fine-tune is missing: give --model or model=...")
    if is_auto:
        _check_leaves_checkpoints(values)
    if checkpoint is not None and values.get("load_best_model_at_end"):
        from hf_video.training.checkpoints import best_of

        best_of(checkpoint)
    if saved is not None:
        if is_auto:
            check_same_settings(args.settings, given, values, saved, number)
        check_same_batch(values, saved, number)
    return values, checkpoint, saved and saved.data


def _output_dir(given: Given) -> Path:
    return Path(given.value("output_dir")).expanduser().absolute()


def _check_leaves_checkpoints(values: dict[str, Any]) -> None:
    for name, value in _WITHOUT_CHECKPOINTS.items():
        if values.get(name) == value:
            shown = str(value).lower()
            raise ValueError(f"With {name}={shown} there is nothing that --resume auto can go on from: leave it out.")
