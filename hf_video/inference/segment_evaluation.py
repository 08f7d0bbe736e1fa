"""Reads segments of untrimmed videos in the layouts of ActivityNet, and measures predicted against annotated ones.

Average precision is defined as in the evaluation kit of ActivityNet
(https://github.com/activitynet/ActivityNet/tree/master/Evaluation), with which THUMOS14 is measured as well:

- The predictions of a class in all videos are taken in the order of their scores. One is right if a segment of its
  class in its video has a temporal IoU of at least the threshold and is not taken yet; among several, it takes the one
  with the highest IoU. If the best one is taken, the next best is tried. Any other prediction is wrong.
- So a second prediction of the same segment is wrong, and so is one in a video without annotations of its class, or in
  a video that the ground truth does not have.
- Precision at a recall is the highest precision at that recall or any higher one. The average precision is the area
  under that curve, over all its steps.
- Classes are those of the annotations. A class that occurs only in predictions has no average precision and is left
  out. A class or video without predictions stays, and its segments are missed.

Where the kit leaves the result to the order of a sort, the order of the files decides here: among predictions with
equal scores, and among annotations with equal IoU, the first comes first. Where the kit divides 0 by 0, for two empty
segments, the IoU is 0 here. So an empty annotation, or one that ends before it starts, counts as missed.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Len
from pydantic import BaseModel, FiniteFloat

from hf_video.io import read_object
from hf_video.settings import closest, few

from .inference_settings import EvaluateSettings

# The usual thresholds for THUMOS14.
TIOUS = (0.3, 0.4, 0.5, 0.6, 0.7)


class LabelledSegment(NamedTuple):
    """What happens in a part of a video.

    Attributes:
        label: name of the class.
        start: begin in seconds.
        end: end in seconds.
        score: confidence of a prediction; 1 for an annotation.
    """

    label: str
    start: float
    end: float
    score: float = 1.0


class _Annotation(BaseModel):
    label: str
    segment: Annotated[list[FiniteFloat], Len(2, 2)]


class _Prediction(_Annotation):
    score: FiniteFloat


class _Predictions(BaseModel):
    results: dict[str, list[_Prediction]]


class _Video(BaseModel):
    annotations: list[_Annotation]


class _GroundTruth(BaseModel):
    database: dict[str, _Video]


def read_predictions(path: str | os.PathLike) -> dict[str, list[LabelledSegment]]:
    """The predicted segments of each video, in the order of the file.

    Args:
        path: a file `{"results": {VIDEO: [{"label": ..., "score": ..., "segment": [start, end]}, ...]}}`; other keys
            are not read.

    Raises:
        FileNotFoundError, OSError, ValueError: see `read_json`; or a part of the file is not of this layout, a number
            is not finite, or a segment ends before it starts.
    """
    results = _read(path, _Predictions)["results"]
    predictions = {
        video: [_segment(each, float(each["score"])) for each in entries] for video, entries in results.items()
    }
    for video, segments in predictions.items():
        for label, start, end, _ in segments:
            if end < start:
                raise ValueError(
                    f"{path}, results of {video!r}: a segment of {label!r} ends at {end:g} s, before it starts at "
                    f"{start:g} s. Write [start, end]."
                )
    return predictions


def read_ground_truth(path: str | os.PathLike, subset: str | None = None) -> dict[str, list[LabelledSegment]]:
    """The annotated segments of each video, in the order of the file. A segment may be empty or end before it starts,
    since published annotations have such mistakes.

    Args:
        path: a file `{"database": {VIDEO: {"subset": ..., "annotations": [{"label": ..., "segment": [start, end]},
            ...]}}}`; other keys are not read.
        subset: only videos of this subset, such as "validation"; by default all videos.

    Raises:
        FileNotFoundError, OSError, ValueError: see `read_json`; or a part of the file is not of this layout, a number
            is not finite, or no video is of the subset.
    """
    database = _read(path, _GroundTruth)["database"]
    chosen = {video: entry for video, entry in database.items() if subset in (None, entry.get("subset"))}
    if not chosen and subset is not None:
        subsets = sorted({str(entry.get("subset")) for entry in database.values()})
        hint = closest(subset, subsets)
        raise ValueError(
            f"{path} has no video of the subset {subset!r}, only of {', '.join(subsets) or 'none'}. {hint}".rstrip()
        )
    return {video: [_segment(each) for each in entry["annotations"]] for video, entry in chosen.items()}


def _segment(entry: dict[str, Any], score: float = 1.0) -> LabelledSegment:
    start, end = map(float, entry["segment"])
    return LabelledSegment(entry["label"], start, end, score)


def _read(path: str | os.PathLike, kind: type[BaseModel]) -> dict[str, Any]:
    try:
        return read_object(path, kind)
    except ValueError as error:
        if "` is missing." in str(error):
            raise ValueError(f"{error} Predictions have `results`, a ground truth has `database`.") from None
        raise


class MatchedSegments(NamedTuple):
    """Segments of one class in one video, and which prediction found which annotation.

    Attributes:
        label: name of the class.
        scores: (num_predictions,) float64, descending.
        predictions: (num_predictions, 2) float64, start and end in seconds.
        annotations: (num_annotations, 2) float64, start and end in seconds.
        found: (num_tious, num_predictions) int64: the annotation that a prediction found, -1 if it is wrong.
    """

    label: str
    scores: np.ndarray
    predictions: np.ndarray
    annotations: np.ndarray
    found: np.ndarray


def temporal_iou(segment: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of a segment (2,) with others (N, 2), as (N,) floats. It is 0 where the union is
    empty."""
    shared = np.minimum(segment[1], others[:, 1]) - np.maximum(segment[0], others[:, 0])
    shared = shared.clip(min=0)
    union = (segment[1] - segment[0]) + (others[:, 1] - others[:, 0]) - shared
    return np.divide(shared, union, out=np.zeros(len(others)), where=union > 0)


def find_annotations(predictions: np.ndarray, annotations: np.ndarray, tious: Sequence[float]) -> np.ndarray:
    """Which annotation each prediction finds, greedily: (num_tious, num_predictions) int64, -1 for none. Predictions
    (num_predictions, 2) and annotations (num_annotations, 2) are starts and ends, the most confident prediction first.
    At each threshold annotations are taken anew."""
    thresholds = np.asarray(tious, dtype=np.float64)
    rows = np.arange(len(thresholds))
    free = np.ones((len(thresholds), len(annotations)), dtype=bool)
    found = np.full((len(thresholds), len(predictions)), -1)
    for number, prediction in enumerate(predictions):
        if not free.any():
            break
        iou = temporal_iou(prediction, annotations)
        if iou.max() < thresholds.min():
            continue
        ranked = np.where(free, iou, -1.0)
        best = ranked.argmax(axis=1)
        hits = ranked[rows, best] >= thresholds
        found[hits, number] = best[hits]
        free[rows[hits], best[hits]] = False
    return found


def match_segments(
    predictions: Mapping[str, Sequence[LabelledSegment]],
    ground_truth: Mapping[str, Sequence[LabelledSegment]],
    tious: Sequence[float] = TIOUS,
) -> list[MatchedSegments]:
    """Matches the predictions of each video with its annotations, at thresholds of temporal IoU; see the top of this
    file. Gives one entry for each class in each video that has predictions or annotations of it."""
    # Predicted and annotated segments by video and class.
    pairs: dict[tuple[str, str], tuple[list[LabelledSegment], list[LabelledSegment]]] = defaultdict(lambda: ([], []))
    for kind, by_video in enumerate((predictions, ground_truth)):
        for video, segments in by_video.items():
            for segment in segments:
                pairs[video, segment.label][kind].append(segment)
    matches = []
    for (_, label), (predicted, annotated) in pairs.items():
        predicted.sort(key=lambda segment: -segment.score)
        scores = np.array([segment.score for segment in predicted], dtype=np.float64)
        found, true = (
            np.array([(each.start, each.end) for each in segments], dtype=np.float64).reshape(-1, 2)
            for segments in (predicted, annotated)
        )
        matches.append(MatchedSegments(label, scores, found, true, find_annotations(found, true, tious)))
    return matches


def interpolated_average_precision(is_right: np.ndarray, num_annotations: int) -> float:
    """The area under the interpolated curve of precision over recall. `is_right` is (num_predictions,) bool, the most
    confident prediction first; there is at least 1 annotation to find."""
    num_right = is_right.cumsum()
    precision = num_right / np.arange(1, len(is_right) + 1)
    highest_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    # Recall grows by one annotation where a prediction is right.
    return float(highest_from_here[is_right].sum() / num_annotations)


def average_precision_by_class(matches: Iterable[MatchedSegments]) -> dict[str, list[float]]:
    """The average precision of each annotated class at each threshold, by the name of the class in alphabetical
    order."""
    by_label: dict[str, list[MatchedSegments]] = defaultdict(list)
    for match in matches:
        by_label[match.label].append(match)
    found = {}
    for label in sorted(by_label):
        if num_annotations := sum(len(match.annotations) for match in by_label[label]):
            order = np.argsort(-np.concatenate([match.scores for match in by_label[label]]), kind="stable")
            is_right = np.concatenate([match.found >= 0 for match in by_label[label]], axis=1)[:, order]
            found[label] = [interpolated_average_precision(row, num_annotations) for row in is_right]
    return found


def border_errors(matches: Iterable[MatchedSegments], threshold: int) -> np.ndarray:
    """(num_found, 2) float64: by how many seconds the start and the end of each right prediction miss those of the
    annotation that it found, at the threshold of this index."""
    errors = [np.zeros((0, 2))]
    for match in matches:
        is_right = match.found[threshold] >= 0
        errors.append(np.abs(match.predictions[is_right] - match.annotations[match.found[threshold][is_right]]))
    return np.concatenate(errors)


def evaluate_segments(
    predictions: Mapping[str, Sequence[LabelledSegment]],
    ground_truth: Mapping[str, Sequence[LabelledSegment]],
    tious: Sequence[float] = TIOUS,
) -> dict[str, Any]:
    """All figures of `hf-video evaluate --task segments`, as JSON can hold them. A list has one value for each
    threshold.

    Precision, recall and F1 count all predictions, whatever their scores. They are for segments that are final, such
    as those of a timeline; a detector that proposes hundreds of segments is measured by average precision.

    Args:
        predictions: predicted segments by video, as `read_predictions` gives them.
        ground_truth: annotated segments by video, as `read_ground_truth` gives them.
        tious: thresholds of temporal IoU, above 0 and at most 1.

    Returns:
        `tious`; `num_videos`, `num_segments` and `num_predictions`; `mean_average_precision` over classes, and the
        mean of it over thresholds, `average_map`; `precision`, `recall` and `f1`; `median_border_error` and
        `p90_border_error` of the starts and ends of right predictions in seconds, None if there is none; `classes`,
        which holds `num_segments` and `average_precision` by the name of a class; and `warnings`, sentences that say
        what was left out or counts as wrong, with its count.

    Raises:
        ValueError: a threshold is out of its bounds, there is no annotation, or there are predictions, but none for a
            video of the ground truth.
    """
    if wrong := [tiou for tiou in tious if not 0 < tiou <= 1]:
        raise ValueError(f"The threshold of temporal IoU is {wrong[0]:g}; a number above 0 and up to 1 is expected.")
    if not tious:
        raise ValueError("There is no threshold of temporal IoU.")
    tious = sorted(set(tious))
    counts: dict[str, int] = defaultdict(int)
    for segments in ground_truth.values():
        for segment in segments:
            counts[segment.label] += 1
    if not counts:
        raise ValueError("The ground truth has no annotated segment, so nothing can be measured.")
    warnings = _warnings(predictions, ground_truth, counts)
    matches = match_segments(predictions, ground_truth, tious)
    by_class = average_precision_by_class(matches)
    mean = np.mean(list(by_class.values()), axis=0)
    num_right = sum((match.found >= 0).sum(axis=1) for match in matches)
    num_segments, num_predictions = sum(counts.values()), sum(map(len, predictions.values()))
    errors = [border_errors(matches, number) for number in range(len(tious))]
    return {
        "tious": tious,
        "num_videos": len(ground_truth),
        "num_segments": num_segments,
        "num_predictions": num_predictions,
        "mean_average_precision": mean.tolist(),
        "average_map": float(mean.mean()),
        "precision": (num_right / max(num_predictions, 1)).tolist(),
        "recall": (num_right / num_segments).tolist(),
        "f1": (2 * num_right / (num_segments + num_predictions)).tolist(),
        "median_border_error": [float(np.median(each)) if each.size else None for each in errors],
        "p90_border_error": [float(np.percentile(each, 90)) if each.size else None for each in errors],
        "classes": {
            label: {"num_segments": counts[label], "average_precision": values} for label, values in by_class.items()
        },
        "warnings": warnings,
    }


def _warnings(
    predictions: Mapping[str, Sequence[LabelledSegment]],
    ground_truth: Mapping[str, Sequence[LabelledSegment]],
    counts: Mapping[str, int],
) -> list[str]:
    found = []
    unknown = [video for video, segments in predictions.items() if segments and video not in ground_truth]
    if unknown:
        if not any(video in ground_truth for video in predictions):
            raise ValueError(
                f"No prediction is for a video of the ground truth: {_some(unknown)} against {_some(ground_truth)}. "
                "Both files must name videos alike."
            )
        number = sum(len(predictions[video]) for video in unknown)
        found.append(
            f"{number} predictions count as wrong: the ground truth does not have their video ({_some(unknown)})."
        )
    if silent := [video for video in ground_truth if video not in predictions]:
        found.append(f"{len(silent)} of {len(ground_truth)} videos have no predictions ({_some(silent)}).")
    labels = [segment.label for segments in predictions.values() for segment in segments]
    if strange := [label for label in labels if label not in counts]:
        found.append(
            f"{len(strange)} predictions have a label that no annotation has ({_some(dict.fromkeys(strange))}): they "
            "are in no average precision, and count as wrong in precision and F1."
        )
    empty = [video for video, segments in ground_truth.items() for each in segments if each.end <= each.start]
    if empty:
        found.append(
            f"{len(empty)} annotations are empty or end before they start, so nothing can find them "
            f"({_some(dict.fromkeys(empty))})."
        )
    return found


def _some(names: Iterable[str]) -> str:
    return few(map(repr, names))


def evaluate_segment_file(
    settings: EvaluateSettings, tell: Callable[[dict[str, Any]], object] = lambda result: None
) -> dict[str, Any]:
    """Measures a file of predicted segments, as `hf-video evaluate --task segments`.

    Args:
        settings: `data` and `ground_truth` in ActivityNet's layout, `subset`, and `tiou`.
        tell: is called with the result.

    Returns:
        As [`evaluate_segments`].

    Raises:
        ValueError, OSError: a file cannot be used.
    """
    truth = read_ground_truth(settings.ground_truth or "", settings.subset)
    result = evaluate_segments(read_predictions(settings.data), truth, settings.tiou)
    tell(result)
    return result


def tell_segments(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what [`evaluate_segments`] gives."""
    # A name of several lines would break the table.
    names = [" ".join(label.split()) for label in result["classes"]]
    width = max(map(len, ["median border error", *names]))
    head = f"{'temporal IoU':{width}}" + "".join(f"  {tiou:7.2f}" for tiou in result["tious"])
    shares = {"average precision": "mean_average_precision", "precision": "precision", "recall": "recall", "F1": "f1"}
    borders = {"median border error": "median_border_error", "90% of them below": "p90_border_error"}
    lines = [
        f"{result['num_segments']} segments of {len(result['classes'])} classes in {result['num_videos']} videos, "
        f"{result['num_predictions']} predictions",
        "",
        f"{head}     mean",
    ]
    lines += [f"{title:{width}}{_percents(result[key])}" for title, key in shares.items()]
    lines[3] += f"  {result['average_map']:7.1%}"
    for title, key in borders.items():
        cells = ("-" if value is None else f"{value:.2f} s" for value in result[key])
        lines.append(f"{title:{width}}" + "".join(f"  {cell:>7}" for cell in cells))
    lines += ["", f"{'average precision':{width}}" + head[width:] + "  segments"]
    lines += [
        f"{label:{width}}{_percents(each['average_precision'])}  {each['num_segments']:8d}"
        for label, each in zip(names, result["classes"].values(), strict=True)
    ]
    return lines


def _percents(values: Sequence[float]) -> str:
    return "".join(f"  {value:7.1%}" for value in values)
