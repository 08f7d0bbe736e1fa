"""Foretells what more labels would bring, and finds labels that the other clips contradict: `hf-video plan`
for programs.

A small classifier on the features of a frozen model learns from growing parts of the clips, and is measured on the
others. Accuracy is taken to be a straight line of log-odds over the logarithm of the number of clips.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from datasets import concatenate_datasets

from hf_video.data import is_multi_label, label_names
from hf_video.data.checks import readable_videos
from hf_video.data.folders import listed
from hf_video.data.video_settings import annotation_choices
from hf_video.evaluation.classes import trained_rows
from hf_video.loading.models import choose_device
from hf_video.loading.released import model_path

from .data import load_data
from .probing import encode_splits, features_folder
from .task_settings import PlanSettings

# The clips are divided in so many ways into so many parts, each of which is held out once.
_ROUNDS, _FOLDS = 8, 5
_SIZES, _DRAWS = 5, 400
_BAND = (0.1, 0.5, 0.9)
# Weight of the identity in the covariance of features.
_SHRINKAGE = 0.1


class Forecast(NamedTuple):
    """Shares from 0 to 1, each as low, middle and high of an 80 % band: the accuracy on clips that were not learned
    from, with all clips that there are and with more; and the gain from one to the other."""

    now: tuple[float, ...]
    later: tuple[float, ...]
    gain: tuple[float, ...]


class Doubt(NamedTuple):
    """The row of a clip that is never recognised as its label when it is held out, the class that it is always taken
    for, and the mean probability of its label."""

    row: int
    other: int
    probability: float


@dataclass(frozen=True)
class LabelPlan:
    """What is known of labelled clips.

    Attributes:
        sizes: numbers of clips a class, the mean over classes, of the parts that were learned from, (num_sizes,).
        accuracy: low, middle and high of the accuracy with so many, (num_sizes, 3).
        overall: the forecast for clips of all classes.
        classes: that for the clips of each class.
        is_chance: whether the mean accuracy of classes is not clearly above guessing.
        doubts: the labels that the other clips contradict, the most doubtful first; none at chance.
        by_video: whether all clips of a video were held out together; otherwise a class has too few videos for that.
    """

    sizes: np.ndarray
    accuracy: np.ndarray
    overall: Forecast
    classes: list[Forecast]
    is_chance: bool
    doubts: list[Doubt]
    by_video: bool


def plan_labels(
    features: np.ndarray, labels: np.ndarray, videos: Sequence[Any] | None = None, *, more: int = 30, seed: int = 0
) -> LabelPlan:
    """What more labels would bring, and labels to look at again.

    Args:
        features: of the clips, (num_clips, hidden_size) float.
        labels: their class ids from 0 on, (num_clips,) int, at least five clips of each class.
        videos: what each clip was cut from, by default all from different ones. Clips of one video are held out
            together where each class is in five videos at least.
        more: so many further clips of each class are foretold.
        seed: of the draws; an equal one gives equal figures.

    Raises:
        ValueError: fewer than two classes, or fewer than five clips of a class.
    """
    counts = np.bincount(labels)
    if len(counts) < 2 or counts.min() < _FOLDS:
        raise ValueError(f"At least two classes of {_FOLDS} clips each are expected, not {counts.tolist()} clips.")
    generator = np.random.default_rng(seed)
    rows = np.arange(len(labels))
    groups = rows if videos is None else np.unique(videos, return_inverse=True)[1]
    by_video = all(len(np.unique(groups[labels == label])) >= _FOLDS for label in range(len(counts)))
    groups = groups if by_video else rows
    shares = np.geomspace(min(4 / counts.mean(), 0.5), 1, _SIZES)
    predicted, probabilities = _held_out(features, labels, groups, shares, generator)
    is_right, taken_for = predicted == labels, predicted[:, -1]
    is_doubted = (taken_for == taken_for[0]).all(0) & (taken_for[0] != labels)
    shares = shares * (1 - 1 / _FOLDS)

    def foretell(chosen: np.ndarray) -> tuple[np.ndarray, Forecast]:
        """The accuracy on chosen clips with each share, and the forecast."""
        number = chosen.sum()
        later = 1 + more * (len(counts) if number == len(labels) else 1) / number
        drawn = _draw(is_right[:, :, chosen], groups[chosen], shares, np.array([*shares, 1, later]), generator)
        *_, now, then = bands = np.quantile(drawn, _BAND, axis=0).T
        gain = np.quantile(drawn[:, -1] - drawn[:, -2], _BAND)
        return bands[:_SIZES], Forecast(*(tuple(band.tolist()) for band in (now, then, gain)))

    accuracy, overall = foretell(np.full(len(labels), True))
    classes = [foretell(labels == label)[1] for label in range(len(counts))]
    low, middle, _ = overall.now
    # Of the mean over classes, since guessing the largest may be right more often than what tells all apart.
    is_chance = bool(np.mean([each.now[1] for each in classes]) - (middle - low) <= 1 / len(counts))
    doubted = [] if is_chance else sorted(np.flatnonzero(is_doubted), key=lambda row: probabilities[row])
    doubts = [Doubt(int(row), int(taken_for[0, row]), float(probabilities[row])) for row in doubted]
    return LabelPlan(shares * counts.mean(), accuracy, overall, classes, is_chance, doubts, by_video)


def fit_discriminant(features: np.ndarray, labels: np.ndarray, num_classes: int) -> Callable[[np.ndarray], np.ndarray]:
    """A linear discriminant with a shrunken covariance, which learns from a few clips. It gives the probabilities of
    classes (num_others, num_classes) for features (num_others, hidden_size)."""
    known = np.unique(labels)
    means = np.stack([features[labels == label].mean(0) for label in known])
    apart = features - means[np.searchsorted(known, labels)]
    covariance = apart.T @ apart / max(len(labels) - len(known), 1)
    scale = max(float(np.trace(covariance)) / len(covariance), 1e-12)
    covariance = (1 - _SHRINKAGE) * covariance + _SHRINKAGE * scale * np.eye(len(covariance))
    weights = np.linalg.solve(covariance, means.T)
    offsets = (means * weights.T).sum(1) / 2

    def probabilities(others: np.ndarray) -> np.ndarray:
        scores = np.full((len(others), num_classes), -np.inf)
        scores[:, known] = others @ weights - offsets
        scores = np.exp(scores - scores.max(1, keepdims=True))
        return scores / scores.sum(1, keepdims=True)

    return probabilities


def _held_out(
    features: np.ndarray, labels: np.ndarray, groups: np.ndarray, shares: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The classes that clips are taken for after learning from shares of others, (rounds, num_shares, num_clips) int,
    and the mean probabilities of their labels after learning from all others, (num_clips,)."""
    num_classes = labels.max() + 1
    predicted, probability = np.zeros((_ROUNDS, len(shares), len(labels)), int), np.zeros(len(labels))
    label_of = np.zeros(groups.max() + 1, int)
    label_of[groups] = labels
    for each_round in predicted:
        order = generator.permutation(len(label_of))
        order = order[np.argsort(label_of[order], kind="stable")]
        fold_of = np.empty(len(label_of), int)
        fold_of[order] = (np.arange(len(order)) + generator.integers(_FOLDS)) % _FOLDS
        for fold in range(_FOLDS):
            is_out = fold_of[groups] == fold
            known = [generator.permutation(np.flatnonzero(~is_out & (labels == label))) for label in np.unique(labels)]
            for share, found in zip(shares, each_round, strict=True):
                rows = np.concatenate([each[: max(round(share * len(each)), 2)] for each in known])
                scores = fit_discriminant(features[rows], labels[rows], num_classes)(features[is_out])
                found[is_out] = scores.argmax(1)
            probability[is_out] += scores[np.arange(len(scores)), labels[is_out]] / _ROUNDS
    return predicted, probability


def _draw(
    is_right: np.ndarray, groups: np.ndarray, shares: np.ndarray, asked: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Accuracies at the shares that are asked for, (draws, num_asked): each draw takes other videos and rounds, as a
    bootstrap does, and other clips to learn from, after which accuracy spreads as that of so many trials."""
    num_clips, numbers = len(groups), np.unique(groups, return_inverse=True)[1]
    drawn = np.empty((_DRAWS, len(asked)))
    basis = np.stack([np.ones(len(shares)), np.log(shares)], axis=1)
    for draw in drawn:
        times = np.bincount(generator.integers(0, numbers.max() + 1, numbers.max() + 1), minlength=numbers.max() + 1)
        weights = times[numbers] + 1e-9
        rounds = generator.integers(0, _ROUNDS, _ROUNDS)
        right = (is_right[rounds].mean(0) @ weights / weights.sum()).clip(0.5 / num_clips, 1 - 0.5 / num_clips)
        deviations = np.sqrt(right * (1 - right))
        line = np.linalg.lstsq(basis * deviations[:, None], np.log(right / (1 - right)) * deviations, rcond=None)[0]
        share = 1 / (1 + np.exp(-line[0] - max(line[1], 0) * np.log(asked)))
        noise = generator.normal(size=len(asked)) * np.sqrt(share * (1 - share) / (asked * num_clips))
        draw[:] = (share + noise).clip(0, 1)
    return drawn


def plan(settings: PlanSettings) -> dict[str, Any]:
    """Encodes labelled clips once, and says what `plan_labels` finds, as `hf-video plan --json` prints it.

    Raises:
        ValueError, OSError: a setting or a video cannot be used, clips have several classes, or a class fewer than
            five clips.
    """
    model_name = str(model_path(settings.model))
    data = load_data(settings.data, model_name, settings.video_root, choices=annotation_choices(settings))
    readable, broken = readable_videos(data, settings.on_error)
    rows = concatenate_datasets([*readable.values()])
    if is_multi_label(rows):
        raise ValueError(f"{settings.data} has clips of several classes; plan takes clips of one class each.")
    names = label_names(rows)
    counts = np.bincount(rows["label"][:], minlength=len(names))
    if counts.min() < _FOLDS:
        few = listed(f"{names[label]!r} {counts[label]}" for label in np.flatnonzero(counts < _FOLDS))
        raise ValueError(f"Each class needs at least {_FOLDS} clips to foretell anything; {few}. Label more of these.")
    device = choose_device(settings.device)
    _, splits = encode_splits(settings, model_name, device, features_folder(settings.features), {"train": rows})
    encoded = splits["train"]
    features, labels = encoded.features.values.double().mean(1).numpy(), encoded.tensors()[1].numpy()
    rows = rows.select(encoded.features.rows)
    found = plan_labels(features, labels, rows["video"][:], more=settings.more, seed=settings.seed)
    return {
        "data": settings.data,
        "model": settings.model,
        "num_clips": len(labels),
        "more": settings.more,
        "by_video": found.by_video,
        "curve": [
            {"clips_a_class": float(size), "accuracy": band}
            for size, band in zip(found.sizes, found.accuracy.tolist(), strict=True)
        ],
        **found.overall._asdict(),
        "is_chance": found.is_chance,
        "classes": {
            name: {"clips": int(count), **each._asdict()}
            for name, count, each in zip(names, np.bincount(labels), found.classes, strict=True)
        },
        "doubts": [
            {name: rows[doubt.row].get(name) for name in ("video", "start", "end")}
            | {"label": names[labels[doubt.row]], "taken_for": names[doubt.other], "probability": doubt.probability}
            for doubt in found.doubts
        ],
        **trained_rows(settings, rows),
        "broken_videos": sorted({*broken, *encoded.unread()}),
    }
