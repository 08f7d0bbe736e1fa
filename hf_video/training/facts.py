"""Records the facts of a training that a model card states: data, recipe, versions, hardware and result."""

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
from transformers import TrainingArguments
from transformers.trainer_utils import has_length

from hf_video.data import is_multi_label, label_names
from hf_video.io import read_own_json, replace_text
from hf_video.loading.released import FACTS_FILE, SHIPPED, model_path, start_sha256
from hf_video.metrics import count_clips
from hf_video.processing.clip_sampling import STRIDED_STRATEGIES
from hf_video.texts import count
from hf_video.version import __version__

PACKAGES = ("transformers", "torch", "torchvision", "accelerate", "datasets", "av")
RECIPE = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "max_grad_norm"),
    *("num_train_epochs", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "world_size"),
    *("label_smoothing_factor", "bf16", "fp16"),
)
DISTILLATION = ("weight", "temperature")
CLIPS = ("num_frames", "sampling_strategy", "frame_sampling_rate", "fps", "frame_interval", "size", "crop_size")
SPLITS = ("train", "validation", "test")
VIEWS = ("num_clips", "num_crops")
# Columns of a data set that its hash is of.
LISTED = ("label", "labels", "start", "end", "second", "boxes", "actions", "frame_labels")


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Writes the facts into a model folder, which is made if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / FACTS_FILE, json.dumps(facts, indent=2) + "\n")


def _describe_clips(processor: Any) -> dict[str, Any]:
    """The options of clips that have an effect."""
    strategy = getattr(processor, "sampling_strategy", None)
    spread = ("frame_sampling_rate", "fps") if strategy not in (None, *STRIDED_STRATEGIES) else ()
    found = {name: getattr(processor, name, None) for name in CLIPS if name not in spread}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def describe_training(args: TrainingArguments, model: Any, processor: Any, dataset: Any) -> dict[str, Any]:
    """The facts that are known when a training begins, without paths of this machine."""
    facts = {
        "model": type(model).__name__,
        "source": describe_source(model.name_or_path),
        "data": {"train": describe_data(dataset)},
        "recipe": {name: _plain(getattr(args, name)) for name in RECIPE if hasattr(args, name)},
        "clips": _describe_clips(processor),
        "views": {name: getattr(processor, name) for name in VIEWS if hasattr(processor, name)},
        "seed": args.seed,
        "versions": {"python": platform.python_version(), "hf_video": __version__}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "hardware": _hardware(args),
    }
    if teacher := getattr(args, "distillation_teacher", None):
        settings = {name: getattr(args, f"distillation_{name}") for name in DISTILLATION}
        facts["distillation"] = {"teacher": describe_source(teacher), **settings}
    return facts


def describe_source(name_or_path: str | None) -> dict[str, Any] | None:
    """The model that the training started from: the name of a repository, or the last part of a folder's path, or the
    bundled model with the digest of its weights; of the latter two with the licence of its card or of its original.
    None if the training started from random weights."""
    if not name_or_path:
        return None
    folder = Path(name_or_path)
    if not folder.is_dir():
        return {"name": name_or_path}
    card = folder / "README.md"
    if card.is_file():
        license = ModelCard.load(card, ignore_metadata_errors=True).data.license
    else:
        license = ((read_own_json(folder / FACTS_FILE) or {}).get("source") or {}).get("license")
    described = {"name": folder.resolve().name}
    if name_or_path == model_path(SHIPPED):
        described = {"name": "the bundled model of hf_video", "sha256": start_sha256()}
    return described | ({"license": license} if license else {})


def describe_data(dataset: Any) -> dict[str, Any]:
    """Size, classes, origin and hash of a set of labelled videos, or of key frames with boxes. The hash is the SHA-256
    of the sorted list of videos: last two parts of the path, and what is said of them."""
    rows = getattr(dataset, "rows", None)
    counted = "num_key_frames" if "boxes" in getattr(rows, "column_names", ()) else "num_videos"
    description: dict[str, Any] = {counted: len(dataset)} if has_length(dataset) else {}
    if not isinstance(rows, datasets.Dataset) or "video" not in rows.column_names:
        return description
    columns = [name for name in ("video", *LISTED) if name in rows.column_names]
    values = rows.select_columns(columns)[:]
    videos = values.pop("video")
    if counted == "num_videos":
        description |= count_clips(videos)
    names = ("/".join(name.rsplit("/", 2)[-2:]) for name in videos)
    listing = sorted(map(json.dumps, zip(names, *values.values(), strict=True)))
    description["sha256"] = hashlib.sha256("\n".join(listing).encode()).hexdigest()
    if len(rows) and "bytes" not in rows.column_names:
        folder = Path(os.path.commonpath([os.path.abspath(path) for path in {*map(os.path.dirname, videos)}]))
        description["name"] = (folder.parent if folder.name in SPLITS else folder).name
    if is_multi_label(rows) or isinstance(rows.features.get("label"), datasets.ClassLabel):
        description["num_classes"] = len(label_names(rows))
    for url in rows.info.download_checksums or {}:
        if origin := re.match(r"hf://datasets/(?P<hub_id>[^/@]+/[^/@]+)@(?P<revision>[0-9a-f]+)/", str(url)):
            description |= origin.groupdict()
            break
    return description


def _hardware(args: TrainingArguments) -> str:
    if args.device.type == "cpu":
        return f"CPU ({platform.machine()}), {count(torch.get_num_threads(), 'thread')}"
    is_cuda = args.device.type == "cuda"
    return f"{args.world_size} x {torch.cuda.get_device_name(args.device) if is_cuda else args.device.type}"


def _plain(value: Any) -> Any:
    """A value as JSON keeps it: the value of an enumeration, and the fields of a dataclass that are not None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: part for name, part in dataclasses.asdict(value).items() if part is not None}
    return getattr(value, "value", value)
