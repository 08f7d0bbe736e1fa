"""Callbacks of the trainers: clips of an epoch, lines of evaluations, facts of the run, preemption."""

import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_video.data.dataset import with_those_inside
from hf_video.data.trained_data import write_trained_videos
from hf_video.hub.model_card import read_facts
from hf_video.metrics import measured_in

from .facts import describe_data, describe_training, write_facts


class SetEpochCallback(TrainerCallback):
    """Tells the training set and all data sets inside of it their epoch, so that random clips differ between epochs.
    Accelerate tells it to the outermost data set alone, and on several processes to none."""

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
        for each in with_those_inside(dataset):
            if hasattr(each, "set_epoch"):
                each.set_epoch(int(state.epoch or 0))


class StreamEpochCallback(TrainerCallback):
    """Counts `max_steps` as one epoch where the training set is a stream, as `Trainer` does; after a run is resumed,
    `Trainer` would begin to count again."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        state.epoch = state.global_step / state.max_steps


class BarCallback(ProgressCallback):
    """The progress bar of Transformers without its dictionaries of logs."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        pass


class EpochLineCallback(TrainerCallback):
    """Prints where a resumed training goes on, and a line for each evaluation; without evaluations, for each logged
    loss. The loss of a line is the mean over the steps since the line before."""

    def __init__(self) -> None:
        self._sum, self._num_steps, self._last_step = 0.0, 0, 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._last_step = step = state.global_step
        if step and state.is_world_process_zero:
            done = f"epoch {state.epoch or 0:g} of {state.num_train_epochs:g}"
            done = f"step {step:,} of {state.max_steps:,}" if args.max_steps > 0 else done
            tqdm.write(f"Continues after {done} (checkpoint-{step}).")

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            num_steps, self._last_step = state.global_step - self._last_step, state.global_step
            self._sum, self._num_steps = self._sum + num_steps * logs["loss"], self._num_steps + num_steps
        shown = "loss" if args.eval_strategy == IntervalStrategy.NO else "eval_loss"
        if not {shown, "eval_loss"} & logs.keys() or not state.is_world_process_zero:
            return
        # Of a stream it is not known how many there are.
        of_all = f"/{state.num_train_epochs:g}" if state.num_train_epochs < sys.maxsize else ""
        parts = [f"epoch {logs['epoch']:g}{of_all}"]
        mean = self._sum / self._num_steps if self._num_steps else None
        self._sum, self._num_steps = 0.0, 0
        losses = {"loss": mean, "validation loss": logs.get("eval_loss")}
        parts += [f"{name} {loss:.3f}" for name, loss in losses.items() if loss is not None]
        shown_metrics = [row for row in measured_in(logs, "eval_") if row[0].short_title is not None]
        parts += [f"{metric.short_title} {metric.text(value, digits=1)}" for metric, value in shown_metrics]
        tqdm.write("  ".join(parts))


class TrainingFactsCallback(TrainerCallback):
    """Writes `training_facts.json` and `trained_videos.json` into the output folder when training begins, and adds the
    result when it ends. A resumed run keeps the source that the first run started from."""

    def __init__(self, eval_dataset: Any = None) -> None:
        several = eval_dataset if isinstance(eval_dataset, dict) else {}
        self.eval_sets = {f"validation {name}": dataset for name, dataset in several.items()}
        if eval_dataset is not None and not several:
            self.eval_sets = {"validation": eval_dataset}
        self.facts: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        folder = Path(str(args.output_dir))
        dataset = kwargs["train_dataloader"].dataset
        self.facts = describe_training(args, kwargs["model"], kwargs.get("processing_class"), dataset)
        if args.auto_find_batch_size:
            self.facts["recipe"]["per_device_train_batch_size"] = state.train_batch_size // max(1, args.n_gpu)
        if state.global_step > 0 and "source" in (first := read_facts(folder)):
            self.facts["source"] = first["source"]
        write_facts(folder, self.facts)
        sets = {name: getattr(each, "rows", None) for name, each in {"train": dataset, **self.eval_sets}.items()}
        listed = {name: rows for name, rows in sets.items() if isinstance(rows, Dataset) and "video" in rows.features}
        # Where the last model is kept, nothing is chosen on the evaluation sets.
        is_chosen = args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST
        held_out = {} if is_chosen else {name: listed.pop(name) for name in self.eval_sets if name in listed}
        if listed or held_out:
            write_trained_videos(folder, listed, held_out)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        if kwargs.get("eval_dataloader") is not None:
            sets = self.eval_sets or {"validation": kwargs["eval_dataloader"].dataset}
            self.facts["data"] |= {name: describe_data(dataset) for name, dataset in sets.items()}
        # If there are several evaluation sets, each has an entry of its own for the same step.
        evaluations = defaultdict[int, dict[str, Any]](dict)
        for entry in state.log_history:
            if any(name.startswith("eval_") and name.endswith("_loss") for name in entry):
                evaluations[entry["step"]] |= entry
        # The trainer notes a best step also where the last model is kept.
        last, best = max(evaluations, default=0), state.best_global_step or 0
        kept = best if args.load_best_model_at_end and best in evaluations else last
        self.facts |= {"steps": state.global_step, "epochs": state.epoch, "validation": evaluations[kept]}
        if kept != last:
            self.facts["kept_epoch"] = evaluations[kept]["epoch"]
        write_facts(Path(str(args.output_dir)), self.facts)


class PreemptionCallback(TrainerCallback):
    """Holds SIGTERM back until a checkpoint of the current step is complete, then lets it have its usual effect.

    It takes the place of the callback of `enable_jit_checkpoint` in Transformers, with which processes may save at
    different steps, or in the middle of a step. Here they agree after each step: if one has received the signal, all
    save and end. At the end of an epoch the checkpoint is saved after the evaluation of that epoch.
    """

    def __init__(self) -> None:
        self._is_holding = self._is_received = self._is_agreed = False
        self._usual: Any = None
        self._group: Any = None

    @contextmanager
    def giving_back(self) -> Iterator[None]:
        """Gives the signal back after the block, which trains. Then a signal has its effect that came too late for a
        checkpoint."""
        try:
            yield
        finally:
            self._let_through()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if dist.is_initialized():
            # A process would wait for its accelerator at each step if the group of the training was used.
            self._group = dist.new_group(backend="gloo")

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._is_holding:
            self._is_holding, self._usual = True, signal.signal(signal.SIGTERM, self._receive)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not float(state.epoch or 0).is_integer():
            self._agree(control)

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._agree(control)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._is_agreed:
            if self._group is not None:
                # The first process marks the checkpoint as complete. A launcher ends it when another one has ended.
                dist.barrier(self._group)
            # A process that has not heard the signal ends as well.
            self._let_through(is_received=True)

    def _receive(self, number: int, frame: Any) -> None:
        self._is_received = True

    def _agree(self, control: TrainerControl) -> None:
        received = torch.tensor(int(self._is_received))
        if self._group is not None:
            dist.all_reduce(received, dist.ReduceOp.MAX, group=self._group)
        self._is_agreed = bool(received)
        control.should_save |= self._is_agreed

    def _let_through(self, is_received: bool = False) -> None:
        if self._is_holding:
            signal.signal(signal.SIGTERM, self._usual)
        is_received |= self._is_received
        self._is_holding = self._is_received = self._is_agreed = False
        if is_received:
            signal.raise_signal(signal.SIGTERM)
