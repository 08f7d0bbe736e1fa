"""Marks and finds checkpoints. A damaged checkpoint is never used, and never replaces the last whole one."""

import json
import re
from pathlib import Path
from typing import Any

from hf_video.io import read_own_json, replace_text, sync_file, sync_folder

# The mark of a complete checkpoint, with the sizes of its files. It is written last; until then it lists no files.
MARK = "complete.json"
STATE = "trainer_state.json"
OPTIMIZER = "optimizer.pt"


def numbered_checkpoints(folder: Path) -> list[Path]:
    """The folders `checkpoint-N` of a run, the last step first."""
    paths = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in paths if path.is_dir()), key=lambda path: -int(path.name[11:]))


def mark_complete(checkpoint: Path) -> None:
    """Writes the mark of a checkpoint after all of its files are on the disk."""
    sizes = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        elif path.name != MARK:
            sync_file(path)
            sizes[path.relative_to(checkpoint).as_posix()] = path.stat().st_size
    replace_text(checkpoint / MARK, json.dumps({"files": sizes}, indent=1) + "\n")


def mark_unfinished(checkpoint: Path) -> None:
    """Marks a checkpoint that is going to be written, by several processes."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    replace_text(checkpoint / MARK, json.dumps({"files": None}) + "\n")


def is_unfinished(checkpoint: Path) -> bool:
    """Whether a run ended while it wrote this checkpoint. Other trainers write no mark, and their state last."""
    if (checkpoint / MARK).exists():
        return read_own_json(checkpoint / MARK) == {"files": None}
    return not isinstance(read_own_json(checkpoint / STATE), dict)


def damage_of(checkpoint: Path) -> str | None:
    """Why a run cannot go on from a checkpoint; None if the checkpoint is whole, as far as its mark tells."""
    has_mark, mark = (checkpoint / MARK).exists(), read_own_json(checkpoint / MARK)
    if has_mark and is_unfinished(checkpoint):
        return "the run ended while it was being written"
    if not isinstance(read_own_json(checkpoint / STATE), dict):
        return f"{_size_of(checkpoint / STATE)}, which is not the state of a trainer"
    if has_mark and (not isinstance(mark, dict) or not isinstance(mark.get("files"), dict)):
        return f"{MARK} lists no files"
    for name, size in mark["files"].items() if has_mark else ():
        if not (checkpoint / name).is_file() or (checkpoint / name).stat().st_size != size:
            return f"{_size_of(checkpoint / name)} of {size}"
    return None


def newest_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run, and for each newer checkpoint why it is not used."""
    passed: list[str] = []
    for checkpoint in numbered_checkpoints(folder):
        reason = damage_of(checkpoint)
        if reason is None:
            return checkpoint, passed
        passed.append(f"{checkpoint.name}: {reason}")
    return None, passed


def best_of(checkpoint: Path) -> Path | None:
    """The best checkpoint of the run until this one; None if none was compared. A run may have been moved, so that a
    checkpoint beside this one goes before the one in the recorded place.

    Raises:
        ValueError: the best checkpoint is missing or damaged.
    """
    recorded = (read_own_json(checkpoint / STATE) or {}).get("best_model_checkpoint")
    if recorded is None:
        return None
    moved = checkpoint.parent / Path(recorded).name
    best = moved if moved.is_dir() else Path(recorded)
    if reason := damage_of(best):
        raise ValueError(
            f"{best}, the best checkpoint until {checkpoint.name}, is missing or damaged ({reason}). Remove "
            f"{checkpoint.name} to resume from a checkpoint before it, or train into another folder."
        )
    return best


def require_resumable(checkpoint: Path) -> None:
    """Refuses (`ValueError`) a checkpoint without the state of the optimizer or of the random numbers, as after
    `save_only_model`: the run would not continue as if it was never interrupted."""
    # FSDP and DeepSpeed have folders for the optimizer.
    for name, patterns in {OPTIMIZER: ("optimizer*", "global_step*"), "rng_state.pth": ("rng_state*",)}.items():
        if not any(any(checkpoint.glob(pattern)) for pattern in patterns):
            raise ValueError(f"{checkpoint} has no {name}: start another run from its weights, as --model.")


def processes_of(checkpoint: Path) -> int:
    """Number of the processes that wrote a checkpoint, each of which has its random numbers there."""
    return max(len([*checkpoint.glob("rng_state_*.pth")]), 1)


def read_stream_state(file: Path) -> dict[str, Any]:
    """Where a stream of clips was when a process wrote its part of a checkpoint."""
    state = read_own_json(file)
    if not isinstance(state, dict):
        raise ValueError(f"{file.parent} has no {file.name}: go on with the same data and number of processes.")
    return state


def is_secret(name: str) -> bool:
    """Whether a setting of this name is a secret of its user, which must not be written to a file."""
    return name.endswith("_token")


def _size_of(file: Path) -> str:
    return f"{file.name} has {file.stat().st_size} bytes" if file.is_file() else f"{file.name} is missing"
