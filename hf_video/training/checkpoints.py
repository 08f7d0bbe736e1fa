"""Writes and finds checkpoints. A damaged checkpoint is never used, and never replaces the last whole one."""

import copy
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import remove_dummy_checkpoint
from transformers.trainer_utils import rotate_checkpoints
from transformers.utils import SAFE_WEIGHTS_NAME

from hf_video.io import (
    naming_disk_errors,
    read_own_json,
    replace_file,
    replace_text,
    replacing_files,
    sync_file,
    sync_folder,
)
from hf_video.loading.configurations import is_safetensors

from .callbacks import saving_when_preempted
from .parallelism import WeightsForm, check_same_form, choose_blocks, form_of_run

# The mark of a complete checkpoint: the sizes of its files. It is written last. Until then it lists no files.
MARK = "complete.json"
STATE = "trainer_state.json"
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"


def numbered_checkpoints(folder: Path) -> list[Path]:
    """The folders `checkpoint-N` of a run, the last step first."""
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in found if path.is_dir()), key=lambda path: -int(path.name[11:]))


def mark_complete(checkpoint: Path) -> None:
    """Writes the mark of a checkpoint after all of its files are on the disk."""
    sizes = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        elif path.name != MARK:
            sync_file(path)
            sizes[path.relative_to(checkpoint).as_posix()] = path.stat().st_size
    # A resumed run may rewrite it, to say where the best checkpoint is.
    sizes.pop(STATE, None)
    replace_text(checkpoint / MARK, json.dumps({"files": sizes}, indent=1) + "\n")


def mark_unfinished(checkpoint: Path) -> None:
    """Marks a checkpoint that is going to be written. Each of its files may be whole before all processes have written
    theirs."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    replace_text(checkpoint / MARK, json.dumps({"files": None}) + "\n")


def is_unfinished(checkpoint: Path) -> bool:
    """Whether a run ended while it wrote this checkpoint. Earlier versions marked complete checkpoints alone."""
    if (checkpoint / MARK).exists():
        return read_own_json(checkpoint / MARK) == {"files": None}
    return not isinstance(read_own_json(checkpoint / STATE), dict)


def damage_of(checkpoint: Path) -> str | None:
    """Why a run cannot go on from a checkpoint; None if the checkpoint is whole.

    Other trainers write no mark. Without it, a checkpoint is whole if its state can be read and its files opened.
    """
    if (checkpoint / MARK).exists() and is_unfinished(checkpoint):
        return "the run ended while it was being written"
    if not isinstance(read_own_json(checkpoint / STATE), dict):
        return f"{_size_of(checkpoint / STATE)}, no trainer state"
    if (checkpoint / MARK).exists():
        mark = read_own_json(checkpoint / MARK)
        if not isinstance(mark, dict) or not isinstance(mark.get("files"), dict):
            return f"{MARK} lists no files"
        for name, size in mark["files"].items():
            if not (checkpoint / name).is_file() or (checkpoint / name).stat().st_size != size:
                return f"{_size_of(checkpoint / name)} of {size}"
        return None
    for path in sorted(checkpoint.iterdir()):
        if path.suffix == ".safetensors":
            if not is_safetensors(path):
                return f"{_size_of(path)}, no safetensors"
        elif path.suffix in (".pt", ".pth", ".bin") and not zipfile.is_zipfile(path):
            return f"{_size_of(path)}, no file of torch.save"
    return None


def newest_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run, and for each newer checkpoint why it is not used.

    If an older checkpoint has the mark and this one has not, the run ended while this one was being written.
    """
    passed: list[str] = []
    found = numbered_checkpoints(folder)
    for place, checkpoint in enumerate(found, start=1):
        reason = damage_of(checkpoint)
        if not (checkpoint / MARK).exists() and any((older / MARK).exists() for older in found[place:]):
            reason = reason or f"{MARK}, which is written last, is missing"
        if reason is None:
            return checkpoint, passed
        passed.append(f"{checkpoint.name}: {reason}")
    return None, passed


def best_of(checkpoint: Path) -> Path | None:
    """The best checkpoint of the run until this one; None if none was compared. The one beside this checkpoint goes
    before the one in the recorded place, since the run may have been moved. If it is missing or damaged, it is a
    `ValueError`."""
    recorded = (read_own_json(checkpoint / STATE) or {}).get("best_model_checkpoint")
    if recorded is None:
        return None
    moved = checkpoint.parent / Path(recorded).name
    best = moved if moved.is_dir() else Path(recorded)
    if reason := damage_of(best):
        raise ValueError(
            f"{best}, the best checkpoint until {checkpoint.name}, is missing or damaged ({reason}), and the run "
            f"would end with other weights. Remove {checkpoint.name} to resume from a checkpoint before it, or train "
            "into another folder."
        )
    return best


def require_resumable(checkpoint: Path) -> None:
    """Refuses (`ValueError`) a checkpoint without the state of the optimizer, of the schedule or of the random
    numbers, as after `save_only_model`: the run would not continue as if it was never interrupted."""
    names = [path.name for path in checkpoint.iterdir()]
    # FSDP and DeepSpeed have folders for the optimizer. That of DeepSpeed also holds the schedule.
    needed = {
        OPTIMIZER: r"optimizer(\.pt|\.bin|_.*)|rank.*-optimizer\.pt|global_step.*",
        SCHEDULER: r"scheduler\.pt|global_step.*",
        "rng_state.pth": r"rng_state.*\.pth",
    }
    missing = [name for name, form in needed.items() if not any(re.fullmatch(form, found) for found in names)]
    if missing:
        raise ValueError(
            f"{checkpoint} has no {' and no '.join(missing)}: the run would go on with other numbers than it had. "
            "Start another run from its weights, with this folder as the model, in another output folder."
        )


def rotate(run: Path, limit: int | None, best: str | None) -> None:
    """Deletes checkpoints beyond `limit` as Transformers does, but damaged checkpoints first."""
    if not limit or limit < 1:
        return
    checkpoints = numbered_checkpoints(run)
    spare = len(checkpoints) - limit
    damaged = [path for path in reversed(checkpoints) if spare > 0 and damage_of(path) is not None]
    for path in damaged[: max(spare, 0)]:
        shutil.rmtree(path, ignore_errors=True)
    rotate_checkpoints(output_dir=str(run), save_total_limit=limit, best_model_checkpoint=best, use_mtime=True)


class CheckpointMixin:
    """For a subclass of `transformers.Trainer`: safe checkpoints.

    Checkpoints get a mark of completeness. The files of the final model are replaced only after all of them are
    written. `training_args.bin` has no secrets. A run resumes from a whole checkpoint or not at all.

    If the weights are sharded, `save_model` gathers them on the first process and is called on all. A checkpoint of
    shards holds the configuration and the processor beside them.
    """

    args: TrainingArguments
    _limit: int | None = None
    _is_in_checkpoint = False

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP or DeepSpeed spread the weights over the processes."""
        return form_of_run(self) is not WeightsForm.WHOLE

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers.Trainer`; `resume_from_checkpoint=True` takes the newest complete checkpoint.

        Raises:
            ValueError: there is no complete checkpoint, or the given one is damaged, lacks what a resumed run needs,
                or holds its weights in another form than this run. Or the best checkpoint, which
                `load_best_model_at_end` needs, is missing or damaged.
        """
        if resume_from_checkpoint is True:
            checkpoint, passed = newest_complete(Path(str(self.args.output_dir)))
            if checkpoint is None:
                raise ValueError("; ".join([f"{self.args.output_dir} has no complete checkpoint", *passed]) + ".")
            resume_from_checkpoint = str(checkpoint)
        if resume_from_checkpoint:
            check_same_form(Path(resume_from_checkpoint), self)
            self._find_best(Path(resume_from_checkpoint))
        choose_blocks(self)
        with saving_when_preempted(self):
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def _find_best(self, checkpoint: Path) -> None:
        """Corrects the path of the best checkpoint in a saved state if the run was moved."""
        if not self.args.load_best_model_at_end:
            return
        best = best_of(checkpoint)
        self.accelerator.wait_for_everyone()  # type: ignore[attr-defined]
        if best is not None and self.args.should_save:
            state = TrainerState.load_from_json(str(checkpoint / STATE))
            if Path(str(state.best_model_checkpoint)).resolve() != best.resolve():
                state.best_model_checkpoint = str(best)
                replace_file(checkpoint / STATE, lambda path: state.save_to_json(str(path)))
        self.accelerator.wait_for_everyone()  # type: ignore[attr-defined]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run = Path(self._get_output_dir(trial=trial))  # type: ignore[attr-defined]
        checkpoint = run / f"checkpoint-{self.state.global_step}"  # type: ignore[attr-defined]
        if self.args.should_save:
            mark_unfinished(checkpoint)
        # The base class deletes older checkpoints before the mark of this one is written.
        self._limit, self.args.save_total_limit, self._is_in_checkpoint = self.args.save_total_limit, None, True
        try:
            with naming_disk_errors(checkpoint):
                super()._save_checkpoint(model, trial)  # type: ignore[misc]
        finally:
            self.args.save_total_limit, self._is_in_checkpoint = self._limit, False
        self.accelerator.wait_for_everyone()  # type: ignore[attr-defined]
        if self.args.should_save:
            mark_complete(checkpoint)
            rotate(run, self.args.save_total_limit, self.state.best_model_checkpoint)  # type: ignore[attr-defined]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if form_of_run(self) is WeightsForm.FSDP_SHARDED:
            # The base class saves no model of shards; a checkpoint of it holds the shards alone.
            folder = output_dir or str(self.args.output_dir)
            if self._is_in_checkpoint:
                self._save(folder, state_dict={})
                remove_dummy_checkpoint(self.args.should_save, folder, [SAFE_WEIGHTS_NAME])
            else:
                self._save(folder, self.accelerator.get_state_dict(self.model))  # type: ignore[attr-defined]
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        args = self.args
        self.args = without_secrets(args)
        if self._is_in_checkpoint:
            self.args.save_total_limit = self._limit
        try:
            whole = not self._is_in_checkpoint and args.should_save
            with (
                _keeping_names(self.model) if self._is_in_checkpoint else nullcontext(),  # type: ignore[attr-defined]
                replacing_files(folder) if whole else nullcontext(folder) as target,
            ):
                super()._save(str(target), state_dict)  # type: ignore[misc]
        finally:
            self.args = args

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        state = self.state  # type: ignore[attr-defined]
        if 0 < state.max_steps <= state.global_step:
            # Resumed after the last step, which was inside an epoch: the base class would take one step more.
            self.control.should_training_stop = True  # type: ignore[attr-defined]
            return
        super()._run_epoch(*args, **kwargs)  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        require_resumable(Path(checkpoint))
        with _naming_damage(Path(checkpoint), f"{OPTIMIZER} or {SCHEDULER}"):
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        several = f"rng_state_{self.args.process_index}.pth"
        with _naming_damage(Path(checkpoint), several if self.args.world_size > 1 else "rng_state.pth"):
            super()._load_rng_state(checkpoint)  # type: ignore[misc]


@contextmanager
def _keeping_names(model: Any) -> Iterator[None]:
    """Makes `save_pretrained` write each weight under its name in the model. By default it writes those of VideoMAE
    and ViViT under older names, which `Trainer` would not find when it loads a checkpoint, and pass over."""
    if not isinstance(model, PreTrainedModel):
        yield
        return
    original = model.save_pretrained
    model.save_pretrained = partial(original, save_original_format=False)
    try:
        yield
    finally:
        del model.save_pretrained


def without_secrets(arguments: TrainingArguments) -> TrainingArguments:
    """A shallow copy of the arguments in which every `..._token` is None."""
    arguments = copy.copy(arguments)
    for name in vars(arguments):
        if is_secret(name):
            setattr(arguments, name, None)
    return arguments


def is_secret(name: str) -> bool:
    """Whether a setting of this name is a secret of its user, which must not be written to a file."""
    return name.endswith("_token")


@contextmanager
def _naming_damage(checkpoint: Path, names: str) -> Iterator[None]:
    """Names the files of a checkpoint in an error of loading them."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{names} in {checkpoint} is damaged, or not of this run ({reason}). Remove the folder to resume from the "
            "checkpoint before it."
        ) from error


def _size_of(file: Path) -> str:
    return f"{file.name} has {file.stat().st_size} bytes" if file.is_file() else f"{file.name} is missing"
