"""Measures a trained model on labelled videos: `hf-video evaluate` for programs."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from hf_video.data import ClipTask, VideoDataset, is_multi_label, load_video_dataset
from hf_video.data.checks import count_trained
from hf_video.data.holding_out import further_columns
from hf_video.data.video_settings import dataset_options
from hf_video.inference.inference_settings import EvaluateSettings
from hf_video.loading.class_names import class_names_of
from hf_video.loading.models import load_trained_model
from hf_video.metrics import average_precision, confusion_matrix, count_clips, measure, recognised_shares
from hf_video.output_folders import check_output_file

from .evaluation import check_table_name, evaluate_dataset, write_predictions
from .training_data import cut_splits, parts_of_training, read_training


def evaluate(
    settings: EvaluateSettings, tell: Callable[[dict[str, Any]], object] = lambda result: None
) -> dict[str, Any]:
    """Measures a model on labelled videos, as `hf-video evaluate`.

    Args:
        settings: the data, the model, and what differs from the defaults.
        tell: is called with the result, even if the table of predictions cannot be written.

    Returns:
        Metrics, figures of each class, and the confusion matrix, as `hf-video evaluate --json` prints them.

    Raises:
        ValueError, OSError: a setting or a video cannot be used, there is no such model, or it was trained for another
            kind of labels.
    """
    table = check_output_file("predictions", settings.predictions)
    if table is not None:
        check_table_name(table)
    model, processor = load_trained_model(
        settings.model,
        device=settings.device,
        dtype=settings.dtype,
        num_clips=settings.num_clips,
        num_crops=settings.num_crops,
    )
    names = class_names_of(model.config)
    training = read_training(settings.model)
    columns = further_columns(training.get("split_by"))
    data = load_video_dataset(
        settings.data, labels=names, video_root=settings.video_root, columns=columns, **dataset_options(settings)
    )
    parts = parts_of_training(training, data, names)
    data = parts or data
    split = settings.split or next(name for name in ("test", "validation", "train") if name in data)
    if split not in data:
        raise ValueError(f"--split {split}: {settings.data} only has {', '.join(data)}.")
    _check_problem_type(model, settings.data, is_multi_label(data[split]))

    rows = cut_splits({split: data[split]}, (training.get("data") or {}).get("clip_duration"))[split]
    dataset = VideoDataset(rows, ClipTask(processor), training=False, on_error=settings.on_error)
    broken = dataset.drop_broken(num_workers=settings.num_workers).broken_videos()
    scores, labels = evaluate_dataset(
        model,
        dataset,
        batch_size=settings.batch_size,
        num_workers=settings.num_workers,
        reading_threads=settings.reading_threads,
    )
    known = count_trained(Path(settings.model), dataset.rows)
    result = {
        "model": settings.model,
        "data": settings.data,
        "split": split,
        **({} if parts is None else {"part_of_training": "trained on" if split == "train" else "held out"}),
        **count_clips(dataset.rows["video"][:]),
        "views": f"{processor.num_clips} clips x {processor.num_crops} crops",
        **measure(scores, labels, model.config.problem_type, are_probabilities=True),
        **_by_class(scores, labels, names),
        **({} if known is None else {"known_videos": known}),
        **({"broken_videos": broken} if broken else {}),
    }
    try:
        if table is not None:
            check_output_file("predictions", settings.predictions)
            write_predictions(table, videos=dataset.rows["video"], scores=scores, labels=labels, class_names=names)
    finally:
        tell(result)
    return result


def _check_problem_type(model: PreTrainedModel, data: str, multi_label: bool) -> None:
    if multi_label != (model.config.problem_type == "multi_label_classification"):
        of_data, of_model = ("any number of classes", "one") if multi_label else ("one class", "any number")
        raise ValueError(
            f"The videos of {data} have {of_data} each, the model was trained for {of_model}: evaluate it on data of "
            "its own kind."
        )


def _by_class(scores: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
    """The figures of each class."""

    if labels.ndim == 2:
        return {
            "class_names": names,
            "class_videos": labels.sum(axis=0).astype(int).tolist(),
            "class_average_precision": [_number(value) for value in average_precision(scores, labels)],
        }
    counts = confusion_matrix(scores, labels)
    accuracies = recognised_shares(counts)
    return {
        "class_names": names,
        "class_videos": counts.sum(axis=1).tolist(),
        "class_accuracy": [_number(value) for value in accuracies],
        "confusion_matrix": counts.tolist(),
    }


def _number(value: float) -> float | None:
    """The value, or None for NaN, the value of a class without videos: JSON has no NaN."""
    return None if math.isnan(value) else float(value)
