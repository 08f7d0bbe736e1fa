"""`hf-video probe`: trains a small classifier on the features of a frozen model, and measures it."""

from __future__ import annotations

import argparse
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_video.loading.models import choose_device

from .command_line import add_flags
from .output_folder import require_fresh
from .run_settings import choose_values, make, read_given
from .training_data import load_data, readable_videos, training_splits

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import PreTrainedModel

    from hf_video.data import ClipDataset
    from hf_video.jobs.feature_cache import Features

SPLITS = ("train", "validation", "test")

DESCRIPTION = """\
Compute the features of every video once, with a frozen model, and train a small classifier on them.

Features are kept: the next probe of the same model, processor and videos takes seconds, and after an interruption the
same command goes on. The probe with the lowest validation loss is measured on the test split. If there is none, it is
measured on the validation split.

linear     one layer on the pooled features, batch-normalised; saved as a whole model, for --model of other commands
attentive  a query that attends to all tokens, for models whose training pools nothing (masked autoencoders)
knn        the nearest neighbours among the training videos; nothing is trained
"""
EPILOG = """\
--help-all lists every setting; each field of transformers.TrainingArguments is one.

example: hf-video probe my_videos --model MCG-NJU/videomae-base --output-dir my_probe --kind attentive
"""


class _Split(NamedTuple):
    """A data set, the features of its videos, and their classes: (num_videos, num_classes) float, 0 or 1."""

    dataset: ClipDataset
    features: Features
    targets: torch.Tensor
    is_multi_label: bool

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The features, and the labels as a loss takes them."""
        return self.features.values, self.targets if self.is_multi_label else self.targets.argmax(1)

    def unread(self) -> list[str]:
        """The videos that have no features."""
        read = set(self.features.rows.tolist())
        return [video for row, video in enumerate(self.dataset.dataset["video"]) if row not in read]


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    return commands.add_parser(
        "probe",
        help="train a small classifier on the features of a frozen model",
        usage="hf-video probe DATA --model MODEL --output-dir DIR [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .command_settings import PROBE

    add_flags(parser, PROBE, positional="data")


def run(args: argparse.Namespace) -> int:
    """Prints the accuracy, and where probe and report are."""
    values = choose_values(args.settings, read_given(args))
    args = argparse.Namespace(**vars(args) | values)
    if args.model is MISSING:
        raise ValueError("The model to probe is missing: give --model.")
    output_dir = Path(args.output_dir).expanduser().absolute()
    require_fresh(output_dir, ways_out="Choose another folder: results are never overwritten.")
    device = choose_device(args.device)

    from huggingface_hub.constants import HF_HOME
    from safetensors.torch import save_file
    from torch.utils.data import TensorDataset
    from transformers import TrainingArguments, set_seed

    from hf_video.io import new_folder
    from hf_video.loading.class_names import class_names_of
    from hf_video.metrics import measured_in
    from hf_video.training.adaptation import to_plain_model, train_probe

    features_dir = Path(args.features or Path(HF_HOME, "hf_video", "features")).expanduser().absolute()
    here = {"output_dir": str(output_dir / "probe"), "use_cpu": device.type == "cpu"}
    arguments = make(TrainingArguments, values | here)
    set_seed(args.seed)
    model, splits, broken = _load(args, args.model, device, features_dir)
    split = "test" if "test" in splits else "validation"
    history: list[dict[str, float]] = []
    # The folder appears after it is complete: an interrupted probe leaves only its features.
    with new_folder(output_dir) as folder:
        if args.kind == "knn":
            scores = _nearest(splits["train"], splits[split], args.num_neighbors)
        else:
            arguments.output_dir = str(folder / "probe")
            # The probe begins with the same weights, whether or not features had to be computed.
            set_seed(args.seed)
            probe = _make_probe(args.kind, model, splits["train"].features.values.shape[-1])
            known, held_out = splits["train"].tensors(), splits["validation"].tensors()
            trainer = train_probe(probe, model.config, known, held_out, arguments)
            scores = trainer.predict(TensorDataset(*splits[split].tensors())).predictions
            history = trainer.state.log_history
        if args.kind == "linear":
            plain = to_plain_model(model).to(model.dtype)
            plain.save_pretrained(folder)
            splits["train"].dataset.processor.save_pretrained(folder)
        elif args.kind == "attentive":
            save_file(probe.state_dict(), folder / "attentive_probe.safetensors")
        class_names = class_names_of(model.config)
        metrics = _report(args, folder / "report", scores, history, splits, split, class_names, broken)

    metric, value = measured_in(metrics)[0]
    print(f"{metric.title} {metric.text(value, digits=1)} on {metrics['num_videos']} {split} videos")
    print(f"{'model ' if args.kind == 'linear' else 'probe '}   {output_dir}")
    print(f"report   {output_dir / 'report' / 'report.md'}\nfeatures {features_dir}")
    if broken:
        print(f"{len(broken)} videos could not be read:", *broken, sep="\n  ")
    return 0


def _load(
    args: argparse.Namespace, model_name: str, device: torch.device, features_dir: Path
) -> tuple[PreTrainedModel, dict[str, _Split], list[str]]:
    """The model, the splits of the data with their features, and the videos that cannot be read."""
    import torch

    from hf_video.data import ClipDataset, is_multi_label
    from hf_video.data.columns import label_ids
    from hf_video.jobs.feature_cache import extract_features
    from hf_video.loading.classifiers import load_classifier
    from hf_video.loading.clip_size import check_clips
    from hf_video.loading.processors import load_processor

    data, class_names = load_data(args.data, model_name, args.video_root)
    problem = "multi_label_classification" if is_multi_label(data["train"]) else "single_label_classification"
    # Tokens come from the encoder; features of the other probes from all weights before the head.
    is_frozen = args.kind != "attentive"
    model = load_classifier(model_name, class_names, problem, is_frozen=is_frozen, dtype=args.dtype).to(device)
    processor = load_processor(model_name, model.config, num_clips=args.num_clips, num_crops=args.num_crops)
    check_clips(model, processor)
    data, broken = readable_videos(data, args.on_error)
    data["train"], data["validation"] = training_splits(data, vars(args))
    splits = {}
    for name in SPLITS:
        if name not in data:
            continue
        dataset = ClipDataset(data[name], processor, training=False, on_error=args.on_error)
        features = extract_features(
            model,
            dataset,
            features_dir,
            pooling="none" if args.kind == "attentive" else "head",
            batch_size=args.batch_size,
            num_workers=args.num_workers,
            reading_threads=args.reading_threads,
        )
        targets = torch.zeros(len(dataset), len(class_names))
        for row, ids in enumerate(label_ids(data[name])):
            targets[row, ids] = 1.0
        splits[name] = _Split(dataset, features, targets[features.rows], problem == "multi_label_classification")
    unread = {video for part in splits.values() for video in part.unread()}
    return model, splits, sorted({*broken, *unread})


def _make_probe(kind: str, model: PreTrainedModel, width: int) -> torch.nn.Module:
    from hf_video.training.adaptation import AttentiveProbe, make_linear_probe

    if kind == "attentive":
        return AttentiveProbe(width, model.config.num_labels)
    make_linear_probe(model)
    return model.classifier


def _nearest(known: _Split, asked: _Split, num_neighbors: int) -> np.ndarray:
    """Logits from the classes of the nearest neighbours."""
    from hf_video.training.adaptation import knn_scores

    scores = knn_scores(known.features.values, known.targets, asked.features.values, num_neighbors=num_neighbors)
    return scores.clamp(1e-6, 1 - 1e-6).logit().numpy()


def _report(
    args: argparse.Namespace,
    folder: Path,
    scores: np.ndarray,
    history: list[dict[str, float]],
    splits: dict[str, _Split],
    split: str,
    class_names: list[str],
    broken: list[str],
) -> dict[str, Any]:
    from hf_video.training import write_report
    from hf_video.training.evaluation import clip_reader

    measured = splits[split]
    processor = measured.dataset.processor
    return write_report(
        folder,
        scores=scores,
        labels=measured.tensors()[1].numpy(),
        class_names=class_names,
        log_history=history,
        split=split,
        clip_of=clip_reader(measured.dataset, len(scores), measured.unread()),
        details={
            "model": args.model,
            "probe": args.kind,
            "training_videos": len(splits["train"].targets),
            "clip": f"{processor.num_frames} frames, {processor.sampling_strategy}",
            "seed": args.seed,
            **({"broken_videos": broken} if broken else {}),
        },
    )
