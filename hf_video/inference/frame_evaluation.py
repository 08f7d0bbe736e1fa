"""Measures classes of frames as MS-TCN does: the share of right frames, the edit score and F1 of segments.

A segment is a run of frames of one class. Background is no segment, and neither are frames whose class is unknown, of
the annotations as of the predictions. The definitions are those of MS-TCN (https://arxiv.org/abs/1903.01945):

- The edit score of a video is 1 minus the Levenshtein distance of the two orders of segments, divided by the number of
  segments of the longer one. It is averaged over videos.
- Predicted segments are taken in their order. One is right if the annotated segment of its class with which it has the
  highest temporal IoU reaches the threshold and is not taken yet. Right and wrong segments of all videos are counted
  together for F1.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hf_video.settings import few

# The usual thresholds of segments of frames.
TIOUS = (0.10, 0.25, 0.50)
UNKNOWN = -100


class _Run(NamedTuple):
    label: int
    start: int
    end: int


def evaluate_frames(
    predictions: Sequence[Any], references: Sequence[Any], class_names: Sequence[str], background: Collection[str] = ()
) -> dict[str, Any]:
    """The figures of `hf-video evaluate --task frame-classification`, as JSON can hold them.

    Args:
        predictions: for each video the class ids of its frames, (num_frames,); where a frame may have several classes,
            zeros and ones (num_frames, num_classes). Of these each class is measured by itself.
        references: the annotated classes in the same form. A frame of -100 is unknown and not measured.
        class_names: names by class id.
        background: names of classes that are no segments. Their frames count in `frame_accuracy`.

    Returns:
        `num_videos`, `num_frames` and `num_segments` that are annotated; `frame_accuracy`, the share of right frames;
        `edit_score`, None if there is no segment; `tious`, and for each of them `f1`; and `classes`, which holds
        `num_frames`, `num_segments` and `f1` by the name of a class. All figures are shares.

    Raises:
        ValueError: a video has other frames in `predictions` than in `references`, no frame is known, or a name of
            `background` is no class.
    """
    if strange := [name for name in background if name not in class_names]:
        raise ValueError(f"The background {strange[0]!r} is none of the classes: {few(class_names)}.")
    excluded = {number for number, name in enumerate(class_names) if name in background}
    num_right = num_cells = num_known = 0
    frames_by_class = np.zeros(len(class_names), np.int64)
    counts = np.zeros((len(class_names), len(TIOUS)), np.int64)
    found, annotated = np.zeros((2, len(class_names)), np.int64)
    edit_scores = []
    for number, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
        predicted, expected = np.asarray(prediction), np.asarray(reference)
        if predicted.shape != expected.shape:
            raise ValueError(
                f"Video {number} has predictions of the shape {predicted.shape} and annotations of {expected.shape}; "
                "one shape is expected."
            )
        is_known = expected != UNKNOWN
        num_right += int((predicted == expected)[is_known].sum())
        num_cells += int(is_known.sum())
        num_known += int((is_known if expected.ndim == 1 else is_known.any(axis=1)).sum())
        for tracks in _tracks(np.where(is_known, predicted, UNKNOWN), expected):
            runs, truth = (_runs(track, excluded) for track in tracks)
            frames_by_class += _count(tracks[1][tracks[1] >= 0], len(class_names))
            found += _count([run.label for run in runs], len(class_names))
            annotated += _count([run.label for run in truth], len(class_names))
            for column, tiou in enumerate(TIOUS):
                counts[:, column] += _count(_right_labels(runs, truth, tiou), len(class_names))
            if runs or truth:
                edit_scores.append(_edit_score([run.label for run in runs], [run.label for run in truth]))
    if not num_cells:
        raise ValueError("No frame of the videos has a known class, so nothing can be measured.")
    f1_by_class = 2 * counts / np.maximum(found + annotated, 1)[:, None]
    return {
        "num_videos": len(references),
        "num_frames": num_known,
        "num_segments": int(annotated.sum()),
        "frame_accuracy": num_right / num_cells,
        "edit_score": float(np.mean(edit_scores)) if edit_scores else None,
        "tious": list(TIOUS),
        "f1": (2 * counts.sum(axis=0) / max(found.sum() + annotated.sum(), 1)).tolist(),
        "classes": {
            name: {
                "num_frames": int(frames_by_class[index]),
                "num_segments": int(annotated[index]),
                "f1": None if index in excluded else f1_by_class[index].tolist(),
            }
            for index, name in enumerate(class_names)
        },
    }


def _tracks(predicted: np.ndarray, expected: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Predicted and annotated class ids of frames; one pair for each class where a frame may have several."""
    if expected.ndim == 1:
        return [(predicted, expected)]
    return [
        (np.where(of_class == 1, label, UNKNOWN), np.where(truth == 1, label, UNKNOWN))
        for label, (of_class, truth) in enumerate(zip(predicted.T, expected.T, strict=True))
    ]


def _count(labels: Any, num_classes: int) -> np.ndarray:
    return np.bincount(np.asarray(labels, np.int64), minlength=num_classes)


def _runs(labels: np.ndarray, excluded: Collection[int]) -> list[_Run]:
    borders = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]
    runs = [_Run(int(labels[start]), start, end) for start, end in zip(borders, borders[1:], strict=False) if end]
    return [run for run in runs if run.label >= 0 and run.label not in excluded]


def _right_labels(runs: Sequence[_Run], truth: Sequence[_Run], tiou: float) -> list[int]:
    """The classes of the right ones among predicted segments."""
    right, taken = [], set[int]()
    for run in runs:
        overlaps = [_iou(run, other) if other.label == run.label else 0.0 for other in truth]
        best = int(np.argmax(overlaps)) if overlaps else -1
        if best >= 0 and overlaps[best] >= tiou and best not in taken:
            taken.add(best)
            right.append(run.label)
    return right


def _iou(run: _Run, other: _Run) -> float:
    inside = min(run.end, other.end) - max(run.start, other.start)
    # Where they do not meet, MS-TCN takes the whole span, and the share is negative.
    return inside / (max(run.end, other.end) - min(run.start, other.start))


def _edit_score(found: Sequence[int], annotated: Sequence[int]) -> float:
    distances = list(range(len(annotated) + 1))
    for row, label in enumerate(found, start=1):
        diagonal, distances[0] = distances[0], row
        for column, other in enumerate(annotated, start=1):
            changed = diagonal + (label != other)
            diagonal = distances[column]
            distances[column] = min(changed, diagonal + 1, distances[column - 1] + 1)
    return 1 - distances[-1] / max(len(found), len(annotated))


def figures_by_name(found: Mapping[str, Any]) -> dict[str, float]:
    """The figures of all classes in what [`evaluate_frames`] gives, by the names that they have in `METRICS`. Without
    segments there is no edit score."""
    figures = {name: found[name] for name in ("frame_accuracy", "edit_score") if found.get(name) is not None}
    return figures | {f"f1_{tiou * 100:.0f}": f1 for tiou, f1 in zip(TIOUS, found["f1"], strict=True)}
