"""Measures instants of videos by average precision at tolerances, as action spotting is measured on SoccerNet.

The definitions are those of `SoccerNet.Evaluation.ActionSpotting` (https://github.com/SoccerNet/SoccerNet):

- A prediction is right within *half* of the tolerance on either side of an instant of its class. The instants of a
  video take, one after the other, the most confident prediction there that is not taken yet; all others are wrong.
  So where instants are closer than that, a larger tolerance may find fewer of them.
- Average precision is the mean of precision at the recalls 0, 0.1, ..., 1, where precision at a recall is the highest
  one at that recall or any higher one. Its mean over classes is averaged over tolerances by the trapezoidal rule: over
  1 to 5 s, which is SoccerNet's "tight" average, and here also over 0.1 to 0.5 s.

It differs from the original in three things. Times are not rounded to half seconds. Every score is a threshold, not
only multiples of 1/199. A class without an instant has no average precision, in place of 0.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from hf_video.data.frame_labels import UNKNOWN
from hf_video.inference.inference_settings import ONSET
from hf_video.inference.points import find_points
from hf_video.inference.segments import Segment
from hf_video.texts import count, table_lines

from .matching import by_class, find_annotations, interpolated_average_precision

FINE, COARSE = (0.1, 0.2, 0.3, 0.4, 0.5), (1.0, 2.0, 3.0, 4.0, 5.0)
# Seconds: 1.05 - 1 is more than 0.05.
_ROUNDING = 1e-6


def evaluate_points(
    predictions: Mapping[str, Sequence[Segment]], ground_truth: Mapping[str, Sequence[Segment]]
) -> dict[str, Any]:
    """Figures of instants, as JSON can hold them. A list has one value for each tolerance.

    Args:
        predictions: predicted instants by video: segments that end where they start, with their scores.
        ground_truth: annotated ones by video.

    Returns:
        `tolerances` in seconds, of which half counts on either side; `num_points` that are annotated, and
        `num_predictions`; `mean_average_precision` over classes, and its averages `average_map`, over 1 to 5 s, and
        `average_map_fine`, over 0.1 to 0.5 s; `f1` of the predictions with a score of at least 0.5; and `classes`,
        which holds `num_points` and `average_precision` by the name of a class.

    Raises:
        ValueError: there is no annotated instant.
    """
    videos = {**ground_truth, **predictions}
    # Instants choose in the order of their times.
    in_order = [
        {video: sorted(kind.get(video, ()), key=attrgetter("start", "score")) for video in videos}
        for kind in (predictions, ground_truth)
    ]
    num_predictions, num_points = (sum(map(len, kind.values())) for kind in in_order)
    if not num_points:
        raise ValueError("The ground truth has no instant, so nothing can be measured.")
    tolerances, num_right = FINE + COARSE, np.zeros(len(FINE + COARSE))
    classes: dict[str, dict[str, Any]] = {}
    for label, found, true in by_class(*in_order):
        is_right = np.stack([_are_right(true, found, tolerance) for tolerance in tolerances])
        num_right += (is_right & (found[:, 0] >= ONSET)).sum(axis=1)
        precisions = [interpolated_average_precision(row, len(true), np.arange(11) / 10) for row in is_right]
        classes[label] = {"num_points": len(true), "average_precision": precisions}
    mean = np.mean([each["average_precision"] for each in classes.values()], axis=0)
    fine, coarse = (
        float(np.trapezoid(values, times) / (times[-1] - times[0]))
        for values, times in ((mean[: len(FINE)], FINE), (mean[len(FINE) :], COARSE))
    )
    num_sure = sum(each.score >= ONSET for points in predictions.values() for each in points)
    return {
        "tolerances": list(tolerances),
        "num_points": num_points,
        "num_predictions": num_predictions,
        "mean_average_precision": mean.tolist(),
        "average_map": coarse,
        "average_map_fine": fine,
        "f1": (2 * num_right / (num_points + num_sure)).tolist(),
        "classes": classes,
    }


def _are_right(true: np.ndarray, found: np.ndarray, tolerance: float) -> np.ndarray:
    """Which predictions are right, see `by_class`."""

    def confidence(instants: np.ndarray, others: np.ndarray) -> np.ndarray:
        is_near = np.abs(instants[:, 2] - others[:, 2]) <= tolerance / 2 + _ROUNDING
        return np.where(is_near, others[:, 0], -np.inf)

    least = [np.finfo(np.float64).min]
    taken = find_annotations(true, true[:, 1], found, found[:, 1], least, tries_next=True, overlap=confidence)[0]
    return np.isin(np.arange(len(found)), taken)


class Spotted(NamedTuple):
    """A video, or a part of it: its name; seconds of moments, (n,), in their order; scores of classes at these, (n,
    num_classes), and labels, see `AnnotatedVideo.labels_at`; seconds and class id of the annotated instants. Parts of
    a video may overlap, as clips of a training do."""

    name: str
    moments: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    instants: Sequence[tuple[float, int]]


def measure_points(
    parts: Sequence[Spotted], class_names: Sequence[str], points: Collection[str], width: float
) -> dict[str, Any]:
    """`points`, what [`evaluate_points`] says of the instants that scores show at moments that are known; nothing if
    no instant of the classes `points` is annotated."""
    ids = [number for number, name in enumerate(class_names) if name in points]
    found, true, by_name = dict[str, list[Segment]](), dict[str, list[Segment]](), defaultdict(list)
    for part in parts:
        by_name[part.name].append(part)
    for name, of_video in by_name.items():
        _, *columns, instants = zip(*of_video, strict=True)
        order = np.concatenate(columns[0]).argsort(kind="stable")
        moments, scores, labels = (np.concatenate(each)[order] for each in columns)
        is_known = (labels != UNKNOWN).reshape(len(labels), -1).any(axis=1)
        found[name] = [
            Segment(class_names[label], time, time, score)
            for label, time, score in find_points(moments, scores, ids, width)
            if is_known[np.abs(moments - time).argmin()]
        ]
        true[name] = [Segment(class_names[id], time, time) for time, id in sorted({*chain(*instants)}) if id in ids]
    return {"points": evaluate_points(found, true)} if any(true.values()) else {}


def are_points(segments: Mapping[str, Sequence[Segment]]) -> set[str]:
    """The classes of points: those whose segments all are instants."""
    of_all = [each for of_video in segments.values() for each in of_video]
    return {each.label for each in of_all if each.is_point} - {each.label for each in of_all if not each.is_point}


def tell_points(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what [`evaluate_points`] gives."""
    rows = [("tolerance, s", *(f"{each:g}" for each in result["tolerances"]), "instants")]
    of_all = {"num_points": result["num_points"], "average_precision": result["mean_average_precision"]}
    for name, each in {"all": of_all, **result["classes"]}.items():
        rows.append((name, *(f"{value:.1%}" for value in each["average_precision"]), str(each["num_points"])))
    rows.append(("F1", *(f"{value:.1%}" for value in result["f1"])))
    said = (
        f"{count(result['num_points'], 'instant')}, right within half of the tolerance on each side: average precision"
    )
    means = f"{result['average_map']:.1%} over 1 to 5 s, {result['average_map_fine']:.1%} over 0.1 to 0.5 s"
    return [said, *table_lines(rows), f"mean average precision {means}"]
