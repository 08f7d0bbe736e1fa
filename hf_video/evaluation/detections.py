"""Measures detected actions of people, the task `detection`: mean average precision over frames, as AVA defines it.

The evaluation is that of ActivityNet for AVA (https://github.com/activitynet/ActivityNet/tree/master/Evaluation/ava):

- The detections of a class in all key frames are taken in the order of their scores. One belongs to the annotated box
  of its class and frame that it overlaps most. It is right if that overlap, the IoU, is at least 0.5 and no detection
  before it was right for that box; it does not try another box then.
- The average precision is the area under the curve of the highest precision at a recall or any higher one; the mean
  is over the classes with annotations. A detection whose box has no extent is left out; such an annotation is missed.
- Detections are written with five decimals and read back, so that rounding is part of the measure.

The original reverses what NumPy sorts: among equal scores of a frame the last row chooses its box first; in the
ranking over all frames the last frame comes first, and the order within it is reversed once more.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from tqdm.auto import tqdm

from hf_video.data import BoxTask, ReadAheadLoader, VideoDataset, load_detections
from hf_video.data.boxes import (
    LabelledBoxes,
    action_names,
    read_box_table,
    read_boxes,
    read_exclusions,
    read_label_map,
    write_boxes,
)
from hf_video.data.folders import absolute, without_suffix
from hf_video.data.video_settings import dataset_options
from hf_video.inference.inference_settings import EvaluateSettings
from hf_video.loading.class_names import class_names_of
from hf_video.loading.models import load_action_detector
from hf_video.settings import few
from hf_video.texts import count, table_lines

from .classes import check_readable, measured_part, reading_options, tell_split
from .matching import Tell, find_annotations, interpolated_average_precision

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
        detections, ground_truth: boxes with the number of their class as action; those of -1 do not count.
        classes: the names of the classes.
        iou: smallest overlap of a detection that is right.

    Returns:
        `mean_ap`, and `ap` of each class by its name; None without annotations, which the mean leaves out.

    Raises:
        ValueError: no annotation has one of the classes.
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
        boxes, true_boxes = detections.boxes[rows], ground_truth.boxes[annotated]
        is_right = find_annotations(boxes, found[rows], true_boxes, true[annotated], [iou])[0] >= 0
        ranking = np.argsort(detections.score[rows], kind="stable")[::-1]
        precisions[name] = interpolated_average_precision(is_right[ranking], len(annotated))
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
    """The rows of detections that the original writes: every class of every person, rounded to five decimals, from
    what `post_process_action_detection(..., original=True)` gives for each key frame, `boxes` (n, 4) as shares and
    `action_scores` (n, num_classes), and its video and second."""
    boxes, scores, owners = list[np.ndarray](), list[np.ndarray](), list[tuple[str, float]]()
    for person, frame in zip(persons, frames, strict=True):
        boxes.append(np.asarray(person["boxes"], np.float64).reshape(-1, 4))
        scores.append(np.asarray(person["action_scores"], np.float64))
        owners += [frame] * len(boxes[-1])
    num_persons, num_classes = (all_scores := np.concatenate(scores)).shape
    person_of = np.repeat(np.arange(num_persons), num_classes)
    return LabelledBoxes(
        pa.array([video for video, _ in owners], pa.string()).take(pa.array(person_of)),
        np.array([second for _, second in owners], np.float64)[person_of],
        np.concatenate(boxes).round(_DECIMALS)[person_of],
        np.tile(np.arange(num_classes), num_persons),
        all_scores.ravel().round(_DECIMALS),
    )


def annotated_boxes(rows: datasets.Dataset) -> LabelledBoxes:
    """The annotations of rows of `load_detections`: each action of each person."""
    names = ("video", "second", "boxes", "actions")
    labels = [
        (video, second, box, action)
        for video, second, boxes, actions in zip(*(rows[name][:] for name in names), strict=True)
        for box, of_person in zip(boxes, actions, strict=True)
        for action in of_person
    ]
    if not labels:
        raise ValueError("No person has an action, so there is nothing to measure.")
    videos, seconds, boxes, actions = zip(*labels, strict=True)
    ones = np.ones(len(labels))
    return LabelledBoxes(videos, np.array(seconds, np.float64), np.array(boxes), np.array(actions), ones)


def evaluate_detection_file(
    detections: str | os.PathLike,
    ground_truth: str | os.PathLike,
    *,
    label_map: str | os.PathLike | None = None,
    exclude: str | os.PathLike | None = None,
) -> dict[str, Any]:
    """Measures a file of detections: what [`frame_mean_ap`] says of it.

    Args:
        detections: a CSV file in AVA's form: video, second, left, top, right, bottom, action id, score.
        ground_truth: the same, or with names of columns. Videos are named with or without their suffix.
        label_map: the classes that are measured; by default those of the ground truth.
        exclude: a CSV file of key frames that do not count.

    Raises:
        OSError, ValueError: a file is not as its reader expects it, or has none of the classes.
    """
    if label_map is None:
        names = sorted({*read_box_table(ground_truth)[0].column("action").to_pylist()} - {""})
        numbers = {name: number for number, name in enumerate(names)}
    else:
        labels = read_label_map(label_map)
        names = list(labels.values())
        # Files name a class by its id or its name.
        numbers = {str(each): number for both in (labels, names) for number, each in enumerate(both)}
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


def measure_persons(
    persons: Iterable[Mapping[str, Any]], rows: datasets.Dataset, classes: list[str] | None = None
) -> dict[str, Any]:
    """What [`frame_mean_ap`] says of the persons, see [`detected_boxes`], of rows of annotations. `classes` names the
    actions of the scores, which are measured; by default those of the rows."""
    names, truth = action_names(rows), annotated_boxes(rows)
    classes = names if classes is None else classes
    numbers = np.array([classes.index(name) if name in classes else -1 for name in names])
    frames = zip(rows["video"][:], rows["second"][:], strict=True)
    return frame_mean_ap(detected_boxes(persons, frames), truth._replace(action=numbers[truth.action]), classes)


def evaluate_detections(settings: EvaluateSettings, tell: Tell = lambda result: None) -> dict[str, Any]:
    """Measures detected actions, as `hf-video evaluate --task detection`: `mean_ap` and `ap` of [`frame_mean_ap`]; of
    a model also what was measured. `tell` is called with the result.

    Raises:
        ValueError, OSError: a setting or a file cannot be used, there is no such model, or it does not know an action
            of the data.
    """
    if settings.ground_truth is not None:
        result = evaluate_detection_file(
            settings.data, settings.ground_truth, label_map=settings.label_map, exclude=settings.exclude
        )
        tell(result)
        return result
    reading = {name: getattr(settings, name) for name in ("video_root", "label_map", "exclude", "first_second")}
    splits = load_detections(settings.data, **reading, **dataset_options(settings))
    split = settings.choose_split(splits)
    rows = splits[split]
    labels = None if settings.label_map is None else read_label_map(settings.label_map)
    classes = action_names(rows) if labels is None else list(labels.values())
    model, processor = load_action_detector(settings.model, device=settings.device, dtype=settings.dtype)
    known = class_names_of(model.config)
    if unknown := [name for name in classes if name not in known]:
        raise ValueError(
            f"{settings.model} does not know {len(unknown)} of the {len(classes)} actions of the data "
            f"({few(unknown)}). It knows {few(known)}; `hf-video train --task detection` teaches it others."
        )
    numbers = [known.index(name) for name in classes]
    check_readable(settings, rows)
    clips = VideoDataset(rows, BoxTask(processor), training=False, on_error=settings.on_error)
    measured, persons = list[int](), list[dict[str, Any]]()
    for items in tqdm(ReadAheadLoader(clips, collate_fn=list, **reading_options(settings)), desc="Key frames"):
        if not (items := [item for item in items if item is not None]):
            continue
        batch = clips.task.collate(items)
        sizes = batch["original_sizes"]
        with torch.inference_mode():
            outputs = model(batch["pixel_values"].to(model.device, model.dtype), original_sizes=sizes)
        for found in processor.post_process_action_detection(outputs, original_sizes=sizes, original=True):
            scores = found["action_scores"][:, numbers]
            persons.append({"boxes": found["boxes"].cpu().numpy(), "action_scores": scores.cpu().numpy()})
        measured += [int(label["image_id"]) for label in batch["labels"]]
    broken = clips.broken_videos()
    if not measured:
        raise ValueError(f"None of the {len(clips)} key frames could be read: {few(broken)}.")
    rows = rows.select(measured)
    if settings.detections is not None:
        data = Path(settings.data)
        root = absolute(settings.video_root or (data if data.is_dir() else data.parent))
        names = [without_suffix(os.path.relpath(video, root)) for video in rows["video"]]
        seconds = [second + settings.first_second for second in rows["second"]]
        found = detected_boxes(persons, zip(names, seconds, strict=True))
        write_boxes(settings.detections, found, list(labels or classes))
    result = {**measured_part(settings, split), "num_key_frames": len(rows)}
    result |= measure_persons(persons, rows, classes) | ({"broken_videos": broken} if broken else {})
    tell(result)
    return result


def tell_precisions(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what [`evaluate_detections`] gives."""
    lines = [f"{count(result['num_key_frames'], 'key frame')}{tell_split(result)}"] if "split" in result else []
    rows = [(name, "-" if value is None else f"{value:.2%}") for name, value in result["ap"].items()]
    table = table_lines([("action", "average precision"), *rows])
    return [*lines, f"mAP at IoU 0.5  {result['mean_ap']:.2%}", "", *table]
