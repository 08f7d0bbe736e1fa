"""Measures a trained classifier of clips on labelled videos: the task `classification`."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_video.data import ClipTask, ReadAheadLoader, VideoDataset, collate_clips, is_multi_label, load_video_dataset
from hf_video.data.checks import readable_videos
from hf_video.data.clip_duration import cut_splits
from hf_video.data.holding_out import further_columns
from hf_video.data.rows import own_name, sorted_names
from hf_video.data.trained_data import count_trained, parts_of_training, read_training
from hf_video.data.video_settings import annotation_choices, dataset_options
from hf_video.inference.inference_settings import ClassificationSettings, EvaluateSettings, MeasuredSettings
from hf_video.inference.scores import predict_scores
from hf_video.io import replacing_file
from hf_video.loading.class_names import class_names_of
from hf_video.loading.models import load_trained_model
from hf_video.metrics import (
    average_precision,
    chance_and_interval,
    confusion_matrix,
    count_clips,
    measure,
    measured_in,
    recognised_shares,
    tell_chance,
    tell_count,
    tell_views,
    top_k_accuracy,
)
from hf_video.output_folders import check_output_file
from hf_video.texts import table_lines

from .matching import Tell

TABLE_SUFFIXES = (".csv", ".parquet")


def evaluate_dataset(
    model: PreTrainedModel,
    dataset: Dataset,
    *,
    batch_size: int = 8,
    num_workers: int = 0,
    reading_threads: int | None = None,
    progress: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Class probabilities and labels of every video in a data set, in its order.

    Args:
        model: a video classifier; put into evaluation mode.
        dataset: a `VideoDataset` made with `training=False`, or any data set of the same items.
        batch_size: videos in one forward pass, each with all its views.
        num_workers, reading_threads: processes and threads that read videos, see `ReadAheadLoader`.
        progress: shows a progress bar.

    Returns:
        Scores (num_videos, num_classes) float32, and labels: class ids (num_videos,) int64, or targets (num_videos,
        num_classes) float32 if a video may have several classes.

    Raises:
        ValueError: the data set is empty.
    """
    reading = {"batch_size": batch_size, "num_workers": num_workers, "reading_threads": reading_threads}
    model.eval()
    scores, labels = [], []
    for batch in read_batches(dataset, **reading, progress=progress):
        scores.append(predict_scores(model, batch["pixel_values"]))
        labels.append(batch["labels"])
    return torch.cat(scores).numpy(), torch.cat(labels).numpy()


def read_batches(dataset: Dataset, *, progress: bool = True, **reading: Any) -> Iterator[dict[str, torch.Tensor]]:
    """The batches of an evaluation; see [`evaluate_dataset`]."""
    loader = ReadAheadLoader(dataset, collate_fn=collate_clips, **reading)
    if not len(loader):
        raise ValueError("There is no video to evaluate: the data set is empty.")
    yield from tqdm(loader, desc="Evaluating", disable=None if progress else True)


def write_predictions(
    path: str | os.PathLike,
    *,
    videos: Sequence[str],
    scores: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    further: Mapping[str, Sequence[str | None]] | None = None,
) -> None:
    """Writes a table with a row a video, wrong predictions with the highest scores first.

    The columns are `video`, `label`, `prediction`, `is_right`, `score` of the prediction, `label_score`, and for each
    class `score: NAME`. If a video may have several classes, they are `video`, `labels`, `predictions`, `is_right`,
    `error` and the scores: names are separated by semicolons, a class is predicted if its score is at least a half,
    and `error` is the largest difference between a score and the truth.

    Args:
        path: a file that ends in .csv or .parquet; else it is a `ValueError`.
        videos: num_videos paths or names.
        scores: (num_videos, num_classes) float class probabilities.
        labels: (num_videos,) integer class ids, or (num_videos, num_classes) zeros and ones.
        class_names: num_classes names.
        further: columns behind `video`, num_videos texts or None each, without those that have a name from above.
    """
    path = check_table_name(path)
    names = np.array(class_names, dtype=object)
    if labels.ndim == 1:
        predicted, sureness = scores.argmax(axis=1), scores.max(axis=1)
        columns = {
            "label": names[labels],
            "prediction": names[predicted],
            "is_right": predicted == labels,
            "score": sureness,
            "label_score": scores[np.arange(len(labels)), labels],
        }
    else:
        present, chosen, sureness = labels > 0.5, scores >= 0.5, np.abs(scores - labels).max(axis=1)
        columns = {
            "labels": np.array([";".join(names[row]) for row in present], dtype=object),
            "predictions": np.array([";".join(names[row]) for row in chosen], dtype=object),
            "is_right": (present == chosen).all(axis=1),
            "error": sureness,
        }
    columns = {"video": np.array(videos, dtype=object), **columns}
    columns |= {f"score: {name}": scores[:, index] for index, name in enumerate(class_names)}
    texts = {name: np.array(values, dtype=object) for name, values in (further or {}).items()}
    columns = {"video": columns["video"], **texts, **columns}
    order = np.lexsort((-sureness, columns["is_right"]))
    table = datasets.Dataset.from_dict({name: column[order].tolist() for name, column in columns.items()})
    with replacing_file(path) as unfinished, unfinished.open("wb") as file:
        (table.to_csv if path.suffix.lower() == ".csv" else table.to_parquet)(file)


def check_table_name(path: str | os.PathLike) -> Path:
    """The path of a table, which must end in .csv or .parquet."""
    path = Path(path)
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise ValueError(f"{path} is not a table: a name that ends in {' or '.join(TABLE_SUFFIXES)} is expected.")
    return path


def evaluate_classes(settings: EvaluateSettings, tell: Tell) -> dict[str, Any]:
    """Measures a classifier of clips, see [`evaluate`]: metrics, figures of each class and of each value of a column,
    and the confusion matrix."""
    table = check_output_file("predictions", settings.predictions)
    if table is not None:
        check_table_name(table)
    model, dataset, facts = load_measured_clips(settings, ClipTask)
    names = class_names_of(model.config)
    scores, labels = evaluate_dataset(model, dataset, **reading_options(settings))
    figures = measure(scores, labels, model.config.problem_type, are_probabilities=True)
    sureness = chance_and_interval(figures["top1_accuracy"], labels) if "top1_accuracy" in figures else {}
    result = facts | figures | sureness | _by_class(scores, labels, names)
    texts = {name: dataset.rows[name][:] for name in text_columns(dataset.rows)}
    videos = texts["video"]
    if by := find_by(settings, dataset.rows):
        result |= {"by_column": by, "by": _by_value(texts[by], videos, scores, labels)}
    try:
        if table is not None:
            write_predictions(table, videos=videos, scores=scores, labels=labels, class_names=names, further=texts)
    finally:  # after a full disk the figures are still told
        tell(result)
    return result


def load_measured_clips(
    settings: MeasuredSettings, make_task: type[ClipTask]
) -> tuple[PreTrainedModel, VideoDataset, dict[str, Any]]:
    """A classifier of clips, the clips to measure it on, and what its result says of these."""
    views = {name: getattr(settings, name) for name in ("num_clips", "num_crops")}
    model, processor = load_trained_model(settings.model, device=settings.device, dtype=settings.dtype, **views)
    names = class_names_of(model.config)
    training, data = load_measured(settings, names)
    parts = parts_of_training(settings.model or "", training, data, names)
    split = settings.choose_split(parts or data)
    rows = (parts or data)[split]
    if (several := is_multi_label(rows)) != (model.config.problem_type == "multi_label_classification"):
        of_data, of_model = ("any number of classes", "one") if several else ("one class", "any number")
        raise ValueError(
            f"The videos of {settings.data} have {of_data} each, the model was trained for {of_model}: evaluate it on "
            "data of its own kind."
        )
    find_by(settings, rows)
    check_readable(settings, rows)
    rows = cut_splits({split: rows}, (training.get("data") or {}).get("clip_duration"))[split]
    dataset, facts = measured_clips(settings, rows, make_task(processor), split, parts is not None)
    facts |= count_clips(dataset.rows["video"][:])
    facts["views"] = tell_views(processor.num_clips, processor.num_crops)
    return model, dataset, facts


def measured_clips(
    settings: MeasuredSettings, rows: datasets.Dataset, task: ClipTask, split: str, is_part: bool
) -> tuple[VideoDataset, dict[str, Any]]:
    """The clips of rows that can be read, and what a result says of them."""
    dataset = VideoDataset(rows, task, training=False, on_error=settings.on_error)
    broken = dataset.drop_broken(num_workers=settings.num_workers).broken_videos()
    facts = measured_part(settings, split, is_part) | trained_rows(settings, dataset.rows)
    return dataset, facts | ({"broken_videos": broken} if broken else {})


def text_columns(rows: datasets.Dataset) -> list[str]:
    """`video`, and the further columns of a table."""
    return [name for name, kind in rows.features.items() if kind == datasets.Value("string")]


def find_by(settings: MeasuredSettings, rows: datasets.Dataset) -> str | None:
    """The column with the values of which rows are measured, too; a `ValueError` for rows that cannot be so."""
    if (by := getattr(settings, "by", None)) is None:
        return None
    if is_multi_label(rows):
        raise ValueError(f"--by {by} measures accuracy, and the videos of {settings.data} have any number of classes.")
    names = text_columns(rows)
    if (name := own_name(names, by)) not in names:
        raise ValueError(f"--by {by}: {settings.data} has no such column to measure by, only {', '.join(names)}.")
    values = rows[name][:]
    if None in values:
        empty = f"{values.count(None)} of {len(values)} rows are empty there"
        raise ValueError(f"--by {by}: {empty}, such as that of {rows['video'][values.index(None)]}.")
    return name


def check_readable(settings: MeasuredSettings, rows: datasets.Dataset) -> None:
    """Refuses (`ValueError`) rows with videos that cannot be opened, all at once, unless these are left out."""
    if settings.on_error == "error":
        readable_videos({"": rows}, settings.on_error)


def reading_options(settings: MeasuredSettings) -> dict[str, Any]:
    """How [`evaluate_dataset`] reads."""
    return {name: getattr(settings, name) for name in ("batch_size", "num_workers", "reading_threads")}


def tell_classes(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what `evaluate_classes` gives."""
    lines = tell_clips(result)
    for metric, value in measured_in(result):
        lines.append(f"{metric.title}  {metric.text(value)}")
        if metric.name == "top1_accuracy":
            lines[-1] += f" {tell_chance(result['chance'], result['top1_interval'])}"
    titles = {"class_accuracy": "recall", "class_average_precision": "average precision"}
    name, title = next((name, title) for name, title in titles.items() if name in result)
    if "by" in result:
        by = [(result["by_column"], "measured", "top-1 accuracy (95 %)", "chance")]
        for value, each in result["by"].items():
            shares = (each["top1_accuracy"], *each["top1_interval"])
            by.append((value, tell_count(each), "{:.1%} ({:.1%} to {:.1%})".format(*shares), f"{each['chance']:.1%}"))
        lines += ["", *table_lines(by)]
    rows = zip(result["class_names"], result["class_videos"], result[name], strict=True)
    cells = [(each, str(count), f"{value:.1%}") for each, count, value in rows if count]
    return [*lines, "", *table_lines([("class", "support", title), *cells])]


def tell_clips(result: Mapping[str, Any]) -> list[str]:
    """What was measured, and what the model knows of it."""
    return [f"{tell_count(result)}{tell_split(result)}, {result['views']} each", *tell_known(result)]


def tell_split(result: Mapping[str, Any]) -> str:
    return f" of the {result['split']} split" if result["split"] else ""


def tell_known(result: Mapping[str, Any]) -> list[str]:
    """Which part of the training's data was measured, and a line for each split that has some of the videos."""
    parts = {
        "held out": "held these videos out; --split train measures those that it was trained on",
        "trained on": "had these videos to learn from; --split validation measures those that it held out",
    }
    lines = [f"The training of {result['model']} {parts[part]}"] if (part := result.get("part_of_training")) else []
    counted = tell_count({name: result.get(name) for name in ("num_clips", "num_videos")})
    for split, count in result.get("known_videos", {}).items():
        use = "trained on" if split == "train" else "used to choose the checkpoint"
        worth = "the figures are better than those of other videos would be"
        lines += [f"warning: {use}: {count} of these {counted}; {worth}"] if count else []
    return lines


def load_measured(
    settings: MeasuredSettings, names: list[str], **choices: Any
) -> tuple[dict[str, Any], datasets.DatasetDict]:
    """What is known of the training of the model, and the data, with the column that a training of them split by.
    `choices` go before those of the user."""
    training = read_training(settings.model or "")
    columns = further_columns(training.get("split_by"))
    kept = None if any(getattr(settings, name, None) for name in ("by", "predictions")) else columns
    options = dataset_options(settings) | {"choices": annotation_choices(settings) | choices}
    data = load_video_dataset(settings.data, labels=names, video_root=settings.video_root, columns=kept, **options)
    for name in columns if kept is None else ():
        found = own_name(next(iter(data.values())).column_names, name)
        data = data.rename_column(found, name) if found != name else data
    return training, data


def measured_part(settings: MeasuredSettings, split: str, is_part: bool = False) -> dict[str, str | None]:
    """What a model is measured on: its split is None for data without splits, which are read as `train`, unless they
    are a part of those of its training."""
    whole = None if split == "train" and settings.split is None and not is_part else split
    part = {"part_of_training": "trained on" if split == "train" else "held out"} if is_part else {}
    return {"model": settings.model, "data": settings.data, "split": whole, **part}


def trained_rows(settings: ClassificationSettings, rows: datasets.Dataset, by_video: bool = False) -> dict[str, Any]:
    """How many of the rows, or of their videos, the model knows."""
    found = count_trained(Path(settings.model or ""), rows, by_video)
    return {} if found is None else {"known_videos": found}


def _by_value(
    values: Sequence[str], videos: Sequence[str], scores: np.ndarray, labels: np.ndarray
) -> dict[str, dict[str, Any]]:
    """The figures of the rows with each of the values."""
    found = {}
    for value in sorted_names({*values}):
        rows = [row for row, each in enumerate(values) if each == value]
        accuracy = top_k_accuracy(scores[rows], labels[rows])
        counts = count_clips([videos[row] for row in rows])
        found[value] = counts | {"top1_accuracy": accuracy} | chance_and_interval(accuracy, labels[rows])
    return found


def _by_class(scores: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
    """The figures of each class; None for one without videos, as JSON has no NaN."""
    if labels.ndim == 2:
        counts, name, values = labels.sum(axis=0), "class_average_precision", average_precision(scores, labels)
        confusion = {}
    else:
        matrix = confusion_matrix(scores, labels)
        counts, name, values = matrix.sum(axis=1), "class_accuracy", recognised_shares(matrix)
        confusion = {"confusion_matrix": matrix.tolist()}
    figures = [None if math.isnan(value) else float(value) for value in values]
    return {"class_names": names, "class_videos": counts.astype(int).tolist(), name: figures, **confusion}
