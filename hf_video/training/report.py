"""The report of a training: what was measured, tables and pictures, what the result is worth, and what to try next."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils import gather_object
from transformers import EvalPrediction

from hf_video.data import VideoDataset
from hf_video.data.dataset import with_those_inside
from hf_video.io import replace_file, replace_text
from hf_video.loading.released import SHIPPED, told_name
from hf_video.metrics import (
    METRICS,
    average_precision,
    chance_and_interval,
    compute_metrics,
    confusion_matrix,
    count_clips,
    measured_in,
    recognised_shares,
    tell_chance,
    tell_count,
)
from hf_video.texts import clock

from .report_pictures import ShownClip, plot_clips, plot_confusion_matrix, plot_curves
from .throughput import THROUGHPUT_SCALARS, WAITING_SHARE

logger = logging.getLogger(__name__)
# So many of the training clips show how well the model knows what it was trained on.
MAX_SEEN_CLIPS = 200
# A difference to the training clips, and a width of the interval, of more than this is worth a remark.
LARGE_GAP, WIDE_INTERVAL = 0.15, 0.2
# A model that knows fewer of its own training clips has not learned enough.
WELL_LEARNED = 0.9
TRAINING = "training_"
# In place of the metric by which the best epoch is chosen.
LAST = "last epoch"
_NUM_WORST_CLIPS, _NUM_CONFUSIONS = 8, 20
_MISTAKES = "the mistakes, in report/report.md"


@dataclass
class Measured:
    """What was measured on a data set.

    Attributes:
        metrics: counts and figures, by their names in `metrics.json`. Those of `METRICS` are shown with their titles.
            `chance` and `interval`, if they are known, belong to the first of them, as shares.

        by_class: what stands at the end of `metrics.json`, such as the names of classes.
        tables: lines of Markdown.
        pictures: names of files and figures of matplotlib; gets the name of the split.
    """

    metrics: dict[str, Any]

    by_class: dict[str, Any] = field(default_factory=dict)
    tables: Sequence[str] = ()
    pictures: Callable[[str], Iterable[tuple[str, Any]]] = lambda split: ()


def report_run(task: Any, run: Any, data: Any, trainer: Any, datasets: Mapping[str, Any]) -> dict[str, Any]:
    """Measures a training on its test split, or else on its validation split, and writes the report. All processes
    take part; the contents of `metrics.json` are returned on the first."""
    split = next((name for name in task.measured_splits if name in datasets), None)
    measured, training = Measured({}), dict[str, float]()
    if split is not None:
        if split == "test":
            datasets[split].drop_broken()
        measured = task.measure(trainer, datasets[split])
        if task.measures_training and isinstance(datasets["train"], VideoDataset):
            training = _measure_training(task, trainer, datasets["train"])
    used = [each for dataset in datasets.values() for each in with_those_inside(dataset)]
    unread = [path for each in used if hasattr(each, "broken_videos") for path in each.broken_videos()]
    broken = sorted({*data.broken, *gather_object(unread)})
    if not trainer.is_world_process_zero():
        return {}
    return write_report(
        Path(trainer.args.output_dir, "report"),
        measured,
        split=split,
        log_history=trainer.state.log_history,
        kept_step=trainer.state.best_global_step if trainer.args.load_best_model_at_end else None,
        training_metrics=training,
        details=_details(task, run, trainer) | ({"broken_videos": broken} if broken else {}),
        summarize=task.summarize,
    )


def _measure_training(task: Any, trainer: Any, dataset: VideoDataset) -> dict[str, float]:
    """The metrics of the model on some of the clips that it was trained on, as they are, without augmentation. Those
    that are measured elsewhere may need whole videos, and of them there is the first alone."""
    rows = dataset.rows.select(range(0, len(dataset), -(-len(dataset) // MAX_SEEN_CLIPS)))
    on_error = "skip" if dataset.on_error == "replace" else dataset.on_error
    seen = VideoDataset(rows, dataset.task, training=False, on_error=on_error).drop_broken()
    figures = measured_in(task.measure(trainer, seen).metrics)
    return {metric.name: value for place, (metric, value) in enumerate(figures) if place == 0 or metric.function}


def _details(task: Any, run: Any, trainer: Any) -> dict[str, Any]:
    chosen, dataset = run.chosen, trainer.train_dataset
    processor = getattr(trainer.processing_class, "video_processor", trainer.processing_class)
    named = told_name(chosen.model)
    counts = count_clips(dataset.rows["video"][:]) if isinstance(dataset, VideoDataset) else {"num_videos": "a stream"}
    strategy = getattr(processor, "sampling_strategy", None)
    size = getattr(processor, "crop_size", None)
    steps, epochs = trainer.args.max_steps, trainer.args.num_train_epochs
    best = trainer.state.best_global_step if trainer.args.load_best_model_at_end else None
    evaluated = {entry["step"]: entry["epoch"] for entry in trainer.state.log_history if "eval_loss" in entry}
    kept = evaluated.get(best) if best else next(reversed(evaluated.values()), None)
    kept_by = trainer.args.metric_for_best_model if best else LAST
    rank = getattr(trainer.args, "lora_rank", 0)
    return {
        "model": named or f"{type(trainer.model).__name__.partition('For')[0]} from scratch",
        **{name.replace("num", "training"): count for name, count in counts.items()},
        "clip": f"{processor.num_frames} frames"
        + (f" of {size.width} x {size.height} pixels" if size else "")
        + (f", {strategy}" if strategy else ""),
        **({"steps": steps} if steps > 0 else {"epochs": epochs}),
        **({"kept_epoch": kept, "kept_by": kept_by} if kept is not None else {}),
        "seed": trainer.args.seed,
        **({"lora_rank": rank} if rank else {}),
        **task.describe(run, trainer),
    }


def write_report(
    folder: str | os.PathLike,
    measured: Measured,
    *,
    split: str | None = "validation",
    log_history: Sequence[dict[str, float]] = (),
    kept_step: int | None = None,
    training_metrics: Mapping[str, float] | None = None,
    details: Mapping[str, Any] | None = None,
    summarize: Callable[[Mapping[str, Any]], list[str]] | None = None,
) -> dict[str, Any]:
    """Writes `metrics.json` and `report.md`, and with matplotlib `curves.png` and the pictures of what was measured.

    Args:
        folder: made if it does not exist.
        measured: such as of [`measure_classes`].
        split: name of the split that was measured; None if none was.
        log_history: `trainer.state.log_history`; empty for a report without curves.
        kept_step: the step of the evaluation whose model is kept; by default the last one.
        training_metrics: the metrics of the model on clips that it was trained on.
        details: settings for both files.
        summarize: gives the lines of what the result is worth, by default [`assess`].

    Returns:
        The contents of `metrics.json`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    details = details or {}
    on_training = {f"{TRAINING}{name}": value for name, value in (training_metrics or {}).items()}
    result = {
        "split": split,
        **measured.metrics,
        **on_training,
        **details,
        **throughput_of(log_history),
        **measured.by_class,
    }
    replace_text(folder / "metrics.json", json.dumps(result, indent=2) + "\n")

    shown = {metric.title: metric.text(value) for metric, value in measured_in(measured.metrics)}
    if "chance" in result:
        first, (low, high) = next(iter(shown)), _interval(result)
        shown[f"{first}, 95% interval"] = f"{low:.1%} to {high:.1%}"
        shown[f"{first} by chance"] = f"{result['chance']:.2%}"
    for metric, value in measured_in(on_training, TRAINING)[:1]:
        shown[f"{metric.title} on training clips"] = metric.text(value)
    shown |= {name.replace("_", " "): _plain(value) for name, value in details.items()}

    def draw() -> Iterator[tuple[str, Any]]:
        if any(name in entry for entry in log_history for name in ("loss", "eval_loss")):
            yield "curves.png", plot_curves(log_history, result.get("chance"), kept_step)
        yield from measured.pictures(split or "")

    pictures: list[str] = []
    if importlib.util.find_spec("matplotlib") is None:
        logger.warning("No pictures in the report: matplotlib is missing (pip install 'hf-video-models[demo]').")
    else:
        for name, figure in draw():
            replace_file(folder / name, partial(figure.savefig, format="png", dpi=150))
            pictures.append(f"![{Path(name).stem.replace('_', ' ')}]({name})")
    head = [
        f"- {line.replace(_MISTAKES, 'the mistakes, in the tables below')}" for line in (summarize or assess)(result)
    ]
    lines = ["# Training report", "", *head, "", *table(("", ""), shown.items()), "", *pictures, "", *measured.tables]
    replace_text(folder / "report.md", "\n".join(lines) + "\n")
    return result


def assess(metrics: Mapping[str, Any]) -> list[str]:
    """What the result of a training is worth, from what `hf_video.training.train` returns and `report/metrics.json`
    holds: the first figure with chance and interval, the gap to the training clips, what to try next, and what the
    training waited for."""
    lines = list[str]()
    if figures := measured_in(metrics):
        metric, value = figures[0]
        line = f"{metric.title} {metric.text(value, 1)} on {tell_count(metrics, metrics['split'])}"
        if "chance" in metrics:
            line += f" {tell_chance(metrics['chance'], _interval(metrics))}"
        lines.append(line)
        own = metrics.get(TRAINING + metric.name)
        if own is not None:
            gap = f"{100 * (own - value):.1f} points more than on the {metrics['split']} split"
            lines.append(
                f"on clips that it was trained on {metric.text(own, 1)}, "
                + (gap if own > value else "no more than on others")
            )
        if "kept_epoch" in metrics:
            lines.append(f"kept     epoch {metrics['kept_epoch']:g}, {_why_kept(metrics)}")
        lines.append(f"next     {_next_step(metrics, value, own)}")
    if (wait := metrics.get("data_wait_fraction", 0.0)) > WAITING_SHARE:
        lines.append(
            f"speed    {wait:.1%} of the training waited for videos: more --num-workers, or --kept-frames-gib"
        )
    return lines


def _why_kept(metrics: Mapping[str, Any]) -> str:
    by = metrics["kept_by"]
    if by != LAST:
        return f"the best on the validation split by {METRICS[by].title if by in METRICS else by.replace('_', ' ')}"
    return "the last" + (
        ": on few clips, the best epoch would be luck" if metrics.get("model") == told_name(SHIPPED) else ""
    )


def _interval(metrics: Mapping[str, Any]) -> Sequence[float]:
    return metrics.get("top1_interval") or metrics["interval"]


def _next_step(metrics: Mapping[str, Any], value: float, own: float | None) -> str:
    low, high = _interval(metrics) if "chance" in metrics else (value, value)
    reached, chance = value, metrics.get("chance", -1.0)
    if "mean_class_accuracy" in metrics:
        # Of the mean over classes, since a rare class that is recognised costs videos of the frequent one.
        reached, chance = metrics["mean_class_accuracy"], 1 / len(metrics["class_names"])
    # More than halfway from chance to all, only more videos can tell.
    is_chance = reached - (value - low) <= chance and reached < (1 + chance) / 2
    if is_chance and own is not None and own >= WELL_LEARNED:
        return "no better than chance, but it knows its own clips by heart: more clips, or another --model"
    if "lora_rank" in metrics and (is_chance or (own is not None and own < WELL_LEARNED)):
        return "adapters learn little in few steps: --epochs 40, or ten times the --learning-rate"
    if is_chance:
        return "no better than chance: another --model, more --epochs, or more clips"
    if own is not None and own < WELL_LEARNED:
        return "it does not know its own clips yet: more --epochs, a higher --learning-rate, or another --model"
    if own is not None and own - value > LARGE_GAP:
        return (
            "it is much better on its training clips than on others: more clips, another --model, or more "
            "augmentation, such as smaller random crops (--crop-min-area 0.3)"
        )
    if high - low > WIDE_INTERVAL:
        return (
            f"the interval of {tell_count(metrics)} is wide: label others, and measure on those with hf-video evaluate"
        )
    return _MISTAKES if value < 1 else "new videos: label some, and measure on those with hf-video evaluate"


def measure_classes(
    scores: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    *,
    num_videos: int | None = None,
    training_counts: np.ndarray | None = None,
    clip_of: Callable[[int], tuple[str, np.ndarray]] | None = None,
) -> Measured:
    """Measures a classifier of clips.

    Args:
        scores: (num_clips, num_classes) float logits.
        labels: (num_clips,) integer class ids, or (num_clips, num_classes) float targets of multi-label
            classification, which has no confusion matrix.
        class_names: num_classes names.
        num_videos: number of videos, if the clips are of fewer.
        training_counts: (num_classes,) int, the training videos of each class, for the table of classes.
        clip_of: gives for a row of `scores` the name of its video and frames (T, H, W, 3), uint8 or float from 0 to 1,
            for the picture of the clips with the highest loss.

    Raises:
        ValueError: shapes of scores and labels do not match.
    """
    metrics: dict[str, Any] = {"num_videos": num_videos or len(labels)}
    if num_videos and num_videos < len(labels):
        metrics["num_clips"] = len(labels)
    metrics |= compute_metrics(EvalPrediction(predictions=scores, label_ids=labels))
    by_class: dict[str, Any] = {"class_names": list(class_names)}
    names = [_cell(name) for name in class_names]
    if labels.ndim == 1:
        counts = confusion_matrix(scores, labels)
        metrics |= chance_and_interval(metrics["top1_accuracy"], labels)
        by_class["confusion_matrix"] = counts.tolist()
        tables = class_table(counts, names, training_counts)
    else:
        counts, tables = None, _multi_label_table(scores, labels, names, training_counts)
    shown, clips = ("", []) if clip_of is None else _worst_clips(scores, labels, class_names, clip_of)

    def draw(split: str) -> Iterator[tuple[str, Any]]:
        if counts is not None:
            yield "confusion_matrix.png", plot_confusion_matrix(counts, class_names)
        if clips:
            yield "worst_clips.png", plot_clips(clips, f"{split} split: {shown}")

    return Measured(metrics, by_class=by_class, tables=[*clip_table(clips, shown), *tables], pictures=draw)


def clip_reader(
    dataset: VideoDataset, num_scores: int, broken: Collection[str] = ()
) -> Callable[[int], tuple[str, np.ndarray]] | None:
    """The `clip_of` of [`measure_classes`] for the scores of a data set made with `training=False`: the first view of
    a video as the model sees it, without normalisation. The `broken` videos have no scores. None if the numbers do not
    add up, as may happen with several processes: then the video of a row of scores is unknown."""
    names, broken = dataset.rows["video"][:], set(broken)
    times = [dataset.rows[name][:] for name in ("start", "end") if name in dataset.rows.column_names]
    rows = [index for index, name in enumerate(names) if name not in broken]
    if len(rows) != num_scores:
        return None

    def clip_of(row: int) -> tuple[str, np.ndarray]:
        frames = dataset[rows[row]]["pixel_values"]
        frames = (frames[0] if frames.ndim == 5 else frames).movedim(1, -1).numpy()
        processor = dataset.task.processor
        if processor.do_normalize:
            frames = frames * np.array(processor.image_std) + np.array(processor.image_mean)
        name, span = "/".join(Path(names[rows[row]]).parts[-2:]), [each[rows[row]] for each in times]
        if len(span) == 2 and None not in span:  # a video may have several clips
            name += f" {clock(span[0]).removeprefix('0:')}-{clock(span[1]).removeprefix('0:')}"
        return name, frames.clip(0, 1)

    return clip_of


def _worst_clips(
    scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str], clip_of: Callable
) -> tuple[str, list[ShownClip]]:
    """Which clips are shown, and these: wrong ones, or if there are none, those with the highest loss."""
    logits, targets, clips = torch.from_numpy(scores).float(), torch.from_numpy(labels), []
    if labels.ndim == 1:
        losses, probabilities = F.cross_entropy(logits, targets, reduction="none").numpy(), logits.softmax(1).numpy()
        is_wrong = scores.argmax(1) != labels
    else:
        each = F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none")
        losses, probabilities = each.mean(1).numpy(), logits.sigmoid().numpy()
        is_wrong = ((scores >= 0) != (labels > 0.5)).any(1)
    order = np.argsort(-losses, kind="stable")
    wrong = order[is_wrong[order]]
    shown = "wrong clips, the highest loss first" if len(wrong) else "no clip is wrong; those with the highest loss"
    for row in (wrong if len(wrong) else order)[:_NUM_WORST_CLIPS].tolist():
        name, frames = clip_of(row)
        predicted = int(probabilities[row].argmax())
        if labels.ndim == 1:
            true = f"{class_names[int(labels[row])]} ({probabilities[row, labels[row]]:.1%})"
        else:
            true = ", ".join(class_names[index] for index in np.flatnonzero(labels[row]).tolist()) or "none"
        guess = f"{class_names[predicted]} ({probabilities[row, predicted]:.1%})"
        clips.append(ShownClip((f"true: {true}", f"predicted: {guess}", f"loss {losses[row]:.2f}, {name}"), frames))
    return shown, clips


def throughput_of(log_history: Sequence[dict[str, float]]) -> dict[str, float]:
    """The throughput of a run: that of all its steps, which the last log has."""
    entries = [entry for entry in log_history if "clips_per_second" in entry]
    return {name: float(entries[-1][name]) for name in THROUGHPUT_SCALARS if entries and name in entries[-1]}


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "<br>".join(map(_cell, value)) if isinstance(value, list) else _cell(value)


def _cell(value: object) -> str:
    """A text in a Markdown table, where a bar would end the cell."""
    return str(value).replace("|", r"\|")


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(map(str, row))} |" for row in (titles, ["---"] * len(titles), *rows)]


def clip_table(clips: Sequence[ShownClip], shown: str = "worst clips") -> list[str]:
    """The captions of clips, and which clips they are."""
    rows = [[_cell(line) for line in reversed(clip.caption)] for clip in clips]
    return [*table((shown, "", ""), rows), ""] if clips else []


def class_table(
    counts: np.ndarray, class_names: Sequence[str], training_counts: np.ndarray | None = None, counted: str = "videos"
) -> list[str]:
    """The most frequent confusions in a confusion matrix, and all classes, the lowest recall first."""
    totals, shares, mistakes = counts.sum(axis=1), recognised_shares(counts), counts - np.diag(counts.diagonal())
    order = np.argsort(-mistakes, axis=None, kind="stable")[:_NUM_CONFUSIONS]
    pairs = [pair for pair in zip(*np.unravel_index(order, counts.shape), strict=True) if mistakes[pair]]
    confused = [
        (class_names[row], class_names[taken], f"{mistakes[row, taken]} of {totals[row]}") for row, taken in pairs
    ]
    lines = [*table(("true class", "taken for", counted), confused), ""] if confused else []
    return lines + _rows_of_classes(class_names, training_counts, shares, {"support": totals, "recall": shares})


def _multi_label_table(
    scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str], training_counts: np.ndarray | None
) -> list[str]:
    """All classes, the lowest average precision first."""
    precisions, totals = average_precision(scores, labels), labels.sum(axis=0).astype(int)
    found = ((scores >= 0) * labels).sum(axis=0)  # a logit of 0 is a probability of a half
    recalls = np.divide(found, totals, out=np.full(len(totals), np.nan), where=totals > 0)
    columns = {"support": totals, "average precision": precisions, "recall at 0.5": recalls}
    return _rows_of_classes(class_names, training_counts, precisions, columns)


def _rows_of_classes(
    class_names: Sequence[str], training_counts: np.ndarray | None, figures: np.ndarray, columns: dict[str, np.ndarray]
) -> list[str]:
    """A table of all classes, the lowest figure first; shares are shown in percent, those of no video not."""
    known = columns if training_counts is None else {"training videos": training_counts} | columns
    cells = [
        ["" if np.isnan(value) else f"{value:.1%}" if values.dtype.kind == "f" else str(value) for value in values]
        for values in known.values()
    ]
    rows = [
        (index, class_names[index], *(column[index] for column in cells))
        for index in np.argsort(figures, kind="stable")
    ]
    return table(("id", "class", *known), rows)
