"""The report of a training run: a folder with a summary, metrics, curves, a confusion matrix and the worst clips."""

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from transformers import EvalPrediction

from hf_video.data import ClipDataset
from hf_video.files import replace_file, replace_text
from hf_video.metrics import average_precision, compute_metrics, confusion_matrix, measured_in, recognised_shares

from .callbacks import THROUGHPUT_SCALARS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

_TITLES = {
    "clips_per_second": "clips per second in training",
    "data_wait_fraction": "of that time, waiting for data",
    "peak_memory_gib": "peak memory (GiB)",
}
_NUM_WORST_CLIPS = 8
_NUM_CONFUSIONS = 20
# With more classes, counts or names in the confusion matrix would be too small to read.
_MAX_COUNTED_CLASSES = 20
_MAX_NAMED_CLASSES = 60
_FRAMES_OF_A_CLIP = 6
_LONGEST_NAME = 32
_LONGEST_LINE = 80


class ShownClip(NamedTuple):
    """A clip in a picture: the lines of its caption, and its frames (T, H, W, 3), uint8 or float from 0 to 1."""

    caption: tuple[str, ...]
    frames: np.ndarray


def write_report(
    folder: str | os.PathLike,
    *,
    scores: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    log_history: Sequence[dict[str, float]] = (),
    split: str = "validation",
    details: dict[str, Any] | None = None,
    clip_of: Callable[[int], tuple[str, np.ndarray]] | None = None,
) -> dict[str, Any]:
    """Writes `metrics.json` and `report.md`, and with matplotlib `curves.png`, `confusion_matrix.png` and
    `worst_clips.png`.

    Each file is replaced as a whole, so that an interruption never leaves half a file. If matplotlib is missing, one
    warning says how to get the pictures, and the rest is written.

    Args:
        folder: made if it does not exist.
        scores: (num_videos, num_classes) float logits.
        labels: (num_videos,) integer class ids, or (num_videos, num_classes) float targets of multi-label
            classification, for which there is no confusion matrix.
        class_names: num_classes names.
        log_history: `trainer.state.log_history`; empty for a report without curves.
        split: name of the split that was evaluated.
        details: settings for both the summary and `metrics.json`.
        clip_of: function from a row of `scores` to the name of its video and frames (T, H, W, 3), uint8 or float from
            0 to 1. It shows the clips with the highest loss; without it there is no such picture.

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
    details = {**(details or {}), **throughput_of(log_history)}
    result = {
        "split": split,
        "num_videos": len(labels),
        **metrics,
        **details,
        "class_names": list(class_names),
        **({} if counts is None else {"confusion_matrix": counts.tolist()}),
    }
    replace_text(folder / "metrics.json", json.dumps(result, indent=2) + "\n")

    figures = {}
    if importlib.util.find_spec("matplotlib") is None:
        logger.warning("No pictures in the report: matplotlib is missing (pip install 'hf-video-models[demo]').")
    else:
        if any("eval_loss" in entry for entry in log_history):
            figures["curves.png"] = plot_curves(log_history)
        if counts is not None:
            figures["confusion_matrix.png"] = plot_confusion_matrix(counts, class_names)
        if clip_of is not None:
            clips = _worst_clips(scores, labels, class_names, clip_of)
            figures["worst_clips.png"] = plot_clips(clips, f"The {len(clips)} {split} clips with the highest loss")
    for name, figure in figures.items():
        replace_file(folder / name, partial(figure.savefig, format="png", dpi=150))

    names = [_cell(name) for name in class_names]
    classes = _multi_label_table(scores, labels, names) if counts is None else _class_table(counts, names)
    lines = _summary(metrics, len(labels), split, details, figures) + classes
    replace_text(folder / "report.md", "\n".join(lines) + "\n")
    return result


def clip_reader(
    dataset: ClipDataset, num_scores: int, broken: Collection[str] = ()
) -> Callable[[int], tuple[str, np.ndarray]] | None:
    """The `clip_of` of [`write_report`] for the scores of a data set: the first view of a video as the model sees it,
    without normalisation.

    Args:
        dataset: made with `training=False`.
        num_scores: how many videos have scores.
        broken: the videos without scores, as `dataset.broken_videos()` lists them.

    Returns:
        The function. None if the numbers do not add up, as may happen with several processes: then nobody knows which
        video a row of scores belongs to.
    """
    names, left_out = dataset.dataset["video"][:], set(broken)
    rows = [index for index, name in enumerate(names) if name not in left_out]
    if len(rows) != num_scores:
        return None

    def clip_of(row: int) -> tuple[str, np.ndarray]:
        frames = dataset[rows[row]]["pixel_values"][0].movedim(1, -1).numpy()
        processor = dataset.processor
        if processor.do_normalize:
            frames = frames * np.array(processor.image_std) + np.array(processor.image_mean)
        return "/".join(Path(names[rows[row]]).parts[-2:]), frames.clip(0, 1)

    return clip_of


def losses_of(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The loss of each video, (num_videos,): its cross-entropy, or the mean binary cross-entropy of its classes.

    Args:
        scores: (num_videos, num_classes) float logits.
        labels: (num_videos,) integer class ids, or (num_videos, num_classes) float targets.
    """
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
    values = {
        name: [entry[name] for entry in log_history if name in entry]
        for name in THROUGHPUT_SCALARS
        if any(name in entry for entry in log_history)
    }
    return {
        name: float(max(found) if name == "peak_memory_gib" else np.median(found)) for name, found in values.items()
    }


def _summary(
    metrics: dict[str, float], num_videos: int, split: str, details: dict[str, Any], figures: dict[str, Any]
) -> list[str]:
    lines = ["# Training report", "", f"Measured on {num_videos} videos of the {split} split.", ""]
    return lines + table_and_pictures({m.title: m.text(value) for m, value in measured_in(metrics)}, details, figures)


def table_and_pictures(shown: dict[str, str], details: dict[str, Any], figures: Collection[str]) -> list[str]:
    """The lines of a report with values by their titles, then details by their names, and the files of pictures."""
    for name, value in details.items():
        title = _TITLES.get(name, name.replace("_", " "))
        shown[title] = f"{value:.1%}" if name == "data_wait_fraction" else _plain(value)
    lines = ["| | |", "|---|---|", *(f"| {title} | {value} |" for title, value in shown.items()), ""]
    return lines + [f"![{Path(name).stem.replace('_', ' ')}]({name})" for name in figures] + [""]


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "<br>".join(map(_cell, value)) if isinstance(value, list) else _cell(value)


def _cell(value: object) -> str:
    """A text in a Markdown table, where a bar would end the cell."""
    return str(value).replace("|", r"\|")


def _class_table(counts: np.ndarray, class_names: Sequence[str]) -> list[str]:
    """The most frequent confusions, and all classes, the least recognised first."""
    totals, shares = counts.sum(axis=1), recognised_shares(counts)
    mistakes = counts - np.diag(counts.diagonal())
    order = np.argsort(-mistakes, axis=None, kind="stable")[:_NUM_CONFUSIONS]
    pairs = zip(*np.unravel_index(order, counts.shape), strict=True)
    lines = [
        f"| {class_names[row]} | {class_names[column]} | {mistakes[row, column]} of {totals[row]} |"
        for row, column in pairs
        if mistakes[row, column]
    ]
    if lines:
        lines = ["| true class | taken for | videos |", "|---|---|---|", *lines, ""]
    lines += ["| id | class | videos | recognised | most often taken for |", "|---|---|---|---|---|"]
    for index in np.argsort(shares, kind="stable").tolist():
        taken = mistakes[index].argmax()
        confused = f"{class_names[taken]} ({mistakes[index, taken]})" if mistakes[index].any() else ""
        share = f"{shares[index]:.1%}" if totals[index] else ""
        lines.append(f"| {index} | {class_names[index]} | {totals[index]} | {share} | {confused} |")
    return lines


def _multi_label_table(scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> list[str]:
    """All classes, the lowest average precision first."""
    precisions = average_precision(scores, labels)
    lines = ["| id | class | videos | average precision |", "|---|---|---|---|"]
    for index in np.argsort(precisions, kind="stable").tolist():  # NaN, of classes without videos, comes last
        precision = "" if np.isnan(precisions[index]) else f"{precisions[index]:.1%}"
        lines.append(f"| {index} | {class_names[index]} | {int(labels[:, index].sum())} | {precision} |")
    return lines


def plot_curves(log_history: Sequence[dict[str, float]]) -> "Figure":
    """Learning curves: losses, metrics between 0 and 1, and the learning rate, over epochs.

    Args:
        log_history: `trainer.state.log_history`. Without an evaluation there are no metrics.
    """
    from matplotlib.figure import Figure

    steps = [entry for entry in log_history if "loss" in entry]
    evaluations = [entry for entry in log_history if "eval_loss" in entry]
    marker = "o" if len(evaluations) <= 40 else None
    validation = {"color": "tab:orange", "marker": marker, "markersize": 3.5}

    number = 3 if evaluations else 2
    figure = Figure(figsize=(13 / 3 * number, 3.6), layout="constrained")
    every = list(figure.subplots(1, number))
    loss_axes, rate_axes = every[0], every[-1]
    _draw(loss_axes, steps, "loss", color="tab:blue", alpha=0.7, label="training")
    loss_axes.set(ylabel="loss", title="Loss", ylim=(0, None))
    if evaluations:
        _draw(loss_axes, evaluations, "eval_loss", label="validation", **validation)
        loss_axes.legend(frameon=False)
        _draw_metrics(every[1], evaluations, validation)

    _draw(rate_axes, [entry for entry in steps if "learning_rate" in entry], "learning_rate", color="tab:blue")
    rate_axes.set(title="Learning rate", ylim=(0, None))
    rate_axes.ticklabel_format(axis="y", scilimits=(-2, 2))
    for axes in every:
        axes.set(xlabel="epoch", xlim=(0, None))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_metrics(axes: "Axes", evaluations: Sequence[dict[str, float]], style: dict[str, Any]) -> None:
    """The metrics between 0 and 1 of all evaluations."""
    from matplotlib.ticker import PercentFormatter

    shown = [metric for metric, _ in measured_in(evaluations[-1], "eval_") if metric.is_share]
    for number, metric in enumerate(shown, start=1):
        name = f"eval_{metric.name}"
        measured = [entry for entry in evaluations if name in entry]
        best = (max if metric.greater_is_better else min)(measured, key=lambda entry: entry[name])
        label = f"{metric.title}, best {metric.text(best[name], digits=1)} in epoch {best['epoch']:g}"
        _draw(axes, measured, name, label=label, **style | {"color": f"C{number}"})
        axes.legend(frameon=False, loc="lower right")
    axes.set(title="Validation accuracy", ylim=(0, 1.05))
    axes.yaxis.set_major_formatter(PercentFormatter(1))


def plot_confusion_matrix(counts: np.ndarray, class_names: Sequence[str]) -> "Figure":
    """A confusion matrix, coloured by the share of each true class.

    With up to 20 classes, the counts are printed. With up to 60 classes, the axes have names, otherwise class ids.

    Args:
        counts: (num_classes, num_classes) integers, true classes by rows, predicted classes by columns.
        class_names: num_classes names.
    """
    from matplotlib.colors import Normalize, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    num_classes = len(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(4 + 0.3 * num_classes, 14)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.subplots()
    # If no counts are printed, colours must show a confusion of a few percent.
    norm = Normalize(0, 1) if num_classes <= _MAX_COUNTED_CLASSES else PowerNorm(0.5, 0, 1)
    image = axes.imshow(shares, cmap="Blues", norm=norm, interpolation="nearest")
    ids = ""
    if num_classes <= _MAX_NAMED_CLASSES:
        names = [_short(name, _LONGEST_NAME) for name in class_names]
        # A dollar sign in a name must not begin a formula.
        axes.set_xticks(range(num_classes), names, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
        axes.set_yticks(range(num_classes), names, parse_math=False)
    else:
        ids = " (id)"
    if num_classes <= _MAX_COUNTED_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color)
    axes.set(xlabel=f"predicted class{ids}", ylabel=f"true class{ids}", title="Confusion matrix")
    colorbar = figure.colorbar(image, shrink=0.8, aspect=30, format=PercentFormatter(1))
    colorbar.set_label("share of the true class")
    colorbar.outline.set_visible(False)
    return figure


def plot_clips(clips: Sequence[ShownClip], title: str) -> "Figure":
    """A picture of clips in two columns, each as a strip of up to six of its frames.

    Args:
        clips: at least one clip.
        title: title of the picture.
    """
    from matplotlib.figure import Figure

    strips = [_strip(clip.frames) for clip in clips]
    num_rows = -(-len(clips) // 2)
    width = 6.5
    height = max(width * strip.shape[0] / strip.shape[1] for strip in strips) + 0.2 + 0.17 * len(clips[0].caption)
    figure = Figure(figsize=(2 * width, num_rows * height + 0.4), layout="constrained")
    figure.suptitle(title)
    grid = list(figure.subplots(num_rows, 2, squeeze=False).flat)
    for axes in grid:
        axes.axis("off")
    for axes, clip, strip in zip(grid, clips, strips, strict=False):
        axes.imshow(strip, interpolation="nearest")
        caption = "\n".join(_short(line, _LONGEST_LINE) for line in clip.caption)
        axes.set_title(caption, fontsize=9, loc="left", parse_math=False)
    return figure


def _draw(axes: "Axes", entries: Sequence[dict[str, float]], name: str, **options: Any) -> None:
    axes.plot([entry["epoch"] for entry in entries], [entry[name] for entry in entries], **options)


def _strip(frames: np.ndarray) -> np.ndarray:
    """Frames side by side, with white lines between them: (H, sum of widths, 3) float from 0 to 1."""
    chosen = frames[np.linspace(0, len(frames) - 1, min(len(frames), _FRAMES_OF_A_CLIP)).round().astype(int)]
    if chosen.dtype == np.uint8:
        chosen = chosen / 255
    gap = max(chosen.shape[2] // 32, 1)
    padded = np.pad(chosen, ((0, 0), (0, 0), (0, gap), (0, 0)), constant_values=1.0)
    return np.concatenate(list(padded), axis=1)[:, :-gap]


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
