"""How a training that has done no step ends at a signal."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments

from hf_video.training.output_folder import what_was_kept
from hf_video.training.run_settings import RunSettings
from hf_video.training.run_start import way_on

from . import INTERRUPTED, TERMINATED
from .boundary import say_interrupted
from .stopping import exit_now

# Seconds that a training without a step has to hear a signal and to end.
LONGEST_SILENCE = 5.0


class FirstStepCallback(TrainerCallback):
    """Knows whether a training is in its first step, and where it writes."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.is_over = threading.Event()

    def on_train_begin(self, args: TrainingArguments, *others: Any, **kwargs: Any) -> None:
        self.folder = Path(str(args.output_dir))

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.is_over.set()

    on_train_end = on_step_end


@contextmanager
def ended_before_first_step(settings: RunSettings) -> Iterator[TrainerCallback]:
    """Ends the process some seconds after SIGINT or SIGTERM while the training in the block is in its first step.

    Python hears a signal only between two operations of the main thread, and one on large clips takes minutes. After
    the first step a signal may wait for the end of a step.

    Args:
        settings: those of the training.

    Returns:
        A callback for the trainer.
    """
    callback = FirstStepCallback()
    if threading.current_thread() is not threading.main_thread():
        yield callback
        return

    def listen() -> None:
        while number := hearing.recv(1)[0]:
            folder = callback.folder if number in (signal.SIGINT, signal.SIGTERM) else None
            if folder is not None and not callback.is_over.wait(LONGEST_SILENCE):
                is_terminated = number == signal.SIGTERM
                say_interrupted("hf-video", is_terminated, what_was_kept(folder, way_on(settings)))
                exit_now(TERMINATED if is_terminated else INTERRUPTED)

    hearing, telling = socket.socketpair()
    with hearing, telling:
        telling.setblocking(False)
        previous = signal.set_wakeup_fd(telling.fileno())
        # A worker that is ended does not end this process.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))
        listener = threading.Thread(target=listen, name="first-step", daemon=True)
        listener.start()
        try:
            yield callback
        finally:
            callback.is_over.set()
            signal.set_wakeup_fd(previous)
            # No signal has the number 0. Closing the socket would not end the thread: forked workers hold it.
            telling.send(b"\0")
            listener.join()
