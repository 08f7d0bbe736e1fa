"""Trains a small classifier on the features of a frozen model: `hf-video probe` for programs."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from huggingface_hub.constants import HF_HOME
from torch.utils.data import TensorDataset
from transformers import PreTrainedModel, TrainingArguments, set_seed

from hf_video.data import ClipTask, VideoDataset, is_multi_label, label_names
from hf_video.data.rows import label_ids
from hf_video.io import new_folder
from hf_video.jobs.feature_cache import Features, extract_features
from hf_video.loading.class_names import class_names_of
from hf_video.loading.classifiers import load_classifier
from hf_video.loading.clip_size import check_clips
from hf_video.loading.models import choose_device
from hf_video.loading.processors import load_processor
from hf_video.output_folders import KEEP, require_fresh

from .adaptation import make_linear_probe, to_plain_model, train_probe
from .data import load_data, readable_videos, require_training, training_splits
from .report import clip_reader, measure_classes, write_report
from .run import check_places
from .settings import PROBE_DEFAULTS, ProbeSettings
from .values import choose_values, make, values_of

SPLITS = ("train", "validation", "test")


class _Split(NamedTuple):
    """A data set, the features of its videos, and their classes: (num_videos, num_classes) float, 0 or 1."""

    dataset: VideoDataset
    features: Features
    targets: torch.Tensor
    is_multi_label: bool

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The features, and the labels as a loss takes them."""
        return self.features.values, self.targets if self.is_multi_label else self.targets.argmax(1)

    def unread(self) -> list[str]:
        """The videos that have no features."""
        read = set(self.features.rows.tolist())
        return [video for row, video in enumerate(self.dataset.rows["video"]) if row not in read]


def probe(settings: ProbeSettings) -> tuple[Path, Path, dict[str, Any]]:
    """Trains a small classifier on the features of a frozen model, and measures it, as `hf-video probe`.

    Args:
        settings: the data, the output folder, the model, and what differs from the defaults.

    Returns:
        The folder of the model, the folder of features, and the contents of `metrics.json`.

    Raises:
        ValueError, OSError: a setting or a video cannot be used, or the output folder is not empty.
    """
    chosen = choose_values(settings)
    check_places(vars(chosen))
    if chosen.model is None:
        raise ValueError("The model to probe is missing: give --model.")
    output_dir = Path(chosen.output_dir).expanduser().absolute()
    require_fresh(output_dir, KEEP)
    device = choose_device(chosen.device)
    here = {"output_dir": str(output_dir / "probe"), "use_cpu": device.type == "cpu"}
    arguments = make(TrainingArguments, chosen, **PROBE_DEFAULTS | values_of(chosen) | here)
    features_dir = Path(chosen.features or Path(HF_HOME, "hf_video", "features")).expanduser().absolute()
    set_seed(chosen.seed)
    model, splits, broken = _load(chosen, chosen.model, device, features_dir)
    split = "test" if "test" in splits else "validation"
    # The folder appears after it is complete: an interrupted probe leaves only its features.
    with new_folder(output_dir) as folder:
        arguments.output_dir = str(folder / "probe")
        # The probe begins with the same weights, whether or not features had to be computed.
        set_seed(chosen.seed)
        make_linear_probe(model)
        known, held_out = splits["train"].tensors(), splits["validation"].tensors()
        trainer = train_probe(model.classifier, model.config, known, held_out, arguments)
        scores = trainer.predict(TensorDataset(*splits[split].tensors())).predictions
        history = trainer.state.log_history
        to_plain_model(model).to(model.dtype).save_pretrained(folder)
        splits["train"].dataset.task.processor.save_pretrained(folder)
        class_names = class_names_of(model.config)
        metrics = _report(chosen, folder / "report", scores, history, splits, split, class_names, broken)
    return output_dir, features_dir, metrics


def _load(
    settings: ProbeSettings, model_name: str, device: torch.device, features_dir: Path
) -> tuple[PreTrainedModel, dict[str, _Split], list[str]]:
    """The model, the splits of the data with their features, and the videos that cannot be read."""

    data = load_data(settings.data, model_name, settings.video_root, settings.split_by)
    require_training(settings.data, data)
    class_names = label_names(data["train"])
    problem = "multi_label_classification" if is_multi_label(data["train"]) else "single_label_classification"
    model = load_classifier(model_name, class_names, problem, is_frozen=True, dtype=settings.dtype).to(device)
    processor = load_processor(model_name, model.config, num_clips=settings.num_clips, num_crops=settings.num_crops)
    check_clips(model, processor)
    readable, broken = readable_videos(data, settings.on_error)
    data = dict(readable)
    data.update(training_splits(data, settings.validation_fraction, settings.seed, settings.split_by))
    splits = {}
    for name in SPLITS:
        if name not in data:
            continue
        dataset = VideoDataset(data[name], ClipTask(processor), training=False, on_error=settings.on_error)
        features = extract_features(
            model,
            dataset,
            features_dir,
            pooling="head",
            batch_size=settings.batch_size,
            num_workers=settings.num_workers,
            reading_threads=settings.reading_threads,
        )
        targets = torch.zeros(len(dataset), len(class_names))
        for row, ids in enumerate(label_ids(data[name])):
            targets[row, ids] = 1.0
        splits[name] = _Split(dataset, features, targets[features.rows], problem == "multi_label_classification")
    unread = {video for part in splits.values() for video in part.unread()}
    return model, splits, sorted({*broken, *unread})


def _report(
    settings: ProbeSettings,
    folder: Path,
    scores: np.ndarray,
    history: list[dict[str, float]],
    splits: dict[str, _Split],
    split: str,
    class_names: list[str],
    broken: list[str],
) -> dict[str, Any]:

    measured = splits[split]
    processor = measured.dataset.task.processor
    return write_report(
        folder,
        measure_classes(
            scores,
            measured.tensors()[1].numpy(),
            class_names,
            clip_of=clip_reader(measured.dataset, len(scores), measured.unread()),
            training_counts=splits["train"].targets.sum(dim=0).int().numpy(),
        ),
        log_history=history,
        split=split,
        details={
            "model": settings.model,
            "probe": "linear",
            "training_videos": len(splits["train"].targets),
            "clip": f"{processor.num_frames} frames, {processor.sampling_strategy}",
            "seed": settings.seed,
            **({"broken_videos": broken} if broken else {}),
        },
    )
