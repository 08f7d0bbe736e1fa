"""A folder that shows how a training run went: learning curves, confusion matrix, figures, and a short summary."""

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import EvalPrediction

from .metrics import compute_metrics, confusion_matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

# Above this many classes neither counts nor names can be read in the picture.
_MAX_COUNTED_CLASSES = 20
_MAX_NAMED_CLASSES = 60


def write_report(
    folder: str | os.PathLike,
    *,
    scores: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    log_history: Sequence[dict[str, float]] = (),
    split: str = "validation",
    details: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes `metrics.json` and `report.md`, and with matplotlib `curves.png` and `confusion_matrix.png`.

    Each file is replaced as a whole, so that an interruption never leaves half of one. Without matplotlib one warning
    says how to get the pictures, and the rest is written all the same.

    Args:
        folder: made if it does not exist.
        scores: (num_videos, num_classes) float class scores.
        labels: (num_videos,) integer true class ids.
        class_names: num_classes names.
        log_history: `trainer.state.log_history`; empty for a report without curves.
        split: the split that was evaluated, named in the summary.
        details: settings to record in both the summary and `metrics.json`.

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
    counts = confusion_matrix(scores, labels)
    details = details or {}

    figures = {}
    if importlib.util.find_spec("matplotlib") is None:
        logger.warning("No pictures in the report: matplotlib is missing (pip install hf-video-models[demo]).")
    else:
        figures["confusion_matrix.png"] = plot_confusion_matrix(counts, class_names)
        if any("eval_loss" in entry for entry in log_history):
            figures["curves.png"] = plot_curves(log_history)
    for name, figure in figures.items():
        replace_file(folder / name, partial(figure.savefig, format="png", dpi=150))

    result = {
        "split": split,
        "num_videos": len(labels),
        **metrics,
        **details,
        "class_names": list(class_names),
        "confusion_matrix": counts.tolist(),
    }
    contents = {
        "metrics.json": json.dumps(result, indent=2),
        "report.md": _summary(metrics, counts, class_names, split, details, figures),
    }
    for name, text in contents.items():
        replace_file(folder / name, partial(Path.write_text, data=text + "\n", encoding="utf-8"))
    return result


def plot_curves(log_history: Sequence[dict[str, float]]) -> "Figure":
    """Training and validation loss, and validation top-1 accuracy, over epochs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    train = [(entry["epoch"], entry["loss"]) for entry in log_history if "loss" in entry]
    evaluations = [entry for entry in log_history if "eval_loss" in entry]
    epochs = [entry["epoch"] for entry in evaluations]

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    loss_axes, accuracy_axes = figure.subplots(1, 2)
    if train:
        loss_axes.plot(*zip(*train, strict=True), color="tab:blue", alpha=0.7, label="training")
    marker = "o" if len(epochs) <= 40 else None
    validation_style = {"color": "tab:orange", "marker": marker, "markersize": 3.5}
    loss_axes.plot(epochs, [entry["eval_loss"] for entry in evaluations], label="validation", **validation_style)
    loss_axes.set(xlabel="epoch", ylabel="cross-entropy", title="Loss")
    loss_axes.set_ylim(bottom=0)
    loss_axes.legend(frameon=False)

    accuracies = [entry.get("eval_top1_accuracy", np.nan) for entry in evaluations]
    accuracy_axes.plot(epochs, accuracies, **validation_style)
    if not np.isnan(accuracies).all():
        best = int(np.nanargmax(accuracies))
        label = f"best: {accuracies[best]:.1%}, epoch {epochs[best]:g}"
        accuracy_axes.plot(epochs[best], accuracies[best], "o", color="tab:red", label=label)
        accuracy_axes.legend(frameon=False, loc="lower right")
    accuracy_axes.set(xlabel="epoch", title="Validation top-1 accuracy", ylim=(0, 1.05))
    accuracy_axes.yaxis.set_major_formatter(PercentFormatter(1))
    for axes in (loss_axes, accuracy_axes):
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_confusion_matrix(counts: np.ndarray, class_names: Sequence[str]) -> "Figure":
    """A confusion matrix, coloured by the share of each true class; counts are printed while they can be read.

    Args:
        counts: (num_classes, num_classes) integers, true classes by rows, predicted classes by columns.
        class_names: num_classes names, shown while they can be read.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    num_classes = len(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(4 + 0.3 * num_classes, 14)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if num_classes <= _MAX_NAMED_CLASSES:
        axes.set_xticks(range(num_classes), class_names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(num_classes), class_names)
    if num_classes <= _MAX_COUNTED_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color)
    axes.set(xlabel="predicted class", ylabel="true class")
    colorbar = figure.colorbar(image, shrink=0.8, format=PercentFormatter(1))
    colorbar.set_label("share of the true class")
    colorbar.outline.set_visible(False)
    return figure


def _summary(
    metrics: dict[str, float],
    counts: np.ndarray,
    class_names: Sequence[str],
    split: str,
    details: dict[str, Any],
    figures: dict[str, Any],
) -> str:
    titles = {"top1_accuracy": "top-1 accuracy", "top5_accuracy": "top-5 accuracy"}
    lines = ["# Training report", "", f"Measured on {counts.sum()} videos of the {split} split.", ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {titles.get(name, name)} | {value:.2%} |" for name, value in metrics.items()]
    lines += [f"| {name.replace('_', ' ')} | {value} |" for name, value in details.items()]
    lines += [""] + [f"![{Path(name).stem.replace('_', ' ')}]({name})" for name in sorted(figures, reverse=True)]
    lines += ["", "| class | videos | recognised | most often taken for |", "|---|---|---|---|"]
    for index, name in enumerate(class_names):
        total = counts[index].sum()
        mistakes = counts[index].copy()
        mistakes[index] = 0
        confused = f"{class_names[mistakes.argmax()]} ({mistakes.max()})" if mistakes.any() else ""
        lines.append(f"| {name} | {total} | {f'{counts[index, index] / total:.1%}' if total else ''} | {confused} |")
    return "\n".join(lines)


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Lets `write` fill a neighbouring file and moves it to `path`, which is always the old or the whole new file."""
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    os.replace(partial, path)
