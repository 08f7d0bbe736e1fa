"""What signals do to a command: they interrupt it, or let a long one end with what it has."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from .printing import say

Item = TypeVar("Item")

# Seconds between two looks at whether a signal came.
_PATIENCE = 0.1
# Seconds that the end of a command waits for the item that is being made.
LONGEST_END = 1.0
_MAKING = "making-items"


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM. It ends as after Ctrl-C."""


def _interrupt(number: int) -> None:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def _received(receive: Callable[[int], None], numbers: Collection[int]) -> Iterator[None]:
    """Calls a function with each of some signals in the block."""
    process = os.getpid()

    def handle(number: int, frame: object) -> None:
        if os.getpid() != process:  # a forked worker, where the signal has its usual effect
            signal.signal(number, previous[number])
            os.kill(os.getpid(), number)
            return
        receive(number)

    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Makes SIGTERM raise `Terminated` in the block, and SIGINT `KeyboardInterrupt`, unless the program handles them
    already. Gives a list of those that came: an import that is interrupted may end with another error."""
    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    is_main = threading.current_thread() is threading.main_thread()
    received = list[int]()

    def receive(number: int) -> None:
        received.append(number)
        _interrupt(number)

    with _received(receive, [each for each in usual if is_main and signal.getsignal(each) == usual[each]]):
        yield received


class StopRequest:
    """Whether Ctrl-C, SIGTERM or SIGHUP was received: `number` is the first of these signals, or None."""

    number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None

    def interrupt(self, message: str) -> KeyboardInterrupt:
        """The error to end the command with, after everything is saved."""
        return (Terminated if self.number == signal.SIGTERM else KeyboardInterrupt)(message)

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items until a signal comes. They are made in a thread, since nothing can interrupt code that waits for a
        stream: after a signal the loop ends at once. It waits for the thread for a second; a program that then ends
        should call [`end_process`]."""
        making, nothing = iter(items), object()
        thread, upcoming = ThreadPoolExecutor(1, _MAKING), None
        try:
            while not self:
                upcoming = thread.submit(next, making, nothing)
                while not wait([upcoming], timeout=_PATIENCE).done:
                    if self:
                        return
                item: Any = upcoming.result()
                if item is nothing:
                    return
                yield item
        finally:
            thread.shutdown(wait=False)
            is_done = upcoming is None or wait([upcoming], timeout=LONGEST_END).done
            if is_done and isinstance(making, Generator):
                making.close()


@contextmanager
def stop_requests(message: str) -> Iterator[StopRequest]:
    """Gives an object that hears signals in the block. The first one prints the message on stderr, a second one
    interrupts the block."""
    request = StopRequest()

    def receive(number: int) -> None:
        if request:
            _interrupt(number)
        request.number = number
        say(f"\nhf-video: {message}; once more gives up what is not saved.")

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Under `nohup` SIGHUP is ignored, and stays so.
    heard = [each for each in numbers if each == signal.SIGINT or signal.getsignal(each) != signal.SIG_IGN]
    with _received(receive, heard):
        yield request


def end_process(code: int) -> None:
    """Ends the process with an exit code if a thread still waits for a silent stream. Python would wait for it.

    Otherwise Python ends it, and looks for no garbage before, which would take most of a second."""
    for thread in [each for each in threading.enumerate() if each.name.startswith(_MAKING)]:
        thread.join(_PATIENCE)
        if thread.is_alive():
            for output in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    output.flush()
            os._exit(code)
    gc.freeze()
