"""Accuracy, the confusion matrix, calibration and average precision, from class scores; errors of a regression."""

import numpy as np
from transformers import EvalPrediction


def top_k_accuracy(scores: np.ndarray, labels: np.ndarray, k: int = 1) -> float:
    """The share of videos whose true class is among the `k` highest scores, from 0 to 1; among all of them where there
    are fewer than `k` classes.

    Args:
        scores: (num_videos, num_classes) float array; logits and probabilities rank alike.
        labels: (num_videos,) integer array of class ids.
        k: how many classes count as the answer.

    Raises:
        ValueError: the shapes do not match, there is no video, or `k` is below 1.
    """
    _check(scores, labels)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    top = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return float((top == labels[:, None]).any(axis=1).mean())


def confusion_matrix(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts of videos by true class (rows) and predicted class (columns): (num_classes, num_classes) int64.

    Args:
        scores: (num_videos, num_classes) float array.
        labels: (num_videos,) integer array of class ids.

    Raises:
        ValueError: the shapes do not match or there is no video.
    """
    _check(scores, labels)
    num_classes = scores.shape[1]
    pairs = labels * num_classes + scores.argmax(axis=1)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def per_class_accuracy(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The share of the videos of each class that is recognised: (num_classes,) float, NaN for a class without videos.

    Args:
        scores: (num_videos, num_classes) float array.
        labels: (num_videos,) integer array of class ids.

    Raises:
        ValueError: the shapes do not match or there is no video.
    """
    counts = confusion_matrix(scores, labels)
    totals = counts.sum(axis=1)
    return np.divide(counts.diagonal(), totals, out=np.full(len(totals), np.nan), where=totals > 0)


def calibration_error(probabilities: np.ndarray, labels: np.ndarray, num_bins: int = 15) -> float:
    """The expected calibration error: by how much confidence and accuracy differ, on average over videos, in
    `num_bins` equal intervals of confidence (https://arxiv.org/abs/1706.04599).

    Args:
        probabilities: (num_videos, num_classes) float array, rows that sum to 1.
        labels: (num_videos,) integer array of class ids.
        num_bins: intervals between 0 and 1.

    Raises:
        ValueError: the shapes do not match, there is no video, or the rows are no probabilities.
    """
    _check(probabilities, labels)
    if probabilities.min() < 0 or not np.allclose(probabilities.sum(axis=1), 1, atol=1e-3):
        raise ValueError("Calibration is measured on probabilities, rows that sum to 1: apply a softmax to logits.")
    confidence = probabilities.max(axis=1)
    is_right = probabilities.argmax(axis=1) == labels
    bins = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    gaps = np.bincount(bins, weights=is_right - confidence, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(labels))


def average_precision(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """How well the videos of each class are ranked before all others: the area under its curve of precision over
    recall, in steps and without interpolation, as scikit-learn's `average_precision_score` has it.

    Args:
        scores: (num_videos, num_classes) float array; logits and probabilities rank alike.
        targets: (num_videos, num_classes) array, 1 where a video has a class and 0 where it has not.

    Returns:
        (num_classes,) float, NaN for a class without videos.

    Raises:
        ValueError: the shapes do not match, there is no video, or a target is neither 0 nor 1.
    """
    if scores.ndim != 2 or targets.shape != scores.shape or len(targets) == 0:
        raise ValueError(
            "Expected scores and targets of shape (num_videos, num_classes) for at least one video, got "
            f"{scores.shape} and {targets.shape}."
        )
    if not np.isin(targets, (0, 1)).all():
        raise ValueError("Targets must be 0 or 1.")
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=0)
    num_found = np.take_along_axis(targets, order, axis=0).cumsum(axis=0, dtype=np.int64)
    # Equal scores are found together: they count where the last of them stands.
    is_last = np.vstack([ranked[1:] != ranked[:-1], np.ones((1, scores.shape[1]), dtype=bool)])
    precision = num_found / np.arange(1, len(scores) + 1)[:, None]
    areas = [
        (np.diff(found[last], prepend=0) * values[last]).sum()
        for found, values, last in zip(num_found.T, precision.T, is_last.T, strict=True)
    ]
    totals = num_found[-1]
    return np.divide(areas, totals, out=np.full(len(totals), np.nan), where=totals > 0)


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """The `compute_metrics` of a `Trainer`: `top1_accuracy` and, with more than five classes, `top5_accuracy`; for
    videos of several classes `mean_average_precision`, over the classes that some video has.

    Args:
        prediction: `predictions` are class scores (num_videos, num_classes), `label_ids` class ids (num_videos,), or
            targets (num_videos, num_classes) of zeros and ones.

    Raises:
        ValueError: the shapes do not match or there is no video, or none with a class.
    """
    scores, labels = prediction.predictions, prediction.label_ids
    if labels.ndim == 2:
        precisions = average_precision(scores, labels)
        if np.isnan(precisions).all():
            raise ValueError("No video has a class, so there is no average precision: evaluate on others.")
        return {"mean_average_precision": float(np.nanmean(precisions))}
    metrics = {"top1_accuracy": top_k_accuracy(scores, labels)}
    if scores.shape[1] > 5:
        metrics["top5_accuracy"] = top_k_accuracy(scores, labels, k=5)
    return metrics


def regression_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """The `compute_metrics` of a `Trainer` for a regression model: the mean squared error `mse` and the mean absolute
    error `mae`, over all values, and `r2`, the coefficient of determination, the mean over several values.

    Args:
        prediction: `predictions` are values (num_videos, num_values), `label_ids` the true ones of the same shape, or
            (num_videos,).

    Returns:
        The metrics; without `r2` where a true value is the same for all videos.

    Raises:
        ValueError: the shapes do not match or there is no video.
    """
    found = np.asarray(prediction.predictions, dtype=np.float64)
    true = np.asarray(prediction.label_ids, dtype=np.float64)
    if found.size != true.size or len(found) != len(true) or not found.size:
        raise ValueError(
            "Expected predictions of shape (num_videos, num_values) and as many labels, for at least one video, got "
            f"{found.shape} and {true.shape}."
        )
    true = true.reshape(found.shape)
    errors, spread = found - true, np.square(true - true.mean(axis=0)).sum(axis=0)
    metrics = {"mse": float(np.square(errors).mean()), "mae": float(np.abs(errors).mean())}
    if (spread > 0).all():
        metrics["r2"] = float((1 - np.square(errors).sum(axis=0) / spread).mean())
    return metrics


def _check(scores: np.ndarray, labels: np.ndarray) -> None:
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or len(labels) == 0:
        raise ValueError(
            "Expected scores of shape (num_videos, num_classes) and labels of shape (num_videos,) for at least one "
            f"video, got {scores.shape} and {labels.shape}."
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"Labels must be class ids, got {labels.dtype}; regression_metrics measures values.")
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(
            f"Labels must be class ids from 0 to {scores.shape[1] - 1}, got {labels.min()} to {labels.max()}."
        )
