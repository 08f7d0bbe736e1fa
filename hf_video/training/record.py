"""Records the facts of a training run that a model card states: data, recipe, versions, hardware, result."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import datasets
import torch
from huggingface_hub import ModelCard
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

import hf_video
from hf_video.data import is_multi_label, label_names
from hf_video.files import replace_text


FACTS_FILE = "training_facts.json"
PACKAGES = ("transformers", "torch", "torchvision", "accelerate", "datasets", "av")
RECIPE = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "max_grad_norm"),
    *("num_train_epochs", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "world_size"),
    *("label_smoothing_factor", "bf16", "fp16"),
)
CLIPS = ("num_frames", "sampling_strategy", "frame_sampling_rate", "fps", "size", "crop_size")
SPLITS = ("train", "validation", "test")
VIEWS = ("num_clips", "num_crops")


class RecordFactsCallback(TrainerCallback):
    """Writes `training_facts.json` into the output folder when training begins, and the result when it ends.

    Paths of this machine are not recorded. A resumed run keeps the model that the first one started from.

    Args:
        eval_sets: the evaluation sets by their names, where there are several.
    """

    def __init__(self, eval_sets: dict[str, Any] | None = None) -> None:
        self.eval_sets = eval_sets
        self.facts: dict[str, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        model, processor = kwargs["model"], kwargs.get("processing_class")
        self.facts = {
            "model": type(model).__name__,
            "source": describe_source(model.name_or_path),
            "data": {"train": describe_data(kwargs["train_dataloader"].dataset)},
            "recipe": {name: _plain(getattr(args, name)) for name in RECIPE if hasattr(args, name)},
            "clips": {name: _plain(value) for name in CLIPS if (value := getattr(processor, name, None)) is not None},
            "views": {name: getattr(processor, name) for name in VIEWS if hasattr(processor, name)},
            "seed": args.seed,
            "versions": describe_versions(),
            "hardware": describe_hardware(args),
        }
        if teacher := getattr(args, "distillation_teacher", None):
            settings = {name: getattr(args, f"distillation_{name}") for name in ("target", "weight", "temperature")}
            self.facts["distillation"] = {"teacher": describe_source(teacher), **settings}
        path = Path(args.output_dir, FACTS_FILE)
        if state.global_step > 0 and path.is_file():
            self.facts["source"] = json.loads(path.read_text(encoding="utf-8"))["source"]
        self._write(path)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        if kwargs.get("eval_dataloader") is not None:
            several = {f"validation {name}": dataset for name, dataset in (self.eval_sets or {}).items()}
            sets = several or {"validation": kwargs["eval_dataloader"].dataset}
            self.facts["data"] |= {name: describe_data(dataset) for name, dataset in sets.items()}
        # Each set of several has an entry of its own for the same step.
        evaluations: dict[int, dict[str, Any]] = {}
        for entry in state.log_history:
            if any(name.startswith("eval_") and name.endswith("_loss") for name in entry):
                evaluations.setdefault(entry["step"], {}).update(entry)
        best = evaluations.get(state.best_global_step or 0)
        self.facts |= {
            "steps": state.global_step,
            "epochs": state.epoch,
            "validation": best or (evaluations[max(evaluations)] if evaluations else {}),
        }
        self._write(Path(args.output_dir, FACTS_FILE))

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(self.facts, indent=2) + "\n")


def describe_source(name_or_path: str | None) -> dict[str, Any] | None:
    """The model that training started from: a repository by its name, a folder by its last part; None from scratch.

    The licence of a folder is that of its model card; the licence of a repository is looked up when the fine-tune is
    published.
    """
    if not name_or_path:
        return None
    folder = Path(name_or_path)
    if not folder.is_dir():
        return {"name": name_or_path}
    card = folder / "README.md"
    license = ModelCard.load(card, ignore_metadata_errors=True).data.license if card.is_file() else None
    return {"name": folder.resolve().name} | ({"license": license} if license else {})


def describe_data(dataset: Any) -> dict[str, Any]:
    """Size, classes, origin and a hash of labelled videos; nothing is known of a stream without a length.

    The hash is the SHA-256 of the sorted list of videos: last two parts of the path, size in bytes, label, start and
    end. It tells whether two runs used the same list of files, at no cost; it does not read the videos.
    """
    description: dict[str, Any] = {"num_videos": len(dataset)} if has_length(dataset) else {}
    rows = getattr(dataset, "dataset", None)
    if not isinstance(rows, datasets.Dataset) or "video" not in rows.column_names:
        return description
    columns = [name for name in ("label", "labels", "start", "end") if name in rows.column_names]
    light = rows.select_columns(["video", *columns])
    listing = sorted(json.dumps([*_identify(row["video"]), *(row[name] for name in columns)]) for row in light)
    description["sha256"] = hashlib.sha256("\n".join(listing).encode()).hexdigest()
    if len(rows) and "bytes" not in rows.column_names:
        folder = Path(os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in rows["video"]]))
        description["name"] = (folder.parent if folder.name in SPLITS else folder).name
    if is_multi_label(rows) or isinstance(rows.features.get("label"), datasets.ClassLabel):
        description["num_classes"] = len(label_names(rows))
    for url in rows.info.download_checksums or {}:
        if origin := re.match(r"hf://datasets/(?P<hub_id>[^/@]+/[^/@]+)@(?P<revision>[0-9a-f]+)/", str(url)):
            description |= origin.groupdict()
            break
    return description


def describe_hardware(args: TrainingArguments) -> str:
    """The devices that training runs on, such as `2 x NVIDIA H200` or `CPU (x86_64), 8 threads`."""
    if args.device.type == "cuda":
        return f"{args.world_size} x {torch.cuda.get_device_name(args.device)}"
    if args.device.type == "cpu":
        return f"CPU ({platform.machine()}), {torch.get_num_threads()} threads"
    return f"{args.world_size} x {args.device.type}"


def describe_versions() -> dict[str, str]:
    """The versions of Python, of this package and of those it builds on."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "hf_video": hf_video.__version__} | versions


def _identify(video: str) -> tuple[str, int | None]:
    return "/".join(Path(video).parts[-2:]), os.path.getsize(video) if os.path.isfile(video) else None


def _plain(value: Any) -> Any:
    """A value as JSON keeps it: enumerations by their value, the sizes of a processor without what is not set."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: part for name, part in dataclasses.asdict(value).items() if part is not None}
    return getattr(value, "value", value)
