"""Matches predictions with annotations and measures their ranking, for segments of time as for boxes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hf_video.inference.segments import Segment

# Is called with the result of an evaluation.
Tell = Callable[[dict[str, Any]], object]


def by_class(
    predictions: Mapping[str, Sequence[Segment]], ground_truth: Mapping[str, Sequence[Segment]]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Each annotated class with its predictions, the most confident first, and its annotations: score, number of the
    video, start and end of each, (n, 4) float64."""
    videos = {video: number for number, video in enumerate({**predictions, **ground_truth})}
    labels, cells = list[np.ndarray](), list[np.ndarray]()
    for kind in (predictions, ground_truth):
        pairs = [(videos[video], each) for video, of_video in kind.items() for each in of_video]
        labels.append(np.array([each.label for _, each in pairs], object))
        rows = [(each.score, number, each.start, each.end) for number, each in pairs]
        cells.append(np.array(rows, np.float64).reshape(-1, 4))
    for label in sorted({*labels[1]}):
        found, true = (values[names == label] for values, names in zip(cells, labels, strict=True))
        yield label, found[np.argsort(-found[:, 0], kind="stable")], true


def iou(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of each box with the other one of its row, (n,). Both are (n, 2 d) float, the lower
    corner and then the upper one; in one dimension they are segments. It is 0 where the union is empty."""
    (lower, upper), (other_lower, other_upper) = (np.split(each, 2, axis=1) for each in (boxes, others))
    shared = (np.minimum(upper, other_upper) - np.maximum(lower, other_lower)).clip(min=0).prod(axis=1)
    union = (upper - lower).prod(axis=1) + (other_upper - other_lower).prod(axis=1) - shared
    return np.divide(shared, union, out=np.zeros(len(boxes)), where=union > 0)


def find_annotations(
    predictions: np.ndarray,
    groups: np.ndarray,
    annotations: np.ndarray,
    true_groups: np.ndarray,
    thresholds: Sequence[float],
    *,
    tries_next: bool = False,
    overlap: Callable[[np.ndarray, np.ndarray], np.ndarray] = iou,
) -> np.ndarray:
    """Which annotation of its group (int, such as the number of a frame) each prediction finds, greedily:
    (num_thresholds, num_predictions) int64, -1 for none. Both are what `overlap` compares, (n, 2 d) boxes by default;
    predictions choose in their order, and of several annotations with the same overlap the first is best. At each
    threshold annotations are taken anew. If the best one is taken, a prediction that `tries_next` gets the next best
    one."""
    order = np.argsort(true_groups, kind="stable")
    begin, end = (np.searchsorted(true_groups[order], groups, side) for side in ("left", "right"))
    # Each prediction with each annotation of its group.
    counts = end - begin
    prediction = np.repeat(np.arange(len(predictions)), counts)
    annotation = order[np.arange(len(prediction)) + np.repeat(begin - (np.cumsum(counts) - counts), counts)]
    overlaps = overlap(predictions[prediction], annotations[annotation])
    ranking = np.lexsort((-overlaps, prediction))
    if not tries_next:
        ranking = ranking[np.unique(prediction, return_index=True)[1]]
    found = np.full((len(thresholds), len(predictions)), -1)
    for row, threshold in zip(found, thresholds, strict=True):
        taken = set[int]()
        hits = ranking[overlaps[ranking] >= threshold]
        for number, other in zip(prediction[hits].tolist(), annotation[hits].tolist(), strict=True):
            if row[number] < 0 and other not in taken:
                row[number] = other
                taken.add(other)
    return found


def interpolated_average_precision(
    is_right: np.ndarray, num_annotations: int, recalls: np.ndarray | None = None
) -> float:
    """The area under the curve of precision over recall, where precision at a recall is the highest one at that recall
    or any higher one; or the mean of that precision at some `recalls`. `is_right` is (num_predictions,) bool, the most
    confident prediction first; there is at least one annotation to find."""
    precision = is_right.cumsum() / np.arange(1, len(is_right) + 1)
    highest_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    if recalls is not None:
        places = np.searchsorted(is_right.cumsum() / num_annotations, recalls)
        return float(np.append(highest_from_here, 0.0)[places].mean())
    # Recall grows by one annotation where a prediction is right.
    return float(highest_from_here[is_right].sum() / num_annotations)
