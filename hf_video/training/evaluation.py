"""Measures a model on a data set: scores, the table of predictions, and the report of a training."""

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from tqdm.auto import tqdm
from transformers import EvalPrediction, PreTrainedModel

from hf_video.data import ReadAheadLoader, VideoDataset, collate_clips
from hf_video.drawing.report_pictures import ShownClip, plot_clips, plot_confusion_matrix, plot_curves
from hf_video.inference.prediction import predict_scores
from hf_video.io import replace_file, replace_text, replacing_file
from hf_video.metrics import (
    average_precision,
    chance_accuracy,
    compute_metrics,
    confusion_matrix,
    measured_in,
    recognised_shares,
    tell_count,
    wilson_interval,
)

from .assessment import TRAINING
from .callbacks import THROUGHPUT_SCALARS

TABLE_SUFFIXES = (".csv", ".parquet")
logger = logging.getLogger(__name__)
_TITLES = {
    "clips_per_second": "clips per second in training",
    "data_wait_fraction": "of that time, waiting for data",
    "peak_memory_gib": "peak memory (GiB)",
}
_NUM_WORST_CLIPS = 8
_NUM_CONFUSIONS = 20


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
        num_workers: processes that read videos; 0 reads in this one.
        reading_threads: threads that read videos ahead if no processes do; see `ReadAheadLoader`.
        progress: shows a progress bar.

    Returns:
        Scores (num_videos, num_classes) float32, and labels: class ids (num_videos,) int64, or targets (num_videos,
        num_classes) float32 if a video may have several classes.

    Raises:
        ValueError: the data set is empty.
    """
    loader = ReadAheadLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        reading_threads=reading_threads,
        collate_fn=collate_clips,
    )
    if not len(loader):
        raise ValueError("There is no video to evaluate: the data set is empty.")
    model.eval()
    scores, labels = [], []
    for batch in tqdm(loader, desc="Evaluating", disable=None if progress else True):
        scores.append(predict_scores(model, batch["pixel_values"]))
        labels.append(batch["labels"])
    return torch.cat(scores).numpy(), torch.cat(labels).numpy()


def write_predictions(
    path: str | os.PathLike,
    *,
    videos: Sequence[str],
    scores: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
) -> None:
    """Writes a table with one row for each video; wrong predictions with the highest scores come first.

    The columns are `video`, `label`, `prediction`, `is_right`, `score` of the prediction, `label_score`, and for each
    class `score: NAME`. If a video may have several classes, they are `video`, `labels`, `predictions`, `is_right`,
    `error` and the scores: names are separated by semicolons, a class is predicted if its score is at least a half,
    and `error` is the largest difference between a score and the truth.

    Args:
        path: a file that ends in .csv or .parquet.
        videos: num_videos paths or names.
        scores: (num_videos, num_classes) float class probabilities.
        labels: (num_videos,) integer class ids, or (num_videos, num_classes) zeros and ones.
        class_names: num_classes names.

    Raises:
        ValueError: the file name ends differently, or the lengths do not match each other.
    """
    path = check_table_name(path)
    if not len(videos) == len(scores) == len(labels) or scores.shape[1:] != (len(class_names),):
        raise ValueError(
            f"There are {len(videos)} videos and {len(labels)} labels for scores of shape {scores.shape}, and "
            f"{len(class_names)} class names."
        )
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


def write_report(
    folder: str | os.PathLike,
    *,
    scores: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    log_history: Sequence[dict[str, float]] = (),
    split: str = "validation",
    training_metrics: Mapping[str, float] | None = None,
    details: dict[str, Any] | None = None,
    clip_of: Callable[[int], tuple[str, np.ndarray]] | None = None,
    training_counts: np.ndarray | None = None,
    num_videos: int | None = None,
) -> dict[str, Any]:
    """Writes `metrics.json` and `report.md`, and with matplotlib `curves.png`, `confusion_matrix.png` and
    `worst_clips.png`.

    Each file is replaced as a whole. If matplotlib is missing, a warning says how to get the pictures.

    Args:
        folder: made if it does not exist.
        scores: (num_videos, num_classes) float logits.
        labels: (num_videos,) integer class ids, or (num_videos, num_classes) float targets of multi-label
            classification, which has no confusion matrix.
        class_names: num_classes names.
        log_history: `trainer.state.log_history`; empty for a report without curves.
        split: name of the split that was evaluated.
        training_metrics: the metrics of the model on clips that it was trained on.
        details: settings for both the summary and `metrics.json`.
        clip_of: gives for a row of `scores` the name of its video and frames (T, H, W, 3), uint8 or float from 0 to 1,
            for the picture of the clips with the highest loss.
        training_counts: (num_classes,) int, the training videos of each class, for the table of classes.
        num_videos: number of videos, if the rows of `scores` are clips of fewer.

    Returns:
        The contents of `metrics.json`.

    Raises:
        ValueError: shapes do not match each other.
    """
    if len(class_names) != scores.shape[1]:
        raise ValueError(f"There are scores of {scores.shape[1]} classes but {len(class_names)} class names.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    metrics = compute_metrics(EvalPrediction(predictions=scores, label_ids=labels))
    counts = confusion_matrix(scores, labels) if labels.ndim == 1 else None
    worth: dict[str, Any] = {}
    if counts is not None:
        interval = wilson_interval(metrics["top1_accuracy"], len(labels))
        worth = {"chance": chance_accuracy(labels), "top1_interval": [*interval]}
    measured_on_training = {f"{TRAINING}{name}": value for name, value in (training_metrics or {}).items()}
    details = {**(details or {}), **throughput_of(log_history)}
    result = {
        "split": split,
        "num_videos": num_videos or len(labels),
        **({"num_clips": len(labels)} if num_videos and num_videos < len(labels) else {}),
        **metrics,
        **worth,
        **measured_on_training,
        **details,
        "class_names": list(class_names),
        **({} if counts is None else {"confusion_matrix": counts.tolist()}),
    }
    replace_text(folder / "metrics.json", json.dumps(result, indent=2) + "\n")

    def draw() -> Iterator[tuple[str, Any]]:
        if any("eval_loss" in entry for entry in log_history):
            yield "curves.png", plot_curves(log_history, worth.get("chance"))
        if counts is not None:
            yield "confusion_matrix.png", plot_confusion_matrix(counts, class_names)
        if clip_of is not None:
            clips = _worst_clips(scores, labels, class_names, clip_of)
            yield "worst_clips.png", plot_clips(clips, f"The {len(clips)} {split} clips with the highest loss")

    names = [_cell(name) for name in class_names]
    if counts is None:
        classes = _multi_label_table(scores, labels, names, training_counts)
    else:
        classes = _class_table(counts, names, training_counts)
    head = ["# Training report", "", f"Measured on {tell_count(result)} of the {split} split.", ""]
    shown = {metric.title: metric.text(value) for metric, value in measured_in(metrics)}
    if worth:
        low, high = worth["top1_interval"]
        shown |= {"top-1, 95% interval": f"{low:.1%} to {high:.1%}", "top-1 by chance": f"{worth['chance']:.2%}"}
    for metric, value in measured_in(measured_on_training, TRAINING)[:1]:
        shown[f"{metric.title} on training clips"] = metric.text(value)
    write_summary(folder, head, shown, details, draw, classes)
    return result


def write_summary(
    folder: Path,
    head: list[str],
    shown: dict[str, str],
    details: dict[str, Any],
    draw: Callable[[], Iterable[tuple[str, Any]]],
    tail: Sequence[str] = (),
) -> None:
    """Writes `report.md`: lines of Markdown, values by their titles, details by their names, and with matplotlib the
    pictures that `draw` gives."""
    pictures: list[str] = []
    if importlib.util.find_spec("matplotlib") is None:
        logger.warning("No pictures in the report: matplotlib is missing (pip install 'hf-video-models[demo]').")
    else:
        for name, figure in draw():
            replace_file(folder / name, partial(figure.savefig, format="png", dpi=150))
            pictures.append(f"![{Path(name).stem.replace('_', ' ')}]({name})")
    for name, value in details.items():
        title = _TITLES.get(name, name.replace("_", " "))
        shown[title] = f"{value:.1%}" if name == "data_wait_fraction" else _plain(value)
    table = _table(("", ""), shown.items())
    replace_text(folder / "report.md", "\n".join([*head, *table, "", *pictures, "", *tail]) + "\n")


def clip_reader(
    dataset: VideoDataset, num_scores: int, broken: Collection[str] = ()
) -> Callable[[int], tuple[str, np.ndarray]] | None:
    """The `clip_of` of [`write_report`] for the scores of a data set made with `training=False`: the first view of a
    video as the model sees it, without normalisation. The `broken` videos have no scores. None if the numbers do not
    add up, as may happen with several processes: then the video of a row of scores is unknown."""
    names, broken = dataset.rows["video"][:], set(broken)
    rows = [index for index, name in enumerate(names) if name not in broken]
    if len(rows) != num_scores:
        return None

    def clip_of(row: int) -> tuple[str, np.ndarray]:
        frames = dataset[rows[row]]["pixel_values"][0].movedim(1, -1).numpy()
        processor = dataset.task.processor
        if processor.do_normalize:
            frames = frames * np.array(processor.image_std) + np.array(processor.image_mean)
        return "/".join(Path(names[rows[row]]).parts[-2:]), frames.clip(0, 1)

    return clip_of


def losses_of(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The loss of each video, (num_videos,), from logits (num_videos, num_classes): its cross-entropy, or the mean
    binary cross-entropy of its classes if the labels have as many columns."""
    logits, targets = torch.from_numpy(scores).float(), torch.from_numpy(labels)
    if labels.ndim == 1:
        return F.cross_entropy(logits, targets, reduction="none").numpy()
    return F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").mean(1).numpy()


def _worst_clips(
    scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str], clip_of: Callable
) -> list[ShownClip]:
    losses = losses_of(scores, labels)
    logits = torch.from_numpy(scores).float()
    probabilities = (logits.softmax(1) if labels.ndim == 1 else logits.sigmoid()).numpy()
    clips = []
    for row in np.argsort(-losses, kind="stable")[:_NUM_WORST_CLIPS].tolist():
        name, frames = clip_of(row)
        predicted = int(probabilities[row].argmax())
        if labels.ndim == 1:
            true = f"{class_names[int(labels[row])]} ({probabilities[row, labels[row]]:.1%})"
        else:
            true = ", ".join(class_names[index] for index in np.flatnonzero(labels[row]).tolist()) or "none"
        guess = f"{class_names[predicted]} ({probabilities[row, predicted]:.1%})"
        clips.append(ShownClip((f"true: {true}", f"predicted: {guess}", f"loss {losses[row]:.2f}, {name}"), frames))
    return clips


def throughput_of(log_history: Sequence[dict[str, float]]) -> dict[str, float]:
    """The throughput of a run: medians of speed and waiting, maximum of memory."""
    logged = {name: [entry[name] for entry in log_history if name in entry] for name in THROUGHPUT_SCALARS}
    return {
        name: float(max(values) if name == "peak_memory_gib" else np.median(values))
        for name, values in logged.items()
        if values
    }


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "<br>".join(map(_cell, value)) if isinstance(value, list) else _cell(value)


def _cell(value: object) -> str:
    """A text in a Markdown table, where a bar would end the cell."""
    return str(value).replace("|", r"\|")


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(map(str, row))} |" for row in (titles, ["---"] * len(titles), *rows)]


def _class_table(counts: np.ndarray, class_names: Sequence[str], training_counts: np.ndarray | None) -> list[str]:
    """The most frequent confusions, and all classes, the lowest recall first."""
    totals, shares = counts.sum(axis=1), recognised_shares(counts)
    mistakes = counts - np.diag(counts.diagonal())
    order = np.argsort(-mistakes, axis=None, kind="stable")[:_NUM_CONFUSIONS]
    pairs = [pair for pair in zip(*np.unravel_index(order, counts.shape), strict=True) if mistakes[pair]]
    confused = [
        (class_names[row], class_names[taken], f"{mistakes[row, taken]} of {totals[row]}") for row, taken in pairs
    ]
    rows = []
    for index in np.argsort(shares, kind="stable").tolist():
        taken = mistakes[index].argmax()
        mistaken = f"{class_names[taken]} ({mistakes[index, taken]})" if mistakes[index].any() else ""
        rows.append((index, class_names[index], totals[index], _share(shares[index]), mistaken))
    lines = [*_table(("true class", "taken for", "videos"), confused), ""] if confused else []
    titles = ("id", "class", "support", "recall", "most often taken for")
    return lines + _table(*_with_training_counts(titles, rows, training_counts))


def _multi_label_table(
    scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str], training_counts: np.ndarray | None
) -> list[str]:
    """All classes, the lowest average precision first."""
    precisions, totals = average_precision(scores, labels), labels.sum(axis=0).astype(int)
    found = ((scores >= 0) * labels).sum(axis=0)  # a logit of 0 is a probability of a half
    recalls = np.divide(found, totals, out=np.full(len(totals), np.nan), where=totals > 0)
    order = np.argsort(precisions, kind="stable").tolist()  # NaN, of classes without videos, comes last
    rows = [
        (index, class_names[index], totals[index], _share(precisions[index]), _share(recalls[index]))
        for index in order
    ]
    titles = ("id", "class", "support", "average precision", "recall at 0.5")
    return _table(*_with_training_counts(titles, rows, training_counts))


def _share(value: float) -> str:
    """A share in percent, nothing for that of a class without videos."""
    return "" if np.isnan(value) else f"{value:.1%}"


def _with_training_counts(
    titles: tuple[str, ...], rows: list[tuple], training_counts: np.ndarray | None
) -> tuple[tuple[str, ...], list[tuple]]:
    """A table of classes, whose rows begin with class id and name, with their training videos if these are known."""
    if training_counts is None:
        return titles, rows
    titles = (*titles[:2], "training videos", *titles[2:])
    return titles, [(*row[:2], training_counts[row[0]], *row[2:]) for row in rows]
