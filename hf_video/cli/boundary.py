"""Runs a command and turns an error into one line and an exit code, and SIGTERM into an interrupt."""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from hf_video.processes import is_first_process

from . import BUG, CLOSED_OUTPUT, INTERRUPTED, TERMINATED, USER_ERROR
from .error_messages import chain, explain, report_bug

# Whether an error is raised with its traceback.
_debugging = False


def is_debugging() -> bool:
    """Whether the user asked for the tracebacks of errors."""
    return _debugging


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM. It ends as after Ctrl-C."""


def run_guarded(name: str, words: Sequence[str], command: Callable[[Sequence[str]], int | None]) -> int:
    """Runs a command, and turns an error into one line on stderr and an exit code.

    Args:
        name: name of the program, which begins each message.
        words: words of the command line. With `--debug` among them, an error is raised with its traceback.
        command: function that takes the words and returns an exit code, or `None` for 0.

    Returns:
        An exit code, see `hf_video.cli.EXIT_CODES`.
    """
    global _debugging
    _debugging = "--debug" in words
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file name may have bytes that are not UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _sigterm_interrupts():
            try:
                code = command(words) or 0
            except SystemExit as exit_request:  # argparse has already printed help or the mistake
                code = int(exit_request.code or 0)
            if sys.stdout is not None:
                sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        is_terminated = any(isinstance(each, Terminated) for each in chain(interrupt, hidden=True))
        # A launcher hands a signal on to all processes.
        if is_first_process():
            _say(f"\n{name}: {'terminated' if is_terminated else 'interrupted'}. {interrupt}".rstrip())
        return TERMINATED if is_terminated else INTERRUPTED
    except BrokenPipeError:
        return CLOSED_OUTPUT
    except Exception as error:
        if _debugging:
            raise
        sentence = explain(error)
        _say(f"{name}: {report_bug(error)}" if sentence is None else f"{name}: error: {sentence}")
        return BUG if sentence is None else USER_ERROR
    finally:
        _drop_what_cannot_be_printed()


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Makes SIGTERM raise `Terminated` in the block, unless the program handles the signal already."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def terminate(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a forked worker, ended by its parent process
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _say(text: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def _drop_what_cannot_be_printed() -> None:
    """Drops output that cannot be written. Otherwise Python tries again at its exit, and prints an error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
