"""The metrics of video models: one table of their names, titles, formats and functions.

A metric in `METRICS` is measured in training, by `hf-video evaluate` and for reports, may choose the best checkpoint,
and is stated on model cards.

Scores are a float array (num_videos, num_classes): logits, or probabilities, which rank alike. Labels are integer
class ids (num_videos,). Targets are zeros and ones (num_videos, num_classes), for videos of several classes. A
`ValueError` says that shapes do not match, that there is no video, or that a value is out of its range.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hf_video.texts import count

if TYPE_CHECKING:
    from transformers import EvalPrediction


class Metric(NamedTuple):
    """One figure that says how well a model does on a set of videos.

    Attributes:
        name: its key in logs and JSON files.
        title: its name in sentences and tables.
        problem_type: the `problem_type` of the models that it is for.
        function: computes it from scores, and labels or targets, where it is defined for them; None for a metric that
            is measured elsewhere.
        short_title: its name in the line of an epoch; None to leave it out there.
        hub_type: its name among the metrics of the Hub; None if it is `name`.
        unit: what it is: a share from 0 to 1, which is shown in percent, a percentage from 0 to 100, or a number.
        greater_is_better: whether a better model has more of it.
        min_classes: how many classes a model needs for it to say something.
        needs_probabilities: whether the scores must be probabilities. In training they are logits.
    """

    name: str
    title: str
    problem_type: str
    function: Callable[[np.ndarray, np.ndarray], float | None] | None = None
    short_title: str | None = None
    hub_type: str | None = None
    unit: Literal["share", "percent", "number"] = "share"
    greater_is_better: bool = True
    min_classes: int = 1
    needs_probabilities: bool = False

    def text(self, value: float, digits: int = 2) -> str:
        """A value as people read it: percent with `digits` decimals, or a number."""
        return {"share": f"{value:.{digits}%}", "percent": f"{value:.{digits}f}%"}.get(self.unit, f"{value:.4g}")


def top_k_accuracy(scores: np.ndarray, labels: np.ndarray, k: int = 1) -> float:
    """The share of videos whose true class is among the `k` highest scores, from 0 to 1. If there are fewer than `k`
    classes, all of them count."""
    _check(scores, labels)
    top = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return float((top == labels[:, None]).any(axis=1).mean())


def confusion_matrix(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts of videos by true class (rows) and predicted class (columns): (num_classes, num_classes) int64."""
    _check(scores, labels)
    num_classes = scores.shape[1]
    pairs = labels * num_classes + scores.argmax(axis=1)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def wilson_interval(share: float, number: float) -> tuple[float, float]:
    """The 95% interval of a share that was measured on `number` videos, such as an accuracy. Source: E. B. Wilson,
    Probable inference, Journal of the American Statistical Association 22 (1927), 209-212."""
    z = 1.959964
    centre, shrink = share + z**2 / (2 * number), 1 + z**2 / number
    reach = z * math.sqrt(share * (1 - share) / number + z**2 / (4 * number**2))
    return max((centre - reach) / shrink, 0.0), min((centre + reach) / shrink, 1.0)


def chance_accuracy(labels: np.ndarray) -> float:
    """The top-1 accuracy of always guessing the most frequent class."""
    return float(np.bincount(labels).max() / len(labels))


def chance_and_interval(accuracy: float, labels: np.ndarray) -> dict[str, Any]:
    """What a top-1 accuracy is compared with: `chance` and `top1_interval`, see [`chance_accuracy`] and
    [`wilson_interval`]."""
    return {"chance": chance_accuracy(labels), "top1_interval": [*wilson_interval(accuracy, len(labels))]}


def tell_chance(chance: float, interval: Sequence[float]) -> str:
    """How a share is told beside what [`chance_and_interval`] gives."""
    low, high = interval
    return f"(chance {chance:.1%}, 95% interval {low:.1%} to {high:.1%})"


def recognised_shares(counts: np.ndarray) -> np.ndarray:
    """The share of the videos of each class that is recognised: (num_classes,) float, NaN for a class without videos,
    from a [`confusion_matrix`] (num_classes, num_classes)."""
    totals = counts.sum(axis=1)
    return np.divide(counts.diagonal(), totals, out=np.full(len(totals), np.nan), where=totals > 0)


def mean_class_accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    """The mean of [`recognised_shares`], so that rare classes count as much as frequent ones."""
    return float(np.nanmean(recognised_shares(confusion_matrix(scores, labels))))


def calibration_error(probabilities: np.ndarray, labels: np.ndarray, num_bins: int = 15) -> float:
    """The expected calibration error (https://arxiv.org/abs/1706.04599) of scores whose rows sum to 1: the difference
    of mean confidence and accuracy in each of `num_bins` equal intervals of confidence, averaged over videos."""
    _check(probabilities, labels)
    if probabilities.min() < 0 or not np.allclose(probabilities.sum(axis=1), 1, atol=1e-3):
        raise ValueError("Calibration is measured on probabilities, rows that sum to 1: apply a softmax to logits.")
    confidence = probabilities.max(axis=1)
    is_right = probabilities.argmax(axis=1) == labels
    bins = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    gaps = np.bincount(bins, weights=is_right - confidence, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(labels))


def average_precision(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The average precision of each class: the area under its curve of precision over recall, in steps and without
    interpolation, as `average_precision_score` of scikit-learn computes it. (num_classes,) float, NaN for a class
    without videos."""
    if scores.ndim != 2 or targets.shape != scores.shape or not len(targets) or not np.isin(targets, (0, 1)).all():
        raise ValueError(f"Expected scores and as many targets of 0 or 1, got {scores.shape} and {targets.shape}.")
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=0)
    num_true = np.take_along_axis(targets, order, axis=0).cumsum(axis=0, dtype=np.int64)
    # Videos with equal scores count together: only the last of them ends a step of the curve.
    is_last = np.vstack([ranked[1:] != ranked[:-1], np.ones((1, scores.shape[1]), dtype=bool)])
    precision = num_true / np.arange(1, len(scores) + 1)[:, None]
    areas = [
        (np.diff(counts[last], prepend=0) * values[last]).sum()
        for counts, values, last in zip(num_true.T, precision.T, is_last.T, strict=True)
    ]
    totals = num_true[-1]
    return np.divide(areas, totals, out=np.full(len(totals), np.nan), where=totals > 0)


def mean_average_precision(scores: np.ndarray, targets: np.ndarray) -> float:
    """The mean of [`average_precision`] over the classes that have videos."""
    precisions = average_precision(scores, targets)
    if np.isnan(precisions).all():
        raise ValueError("No video has a class, so there is no average precision: evaluate on others.")
    return float(np.nanmean(precisions))


def _squared_error(values: np.ndarray, labels: np.ndarray) -> float:
    return float(np.square(values - labels).mean())


def _absolute_error(values: np.ndarray, labels: np.ndarray) -> float:
    return float(np.abs(values - labels).mean())


def r2_score(values: np.ndarray, labels: np.ndarray) -> float | None:
    """The coefficient of determination of arrays (num_videos, num_values), the mean over several values. None if a
    label is the same for all videos."""
    spread = np.square(labels - labels.mean(axis=0)).sum(axis=0)
    if not (spread > 0).all():
        return None
    return float((1 - np.square(values - labels).sum(axis=0) / spread).mean())


def retrieval_recall(
    scores: np.ndarray, relevant: np.ndarray, text_scores: np.ndarray | None = None, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    """The recall at `ks` of search among videos by text, and among texts by video: the percentage of queries that have
    a relevant candidate among the `k` best. A candidate that is not relevant and has the same score comes before.
    Queries without a relevant candidate are left out.

    Args:
        scores: (num_videos, num_texts) float.
        relevant: (num_videos, num_texts) bool, whether a text belongs to a video.
        text_scores: (num_videos, num_texts) float, the scores that texts rank videos by, if these differ.
        ks: numbers of candidates.

    Returns:
        `text_to_video_r1`, `text_to_video_r5`, ... and `video_to_text_r1`, ..., from 0 to 100.

    Raises:
        ValueError: a score is NaN, or no text belongs to a video.
    """
    text_scores = scores if text_scores is None else text_scores
    if np.isnan(scores).any() or np.isnan(text_scores).any() or not relevant.any():
        raise ValueError("A score is NaN, or no text belongs to a video: there is no recall.")
    recalls: dict[str, float] = {}
    for name, ranked, is_right in (
        ("text_to_video", text_scores.T, relevant.T.astype(bool)),
        ("video_to_text", scores, relevant.astype(bool)),
    ):
        best = np.where(is_right, ranked, -np.inf).max(axis=1)
        ranks = ((ranked >= best[:, None]) & ~is_right).sum(axis=1)[is_right.any(axis=1)]
        recalls |= {f"{name}_r{k}": 100 * float((ranks < k).mean()) for k in ks}
    return recalls


# What is counted, by its name in a result, the smallest first.
_COUNTED = {
    **{"num_frames": "frame", "num_key_frames": "key frame", "num_captions": "caption"},
    **{"num_clips": "clip", "num_videos": "video"},
}
_SINGLE, _MULTI, _VALUES = "single_label_classification", "multi_label_classification", "regression"
_FRAMES = "frame_classification"

_ERROR: dict[str, Any] = {"greater_is_better": False}
_top_5 = partial(top_k_accuracy, k=5)

# The first metric of a problem type chooses the best checkpoint by default.
METRICS = {
    metric.name: metric
    for metric in (
        Metric("top1_accuracy", "top-1 accuracy", _SINGLE, top_k_accuracy, "top-1", "accuracy"),
        Metric("top5_accuracy", "top-5 accuracy", _SINGLE, _top_5, "top-5", "accuracy", min_classes=6),
        Metric("mean_class_accuracy", "mean class accuracy", _SINGLE, mean_class_accuracy, hub_type="accuracy"),
        Metric(
            "calibration_error", "calibration error", _SINGLE, calibration_error, needs_probabilities=True, **_ERROR
        ),
        Metric("mean_average_precision", "mean average precision", _MULTI, mean_average_precision, "mAP"),
        Metric("mse", "mean squared error", _VALUES, _squared_error, unit="number", **_ERROR),
        Metric("mae", "mean absolute error", _VALUES, _absolute_error, "MAE", unit="number", **_ERROR),
        Metric("r2", "coefficient of determination", _VALUES, r2_score, hub_type="r_squared", unit="number"),
        # By hf_video.evaluation.evaluate_frames.
        Metric("frame_accuracy", "frame accuracy", _FRAMES, None, "frames", "accuracy"),
        Metric("edit_score", "edit score", _FRAMES),
        Metric("f1_10", "F1 at 10% overlap", _FRAMES, hub_type="f1"),
        Metric("f1_25", "F1 at 25% overlap", _FRAMES, hub_type="f1"),
        Metric("f1_50", "F1 at 50% overlap", _FRAMES, None, "F1@50", "f1"),
        Metric("point_map", "mAP of instants within 1 to 5 s", _FRAMES, None, "instants", "mean_average_precision"),
        # By hf_video.evaluation.frame_mean_ap.
        Metric("mean_ap", "mAP at IoU 0.5", "action_detection", None, "mAP", "mean_average_precision"),
        # By retrieval_recall.
        *(
            Metric(
                f"{way}_r{k}", f"{name} recall at {k}", "retrieval", None, short and f"{short}{k}", "recall", "percent"
            )
            for way, name, short in (
                ("text_to_video", "text to video", "R@"),
                ("video_to_text", "video to text", None),
            )
            for k in (1, 5, 10)
        ),
        # By hf_video.training.answers.exact_match.
        Metric("top1", "right answers", "answers", None, "right answers", "exact_match"),
        Metric("any", "a right answer among all", "answers", hub_type="exact_match"),
    )
}


def metrics_of(
    problem_type: str | None, num_labels: int | None = None, are_probabilities: bool = False
) -> list[Metric]:
    """The metrics that are measured for a model, by the `problem_type` of its configuration, where None is a single
    label, its number of classes or values, and whether its scores are probabilities."""
    return [
        metric
        for metric in METRICS.values()
        if metric.problem_type == (problem_type or _SINGLE)
        and (num_labels is None or metric.min_classes <= num_labels)
        and (are_probabilities or not metric.needs_probabilities)
    ]


def measure(
    scores: np.ndarray, labels: np.ndarray, problem_type: str | None = None, are_probabilities: bool = False
) -> dict[str, float]:
    """All metrics of [`metrics_of`] that are defined for some scores and labels, by their names."""
    metrics = metrics_of(problem_type, scores.shape[-1], are_probabilities)
    values = {metric.name: metric.function(scores, labels) for metric in metrics if metric.function}
    return {name: value for name, value in values.items() if value is not None}


def measured_in(values: Mapping[str, Any], prefix: str = "") -> list[tuple[Metric, float]]:
    """The metrics that a log entry, a report or another record of figures has under `prefix` and their names, with
    their values, in the order of `METRICS`."""
    return [(metric, value) for name, metric in METRICS.items() if (value := values.get(prefix + name)) is not None]


def tell_count(result: Mapping[str, Any], of: str = "") -> str:
    """What was measured: "9 videos", or, of what videos have several, "9 clips of 2 videos". `of` is a word in front
    of the first noun."""
    words = [(result.get(name), noun) for name, noun in _COUNTED.items()]
    told = [count(number, noun) for number, noun in words if number]
    told[0] = told[0].replace(" ", f" {of} ", 1) if of else told[0]
    return " of ".join(told)


def count_clips(videos: Sequence[str]) -> dict[str, int]:
    """`num_videos`, the number of different videos of rows, and `num_clips`, that of the rows where it is another."""
    number = len(set(videos))
    return {"num_videos": number} | ({"num_clips": len(videos)} if len(videos) > number else {})


def tell_views(num_clips: int, num_crops: int) -> str:
    """The views of a video, such as "2 clips x 1 crop"."""
    numbers = {"clip": num_clips, "crop": num_crops}
    return " x ".join(count(number, noun) for noun, number in numbers.items())


def compute_metrics(prediction: "EvalPrediction") -> dict[str, float]:
    """The `compute_metrics` of a `Trainer` for classification: every metric of logits in `METRICS`, by whether
    `label_ids` are labels or targets."""
    labels = np.asarray(prediction.label_ids)
    return measure(_first(prediction.predictions), labels, _MULTI if labels.ndim == 2 else _SINGLE)


def regression_metrics(prediction: "EvalPrediction") -> dict[str, float]:
    """The `compute_metrics` of a `Trainer` for regression: `mse`, `mae` and `r2` of values (num_videos, num_values)
    and labels of the same shape, or of shape (num_videos,)."""
    values = _first(prediction.predictions).astype(np.float64)
    labels = np.asarray(prediction.label_ids, dtype=np.float64)
    return measure(values, labels.reshape(values.shape), _VALUES)


def _first(outputs: Any) -> np.ndarray:
    return np.asarray(outputs[0] if isinstance(outputs, tuple) else outputs)


def _check(scores: np.ndarray, labels: np.ndarray) -> None:
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or len(labels) == 0:
        raise ValueError(f"Expected scores and a label for at least one video, got {scores.shape} and {labels.shape}.")
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= scores.shape[1]:
        expected = f"Labels must be class ids from 0 to {scores.shape[1] - 1}"
        raise ValueError(f"{expected}, got {labels.dtype} from {labels.min()} to {labels.max()}.")
