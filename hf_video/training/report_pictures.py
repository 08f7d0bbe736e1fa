"""The pictures of a training's report: curves, confusion matrix, and clips."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hf_video.metrics import measured_in
from hf_video.texts import font_families, one_line, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# With more classes, counts or names in the confusion matrix would be too small to read.
_MAX_COUNTED_CLASSES, _MAX_NAMED_CLASSES = 20, 60
_FRAMES_OF_A_CLIP = 6
_LONGEST_NAME, _LONGEST_LINE = 32, 80


class ShownClip(NamedTuple):
    """A clip in a picture: the lines of its caption, and its frames (T, H, W, 3), uint8 or float from 0 to 1."""

    caption: tuple[str, ...]
    frames: np.ndarray


def plot_curves(
    log_history: Sequence[dict[str, float]], chance: float | None = None, kept_step: int | None = None
) -> "Figure":
    """Learning curves over epochs, of a trainer's `log_history`: losses, metrics between 0 and 1 if evaluations have
    some, and the learning rate. The first metric by `chance` is a line among them. The metrics of the model that is
    kept are those of the evaluation at `kept_step`, by default the last one."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    steps = [entry for entry in log_history if "loss" in entry]
    evaluations = [entry for entry in log_history if "eval_loss" in entry]
    last = evaluations[-1] if evaluations else {}
    metrics = [metric for metric, _ in measured_in(last, "eval_") if metric.unit == "share"]
    figure = Figure(figsize=(13 if metrics else 26 / 3, 3.6), layout="constrained")
    losses, *between, rates = figure.subplots(1, 3 if metrics else 2)

    def draw(axes: Any, entries: Sequence[dict[str, float]], name: str, **options: Any) -> None:
        known = [entry for entry in entries if name in entry]
        axes.plot([entry["epoch"] for entry in known], [entry[name] for entry in known], **options)

    draw(losses, steps, "loss", color="tab:blue", alpha=0.7, label="training")
    points: dict[str, Any] = {"marker": "o" if len(evaluations) <= 40 else None}
    if evaluations:
        draw(losses, evaluations, "eval_loss", label="validation", color="tab:orange", markersize=3.5, **points)
        losses.legend(frameon=False)
    losses.set(ylabel="loss", title="Loss", ylim=(0, None))
    for axes in between:
        kept = next((each for each in evaluations if each.get("step") == kept_step), last)
        for number, metric in enumerate(metrics, start=1):
            name, label = f"eval_{metric.name}", metric.title
            if name in kept:
                label += f" {metric.text(kept[name], digits=1)}"
            # Later lines are thinner and broken, so that equal ones do not hide each other.
            width, broken = 1.5 + 0.6 * (len(metrics) - number), "-" if number == 1 else (0, (3, number))
            options: dict[str, Any] = {"lw": width, "linestyle": broken, "markersize": 2 + width, **points}
            draw(axes, evaluations, name, label=label, color=f"C{number}", **options)
        if chance is not None:
            title = f"{metrics[0].title} by chance {chance:.1%}"
            axes.axhline(chance, color="gray", linestyle=":", label=title)
        axes.set(title="Validation", ylim=(-0.02, 1.05))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        legend = figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2)
        if kept:
            legend.set_title(f"values of epoch {kept['epoch']:g}, which is kept")
    draw(rates, steps, "learning_rate", color="tab:blue")
    rates.set(title="Learning rate", ylim=(0, None))
    rates.ticklabel_format(axis="y", scilimits=(-2, 2))
    for axes in (losses, *between, rates):
        axes.set(xlabel="epoch", xlim=(0, None))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_confusion_matrix(counts: np.ndarray, class_names: Sequence[str]) -> "Figure":
    """A confusion matrix (num_classes, num_classes) of counts, true classes by rows, coloured by the share of each
    true class. With up to 20 classes, the counts are printed. With up to 60 classes, the axes have names, otherwise
    class ids."""
    from matplotlib.colors import Normalize, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    num_classes, ids = len(counts), " (id)"
    is_counted = num_classes <= _MAX_COUNTED_CLASSES
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(4 + 0.3 * num_classes, 14)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.subplots()
    # If no counts are printed, colours must show a confusion of a few percent.
    norm = Normalize(0, 1) if is_counted else PowerNorm(0.5, 0, 1)
    image = axes.imshow(shares, cmap="Blues", norm=norm, interpolation="nearest")
    if num_classes <= _MAX_NAMED_CLASSES:
        names, ids = [shorten(name, _LONGEST_NAME) for name in class_names], ""
        # A dollar sign in a name must not begin a formula.
        axes.set_xticks(range(num_classes), names, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
        axes.set_yticks(range(num_classes), names, parse_math=False)
    for (row, column), count in np.ndenumerate(counts) if is_counted else ():
        if count:
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=color)
    axes.set(xlabel=f"predicted class{ids}", ylabel=f"true class{ids}", title="Confusion matrix")
    colorbar = figure.colorbar(image, shrink=0.8, aspect=30, format=PercentFormatter(1))
    colorbar.set_label("share of the true class")
    colorbar.outline.set_visible(False)
    return figure


def plot_clips(clips: Sequence[ShownClip], title: str) -> "Figure":
    """A picture of clips in two columns, a single one in one, each as a strip of up to six of its frames."""
    from matplotlib.figure import Figure

    strips = [_strip(clip.frames) for clip in clips]
    num_columns, width = min(len(clips), 2), 6.5
    num_rows = -(-len(clips) // num_columns)
    height = max(width * strip.shape[0] / strip.shape[1] for strip in strips) + 0.2 + 0.17 * len(clips[0].caption)
    figure = Figure(figsize=(num_columns * width, num_rows * height + 0.4), layout="constrained")
    style: dict[str, Any] = {"family": font_families(), "parse_math": False}
    figure.suptitle(shorten(one_line(title), num_columns * _LONGEST_LINE), **style)
    grid = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for axes in grid:
        axes.axis("off")
    for axes, clip, strip in zip(grid, clips, strips, strict=False):
        axes.imshow(strip, interpolation="nearest")
        caption = "\n".join(shorten(one_line(line), _LONGEST_LINE) for line in clip.caption)
        axes.set_title(caption, fontsize=9, loc="left", **style)
    return figure


def _strip(frames: np.ndarray) -> np.ndarray:
    """Frames side by side, with white lines between them: (H, sum of widths, 3) float from 0 to 1."""
    chosen = frames[np.linspace(0, len(frames) - 1, min(len(frames), _FRAMES_OF_A_CLIP)).round().astype(int)]
    chosen = chosen / 255 if chosen.dtype == np.uint8 else chosen
    gap = max(chosen.shape[2] // 32, 1)
    padded = np.pad(chosen, ((0, 0), (0, 0), (0, gap), (0, 0)), constant_values=1.0)
    return np.concatenate(list(padded), axis=1)[:, :-gap]
