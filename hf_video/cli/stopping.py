"""How commands that go on for hours stop at a signal, and keep what they have."""

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from .boundary import Terminated

Item = TypeVar("Item")


class _Stopped(BaseException):
    """Ends the making of the next item."""


class StopRequest:
    """Whether Ctrl-C, SIGTERM or SIGHUP was received.

    Attributes:
        number: the first of these signals, or None.
    """

    def __init__(self, message: str):
        self.number: int | None = None
        self._message = message
        self._is_waiting = False

    def __bool__(self) -> bool:
        return self.number is not None

    def interrupt(self, message: str) -> KeyboardInterrupt:
        """The error to end the command with, after everything is saved."""
        return (Terminated if self.number == signal.SIGTERM else KeyboardInterrupt)(message)

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items until a signal comes. It also ends the making of an item, such as waiting for a stream."""
        iterator = iter(items)
        while self.number is None:
            try:
                self._is_waiting = True
                item = next(iterator)
                self._is_waiting = False
            except (StopIteration, _Stopped):
                return
            finally:
                self._is_waiting = False
            yield item

    def _receive(self, number: int, frame: Any) -> None:
        if self.number is not None:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.number = number
        # After SIGHUP there may be no terminal.
        with suppress(OSError):
            print(f"\nhf-video: {self._message}; once more gives up what is not saved.", file=sys.stderr)
        if self._is_waiting:
            self._is_waiting = False
            raise _Stopped


@contextmanager
def stop_requests(message: str) -> Iterator[StopRequest]:
    """Gives an object that hears signals in the block. A second signal interrupts the block.

    Args:
        message: says on stderr what happens after the first signal.
    """
    request = StopRequest(message)
    signals = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Under `nohup` SIGHUP is ignored, and stays so.
    heard = [number for number in signals if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, request._receive) for number in heard}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def collected(errors: list[Exception]) -> Iterator[None]:
    """Collects an error of the block, so that the next step runs all the same."""
    try:
        yield
    except Exception as error:
        errors.append(error)
