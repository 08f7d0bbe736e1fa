"""Measures segments of untrimmed videos: the task `segments`, and the files of ActivityNet that it reads.

Average precision is that of ActivityNet's kit (https://github.com/activitynet/ActivityNet/tree/master/Evaluation):

- The predictions of a class in all videos are taken in the order of their scores. One is right if a segment of its
  class in its video has a temporal IoU of at least the threshold and is not taken yet; if the best one is taken, the
  next best is tried. Any other prediction is wrong, also in a video without annotations of its class.
- Precision at a recall is the highest precision at that recall or any higher one. The average precision is the area
  under that curve, over all its steps. Classes are those of the annotations.

Where the kit leaves the result to the order of a sort, the first in the file comes first. Where it divides 0 by 0, for
two empty segments, the IoU is 0: an empty annotation, or one that ends before it starts, counts as missed.
"""

import math
import os
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Len
from pydantic import BaseModel, FiniteFloat

from hf_video.data.annotations import find_format, read_annotations
from hf_video.data.folders import address
from hf_video.data.tables import open_tables
from hf_video.data.video_settings import annotation_choices
from hf_video.inference.inference_settings import EvaluateSettings
from hf_video.inference.segments import Segment
from hf_video.io import read_object
from hf_video.reading import probe_video
from hf_video.reading.sources import name_of
from hf_video.settings import few
from hf_video.texts import count, table_lines

from .agreement import Compared, measure_agreement, tell_agreement
from .matching import Tell, by_class, find_annotations, interpolated_average_precision
from .points import are_points, evaluate_points, tell_points

# The usual thresholds for THUMOS14.
TIOUS = (0.3, 0.4, 0.5, 0.6, 0.7)

_Segments = Mapping[str, Sequence[Segment]]


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


def read_predictions(path: str | os.PathLike, **options: Any) -> dict[str, list[Segment]]:
    """The predicted segments of each video, in the order of the file.

    Args:
        path: a file `{"results": {VIDEO: [{"label": ..., "score": ..., "segment": [start, end]}, ...]}}`, or a table
            with a row a segment, such as `segments.csv` of a timeline, or an annotation file, of which by default what
            a model wrote is read.
        options: see [`read_ground_truth`].

    Raises:
        OSError, ValueError: see `read_json`; or the file is not of this layout, or a number is not finite.
    """
    if is_table(path):
        options["choices"] = {"by": "model"} | (options.get("choices") or {})
        return _read_table(path, **options)[0]
    return {video: _segments(entries) for video, entries in read_object(path, _Predictions)["results"].items()}


def read_ground_truth(path: str | os.PathLike, subset: str | None = None, **options: Any) -> dict[str, list[Segment]]:
    """The annotated segments of each video, in the order of the file. A segment may be empty or end before it starts,
    since published annotations have such mistakes.

    Args:
        path: a file `{"database": {VIDEO: {"subset": ..., "annotations": [{"label": ..., "segment": [start, end]},
            ...]}}}`, or a list of times, or an annotation file, as a training reads them.
        subset: only videos of this subset, such as "validation"; by default all videos.
        options: of a list of times or an annotation file: `video_root`, and `choices` of `read_annotations`.

    Raises:
        OSError, ValueError: as [`read_predictions`]; or no video is of the subset.
    """
    if is_table(path):
        return _read_table(path, **options)[0]
    database = read_object(path, _GroundTruth)["database"]
    chosen = {video: entry for video, entry in database.items() if subset in (None, entry.get("subset"))}
    if not chosen:
        subsets = sorted({str(entry.get("subset")) for entry in database.values()})
        raise ValueError(f"{path} has no video of the subset {subset!r}, only of {', '.join(subsets) or 'none'}.")
    return {video: _segments(entry["annotations"]) for video, entry in chosen.items()}


def _segments(entries: Sequence[Mapping[str, Any]]) -> list[Segment]:
    times = [map(float, each["segment"]) for each in entries]
    pairs = zip(entries, times, strict=True)
    return [Segment(each["label"], start, end, float(each.get("score", 1))) for each, (start, end) in pairs]


def is_table(path: str | os.PathLike) -> bool:
    """Whether a file is a list of times or an annotation file, which trainings read, and none of ActivityNet's."""
    return Path(path).suffix.lower() != ".json" or find_format(path) is not None


def _read_table(path: str | os.PathLike, **options: Any) -> tuple[dict[str, list[Segment]], dict[str, str]]:
    """The segments of the rows of a table by the name of their video, as a timeline calls it, and the videos."""
    options["choices"] = {"point_width": 0.0} | (options.get("choices") or {})
    segments, places = dict[str, list[Segment]](), dict[str, str]()
    for table in open_tables(path, expected="Expected rows of path, start, end and label.", **options).values():
        times, names = table.times(), table.column("video").to_pylist()
        scores = table.numbers("score", lambda place, name, value: float(value or 1.0), optional=True)
        values_of = [table.texts("label"), times["start"].fill_null(0.0), times["end"], scores.fill_null(1.0)]
        for row, (name, *values) in enumerate(zip(names, *(each.to_pylist() for each in values_of), strict=True)):
            if None in values:
                raise ValueError(f"{table.place(row)}: a label and an end are expected.")
            place = address(table.root, str(name))
            if (known := places.setdefault(name_of(name), place)) != place:
                raise ValueError(f"{path} has two videos of one name, {known} and {place}: rename one.")
            segments.setdefault(name_of(name), []).append(Segment(*values))
    return segments, places


class _Seen(NamedTuple):
    """What one says of a video: segments, spans at which nobody looked, and where the video is."""

    segments: Sequence[Segment]
    unknown: Sequence[tuple[float, float]] = ()
    place: str = ""


def _read_seen(path: str, settings: EvaluateSettings, **choices: Any) -> dict[str, _Seen]:
    """What a file of annotations says of each video at which somebody looked, also where nothing was seen. `choices`
    go before those of the user."""
    options: dict[str, Any] = {"video_root": settings.video_root}
    options["choices"] = {"by": "person"} | annotation_choices(settings) | choices
    if not is_table(path):
        return {name: _Seen(each) for name, each in read_ground_truth(path, settings.subset).items()}
    segments, places = _read_table(path, **options)
    unknown: dict[str, list[tuple[float, float]]] = {}
    if find_format(path, options["choices"]) is not None:
        found = read_annotations(path, **options)
        views = {each["media"] for each in found.reports if each["kind"] == "other_view"}
        places = {name_of(place): place for name, place in found.paths.items() if name not in views}
        for each in found.unknown:
            unknown.setdefault(name_of(found.paths[each["media"]]), []).append((each["start"], each["end"]))
    return {name: _Seen(segments.get(name, ()), unknown.get(name, ()), place) for name, place in places.items()}


def _measure_seen(first: Mapping[str, _Seen], second: Mapping[str, _Seen]) -> dict[str, Any]:
    """The agreement about the videos of both, at the middles of their frames; of a video that cannot be read, at each
    0.04 s up to the last segment."""
    videos, unread = list[Compared](), list[str]()
    for name, *pair in [(name, first[name], second[name]) for name in first if name in second]:
        segments, place = [seen.segments for seen in pair], pair[0].place or pair[1].place
        try:
            metadata = probe_video(place)
            borders = np.append(metadata.times, metadata.duration)
        except (OSError, ValueError):
            unread += [name] if place else []  # ActivityNet's files name no place
            borders = np.arange(0, max((each.end for rows in segments for each in rows), default=0) + 0.08, 0.04)
        known, begin = [], 0.0
        for start, end in sorted([*pair[0].unknown, *pair[1].unknown, (float(borders[-1]), math.inf)]):
            known += [(begin, start)] * (start > begin)
            begin = max(begin, end)
        videos.append(Compared((borders[1:] + borders[:-1]) / 2, known, *segments))
    every = [each for video in videos for each in (*video.first, *video.second)]
    points = are_points({"": every})
    left_out = [
        ("Cannot be read, and end with the last segment", ("video",), unread),
        ("In one file alone, and left out of the agreement", ("video",), sorted(first.keys() ^ second.keys())),
        ("Of instants, which have no agreement here", ("class", "classes"), sorted(points)),
    ]
    lines = [f"{what}: {count(len(names), *kind)} ({_some(names)})." for what, kind, names in left_out if names]
    return {**measure_agreement(videos, sorted({each.label for each in every} - points)), "warnings": lines}


def evaluate_agreement(settings: EvaluateSettings, tell: Tell = lambda result: None) -> dict[str, Any]:
    """Compares two persons' files, as `hf-video evaluate DATA --against FILE`: see [`measure_agreement`]."""
    files = {"data": settings.data, "against": settings.against or ""}
    result = files | _measure_seen(*(_read_seen(file, settings) for file in files.values()))
    tell(result)
    return result


def evaluate_segments(
    predictions: _Segments, ground_truth: _Segments, tious: Sequence[float] = TIOUS
) -> dict[str, Any]:
    """All figures of `hf-video evaluate --task segments`, as JSON can hold them.

    Args:
        predictions, ground_truth: segments by video, see `read_predictions` and `read_ground_truth`.
        tious: thresholds of temporal IoU, above 0 and at most 1.

    Returns:
        Numbers and `tious`; with a value a threshold `mean_average_precision` over classes, and of all predictions,
        whatever their scores, `precision`, `recall`, `f1`, and `median_border_error` and `p90_border_error` of right
        ones in seconds, None if there is none; `average_map`, the mean over thresholds; `classes`, with `num_segments`
        and `average_precision`, by name; and `warnings`, sentences on what counts as wrong.

    Raises:
        ValueError: a threshold is out of its bounds, there is no annotation, or there are predictions, but none for a
            video of the ground truth.
    """
    if not tious or not all(0 < tiou <= 1 for tiou in tious):
        raise ValueError(f"Thresholds of temporal IoU above 0 and up to 1 are expected, got {[*tious]}.")
    tious = sorted(set(tious))
    num_found, num_true = (sum(map(len, kind.values())) for kind in (predictions, ground_truth))
    if not num_true:
        raise ValueError("The ground truth has no annotated segment, so nothing can be measured.")
    classes: dict[str, dict[str, Any]] = {}
    num_right, errors = np.zeros(len(tious)), [list[np.ndarray]() for _ in tious]
    for label, found, true in by_class(predictions, ground_truth):
        places = find_annotations(found[:, 2:], found[:, 1], true[:, 2:], true[:, 1], tious, tries_next=True)
        precisions = [interpolated_average_precision(row >= 0, len(true)) for row in places]
        classes[label] = {"num_segments": len(true), "average_precision": precisions}
        num_right += (places >= 0).sum(axis=1)
        for of_threshold, row in zip(errors, places, strict=True):
            of_threshold.append(np.abs(found - true[row])[row >= 0, 2:].ravel())
    mean = np.mean([each["average_precision"] for each in classes.values()], axis=0)
    of_borders = [np.concatenate(each) for each in errors]
    return {
        "tious": tious,
        "num_videos": len(ground_truth),
        "num_segments": num_true,
        "num_predictions": num_found,
        "mean_average_precision": mean.tolist(),
        "average_map": float(mean.mean()),
        "precision": (num_right / max(num_found, 1)).tolist(),
        "recall": (num_right / num_true).tolist(),
        "f1": (2 * num_right / (num_true + num_found)).tolist(),
        "median_border_error": [float(np.median(each)) if each.size else None for each in of_borders],
        "p90_border_error": [float(np.percentile(each, 90)) if each.size else None for each in of_borders],
        "classes": classes,
        "warnings": _warnings(predictions, ground_truth, classes),
    }


def _warnings(predictions: _Segments, ground_truth: _Segments, classes: Container[str]) -> list[str]:
    """What was left out or counts as wrong."""
    unknown = [video for video, segments in predictions.items() if segments and video not in ground_truth]
    if unknown and not any(video in ground_truth for video in predictions):
        raise ValueError(
            f"No prediction is for a video of the ground truth: {_some(unknown)} against {_some(ground_truth)}. "
            "Both files must name videos alike."
        )
    number = sum(len(predictions[video]) for video in unknown)
    silent = [video for video in ground_truth if video not in predictions]
    labels = [segment.label for segments in predictions.values() for segment in segments]
    strange = [label for label in labels if label not in classes]
    annotated = Counter(segment.label for segments in ground_truth.values() for segment in segments)
    missed = {label: annotated[label] for label in sorted(annotated.keys() - {*labels})}
    of_no_label = f"Counted as wrong: {count(len(strange), 'prediction')}, whose label no annotation has"
    without = f"Counted as missed: {count(sum(missed.values()), 'annotation')}, whose label no prediction has"
    lines = {
        f"Counted as wrong: {count(number, 'prediction')}, whose video the ground truth does not have": unknown,
        f"Without predictions, so that all of them counts as missed: {len(silent)} of "
        f"{count(len(ground_truth), 'video')}": silent,
        of_no_label: dict.fromkeys(strange),
        f"{without}, such as a background": missed,
    }
    return [f"{line} ({_some(names)})." for line, names in lines.items() if names]


def _some(names: Iterable[str]) -> str:
    return few(map(repr, names))


def evaluate_segment_file(settings: EvaluateSettings, tell: Tell = lambda result: None) -> dict[str, Any]:
    """Measures a file of predicted segments, as `hf-video evaluate --task segments`: see [`evaluate_segments`]."""
    truth = _read_seen(settings.ground_truth or "", settings, by="person")
    # Other choices are about the ground truth.
    by = {name: value for name, value in annotation_choices(settings).items() if name == "by"}
    found = read_predictions(settings.data, video_root=settings.video_root, choices=by)
    annotated = {name: each.segments for name, each in truth.items()}
    points = are_points(annotated)
    of_points, of_segments = (
        [
            {name: [each for each in rows if (each.label in points) == wanted] for name, rows in kind.items()}
            for kind in (found, annotated)
        ]
        for wanted in (True, False)
    )
    result: dict[str, Any] = {"points": evaluate_points(*of_points)} if points else {}
    if points and not any(of_segments[1].values()):
        result["warnings"] = _warnings(found, annotated, points)
    else:
        result |= evaluate_segments(of_segments[0], of_segments[1], settings.tiou)
        both = {name: each for name, each in truth.items() if name in found}
        seen = _measure_seen({name: _Seen(found[name]) for name in both}, both)
        result["warnings"] += seen.pop("warnings")
        result["agreement"] = seen
    tell(result)
    return result


def tell_segments(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what [`evaluate_segments`] gives, and [`evaluate_points`] where there are instants."""
    of_points = [*tell_points(result["points"]), ""] if "points" in result else []
    if "agreement" not in result:
        return of_points[:-1]
    last = [*of_points, *tell_agreement(result["agreement"])]
    tious = [f"{tiou:.2f}" for tiou in result["tious"]]
    rows = [["temporal IoU", *tious, "mean"], ["average precision", *_percents(result["mean_average_precision"])]]
    rows[1] += _percents([result["average_map"]])
    rows += [[name, *_percents(result[name.lower()])] for name in ("precision", "recall", "F1")]
    for title, key in {"median border error": "median_border_error", "90% of them below": "p90_border_error"}.items():
        rows.append([title, *("-" if value is None else f"{value:.2f} s" for value in result[key])])
    classes = [["average precision", *tious, "segments"]]
    for label, each in result["classes"].items():
        classes.append([label, *_percents(each["average_precision"]), str(each["num_segments"])])
    said = f"{count(result['num_segments'], 'segment')} of {count(len(result['classes']), 'class', 'classes')} in "
    said += f"{count(result['num_videos'], 'video')}, {count(result['num_predictions'], 'prediction')}"
    return [said, "", *table_lines(rows), "", *table_lines(classes), "", *last]


def _percents(values: Sequence[float]) -> list[str]:
    return [f"{value:.1%}" for value in values]
