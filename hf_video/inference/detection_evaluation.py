"""Measures detected actions of people: mean average precision over frames, as AVA's evaluation computes it.

The evaluation is that of ActivityNet for AVA (https://github.com/activitynet/ActivityNet/tree/master/Evaluation/ava),
which the Object Detection API of TensorFlow gave it:

- The detections of a class in all key frames are taken in the order of their scores. One belongs to the annotated box
  of its class and frame that it overlaps most. It is right if that overlap, the IoU, is at least 0.5 and no detection
  before it was right for that box; it does not try another box then.
- Precision at a recall is the highest precision at that recall or any higher one. The average precision is the area
  under that curve, over all its steps.
- The mean is that over the classes with annotations. A detection whose box has no extent is left out; an annotated box
  without extent overlaps nothing and counts as missed.
- Detections are written with five decimals and read back, so that rounding is part of the measure.

The original reverses what NumPy sorts. So among equal scores of a frame the last row chooses its box first. In the
ranking over all frames the last frame comes first, and the order within it is reversed once more. NumPy's default sort
may mix equal scores of long lists, in another way on another machine; here their order is kept.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from hf_video.data.boxes import LabelledBoxes, read_box_table, read_boxes, read_exclusions, read_label_map
from hf_video.data.folders import without_suffix
from hf_video.settings import few

# Decimals of a detection in a file.
_DECIMALS = 5


def frame_mean_ap(
    detections: LabelledBoxes,
    ground_truth: LabelledBoxes,
    classes: Sequence[str],
    iou: float = 0.5,
) -> dict[str, Any]:
    """The mean average precision over key frames.

    Args:
        detections: The boxes of each class with their scores.
        ground_truth: The annotated boxes.
        classes: The names of the classes, whose numbers are the actions of both. Rows with the action -1 do not count.
        iou: Smallest overlap of a detection that is right.

    Returns:
        `mean_ap`, and `ap`, the average precision of each class by its name; None for a class without annotations,
        which the mean leaves out.

    Raises:
        ValueError: No annotation has one of the classes.
    """
    detections = _rows(detections, detections.action >= 0)
    # Frames are numbered in the order in which the detections name them.
    found, true = _frame_numbers(detections, ground_truth)
    left, top, right, bottom = detections.boxes.T
    has_extent = (left < right) & (top < bottom)
    precisions: dict[str, float | None] = {}
    for number, name in enumerate(classes):
        annotated = np.flatnonzero(ground_truth.action == number)
        if not len(annotated):
            precisions[name] = None
            continue
        rows = np.flatnonzero(has_extent & (detections.action == number))
        rows = rows[np.lexsort((-rows, -detections.score[rows], found[rows]))]
        is_right = _are_right(detections.boxes[rows], found[rows], ground_truth.boxes[annotated], true[annotated], iou)
        ranking = np.argsort(detections.score[rows], kind="stable")[::-1]
        precisions[name] = _average_precision(is_right[ranking], len(annotated))
    known = [each for each in precisions.values() if each is not None]
    if not known:
        raise ValueError(f"No annotation has one of the {len(classes)} classes, so there is no average precision.")
    return {"mean_ap": float(np.mean(known)), "ap": precisions}


def without_frames(boxes: LabelledBoxes, excluded: Iterable[tuple[str, float]]) -> LabelledBoxes:
    """The boxes of other key frames than the excluded ones, each a video and a second."""
    videos, seconds = zip(*excluded, strict=True) if excluded else ((), ())
    left_out = LabelledBoxes(videos, np.array(seconds, np.float64), *boxes[2:])
    numbers, excluded_numbers = _frame_numbers(boxes, left_out)
    return _rows(boxes, ~np.isin(numbers, excluded_numbers))


def detected_boxes(persons: Iterable[Mapping[str, Any]], frames: Iterable[tuple[str, float]]) -> LabelledBoxes:
    """The rows of detections that the original writes: every class of every person, rounded to five decimals.

    Args:
        persons: For each key frame what `VideoDetectionProcessor.post_process_action_detection(..., original=True)`
            gives: `boxes` (n, 4), shares of width and height, and `action_scores` (n, num_classes).
        frames: The video and the second of each key frame.
    """
    videos, seconds, boxes, scores = list[str](), list[float](), list[np.ndarray](), list[np.ndarray]()
    for person, (video, second) in zip(persons, frames, strict=True):
        boxes.append(np.asarray(person["boxes"], np.float64).reshape(-1, 4))
        scores.append(np.asarray(person["action_scores"], np.float64))
        videos += [video] * len(boxes[-1])
        seconds += [second] * len(boxes[-1])
    all_scores = np.concatenate(scores)
    num_persons, num_classes = all_scores.shape
    person_of = np.repeat(np.arange(num_persons), num_classes)
    return LabelledBoxes(
        pa.array(videos, pa.string()).take(pa.array(person_of)),
        np.array(seconds, np.float64)[person_of],
        np.concatenate(boxes).round(_DECIMALS)[person_of],
        np.tile(np.arange(num_classes), num_persons),
        all_scores.ravel().round(_DECIMALS),
    )


def annotated_boxes(rows: datasets.Dataset) -> LabelledBoxes:
    """The annotations of rows of `load_detections`: each action of each person."""
    columns = (rows[name][:] for name in ("video", "second", "boxes", "actions"))
    labels = [
        (video, second, box, action)
        for video, second, boxes, actions in zip(*columns, strict=True)
        for box, of_person in zip(boxes, actions, strict=True)
        for action in of_person
    ]
    if not labels:
        raise ValueError("No person has an action, so there is nothing to measure.")
    videos, seconds, boxes, actions = zip(*labels, strict=True)
    return LabelledBoxes(
        videos, np.array(seconds, np.float64), np.array(boxes), np.array(actions), np.ones(len(labels))
    )


def evaluate_detection_file(
    detections: str | os.PathLike,
    ground_truth: str | os.PathLike,
    *,
    label_map: str | os.PathLike | None = None,
    exclude: str | os.PathLike | None = None,
) -> dict[str, Any]:
    """Measures a file of detections, as `hf-video evaluate DETECTIONS.csv --task action-detection`. Videos are named
    with or without their suffix.

    Args:
        detections: A CSV file in AVA's form: video, second, left, top, right, bottom, action id, score.
        ground_truth: A CSV file in AVA's form, or with names of columns.
        label_map: The classes that are measured; by default those of the ground truth.
        exclude: A CSV file of key frames that do not count.

    Returns:
        As [`frame_mean_ap`].

    Raises:
        FileNotFoundError, OSError, ValueError: A file is not as its reader expects it, or has none of the classes.
    """
    if label_map is None:
        names = sorted(set(read_box_table(ground_truth)[0].column("action").unique().to_pylist()) - {""})
        numbers = {name: number for number, name in enumerate(names)}
    else:
        labels = read_label_map(label_map)
        names = list(labels.values())
        numbers = {str(each): number for number, each in enumerate(labels)} | {
            name: number for number, name in enumerate(names)
        }
    found = _without_suffixes(read_boxes(detections, numbers, scored=True))
    true = _without_suffixes(read_boxes(ground_truth, numbers))
    for path, boxes in {detections: found, ground_truth: true}.items():
        if (boxes.action < 0).all():
            raise ValueError(f"No row of {path} has one of the {len(names)} actions: {few(map(repr, names))}.")
    if exclude is not None:
        excluded = {(without_suffix(video), second) for video, second in read_exclusions(exclude)}
        found, true = without_frames(found, excluded), without_frames(true, excluded)
    return frame_mean_ap(found, true, names)


def _without_suffixes(boxes: LabelledBoxes) -> LabelledBoxes:
    videos = boxes.names().dictionary_encode()
    names = pa.array([without_suffix(name) for name in videos.dictionary.to_pylist()], pa.string())
    return boxes._replace(video=names.take(videos.indices))


def _rows(boxes: LabelledBoxes, kept: np.ndarray) -> LabelledBoxes:
    return LabelledBoxes(boxes.names().filter(pa.array(kept)), *(column[kept] for column in boxes[1:]))


def _frame_numbers(*tables: LabelledBoxes) -> list[np.ndarray]:
    """For each table the numbers of the key frames of its rows, which count in the order of their first rows."""
    videos = pa.concat_arrays([each.names() for each in tables]).dictionary_encode().indices.to_numpy()
    seconds = pa.array(np.concatenate([each.second for each in tables])).dictionary_encode()
    keys = videos.astype(np.int64) * len(seconds.dictionary) + seconds.indices.to_numpy()
    numbers = pa.array(keys).dictionary_encode().indices.to_numpy()
    return np.split(numbers, np.cumsum([len(each.second) for each in tables])[:-1])


def _are_right(
    boxes: np.ndarray, frames: np.ndarray, true_boxes: np.ndarray, true_frames: np.ndarray, iou: float
) -> np.ndarray:
    """Which detections of a class are right: (n,) bool. They stand in the order of their frames, and of their scores
    in a frame."""
    order = np.argsort(true_frames, kind="stable")
    true_boxes, true_frames = true_boxes[order], true_frames[order]
    first = np.searchsorted(true_frames, frames)
    counts = np.searchsorted(true_frames, frames, side="right") - first
    # Each detection with each annotated box of its frame.
    detection = np.repeat(np.arange(len(boxes)), counts)
    starts = np.cumsum(counts) - counts
    true = np.arange(len(detection)) - starts[detection] + first[detection]
    overlaps = _ious(boxes[detection], true_boxes[true])
    best = np.zeros(len(boxes))
    np.maximum.at(best, detection, overlaps)
    is_hit = (overlaps == best[detection]) & (overlaps >= iou)
    # Of several best boxes the first, and of several detections of a box the first.
    hits, first_pair = np.unique(detection[is_hit], return_index=True)
    _, first_hit = np.unique(true[is_hit][first_pair], return_index=True)
    is_right = np.zeros(len(boxes), dtype=bool)
    is_right[hits[first_hit]] = True
    return is_right


def _ious(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The IoU of each box with the other one of its row, (n, 4) and (n, 4): (n,)."""
    sides = np.minimum(boxes[:, 2:], others[:, 2:]) - np.maximum(boxes[:, :2], others[:, :2])
    common = sides.clip(0).prod(axis=1)
    areas = [(each[:, 2:] - each[:, :2]).prod(axis=1) for each in (boxes, others)]
    return common / (areas[0] + areas[1] - common)


def _average_precision(is_right: np.ndarray, num_annotated: int) -> float:
    """The area under the curve of precision over recall of ranked detections."""
    num_right = np.cumsum(is_right)
    precision = num_right / np.arange(1, len(is_right) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    return float(highest[is_right].sum() / num_annotated)
