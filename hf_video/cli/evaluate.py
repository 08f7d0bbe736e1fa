"""`hf-video evaluate`: measures a trained model on labelled videos."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_video.inference.inference_settings import EvaluateSettings
from hf_video.loading.models import load_trained_model
from hf_video.settings import setting
from hf_video.training.output_folder import check_output_file

from .command import Command

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel


@dataclass(kw_only=True)
class EvaluateCommandSettings(EvaluateSettings):
    """Output"""

    json: bool = setting(False, "Print one JSON object, with the confusion matrix.")
    output: str | None = setting(None, "Also write the JSON object to FILE, which must not exist.", "FILE")


def run(settings: EvaluateCommandSettings) -> int:
    """Prints the metrics, and writes the files that the options name."""
    output, table = (check_output_file(name, getattr(settings, name)) for name in ("output", "predictions"))
    if output is not None and table is not None and output.resolve() == table.resolve():
        raise ValueError(f"--output and --predictions are both {output}. Give each its own file.")

    from hf_video.data import ClipDataset, is_multi_label, load_video_dataset
    from hf_video.data.repeated_videos import count_trained
    from hf_video.data.stored_videos import check_shards
    from hf_video.io import replace_text
    from hf_video.loading.class_names import class_names_of
    from hf_video.metrics import measure
    from hf_video.training import evaluate_dataset, write_predictions
    from hf_video.training.evaluation import check_table_name

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
    data = load_video_dataset(settings.data, labels=names, video_root=settings.video_root)
    split = settings.split or next(name for name in ("test", "validation", "train") if name in data)
    if split not in data:
        raise ValueError(f"--split {split}: {settings.data} only has {', '.join(data)}.")
    _check_problem_type(model, settings.data, is_multi_label(data[split]))
    check_shards(data[split])

    dataset = ClipDataset(data[split], processor, training=False, on_error=settings.on_error)
    broken = dataset.drop_broken(num_workers=settings.num_workers).broken_videos()
    scores, labels = evaluate_dataset(
        model,
        dataset,
        batch_size=settings.batch_size,
        num_workers=settings.num_workers,
        reading_threads=settings.reading_threads,
    )
    known = count_trained(Path(settings.model).expanduser(), dataset.dataset)
    result = {
        "model": settings.model,
        "data": settings.data,
        "split": split,
        "num_videos": len(labels),
        "views": f"{processor.num_clips} clips x {processor.num_crops} crops",
        **measure(scores, labels, model.config.problem_type, are_probabilities=True),
        **_by_class(scores, labels, names),
        **({} if known is None else {"known_videos": known.by_split, "known_videos_are_at_least": known.is_least}),
        **({"broken_videos": broken} if broken else {}),
    }
    try:
        if output is not None:
            check_output_file("output", settings.output)
            replace_text(output, json.dumps(result, indent=2) + "\n")
        if table is not None:
            check_output_file("predictions", settings.predictions)
            write_predictions(table, videos=dataset.dataset["video"], scores=scores, labels=labels, class_names=names)
    finally:  # after a full disk the figures are still printed
        if settings.json:
            print(json.dumps(result))
        else:
            _print_table(result)
            if broken:
                print(f"\n{len(broken)} videos could not be read:", *broken, sep="\n  ")
    return 0


def _check_problem_type(model: PreTrainedModel, data: str, multi_label: bool) -> None:
    if multi_label != (model.config.problem_type == "multi_label_classification"):
        of_data, of_model = ("any number of classes", "one") if multi_label else ("one class", "any number")
        raise ValueError(
            f"The videos of {data} have {of_data} each, the model was trained for {of_model}: evaluate it on data of "
            "its own kind."
        )


def _by_class(scores: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
    """The figures of each class."""
    from hf_video.metrics import average_precision, confusion_matrix, recognised_shares

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


def _say_what_is_known(result: dict[str, Any]) -> None:
    """A line for each split of the training that has some of the videos."""
    least = "at least " if result.get("known_videos_are_at_least") else ""
    for split, count in result.get("known_videos", {}).items():
        if count:
            use = "trained on" if split == "train" else "used to choose the checkpoint"
            print(
                f"warning: {least}{count} of these {result['num_videos']} videos were {use}: the figures are better "
                "than those of other videos would be"
            )


def _print_table(result: dict[str, Any]) -> None:
    from hf_video.metrics import measured_in

    print(f"{result['num_videos']} videos of the {result['split']} split, {result['views']} each")
    _say_what_is_known(result)
    for metric, value in measured_in(result):
        print(f"{metric.title}  {metric.text(value)}")
    measure = "class_accuracy" if "class_accuracy" in result else "class_average_precision"
    title = {"class_accuracy": "recognised", "class_average_precision": "average precision"}[measure]
    width = max(map(len, result["class_names"]))
    print(f"\n{'class':{width}}  videos  {title}")
    for name, count, value in zip(result["class_names"], result["class_videos"], result[measure], strict=True):
        if count:
            print(f"{name:{width}}  {count:6d}  {value:{len(title)}.1%}")


COMMAND = Command(
    name="evaluate",
    settings=EvaluateCommandSettings,
    run=run,
    help="measure a trained model on labelled videos",
    description="Measure top-1 and top-5 accuracy, or mean average precision where a video may have several "
    "classes. Probabilities are averaged over the views of a video.",
)
