"""Trains a small classifier on the features of a frozen model: `hf-video probe` for programs."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from datasets import Dataset
from huggingface_hub.constants import HF_HOME
from torch import nn
from torch.utils.data import TensorDataset, default_collate
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainingArguments, set_seed

from hf_video.bulk.feature_cache import Features, extract_features
from hf_video.data import ClipTask, VideoDataset, is_multi_label, label_names
from hf_video.data.checks import readable_videos
from hf_video.data.rows import label_ids
from hf_video.data.trained_data import describe_data, write_trained_videos
from hf_video.data.video_settings import annotation_choices
from hf_video.inference.scores import problem_type_of
from hf_video.io import new_folder
from hf_video.loading.class_names import class_names_of
from hf_video.loading.clip_size import check_clips
from hf_video.loading.heads import load_classifier
from hf_video.loading.models import choose_device
from hf_video.loading.processors import load_processor
from hf_video.loading.released import model_path
from hf_video.metrics import compute_metrics
from hf_video.output_folders import KEEP, OPTIONS_FILE, require_fresh

from .adaptation import NormalizedLinear, make_linear_probe, to_plain_model
from .data import load_data, require_training, training_splits
from .losses import CrossEntropy
from .report import clip_reader, measure_classes, write_report
from .run import check_places
from .task_settings import PROBE_DEFAULTS, ProbeSettings
from .values import choose_values, make, save, values_of


class ProbeModel(nn.Module):
    """A probe, from features to logits, in the form that a `Trainer` takes. In training each view is a clip of its
    own; in evaluation the probabilities of the views of a video are averaged."""

    def __init__(self, probe: nn.Module, problem_type: str):
        super().__init__()
        self.probe, self.problem_type = probe, problem_type

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """`loss` and `logits` from features (batch_size, num_views, ...). The logits are (batch_size, num_classes), in
        training (batch_size * num_views, num_classes)."""
        num_views = features.shape[1]
        logits = self.probe(features.flatten(0, 1).float())
        if self.training:
            labels = labels.repeat_interleave(num_views, dim=0)
        else:
            # Computed from logarithms, because probabilities near one have no digits left.
            views = logits.unflatten(0, (-1, num_views))
            if self.problem_type == "multi_label_classification":
                logits = F.logsigmoid(views).logsumexp(1) - F.logsigmoid(-views).logsumexp(1)
            else:
                logits = views.log_softmax(-1).logsumexp(1) - math.log(num_views)
        return {"loss": CrossEntropy(self.problem_type)({"logits": logits}, labels), "logits": logits}


def train_probe(
    probe: NormalizedLinear,
    problem_type: str,
    training: tuple[torch.Tensor, torch.Tensor],
    validation: tuple[torch.Tensor, torch.Tensor],
    arguments: TrainingArguments,
) -> Trainer:
    """Trains a probe in place and restores the weights with the lowest validation loss.

    Args:
        probe: trained in place.
        problem_type: decides on the loss, see `CrossEntropy`.
        training: features (num_videos, num_views, ...) and labels: class ids (num_videos,) or float targets
            (num_videos, num_classes).
        validation: the same of other videos.
        arguments: such as `TrainingArguments(folder, **PROBE_DEFAULTS)`; the folder is for checkpoints of the probe.

    Returns:
        The trainer. Its `predict` takes a `TensorDataset` of features and labels.
    """
    # Running averages would not converge in the few batches of a probe.
    deviation, mean = torch.std_mean(training[0].float().flatten(0, 1), dim=0, correction=0)
    probe.norm.load_state_dict({"running_mean": mean, "running_var": deviation.square()}, strict=False)
    # Batch normalisation fails on a last batch of one video, which has no variance.
    arguments.dataloader_drop_last = len(training[0]) % arguments.train_batch_size == 1
    trainer = Trainer(
        model=ProbeModel(probe, problem_type),
        args=arguments,
        train_dataset=TensorDataset(*training),
        eval_dataset=TensorDataset(*validation),
        data_collator=_collate,
        compute_metrics=compute_metrics,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def _collate(items: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return dict(zip(("features", "labels"), default_collate(items), strict=True))


class EncodedSplit(NamedTuple):
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
    device, features_dir = choose_device(chosen.device), features_folder(chosen.features)
    here = {"output_dir": str(output_dir / "probe"), "use_cpu": device.type == "cpu"}
    arguments = make(TrainingArguments, chosen, **PROBE_DEFAULTS | values_of(chosen) | here)
    set_seed(chosen.seed)
    model_name = str(model_path(chosen.model))
    choices = annotation_choices(chosen)
    data = load_data(chosen.data, model_name, chosen.video_root, chosen.split_by, choices=choices)
    require_training(chosen.data, data)
    described = describe_data(chosen.data, data, label_names(data["train"]))
    readable, broken = readable_videos(data, chosen.on_error)
    data = {**readable, **training_splits(readable, chosen.validation_fraction, chosen.seed, chosen.split_by)}
    known = {name: data[name] for name in ("train", "validation", "test") if name in data}
    model, splits = encode_splits(chosen, model_name, device, features_dir, known)
    unread = {video for part in splits.values() for video in part.unread()}
    split = "test" if "test" in splits else "validation"
    measured, processor = splits[split], splits[split].dataset.task.processor
    # The folder appears after it is complete: an interrupted probe leaves only its features.
    with new_folder(output_dir) as folder:
        arguments.output_dir = str(folder / "probe")
        # The probe begins with the same weights, whether or not features had to be computed.
        set_seed(chosen.seed)
        make_linear_probe(model)
        training, validation = splits["train"].tensors(), splits["validation"].tensors()
        trainer = train_probe(model.classifier, problem_type_of(model.config), training, validation, arguments)
        to_plain_model(model).to(model.dtype).save_pretrained(folder)
        processor.save_pretrained(folder)
        # `evaluate` takes what was held out, and knows what was not.
        save(folder / OPTIONS_FILE, chosen, described)
        write_trained_videos(folder, {name: known[name] for name in ("train", "validation")})
        scores = trainer.predict(TensorDataset(*measured.tensors())).predictions
        metrics = write_report(
            folder / "report",
            measure_classes(
                scores,
                measured.tensors()[1].numpy(),
                class_names_of(model.config),
                clip_of=clip_reader(measured.dataset, len(scores), measured.unread()),
                training_counts=splits["train"].targets.sum(dim=0).int().numpy(),
            ),
            log_history=trainer.state.log_history,
            split=split,
            details={
                "model": chosen.model,
                "probe": "linear",
                "training_videos": len(splits["train"].targets),
                "clip": f"{processor.num_frames} frames, {processor.sampling_strategy}",
                "seed": chosen.seed,
                **({"broken_videos": sorted({*broken, *unread})} if broken or unread else {}),
            },
        )
    return output_dir, features_dir, metrics


def features_folder(named: str | None) -> Path:
    """Where features are kept."""
    return Path(named or Path(HF_HOME, "hf_video", "features")).expanduser().absolute()


def encode_splits(
    settings: Any, model_name: str, device: torch.device, features_dir: Path, data: Mapping[str, Dataset]
) -> tuple[PreTrainedModel, dict[str, EncodedSplit]]:
    """A frozen model with a new head for the classes of the data, and what it sees in each split. The settings are of
    `hf-video probe` or `plan`."""
    rows = next(iter(data.values()))
    class_names = label_names(rows)
    problem = "multi_label_classification" if is_multi_label(rows) else "single_label_classification"
    model = load_classifier(model_name, class_names, problem, is_frozen=True, dtype=settings.dtype).to(device)
    processor = load_processor(model_name, model.config, num_clips=settings.num_clips, num_crops=settings.num_crops)
    check_clips(model, processor)
    splits = {}
    for name, rows in data.items():
        dataset = VideoDataset(rows, ClipTask(processor), training=False, on_error=settings.on_error)
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
        for row, ids in enumerate(label_ids(rows)):
            targets[row, ids] = 1.0
        splits[name] = EncodedSplit(dataset, features, targets[features.rows], problem == "multi_label_classification")
    return model, splits
