"""Turns the errors of other libraries that a user can cause into sentences.

Errors are recognised by the names of their classes, so that no library is imported in order to explain its errors.
"""

import errno
import json
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from hf_video.files import FULL_DISK, write_error_number

ISSUES = "https://github.com/hf-video/hf-video/issues"
OURS = {"hf_video", "conversion"}
USER_ERRORS = (ValueError, OSError, ImportError)
OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate memory|cannot allocate memory|ALLOC_FAILED"
)
# Local variables that hold the name of a file, in functions of other libraries that read and write files.
FILE_NAMES = (
    "filename",
    "checkpoint_file",
    "resolved_file",
    "file_path",
    "json_file",
    "path",
    "save_path",
    "file",
    "f",
)
REPOSITORY_NAMES = ("repo_id", "path_or_repo_id", "pretrained_model_name_or_path")
MODEL_NAMES = ("pretrained_model_name_or_path", "model", "source", "model_id")
HTTP_CLIENTS = ("httpx", "httpx2")
# The file that describes an object in a folder of `save_pretrained`, by the class of the object.
FILES_OF_CLASSES = {
    "AutoConfig": "config.json",
    "PreTrainedConfig": "config.json",
    "GenerationConfig": "generation_config.json",
    "BaseVideoProcessor": "video_preprocessor_config.json or preprocessor_config.json",
    "ImageProcessingMixin": "preprocessor_config.json",
    "FeatureExtractionMixin": "preprocessor_config.json",
    "ProcessorMixin": "processor_config.json",
    "PreTrainedTokenizerBase": "tokenizer.json, tokenizer_config.json or special_tokens_map.json",
    "PreTrainedModel": "config.json or in the weights",
}


def explain(error: Exception) -> str | None:
    """A line that says what went wrong: the file or value, and the way out.

    Args:
        error: the error that ended a command.

    Returns:
        The line, or `None` if no input explains the error: then it is a bug of ours.
    """
    if isinstance(error, USER_ERRORS) and _is_ours(error):
        return str(error)
    if "in DataLoader worker process" in str(error):
        return _of_worker(error)
    for cause in chain(error):
        for explanation in (_of_memory, _of_disk, _of_worker_death, _of_lost_process, _of_home):
            if isinstance(cause, Exception) and (sentence := explanation(cause)):
                return sentence
    sentence = _of_setting(error) or _of_hub(error) or _of_model(error) or _of_file(error)
    return _shorten(error) if sentence is None and isinstance(error, USER_ERRORS) else sentence


def report_bug(error: Exception) -> str:
    """A line about an error that no input explains."""
    frames = list(_frames(error))
    ours = next((frame for frame in frames if _package(frame) in OURS), None)
    place = "" if ours is None else f" in {ours.f_globals['__name__']}.{ours.f_code.co_name}"
    return (
        f"internal error: {type(error).__name__}{place}: {_shorten(error)} This is a bug of hf-video. Please report "
        f"it at {ISSUES}, with the output of `hf-video env` and that of the same command with --debug."
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


def _of_worker(error: Exception) -> str | None:
    """A sentence about an error in a process that reads data. PyTorch puts the traceback of the process before it."""
    *_, last = re.split(r"^(?=[\w.]+(?:Error|Exception): )", str(error).rstrip(), flags=re.MULTILINE)
    name, _, message = last.partition(": ")
    message = message.strip()
    if name.endswith("MemoryError") or OUT_OF_MEMORY.search(message):
        return _memory_sentence("Memory", "")
    return message if isinstance(error, USER_ERRORS) else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the machine or of its accelerator was not enough."""
    return (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) == errno.ENOMEM
        or (isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None)
    )


def _of_memory(error: Exception) -> str | None:
    if _is_a(error, "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"):
        found = re.search(r"Tried to allocate [\d.]+ \w+", str(error))
        return _memory_sentence("The memory of the accelerator", f" ({found[0]})" if found else "")
    if not is_out_of_memory(error):
        return None
    is_on_accelerator = isinstance(error, RuntimeError) and "CPU" not in str(error)
    return _memory_sentence("The memory of the accelerator" if is_on_accelerator else "Memory", "")


def _memory_sentence(what: str, detail: str) -> str:
    return (
        f"{what} was not enough{detail}: take a smaller --batch-size (`watch`: --chunk-size), fewer or smaller "
        "frames, fewer --num-workers, or --dtype bfloat16, where the command has them."
    )


def _of_disk(error: Exception) -> str | None:
    number = write_error_number(error)
    if number not in FULL_DISK:
        return None
    file = getattr(error, "filename", None) or _file_at_hand(error) or "The output"
    return (
        f"{file} could not be written ({os.strerror(number)}): make room on its disk, or choose a folder on another "
        "one. Files that were complete before are unchanged."
    )


def _of_lost_process(error: Exception) -> str | None:
    """A sentence about a message to another process of the training that did not arrive."""
    text = str(error)
    is_lost = re.search(r"by peer|remote process exited|connectFullMesh failed", text, flags=re.IGNORECASE)
    if not is_lost or not re.search("gloo|nccl", text, flags=re.IGNORECASE):
        return None
    return "Another process of this training has ended or cannot be reached: its own message says why."


def _of_worker_death(error: Exception) -> str | None:
    # The outer error names the process, the inner one the signal.
    text = " ".join(map(str, chain(error)))
    found = re.search(r"DataLoader worker \(pid (\d+)\) is (killed by signal: [\w ]+)", text) or re.search(
        r"DataLoader worker \(pid\(s\) ([\d, ]+)\) (exited)", text
    )
    if found is None and not _is_a(error, "concurrent.futures.process.BrokenProcessPool"):
        return None
    who = f" (pid {found[1]}; {found[2].strip()})" if found else ""
    return (
        f"A process that reads videos died{who}, most often because memory ran out: take fewer --num-workers or a "
        "smaller --batch-size, and in a container more shared memory (docker run --shm-size)."
    )


def _of_setting(error: Exception) -> str | None:
    """A sentence about a mapping with a name that `TrainingArguments` does not know."""
    modules = [frame.f_globals.get("__name__") for frame in _frames(error)]
    if not isinstance(error, TypeError | KeyError | AttributeError) or "transformers.training_args" not in modules:
        return None
    return f"A setting of TrainingArguments has a value that cannot be used: {_shorten(error)}"


def _of_hub(error: Exception) -> str | None:
    causes = list(chain(error))

    def is_one(*names: str) -> BaseException | None:
        return next((cause for cause in causes if _is_a(cause, *names)), None)

    repo = next((name for local in REPOSITORY_NAMES if (name := _local(error, local))), "The repository")
    if is_one("huggingface_hub.errors.GatedRepoError"):
        return (
            f"{repo} is gated on the Hub: ask for access on its page, then log in with `hf auth login` or set "
            "HF_TOKEN."
        )
    if is_one("huggingface_hub.errors.RevisionNotFoundError"):
        return f"{repo} has no such revision on the Hub."
    if is_one("huggingface_hub.errors.RepositoryNotFoundError"):
        return (
            f"{repo} is no folder here, and no repository on the Hub that you can see: check the name; for a private "
            "one log in with `hf auth login` or set HF_TOKEN."
        )
    is_local_miss = is_one("huggingface_hub.errors.LocalEntryNotFoundError")
    if is_one("huggingface_hub.errors.OfflineModeIsEnabled") or (is_local_miss and _is_offline()):
        return (
            f"{repo} is not on this machine, and HF_HUB_OFFLINE is set: unset it, or fetch it first with `hf "
            "download`."
        )
    names = [f"{client}.{name}" for client in HTTP_CLIENTS for name in ("InvalidURL", "UnsupportedProtocol")]
    if cause := is_one(*names) or next(filter(_is_of_address, causes), None):
        return f"An address is not valid ({_shorten(cause)}): look at HF_ENDPOINT, the proxies, and the URLs given."
    if cause := is_one(*(f"{client}.TransportError" for client in HTTP_CLIENTS)) or is_local_miss:
        return (
            f"{repo} could not be fetched, since the Hub does not answer ({_shorten(cause)}): check the connection, "
            "HF_ENDPOINT and the proxies, or name a folder on this machine."
        )
    if cause := is_one("huggingface_hub.errors.HfHubHTTPError"):
        return f"The Hub refused a request about {repo}: {_shorten(cause)}"
    return None


def _is_offline() -> bool:
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def _is_of_address(error: BaseException) -> bool:
    """Whether the code that parses addresses raised the error."""
    frames = _frames(error)
    return isinstance(error, ValueError) and bool(frames) and _package(frames[0]) in ("urllib", *HTTP_CLIENTS)


def _of_home(error: Exception) -> str | None:
    if not (isinstance(error, RuntimeError) and "home directory" in str(error)):
        return None
    path = _local(error, "self")
    named = f"{path}: there" if isinstance(path, Path) else "There"
    return f"{named} is no such user, or no home folder is known. A name that begins with ~ is written ./~ ."


def _of_model(error: Exception) -> str | None:
    """A sentence about an error of `from_pretrained`, which names the file that is damaged or has a wrong value."""
    frames = _frames(error)
    loading = [frame for frame in frames if frame.f_code.co_name in ("from_pretrained", "from_dict")]
    loading = [frame for frame in loading if _package(frame) in ("transformers", "peft", *OURS)]
    if not loading:
        return None
    named = (frame.f_locals.get(local) for frame in frames for local in MODEL_NAMES)
    name = next((os.fspath(value) for value in named if isinstance(value, str | os.PathLike)), "The model")
    if damage := next(_damages(Path(name)), None):
        return f"{name} cannot be loaded: {damage}. Get the file again from where the folder comes from."
    if isinstance(error, OSError):
        return f"{name} cannot be loaded: {_shorten(error)}"
    classes = (type_ for frame in loading if isinstance(type_ := frame.f_locals.get("cls"), type))
    files = (FILES_OF_CLASSES.get(base.__name__) for type_ in classes for base in type_.__mro__)
    file = next((file for file in files if file), "its files")
    kind = "" if isinstance(error, USER_ERRORS) else f"{type(error).__name__}: "
    return f"{name} cannot be loaded: a value in {file} is missing, or not as expected ({kind}{_shorten(error)})."


def _damages(folder: Path) -> Iterator[str]:
    """For each file of a folder that cannot be read at all: a clause with its name and the reason."""
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            yield f"{file.name} is no readable JSON ({_shorten(error)})"
        else:
            if file.name.endswith("config.json") and not isinstance(content, dict):
                yield f"{file.name} holds a {type(content).__name__}, where a JSON object is expected"
    for file in sorted(folder.glob("*.safetensors")):
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "pt"):
                pass
        except (OSError, SafetensorError) as error:
            yield f"{file.name} is cut off or damaged ({_shorten(error)})"


def _of_file(error: Exception) -> str | None:
    """A sentence about a file whose content is not what its reader expects."""
    modules = [str(frame.f_globals.get("__name__")) for frame in _frames(error)]
    is_torch_file = "torch.serialization" in modules
    is_text = any(module.partition(".")[0] in ("json", "yaml", "csv") for module in modules)
    is_damaged = (
        type(error).__name__ in ("SafetensorError", "UnpicklingError")
        or isinstance(error, EOFError)
        or (isinstance(error, RuntimeError | KeyError | AttributeError) and is_torch_file)
        or (isinstance(error, RecursionError) and is_text)
        or _is_a(error, "json.decoder.JSONDecodeError", "yaml.error.YAMLError")
        or isinstance(error, UnicodeDecodeError)
    )
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r} has characters that {error.encoding} does not have: rename the file."
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fspath(error.filename)}: {error.strerror}."
    if not is_damaged:
        return None
    file = _file_at_hand(error)
    return f"{file or 'A file'} cannot be read: it is cut off, damaged, or of another format ({_shorten(error)})."


def _frames(error: BaseException) -> list[FrameType]:
    """The frames of an error's traceback, the innermost first."""
    frames, traceback = [], error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames[::-1]


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_ours(error: BaseException) -> bool:
    """Whether our own code raised the error: then its message is a sentence already. Errors with an `errno` are
    Python's."""
    frames = _frames(error)
    is_python = getattr(error, "errno", None) is not None or isinstance(error, UnicodeError)
    return bool(frames) and _package(frames[0]) in OURS and not is_python


def _is_a(error: BaseException, *names: str) -> bool:
    return any(f"{type_.__module__}.{type_.__qualname__}" in names for type_ in type(error).__mro__)


def _local(error: BaseException, name: str) -> Any:
    """The value of a local variable in the innermost function that has it, at the error or at one that led to it."""
    for each in [error, *chain(error)]:
        for frame in _frames(each):
            if frame.f_locals.get(name) is not None:
                return frame.f_locals[name]
    return None


def _file_at_hand(error: BaseException) -> str | None:
    """The file that was read or written when the error came."""
    for frame in _frames(error):
        for name in FILE_NAMES:
            value = frame.f_locals.get(name)
            value = getattr(value, "name", value) if not isinstance(value, os.PathLike) else value
            if isinstance(value, str | os.PathLike) and str(value):
                return os.fspath(value)
    return None


def _shorten(error: BaseException) -> str:
    text = textwrap.shorten(str(error), 300, placeholder=" ...")
    return text or type(error).__name__
