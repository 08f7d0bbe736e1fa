"""A checkpoint at the step in which SIGTERM comes, as schedulers send it to a run that they will end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_jit_checkpoint import JITCheckpointCallback


class PreemptionCallback(TrainerCallback):
    """Holds SIGTERM back until a checkpoint of the current step is complete, then lets it have its usual effect.

    It takes the place of the callback of `enable_jit_checkpoint` in Transformers. With that, processes may save at
    different steps, since the signal does not reach all of them at once, or in the middle of a step. A run that goes
    on from such a checkpoint would not be the same. Here the processes agree after each step: if one has received the
    signal, all save and end.

    Before the first step there is nothing to save, and the signal has its usual effect.

    At the end of an epoch the checkpoint is saved after the evaluation of that epoch.
    """

    def __init__(self) -> None:
        self._is_received = self._is_agreed = self._has_begun = False
        self._usual: Any = None
        self._group: Any = None

    @contextmanager
    def holding_back(self) -> Iterator[None]:
        """Notes SIGTERM in the block, which trains. What came too late for a checkpoint has its effect after it."""
        self._is_received = self._is_agreed = self._has_begun = False
        self._usual = signal.signal(signal.SIGTERM, self._receive)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._usual)
        if self._is_received:
            self._let_through()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if dist.is_initialized():
            # A process would wait for its accelerator at each step if the group of the training was used.
            self._group = dist.new_group(backend="gloo")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not float(state.epoch or 0).is_integer():
            self._agree(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._agree(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._is_agreed:
            if self._group is not None:
                # The first process marks the checkpoint as complete. A launcher ends it when another one has ended.
                dist.barrier(self._group)
            self._let_through()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._has_begun = True

    def _receive(self, number: int, frame: Any) -> None:
        self._is_received = True
        if not self._has_begun:
            # There is nothing to save before the first step.
            self._let_through()

    def _agree(self, control: TrainerControl) -> None:
        received = torch.tensor(int(self._is_received))
        if self._group is not None:
            dist.all_reduce(received, dist.ReduceOp.MAX, group=self._group)
        self._is_agreed = bool(received)
        control.should_save |= self._is_agreed

    def _let_through(self) -> None:
        self._is_received = False
        signal.signal(signal.SIGTERM, self._usual)
        signal.raise_signal(signal.SIGTERM)


@contextmanager
def saving_when_preempted(trainer: Trainer) -> Iterator[None]:
    """Puts [`PreemptionCallback`] in the place of the callback of Transformers, if the trainer has that, and lets it
    hear signals in the block, which trains."""
    theirs = trainer.pop_callback(JITCheckpointCallback)
    if theirs is not None:
        # It has taken the signal already, and gives it back here.
        theirs.on_train_end(trainer.args, trainer.state, trainer.control)
        trainer.add_callback(PreemptionCallback())
    callbacks = trainer.callback_handler.callbacks
    ours = next((callback for callback in callbacks if isinstance(callback, PreemptionCallback)), None)
    with nullcontext() if ours is None else ours.holding_back():
        yield
