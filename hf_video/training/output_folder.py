"""Guards what a command writes: files of the user are kept, and one run writes a folder at a time."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from hf_video.io import FULL_DISK, read_own_json, write_error_number
from hf_video.output_folders import LOCK_FILE, OPTIONS_FILE, RunLock, is_unfinished_file, require_fresh
from hf_video.processes import is_first_process
from hf_video.reading import VideoReadError

from .checkpoints import is_unfinished, newest_complete, numbered_checkpoints, require_resumable

ANSWERS_FILE = "answers.json"
# What a run writes before its first checkpoint, and a key that tells it from a user's file of the same name.
_FIRST_FILES = {OPTIONS_FILE: "num_train_epochs", "training_facts.json": "hardware", "trained_videos.json": "splits"}
_WAYS_OUT = "Choose another folder, or let --overwrite-output-dir rename it out of the way."
# Seconds that a restarted run waits for the lock. Schedulers give a run that they end up to a minute, and network file
# systems keep the lock of a machine that is gone for about a minute and a half.
PATIENCE_OF_RESTART = 300


def _require_fresh(folder: Path) -> None:
    way_out = _WAYS_OUT
    if newest_complete(folder)[0] is not None:
        way_out = f"Continue the run in it with --resume, or {way_out[0].lower()}{way_out[1:]}"
    require_fresh(folder, way_out, is_leftover=is_leftover)


def checkpoint_to_resume(
    folder: Path, lock: RunLock, *, resume: Literal["must", "auto"] | None, overwrite: bool
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
            _require_fresh(folder)
        return None
    checkpoint = last_checkpoint(folder)
    require_resumable(checkpoint)
    return checkpoint


def _has_begun(folder: Path) -> bool:
    """Whether a run in this folder has finished writing a checkpoint, which may be damaged by now."""
    return any(not is_leftover(path) for path in numbered_checkpoints(folder))


def last_checkpoint(folder: Path) -> Path:
    """The newest complete checkpoint in a folder that our trainers or `transformers.Trainer` wrote; a line says which
    newer ones were passed over, and why. Without any it is a `ValueError`."""
    checkpoint, passed = newest_complete(folder)
    if checkpoint is None:
        why = f" ({'; '.join(passed)})" if passed else ""
        is_fresh = not folder.is_dir() or all(map(is_leftover, folder.iterdir()))
        raise ValueError(
            f"There is nothing to resume: {folder} has no complete checkpoint{why}. Leave --resume out"
            f"{'.' if is_fresh else ', and choose another folder or rename this one.'}"
        )
    if passed and is_first_process():
        print(f"{checkpoint.name} is resumed; passed over as incomplete: {'; '.join(passed)}")
    return checkpoint


def begin_writing(folder: Path, lock: RunLock, *, resume: bool, overwrite: bool) -> None:
    """Makes the folder of a run and takes its lock. What is there is renamed to the first free FOLDER.backup-N if it
    is to be overwritten; unfinished checkpoints of a run that ended before its first complete one are deleted."""
    if overwrite and folder.exists():
        lock.release()
        number = 1
        while (backup := folder.with_name(f"{folder.name}.backup-{number}")).exists():
            number += 1
        folder.rename(backup)
        print(f"{folder} was renamed to {backup}.")
    folder.mkdir(parents=True, exist_ok=True)
    lock.take(folder)
    if not resume:
        _require_fresh(folder)
        _clear_leftovers(folder)


def withdraw(folder: Path, lock: RunLock, *, is_new: bool) -> None:
    """Removes what a run that began has written, and the folder that it made, if there is no checkpoint and nothing
    else to keep."""
    if all(map(is_leftover, folder.iterdir())):
        _clear_leftovers(folder)
        for name in _FIRST_FILES:
            (folder / name).unlink(missing_ok=True)
        lock.release()
        if is_new:
            folder.rmdir()


def is_leftover(path: Path) -> bool:
    """Whether a run that ended before its first complete checkpoint left this file or folder."""
    if re.fullmatch(r"checkpoint-\d+", path.name) and path.is_dir():
        return is_unfinished(path)
    if path.name in _FIRST_FILES:
        return _FIRST_FILES[path.name] in (read_own_json(path) or ())
    return path.name == LOCK_FILE or is_unfinished_file(path)


def _clear_leftovers(folder: Path) -> None:
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path)


@contextmanager
def saying_what_was_kept(folder: Path, resume_hint: str) -> Iterator[None]:
    """Adds to the error of a run that a signal, a full disk or a damaged video ends which checkpoint is kept, and the
    hint how to continue from it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(_what_was_kept(folder, resume_hint)) from None
    except VideoReadError as error:
        raise VideoReadError(f"{str(error).rstrip()} {_what_was_kept(folder, resume_hint)}") from error
    except Exception as error:
        number = write_error_number(error)
        if number not in FULL_DISK:
            raise
        file = getattr(error, "filename", None) or folder
        raise OSError(
            f"{file} could not be written ({os.strerror(number)}): make room on its disk. "
            f"{_what_was_kept(folder, resume_hint)}"
        ) from error


def _what_was_kept(folder: Path, resume_hint: str) -> str:
    kept, _ = newest_complete(folder)
    if kept is None:
        return "There was no checkpoint yet, so nothing of the training is kept."
    return f"{kept} is kept; {resume_hint} to continue from it."
