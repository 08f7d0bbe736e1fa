"""How commands that go on for hours stop at a signal, and keep what they have."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from .boundary import Terminated

Item = TypeVar("Item")

# Seconds between two looks at whether a signal came.
_PATIENCE = 0.1
# Seconds that the end of a command waits for the item that is being made.
LONGEST_END = 1.0
# Items that nobody waits for any more.
abandoned: list[Future] = []


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
        if self._upcoming is not None and wait([self._upcoming], timeout=LONGEST_END).not_done:
            abandoned.append(self._upcoming)
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
    """Ends the process with an exit code if a thread still waits for a silent stream. Python would wait for it.

    Otherwise Python ends it, and looks for no garbage before, which would take most of a second."""
    if any(not item.done() for item in abandoned):
        for output in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                output.flush()
        os._exit(code)
    gc.freeze()
