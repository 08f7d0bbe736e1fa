"""What a training run may do to the folder it writes: nothing that a user made is lost."""

import re
from collections.abc import Collection
from pathlib import Path

_WAYS_OUT = (
    "Continue the run in it with --resume, choose another folder, or let --overwrite-output-dir rename it out of the "
    "way."
)


def require_fresh(folder: Path, expected: Collection[str] = (), ways_out: str = _WAYS_OUT) -> None:
    """Refuses a folder with files other than those named in `expected`, and says what can be done.

    Raises:
        ValueError: the folder is a file or has other files.
    """
    if folder.is_file():
        raise ValueError(f"--output-dir {folder} is a file; a folder is expected.")
    found = sorted(path.name for path in folder.iterdir() if path.name not in expected) if folder.exists() else []
    if found:
        listed = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise ValueError(f"--output-dir {folder} is not empty ({listed}). {ways_out}")


def move_aside(folder: Path) -> None:
    """Renames a folder to the first free FOLDER.backup-N and says so; a folder that does not exist is no matter."""
    if not folder.exists():
        return
    number = 1
    while (backup := folder.with_name(f"{folder.name}.backup-{number}")).exists():
        number += 1
    folder.rename(backup)
    print(f"{folder} was renamed to {backup}.")


def last_checkpoint(folder: Path) -> Path:
    """The newest complete checkpoint in a folder that `transformers.Trainer` wrote.

    A checkpoint's `trainer_state.json` is written last: without it the writing was interrupted.

    Raises:
        ValueError: there is none.
    """
    checkpoints = {
        int(match[1]): state.parent
        for state in folder.glob("checkpoint-*/trainer_state.json")
        if (match := re.fullmatch(r"checkpoint-(\d+)", state.parent.name))
    }
    if not checkpoints:
        raise ValueError(f"There is nothing to resume: {folder} has no complete checkpoint. Leave --resume out.")
    return checkpoints[max(checkpoints)]
