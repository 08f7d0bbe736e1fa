"""Plans a training: which settings it has, from where it goes on, and where it writes. The same for every task.

What can be refused without a model is refused before PyTorch and Transformers are imported.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_video.data.folders import LAYOUTS, require_inputs
from hf_video.loading.models import choose_device, require_model
from hf_video.loading.released import SHIPPED
from hf_video.output_folders import RunLock
from hf_video.processes import decided_by_first, is_first_process, join_processes, launched_processes
from hf_video.settings import settings_of
from hf_video.texts import count

from .checkpoints import best_of
from .output_folder import OPTIONS_FILE, begin_writing, checkpoint_to_resume, saying_what_was_kept, withdraw
from .parallelism import check_plan
from .recipes import is_recipe, read_recipe
from .values import (
    PLACES,
    Named,
    check_same_batch,
    check_same_settings,
    choose_values,
    read_named,
    read_saved,
    save,
    value_of,
    values_of,
)

if TYPE_CHECKING:
    from datasets import DatasetDict


_OTHERS = "--model takes another: a folder, a name on the Hub or one of `hf-video models`, or"
_FEWEST_EPOCHS = 10


class ModelChoice(NamedTuple):
    """What a training begins with: `model`, None for random weights, and a sentence that says what was chosen, why,
    and how to choose the other one."""

    model: str | None
    sentence: str = ""

    @classmethod
    def of_bundled(cls, why: str = "") -> ModelChoice:
        """The bundled model."""
        what = "a small VideoViT that sees the middle square of a picture, and knows motion and shapes, "
        what += "hardly any objects."
        what = f"{why}. It is {what}" if why else what
        return cls(SHIPPED, f"Model: the bundled model, {what} {_OTHERS} scratch for random weights.")

    @classmethod
    def of_random(cls, family: str, why: str) -> ModelChoice:
        """Random weights of a family."""
        what = f"a {family} from random weights, because {why}."
        return cls(None, f"Model: {what} {_OTHERS} start for the bundled model.")


@dataclass
class RunPlan:
    """How a training starts, the same on all processes of a launcher.

    Attributes:
        settings: what the user gave.
        chosen: a value for each setting.
        named: what the user named, with the recipe.
        checkpoint: where the run goes on; None if it begins.
        saved_data: the description of the data of a run that goes on.
        model_sentence: says what model was chosen where none is named, and why; empty otherwise.
        lock: the lock of the output folder.
    """

    settings: Any
    chosen: Any
    named: Named
    checkpoint: Path | None
    saved_data: dict[str, Any] | None
    model_sentence: str
    lock: RunLock
    _described: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def output_dir(self) -> Path:
        return _output_dir(self.chosen.output_dir)

    @property
    def resume_hint(self) -> str:
        """What continues the run after an interruption."""
        return f"run the same command {'again' if self.settings.resume == 'auto' else 'with --resume'}"

    def check_not_from_scratch(self, sizes: type) -> None:
        """Refuses (`ValueError`) the sizes of a model from scratch, which a dataclass declares, beside a model that
        has its own."""
        for name, each in settings_of(sizes).items():
            if name in self.named.values and self.chosen.model is not None and self.checkpoint is None:
                raise ValueError(f"{each.flag} is for a model from scratch, not for --model.")

    def limit_epochs(self, arguments: Any, num_clips: int, enough_clips: int) -> None:
        """Trains the bundled model for fewer epochs than by default, at least ten, if they show `enough_clips`."""
        is_named = not {"num_train_epochs", "max_steps"}.isdisjoint(self.named.values)
        # With "must" the run has the number that it began with.
        if is_named or self.chosen.model != SHIPPED or self.settings.resume == "must":
            return
        epochs = max(_FEWEST_EPOCHS, math.ceil(enough_clips / num_clips))
        if epochs < self.chosen.num_train_epochs:
            self.chosen.num_train_epochs = arguments.num_train_epochs = float(epochs)
            if is_first_process():
                print(
                    f"{epochs} epochs, because there are {num_clips:,} clips; --epochs sets another number.",
                    flush=True,
                )

    def of_this_machine(self) -> dict[str, Any]:
        """The fields of `TrainingArguments` that say where the run computes and writes."""
        device = choose_device(self.chosen.device)
        on_cpu = device.type == "cpu"
        here = {"bf16": self._is_bfloat16(device), "output_dir": str(self.output_dir), "use_cpu": on_cpu}
        return here | ({"dataloader_pin_memory": not on_cpu} if self.chosen.dataloader_pin_memory is None else {})

    def _is_bfloat16(self, device: Any) -> bool:
        """What is chosen, and else whether the GPU computes in bfloat16."""
        import torch

        chosen = values_of(self.chosen)
        if chosen.get("bf16") is not None or chosen.get("fp16"):
            return bool(chosen.get("bf16"))
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)

    def without_validation(self, splits: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `TrainingArguments` that a training needs if there is no validation split."""
        without = {} if "validation" in splits else {"eval_strategy": "no", "load_best_model_at_end": False}
        # A recipe is for any data; what a word asks for is an error of Transformers.
        return {name: value for name, value in without.items() if name not in self.settings.given}

    def check_data(self, splits: DatasetDict, class_names: list[str] | None = None, commit: str | None = None) -> None:
        """Refuses (`ValueError`) data of another run. The first process looks at them for all. The commit of a data
        set of the Hub is recorded with them."""
        from hf_video.data.trained_data import check_same_data, describe_data

        if is_first_process():
            self._described = describe_data(self.chosen.data, splits, class_names)
            if commit is not None:
                self._described["commit"] = commit
            check_same_data(self._described, self.saved_data)

    def describe(self, **facts: Any) -> None:
        """Records what the run was begun with beside the description of its data."""
        self._described |= facts

    def begin_writing(self) -> None:
        """Makes the output folder, and writes the settings and the description of the data into it, on the first
        process. An error before the first checkpoint takes them away again."""
        if not is_first_process():
            return
        folder, overwrite = self.output_dir, self.settings.overwrite_output_dir
        is_new = overwrite or not folder.exists()
        begin_writing(folder, self.lock, resume=self.checkpoint is not None, overwrite=overwrite)
        self.lock.on_error = partial(withdraw, folder, self.lock, is_new=is_new)
        save(folder / OPTIONS_FILE, self.chosen, self._described, launched_processes())

    @contextmanager
    def train(self, trainer: Any) -> Iterator[None]:
        """Trains from the checkpoint or from the beginning, then enters the block. An error in either says which
        checkpoint is kept."""
        from transformers.trainer import DEFAULT_PROGRESS_CALLBACK, PrinterCallback
        from transformers.utils.logging import disable_progress_bar

        from .callbacks import BarCallback, EpochLineCallback

        trainer.remove_callback(PrinterCallback if trainer.args.disable_tqdm else DEFAULT_PROGRESS_CALLBACK)
        # In a log or a notebook a bar would break the lines.
        if not trainer.args.disable_tqdm and sys.stderr is not None and sys.stderr.isatty():
            trainer.add_callback(BarCallback())
        trainer.add_callback(EpochLineCallback())
        logging.getLogger("transformers.trainer_utils").addFilter(_is_news)
        disable_progress_bar()  # for writing each checkpoint; the trainer has its own progress bar
        if is_first_process():
            print(_describe_step(trainer.args), flush=True)
        with saying_what_was_kept(self.output_dir, self.resume_hint), self._keeping_frames(trainer):
            trainer.train(resume_from_checkpoint=self.checkpoint and str(self.checkpoint))
            yield

    @contextmanager
    def _keeping_frames(self, trainer: Any) -> Iterator[None]:
        from hf_video.data.kept_frames import keeping_frames

        from .trainer import BaseTrainer

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
            if isinstance(trainer, BaseTrainer):
                trainer.throughput.kept = kept
            yield


def _describe_step(args: Any) -> str:
    """How many clips change the weights at once, at which rate, in which precision."""
    parts = {"a process": args.train_batch_size, "processes": args.world_size}
    parts["accumulated"] = args.gradient_accumulation_steps
    total = math.prod(parts.values())
    factors = " x ".join(f"{number} {name}" for name, number in parts.items())
    factors = f" ({factors})" if total != args.train_batch_size else ""
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    return f"Each step: {count(total, 'clip')}{factors}, learning rate {args.learning_rate:.3g}, {precision}."


def _is_news(record: logging.LogRecord) -> bool:
    """Drops warnings that shares in settings of a resumed run differ, and that checkpoints are ordered by number."""
    unneeded = ("do not match the ones in the `trainer_state.json`", "falling back to numerical ordering")
    return not any(text in record.getMessage() for text in unneeded)


def plan_run(
    settings: Any, lock: RunLock, *, choose_model: Callable[[Collection[str], Any], ModelChoice] | None = None
) -> RunPlan:
    """Decides how a training starts, before anything is written. The first process of a launcher looks at the output
    folder and tells the others. With `resume="auto"` a run goes on only if each setting has the value that is given or
    left at its default, except for those that a resumed run may change.

    Args:
        settings: what the user gave.
        lock: is taken of an output folder that exists.
        choose_model: gets the names of what the user named, and the chosen settings, of a run that begins and names no
            model, which otherwise begins with random weights.

    Raises:
        ValueError, OSError: a setting or the recipe is wrong, there are no such data, or the output folder cannot be
            written or resumed.
    """
    words = {} if settings.recipe is None else read_recipe(settings.recipe)
    named, joining = None, dict[str, Any](use_cpu=True, backend=None, timeout=0)
    if launched_processes() > 1:
        named = read_named(settings, words)
        device, backend, timeout = (
            value_of(name, named.values, type(settings)) for name in ("device", "ddp_backend", "ddp_timeout")
        )
        joining = {"use_cpu": choose_device(device).type == "cpu", "backend": backend, "timeout": timeout}
    join_processes(**joining)
    plan = RunPlan(settings, *decided_by_first(lambda: _decide(settings, words, named, lock, choose_model)), lock)
    choose_device(plan.chosen.device)  # for its error
    return plan


def _decide(
    settings: Any,
    words: dict[str, Any],
    named: Named | None,
    lock: RunLock,
    choose_model: Callable[[Collection[str], Any], ModelChoice] | None,
) -> tuple[Any, Named, Path | None, dict[str, Any] | None, str]:
    """The attributes of the plan from `chosen` to `model_sentence`."""
    kind, number, resume = type(settings), launched_processes(), settings.resume
    places: Any = {name: getattr(settings, name) or words.get(name) for name in PLACES}
    check_places(places)
    folder = _output_dir(places["output_dir"])
    data = Path(places["data"]).expanduser()
    if settings.overwrite_output_dir and data.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{data}, to train on, lies inside --output-dir ({folder}), which would be renamed.")
    checkpoint = checkpoint_to_resume(folder, lock, resume=resume, overwrite=settings.overwrite_output_dir)
    named = named or read_named(settings, words)
    saved = None if checkpoint is None else read_saved(folder / OPTIONS_FILE, kind)
    choice = ModelChoice(None if saved is None else saved.values.get("model"))
    # With `auto` the values of the command count, which are then compared with those of the run.
    of_run = saved if resume == "must" else None
    # What is wrong is told before a model is chosen, which takes a look at the data.
    chosen = choose_values(settings, of_run, number, model=choice.model, named=named)
    check_plan(values_of(chosen))
    _check_metric(chosen)
    if saved is None or checkpoint is None:
        if chosen.model not in (None, SHIPPED):
            require_model(chosen.model, "--model")
        if choose_model is not None and "model" not in named.values:
            choice = choose_model(named.values.keys(), chosen)
            chosen = choose_values(settings, None, number, model=choice.model, named=named)
        return chosen, named, None, None, choice.sentence
    if getattr(chosen, "load_best_model_at_end", False):
        best_of(checkpoint)
    if resume == "auto":
        check_same_settings(chosen, saved, number, named)
    check_same_batch(chosen, saved, number)
    return chosen, named, checkpoint, saved.data, ""


def _output_dir(folder: str) -> Path:
    return Path(folder).expanduser().absolute()


def check_places(places: Mapping[str, str | None]) -> None:
    """Refuses what names no data, or no output folder. A data set of the Hub has a slash in its name."""
    data = places["data"]
    if data is None:
        raise ValueError("The videos are missing: give DATA.")
    if is_recipe(data):
        raise ValueError(f"{data} is a recipe, and DATA names videos. Write --recipe {data}")
    if places["output_dir"] is None:
        raise ValueError("The output folder is missing: give --output-dir DIR.")
    require_inputs([data], LAYOUTS)


def _check_metric(chosen: Any) -> None:
    known = (*type(chosen).metrics, "loss")
    name = (getattr(chosen, "metric_for_best_model", None) or "loss").removeprefix("eval_")
    if name not in known and chosen.eval_strategy != "no":
        raise ValueError(
            f"metric_for_best_model is {name!r}, which is not measured: use {', '.join(known[:-1])} or {known[-1]}."
        )
