"""Ends a training at SIGTERM with a checkpoint that all processes write after the same step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from accelerate import Accelerator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_jit_checkpoint import JITCheckpointCallback


class PreemptionMixin:
    """For a subclass of `transformers.Trainer`: `enable_jit_checkpoint` on any number of processes.

    With the callback of Transformers each process stops at a step of its own, so that they wait for each other for
    ever, and a run that was stopped ends like a finished one. Here SIGTERM ends the run after a checkpoint.
    """

    args: TrainingArguments
    _preemption: "_PreemptionCallback | None" = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        theirs = self.pop_callback(JITCheckpointCallback)  # type: ignore[attr-defined]
        if theirs is not None:
            theirs.on_train_end(self.args, self.state, self.control)  # type: ignore[attr-defined]
            self._preemption = _PreemptionCallback(self.accelerator)  # type: ignore[attr-defined]
            self.add_callback(self._preemption)  # type: ignore[attr-defined]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers.Trainer`. After SIGTERM and its checkpoint the handler is called that was set before."""
        with nullcontext() if self._preemption is None else self._preemption.hearing():
            return super().train(*args, **kwargs)  # type: ignore[misc]


class _PreemptionCallback(TrainerCallback):
    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._previous: Any = None
        self._has_received = self._is_ending = False

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Notes SIGTERM in the block."""
        self._has_received = self._is_ending = False
        self._previous = signal.signal(signal.SIGTERM, self._receive)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._previous)

    def _receive(self, number: int, frame: Any) -> None:
        self._has_received = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._has_received:
            self._accelerator.set_trigger()
        if self._accelerator.check_trigger():  # on any process
            self._is_ending = control.should_save = control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._is_ending:
            self._accelerator.wait_for_everyone()  # the first process marks the checkpoint as complete
            signal.signal(signal.SIGTERM, self._previous)
            signal.raise_signal(signal.SIGTERM)
