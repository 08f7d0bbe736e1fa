"""Turns errors that a user can cause into sentences: a table by the class of the error.

Classes are given by name, so that no library is imported in order to explain its errors. The file or model that an
error is about comes from `naming`, where it is opened or loaded.
"""

import errno
import os
import re
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from hf_video.io import FULL_DISK, write_error_number

USER_ERRORS = (ValueError, OSError, ImportError)
OUT_OF_MEMORY = re.compile(r"out of memory|not enough memory|can(no|')t allocate memory|ALLOC_FAILED")
LESS_MEMORY = (
    ": take a smaller --batch-size (`watch`: --chunk-size), fewer or smaller frames, fewer --num-workers, or --dtype "
    "bfloat16, where the command has them."
)
DEAD_PROCESS = (
    ", most often because memory ran out: take fewer --num-workers or a smaller --batch-size, and in a container more "
    "shared memory (docker run --shm-size)."
)
OFFLINE = "{repository} is not on this machine, and HF_HUB_OFFLINE is set: unset it, or fetch it with `hf download`."
DAMAGED = "{file} cannot be read: it is cut off or damaged, or a value in it is not as expected ({error})."


def explain(error: BaseException, about: str | None = None) -> str | None:
    """A line that says what went wrong: the file or value, and the way out.

    Args:
        error: the error that ended a command.
        about: the file or model that it is about; by default that of `naming`.

    Returns:
        The line, or `None` if no input explains the error: then hf-video has a bug.
    """
    if "in DataLoader worker process" in str(error):
        return _of_worker(error)
    before = named = None
    for cause in chain(error):
        if about is None and before is not None and before.__cause__ is not cause:
            break  # a bug in the handling of another error
        if about is None and (about := vars(cause).get("about")):
            named = cause
        for base in type(cause).__mro__:
            row = SENTENCES.get(f"{base.__module__}.{base.__qualname__}", "")
            if sentence := _fill(row, cause, about) if isinstance(row, str) else row(cause, about):
                return sentence
        # Another library raised what is about a file: what led to it may say more.
        if isinstance(cause, USER_ERRORS) and about is None:
            return str(cause) or type(cause).__name__
        before = cause
    if named is None:
        return None
    return _fill("{file} cannot be loaded: {error}" if isinstance(named, OSError) else DAMAGED, named, about)


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
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
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
    names = {"file": about or "A file", "repository": about or "The repository"}
    return sentence.format(**names, error=kind + _shorten(error), raw=error)


def _of_worker(error: BaseException) -> str | None:
    """A sentence about an error in a process that reads data. PyTorch puts the traceback of the process before it."""
    *_, last = re.split(r"^(?=[\w.]+(?:Error|Exception): )", str(error).rstrip(), flags=re.MULTILINE)
    name, _, message = last.partition(": ")
    if name.endswith("MemoryError") or OUT_OF_MEMORY.search(message):
        return f"Memory was not enough{LESS_MEMORY}"
    return message.strip() if isinstance(error, USER_ERRORS) else None


def _of_accelerator(error: BaseException, about: str | None) -> str:
    found = re.search(r"Tried to allocate [\d.]+ \w+", str(error))
    return f"The memory of the accelerator was not enough{f' ({found[0]})' if found else ''}{LESS_MEMORY}"


def _of_number(error: BaseException, about: str | None) -> str | None:
    """A sentence about an error that the system reports by its number, such as a full disk."""
    number, file = write_error_number(error), getattr(error, "filename", None)
    if number in FULL_DISK:
        return (
            f"{file or about or 'The output'} could not be written ({os.strerror(number)}): make room on its disk, or "
            "choose a folder on another one. Files that were complete before are unchanged."
        )
    if is_out_of_memory(error):
        return f"Memory was not enough{LESS_MEMORY}"
    return None if number is None or file is None else f"{os.fspath(file)}: {os.strerror(number)}."


def _of_message(error: BaseException, about: str | None) -> str | None:
    """A sentence about an error that only its message tells from others of its class."""
    text = " ".join(map(str, chain(error)))  # of two errors about a process, the inner one names the signal
    if is_out_of_memory(error) and "CPU" not in str(error):
        return _of_accelerator(error, about)
    found = re.search(r"DataLoader worker \(pid (\d+)\) is (killed by signal: [\w ]+)", text) or re.search(
        r"DataLoader worker \(pid\(s\) ([\d, ]+)\) (exited)", text
    )
    if found:
        return f"A process that reads videos died (pid {found[1]}; {found[2].strip()}){DEAD_PROCESS}"
    is_lost = re.search(r"by peer|remote process exited|connectFullMesh failed", text, flags=re.IGNORECASE)
    if is_lost and re.search("gloo|nccl", text, flags=re.IGNORECASE):
        return "Another process of this training has ended or cannot be reached: its own message says why."
    if "home directory" in text:
        return "A path begins with ~ and there is no such user, or no home folder is known. Write ./~name for a file."
    return _of_number(error, about)


def _of_missing_entry(error: BaseException, about: str | None) -> str | None:
    """A sentence about a file that is not in the cache of the Hub. Without a cause, nobody asked the Hub."""
    return _fill(OFFLINE, error, about) if error.__cause__ is None else explain(error.__cause__, about)


def _shorten(error: BaseException) -> str:
    return textwrap.shorten(str(error), 300, placeholder=" ...") or type(error).__name__


SENTENCES: dict[str, str | Callable[[BaseException, str | None], str | None]] = {
    "huggingface_hub.errors.GatedRepoError": (
        "{repository} is gated on the Hub: ask for access on its page, then log in with `hf auth login` or set "
        "HF_TOKEN."
    ),
    "huggingface_hub.errors.RevisionNotFoundError": "{repository} has no such revision on the Hub.",
    "huggingface_hub.errors.RepositoryNotFoundError": (
        "{repository} is neither a folder here nor a repository on the Hub that you can see: check the name; for a "
        "private one log in with `hf auth login` or set HF_TOKEN."
    ),
    "huggingface_hub.errors.OfflineModeIsEnabled": OFFLINE,
    "huggingface_hub.errors.LocalEntryNotFoundError": _of_missing_entry,
    "huggingface_hub.errors.HfHubHTTPError": "The Hub refused a request about {repository}: {error}",
    **dict.fromkeys(
        ("httpx.TransportError", "httpx2.TransportError"),
        "{repository} could not be fetched, since the Hub does not answer ({error}): check the connection, "
        "HF_ENDPOINT and the proxies, or name a folder on this machine.",
    ),
    **dict.fromkeys(
        (f"{client}.{name}" for client in ("httpx", "httpx2") for name in ("InvalidURL", "UnsupportedProtocol")),
        "An address is not valid ({error}): look at HF_ENDPOINT, the proxies, and the URLs given.",
    ),
    "torch.OutOfMemoryError": _of_accelerator,
    "builtins.MemoryError": _of_number,
    "concurrent.futures.process.BrokenProcessPool": f"A process that reads videos died{DEAD_PROCESS}",
    "builtins.RuntimeError": _of_message,
    "builtins.OSError": _of_number,
    "safetensors._safetensors_rust.SafetensorError": lambda *given: _of_number(*given) or _fill(DAMAGED, *given),
    "_pickle.UnpicklingError": DAMAGED,
    "builtins.EOFError": DAMAGED,
    "builtins.UnicodeDecodeError": DAMAGED,
    "json.decoder.JSONDecodeError": DAMAGED,
    "yaml.error.YAMLError": DAMAGED,
    "builtins.UnicodeEncodeError": "{raw.object!r} has characters that {raw.encoding} does not have: rename the file.",
}
