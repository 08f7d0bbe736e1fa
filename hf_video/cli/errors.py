"""How a command ends: an error becomes one line on stderr and an exit code.

Errors that a user can cause have sentences in a table by the class of the error. Classes are given by name, so that no
library is imported in order to explain its errors. The file or model that an error is about comes from `naming`, where
it is opened or loaded.
"""

import errno
import io
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hf_video.io import FULL_DISK, write_error_number
from hf_video.processes import is_first_process

from . import BUG, CLOSED_OUTPUT, INTERRUPTED, TERMINATED, USER_ERROR
from .printing import say
from .signals import Terminated, signals_interrupt

USER_ERRORS = (ValueError, OSError, ImportError)
OUT_OF_MEMORY = re.compile(r"out of memory|not enough memory|can(no|')t allocate memory|ALLOC_FAILED")
LESS_MEMORY = (
    ": take a smaller --batch-size (`watch`: --chunk-size), fewer or smaller frames, fewer --num-workers, or --dtype "
    "bfloat16, where the command has them."
)
DEAD_PROCESS = (
    "A process that reads videos died{which}, most often because memory ran out: take fewer --num-workers or a "
    "smaller --batch-size, and in a container more shared memory (docker run --shm-size)."
)
OFFLINE = (
    "{about} is no folder here and not in the cache of the Hub, and HF_HUB_OFFLINE is set: unset it, or fetch it with "
    "`hf download`."
)
DAMAGED = "{about} cannot be read: it is cut off or damaged, or a value in it is not as expected ({error})."

# Whether an error is raised with its traceback.
_debugging = False


def is_debugging() -> bool:
    """Whether the user asked for the tracebacks of errors."""
    return _debugging


def run_guarded(name: str, words: Sequence[str], command: Callable[[Sequence[str]], int | None]) -> int:
    """Runs a command with the words of its command line, and gives the exit code (`EXIT_CODES`). An error becomes one
    line on stderr, which begins with the name of the program; with `--debug` among the words it is raised."""
    global _debugging
    _debugging = "--debug" in words
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file name may have bytes that are not UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with signals_interrupt() as received:
            try:
                code = command(words) or 0
            except SystemExit as exit_request:  # argparse has already printed help or the mistake
                code = int(exit_request.code or 0)
            except Exception as error:
                if not received or _debugging:
                    raise
                # A library made another error of the interruption, as imports do.
                raise (Terminated if signal.SIGTERM in received else KeyboardInterrupt) from error
            if sys.stdout is not None:
                sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        is_terminated = any(isinstance(each, Terminated) for each in chain(interrupt, hidden=True))
        # A launcher hands a signal on to all processes.
        if is_first_process():
            say(f"\n{name}: {'terminated' if is_terminated else 'interrupted'}. {interrupt}".rstrip())
        return TERMINATED if is_terminated else INTERRUPTED
    except BrokenPipeError:
        return CLOSED_OUTPUT
    except Exception as error:
        if _debugging:
            raise
        sentence = explain(error)
        say(f"{name}: {report_bug(error)}" if sentence is None else f"{name}: error: {sentence}")
        return BUG if sentence is None else USER_ERROR
    finally:
        # Python would try again at its exit to write what cannot be written, and print an error.
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain(error: BaseException, about: str | None = None) -> str | None:
    """A line that says what went wrong: the file or value, and the way out. None if no input explains the error: then
    hf-video has a bug. `about` is the file or model of the error, by default that of `naming`."""
    if "in DataLoader worker process" in str(error):
        return _of_worker(error)
    before = named = None
    for cause in chain(error):
        if about is None and before is not None and before.__cause__ is not cause:
            break  # a bug in the handling of another error
        if about is None and (about := vars(cause).get("about")):
            named = cause
        for base in type(cause).__mro__:
            row = SENTENCES.get(base.__name__, "")
            if sentence := _fill(row, cause, about) if isinstance(row, str) else row(cause, about):
                return sentence
        # Another library raised what is about a file: what led to it may say more.
        if isinstance(cause, USER_ERRORS) and about is None:
            return str(cause) or type(cause).__name__
        before = cause
    if named is None:
        return None
    return _fill("{about} cannot be loaded: {error}" if isinstance(named, OSError) else DAMAGED, named, about)


def report_bug(error: Exception) -> str:
    """A line about an error that no input explains."""
    ours = [each for each in traceback.extract_tb(error.__traceback__) if "hf_video" in Path(each.filename).parts]
    where = "".join(f" in {each.name} ({Path(each.filename).name}, line {each.lineno})" for each in ours[-1:])
    return (
        f"internal error: {type(error).__name__}{where}: {_shorten(error)} This is a bug of hf-video. Please report "
        "it at https://github.com/hf-video/hf-video/issues, with the output of `hf-video env` and that of the same "
        "command with --debug."
    )


def chain(error: BaseException, hidden: bool = False) -> Iterator[BaseException]:
    """An error and the errors that led to it; with `hidden` also those that `from None` hides."""
    found: BaseException | None = error
    while found is not None:
        yield found
        context = None if found.__suppress_context__ and not hidden else found.__context__
        found = found.__cause__ or context


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the machine or of its accelerator was not enough."""
    return (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) == errno.ENOMEM
        or (isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None)
    )


def _fill(sentence: str, error: BaseException, about: str | None) -> str:
    kind = "" if isinstance(error, USER_ERRORS) else f"{type(error).__name__}: "
    return sentence.format(about=about or "What was asked for", error=kind + _shorten(error), which="")


def _shorten(error: BaseException) -> str:
    return textwrap.shorten(str(error), 300, placeholder=" ...") or type(error).__name__


def _of_worker(error: BaseException) -> str | None:
    """A sentence about an error in a process that reads data. PyTorch puts the traceback of the process before it."""
    *_, last = re.split(r"^(?=[\w.]+(?:Error|Exception): )", str(error).rstrip(), flags=re.MULTILINE)
    name, _, message = last.partition(": ")
    if name.endswith("MemoryError") or OUT_OF_MEMORY.search(message):
        return f"Memory was not enough{LESS_MEMORY}"
    return message.strip() if isinstance(error, USER_ERRORS) else None


def _of_number(error: BaseException, about: str | None) -> str | None:
    """A sentence about an error that the system reports by its number, such as a full disk."""
    number, file = write_error_number(error), getattr(error, "filename", None)
    if number in FULL_DISK:
        return (
            f"{file or about or 'The output'} could not be written ({os.strerror(number)}): make room on its disk, or "
            "choose a folder on another one. Files that were complete before are unchanged."
        )
    if is_out_of_memory(error):
        found = re.search(r"Tried to allocate [\d.]+ \w+", str(error))
        place = "" if "CPU" in str(error) or not isinstance(error, RuntimeError) else " of the accelerator"
        return f"The memory{place} was not enough{f' ({found[0]})' if found else ''}{LESS_MEMORY}"
    return None if number is None or file is None else f"{os.fspath(file)}: {os.strerror(number)}."


def _of_message(error: BaseException, about: str | None) -> str | None:
    """A sentence about an error that only its message tells from others of its class."""
    text = " ".join(map(str, chain(error)))  # of two errors about a process, the inner one names the signal
    worker = r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:is )?"
    found = re.search(rf"{worker}(killed by signal: [\w ]+)", text) or re.search(rf"{worker}(exited)", text)
    if found:
        return DEAD_PROCESS.format(which=f" (pid {found[1]}; {found[2].strip()})")
    is_lost = re.search(r"by peer|remote process exited|connectFullMesh failed", text, flags=re.IGNORECASE)
    if is_lost and re.search("gloo|nccl", text, flags=re.IGNORECASE):
        return "Another process of this training has ended or cannot be reached: its own message says why."
    return _of_number(error, about)


def _of_missing_entry(error: BaseException, about: str | None) -> str | None:
    """A sentence about a file that is not in the cache of the Hub. Without a cause, nobody asked the Hub."""
    return _fill(OFFLINE, error, about) if error.__cause__ is None else explain(error.__cause__, about)


SENTENCES: dict[str, str | Callable[[BaseException, str | None], str | None]] = {
    # of the Hub and of what fetches from it
    "GatedRepoError": (
        "{about} is gated on the Hub: ask for access on its page, then log in with `hf auth login` or set HF_TOKEN."
    ),
    "RevisionNotFoundError": "{about} has no such revision on the Hub.",
    "RepositoryNotFoundError": (
        "{about} is neither a folder here nor a repository on the Hub that you can see: check the name; for a private "
        "one log in with `hf auth login` or set HF_TOKEN."
    ),
    "OfflineModeIsEnabled": OFFLINE,
    "LocalEntryNotFoundError": _of_missing_entry,
    "HfHubHTTPError": "The Hub refused a request about {about}: {error}",
    "TransportError": (
        "{about} is no folder here, and could not be fetched, since the Hub does not answer ({error}): check the "
        "name, the connection, HF_ENDPOINT and the proxies."
    ),
    # of damaged files
    "SafetensorError": lambda *given: _of_number(*given) or _fill(DAMAGED, *given),
    **dict.fromkeys(("UnpicklingError", "EOFError", "UnicodeDecodeError", "JSONDecodeError", "YAMLError"), DAMAGED),
    # of the machine
    "OutOfMemoryError": _of_number,
    "MemoryError": _of_number,
    "BrokenProcessPool": DEAD_PROCESS,
    "RuntimeError": _of_message,
    "OSError": _of_number,
}
