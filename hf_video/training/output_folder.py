"""Guards what a command writes: files of the user are kept, and one run writes a folder at a time."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from hf_video.io import FULL_DISK, read_own_json, replace_text, write_error_number
from hf_video.output_folders import LOCK_FILE, RunLock, is_unfinished_file, require_fresh
from hf_video.processes import is_first_process
from hf_video.reading.sources import is_url

OPTIONS_FILE = "train_options.json"
ANSWERS_FILE = "answers.json"
# Our files, and keys that tell them from a user's file of the same name.
_OWN_FILES = {
    OPTIONS_FILE: {"model", "num_train_epochs", "data"},
    "training_facts.json": {"model", "recipe", "versions", "hardware"},
    "trained_videos.json": {"columns", "splits"},
    ANSWERS_FILE: {"split", "num_videos", "top1", "videos"},
}
_WAYS_OUT = "Choose another folder, or let --overwrite-output-dir rename it out of the way."
# Seconds that a restarted run waits for the lock. Schedulers give a run that they end up to a minute, and network file
# systems keep the lock of a machine that is gone for about a minute and a half.
PATIENCE_OF_RESTART = 300


def _ways_out(folder: Path) -> str:
    if not _has_checkpoint(folder):
        return _WAYS_OUT
    return f"Continue the run in it with --resume, or {_WAYS_OUT[0].lower()}{_WAYS_OUT[1:]}"


def _has_checkpoint(folder: Path) -> bool:
    """Whether a run in this folder has a complete checkpoint."""
    from hf_video.training.checkpoints import newest_complete

    return newest_complete(folder)[0] is not None


def _has_begun(folder: Path) -> bool:
    """Whether a run in this folder has finished writing a checkpoint, which may be damaged by now."""
    from hf_video.training.checkpoints import numbered_checkpoints

    return any(not is_leftover(path) for path in numbered_checkpoints(folder))


def checkpoint_to_resume(
    folder: Path, lock: "RunLock", *, resume: Literal["must", "auto"] | None, overwrite: bool
) -> Path | None:
    """The newest complete checkpoint if a run is resumed ("auto": if there is one, after waiting for a run that is
    ending); None if a run begins. Takes the lock of a folder that is resumed or renamed, or that another run may be
    writing. What none of the options allows is a `ValueError`."""
    if resume and overwrite:
        raise ValueError("--resume continues a run, --overwrite-output-dir starts one afresh: choose one of them.")
    # The run that has the lock may write and delete checkpoints until it gives the lock back.
    if (folder / LOCK_FILE).exists() or (folder.is_dir() and (overwrite or (resume and _has_begun(folder)))):
        lock.take(folder, PATIENCE_OF_RESTART if resume == "auto" else 0)
    if not resume or (resume == "auto" and not _has_begun(folder)):
        if not overwrite:
            require_fresh(folder, _ways_out(folder), is_leftover=is_leftover)
        return None
    from hf_video.training.checkpoints import require_resumable

    checkpoint = last_checkpoint(folder)
    require_resumable(checkpoint)
    require_ours(folder)
    return checkpoint


def begin_writing(folder: Path, lock: "RunLock", *, resume: bool, overwrite: bool) -> None:
    """Makes the folder of a run and takes its lock; what is there is renamed if it is to be overwritten."""
    if overwrite:
        lock.release()
        move_aside(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock.take(folder)
    if not resume:
        require_fresh(folder, _ways_out(folder), is_leftover=is_leftover)
        clear_leftovers(folder)


def withdraw(folder: Path, lock: "RunLock", *, is_new: bool) -> None:
    """Removes what a run that began has written, and the folder that it made, if there is no checkpoint and nothing
    else to keep."""
    if not all(is_leftover(path) for path in folder.iterdir()):
        return
    clear_leftovers(folder)
    for name in _OWN_FILES:
        (folder / name).unlink(missing_ok=True)
    lock.release()
    if is_new:
        with suppress(OSError):  # another run has begun to write it
            folder.rmdir()


def withdraw_options(folder: Path, checkpoint: Path, options: str) -> None:
    """Gives the file of settings its content from before a run that went on, if the run has no new checkpoint."""
    from hf_video.training.checkpoints import newest_complete

    if newest_complete(folder)[0] == checkpoint:
        replace_text(folder / OPTIONS_FILE, options)


def check_none_inside(paths: Iterable[str], folder: Path) -> None:
    """Refuses to rename an output folder that training data lies in, with a `ValueError` that names the first."""
    for path in paths:
        if not is_url(path) and Path(path).expanduser().resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{path}, to train on, lies inside --output-dir ({folder}), which would be renamed.")


def is_leftover(path: Path) -> bool:
    """Whether a run that ended before its first complete checkpoint left this file or folder."""
    if path.name == LOCK_FILE or is_unfinished_file(path):
        return True
    if re.fullmatch(r"checkpoint-\d+", path.name) and path.is_dir() and not path.is_symlink():
        from hf_video.training.checkpoints import is_unfinished

        return is_unfinished(path)
    return path.name in _OWN_FILES and path.name != ANSWERS_FILE and _is_ours(path)


def clear_leftovers(folder: Path) -> None:
    """Deletes the unfinished checkpoints of a run that ended before its first complete checkpoint."""
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path)


def require_ours(folder: Path) -> None:
    """Refuses to write over files of the user that have the names of our files, with a `ValueError`."""
    for name in _OWN_FILES:
        if (folder / name).exists() and not _is_ours(folder / name):
            raise ValueError(
                f"{folder / name} is not a file of hf-video, and would be replaced: rename it, or choose another "
                "output folder."
            )


def move_aside(folder: Path) -> None:
    """Renames a folder to the first free FOLDER.backup-N and says so; does nothing if there is no folder."""
    if not folder.exists():
        return
    number = 1
    while (backup := folder.with_name(f"{folder.name}.backup-{number}")).exists():
        number += 1
    folder.rename(backup)
    print(f"{folder} was renamed to {backup}.")


def last_checkpoint(folder: Path, say: Callable[[str], Any] = print) -> Path:
    """The newest complete checkpoint in a folder that our trainers or `transformers.Trainer` wrote; `say` is told
    which newer ones were passed over, and why. Without any it is a `ValueError`."""
    from hf_video.training.checkpoints import newest_complete

    checkpoint, passed = newest_complete(folder)
    if checkpoint is None:
        why = f" ({'; '.join(passed)})" if passed else ""
        try:
            require_fresh(folder, "", is_leftover=is_leftover)
            way_out = "Leave --resume out."
        except ValueError:
            way_out = "Leave --resume out, and choose another folder or rename this one."
        raise ValueError(f"There is nothing to resume: {folder} has no complete checkpoint{why}. {way_out}")
    if passed and is_first_process():
        say(f"{checkpoint.name} is resumed; passed over as incomplete: {'; '.join(passed)}")
    return checkpoint


@contextmanager
def saying_what_was_kept(folder: Path, way_on: str) -> Iterator[None]:
    """Adds to the error of a run that a signal or a full disk ends which checkpoint is kept, and to `way_on` from
    it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(what_was_kept(folder, way_on)) from None
    except Exception as error:
        number = write_error_number(error)
        if number not in FULL_DISK:
            raise
        file = getattr(error, "filename", None) or folder
        raise OSError(
            f"{file} could not be written ({os.strerror(number)}): make room on its disk. "
            f"{what_was_kept(folder, way_on)}"
        ) from error


def what_was_kept(folder: Path, way_on: str) -> str:
    """A sentence on the checkpoint that a run which ends leaves."""
    try:
        kept = last_checkpoint(folder, say=lambda line: None)
    except ValueError:
        return "There was no checkpoint yet, so nothing of the training is kept."
    return f"{kept} is kept; {way_on} to continue from it."


def _is_ours(path: Path) -> bool:
    found = read_own_json(path)
    return isinstance(found, dict) and _OWN_FILES[path.name] <= found.keys()
