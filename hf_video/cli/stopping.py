"""How commands that go on for hours stop at a signal, and keep what they have."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hf_video.cli import INTERRUPTED, TERMINATED

from .boundary import Terminated, say_interrupted

if TYPE_CHECKING:
    from transformers import Trainer

Item = TypeVar("Item")

# Seconds between two looks at whether a signal came.
_PATIENCE = 0.1
# Seconds that the end of a command waits for the item that is being made.
_LONGEST_END = 1.0
# Seconds that a training without a step has to hear a signal and to end.
_LONGEST_SILENCE = 5.0
# Items that nobody waits for any more.
_abandoned: list[Future] = []


class StopRequest:
    """Whether Ctrl-C, SIGTERM or SIGHUP was received: `number` is the first of these signals, or None."""

    def __init__(self, message: str):
        self.number: int | None = None
        self._message = message
        self._items: Iterator[Any] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._upcoming: Future | None = None

    def __bool__(self) -> bool:
        return self.number is not None

    def interrupt(self, message: str) -> KeyboardInterrupt:
        """The error to end the command with, after everything is saved."""
        return (Terminated if self.number == signal.SIGTERM else KeyboardInterrupt)(message)

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items until a signal comes. They are made in a thread, since nothing can interrupt code that waits for a
        stream: after a signal the loop ends at once. The end of the block waits for the thread for a second; a
        program that then ends should call [`end_process`]."""
        self._items, nothing = iter(items), object()
        self._thread = ThreadPoolExecutor(1, "making")
        while self.number is None:
            self._upcoming = self._thread.submit(next, self._items, nothing)
            while not wait([self._upcoming], timeout=_PATIENCE).done:
                if self.number is not None:
                    return
            item: Any = self._upcoming.result()
            self._upcoming = None
            if item is nothing:
                return
            yield item
            del item

    def _end_thread(self) -> None:
        if self._thread is None:
            return
        self._thread.shutdown(wait=False)
        if self._upcoming is not None and wait([self._upcoming], timeout=_LONGEST_END).not_done:
            _abandoned.append(self._upcoming)
        elif isinstance(self._items, Generator):
            self._items.close()

    def _receive(self, number: int, frame: Any) -> None:
        if self.number is not None:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.number = number
        # After SIGHUP there may be no terminal.
        with suppress(OSError):
            print(f"\nhf-video: {self._message}; once more gives up what is not saved.", file=sys.stderr)


@contextmanager
def stop_requests(message: str) -> Iterator[StopRequest]:
    """Gives an object that hears signals in the block. The first one prints the message on stderr, a second one
    interrupts the block."""
    request = StopRequest(message)
    signals = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Under `nohup` SIGHUP is ignored, and stays so.
    heard = [number for number in signals if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, request._receive) for number in heard}
    try:
        yield request
    finally:
        try:
            request._end_thread()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def end_process(code: int) -> None:
    """Ends the process with an exit code if a thread still waits for a silent stream. Python would wait for it."""
    if any(not item.done() for item in _abandoned):
        _exit(code)


@contextmanager
def ended_before_first_step(trainer: "Trainer", what_was_kept: Callable[[], str]) -> Iterator[None]:
    """Ends the process some seconds after SIGINT or SIGTERM as long as the training in the block has done no step.

    Python hears a signal only between two operations of the main thread, and one on large clips takes minutes. After
    the first step a signal may wait for the end of a step.

    Args:
        trainer: trains in the block.
        what_was_kept: returns a sentence for the last line of the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from transformers import TrainerCallback

    is_over = threading.Event()

    class FirstStepCallback(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            is_over.set()

    def listen() -> None:
        while number := hearing.recv(1)[0]:
            if number in (signal.SIGINT, signal.SIGTERM) and not is_over.wait(_LONGEST_SILENCE):
                is_terminated = number == signal.SIGTERM
                say_interrupted("hf-video", is_terminated, what_was_kept())
                _exit(TERMINATED if is_terminated else INTERRUPTED)

    hearing, telling = socket.socketpair()
    with hearing, telling:
        telling.setblocking(False)
        previous = signal.set_wakeup_fd(telling.fileno())
        # A worker that is ended does not end this process.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))
        listener = threading.Thread(target=listen, name="first-step", daemon=True)
        listener.start()
        trainer.add_callback(FirstStepCallback())
        try:
            yield
        finally:
            is_over.set()
            trainer.pop_callback(FirstStepCallback)
            signal.set_wakeup_fd(previous)
            # 0 is no signal. To close the socket would not end the thread: forked workers have it open, too.
            telling.send(b"\0")
            listener.join()


def _exit(code: int) -> None:
    """Ends the process without waiting for any thread."""
    for output in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            output.flush()
    os._exit(code)


@contextmanager
def collected(errors: list[Exception]) -> Iterator[None]:
    """Collects an error of the block, so that the next step runs all the same."""
    try:
        yield
    except Exception as error:
        errors.append(error)
