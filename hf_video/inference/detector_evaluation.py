"""Measures an action detector on annotated key frames."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from tqdm.auto import tqdm

from hf_video.data import BoxTask, ReadAheadLoader, VideoDataset, load_detections
from hf_video.data.boxes import action_names, read_label_map, write_boxes
from hf_video.data.folders import without_suffix
from hf_video.data.video_settings import dataset_options
from hf_video.loading.class_names import class_names_of
from hf_video.loading.models import load_action_detector
from hf_video.settings import few

from .detection_evaluation import annotated_boxes, detected_boxes, evaluate_detection_file, frame_mean_ap
from .inference_settings import EvaluateSettings


def measure_persons(
    persons: Iterable[Mapping[str, Any]], rows: datasets.Dataset, classes: list[str] | None = None
) -> dict[str, Any]:
    """The mean average precision of what a detector found at key frames.

    Args:
        persons: for each row, what `post_process_action_detection(..., original=True)` gives.
        rows: annotations, as of `load_detections`.
        classes: the names of the actions that `action_scores` are for, which are measured; by default those of the
            rows.

    Returns:
        As [`frame_mean_ap`].
    """
    names = action_names(rows)
    classes = names if classes is None else classes
    number_of = {name: number for number, name in enumerate(classes)}
    numbers = np.array([number_of.get(name, -1) for name in names])
    truth = annotated_boxes(rows)
    truth = truth._replace(action=numbers[truth.action])
    frames = zip(rows["video"][:], rows["second"][:], strict=True)
    return frame_mean_ap(detected_boxes(persons, frames), truth, classes)


def evaluate_detections(
    settings: EvaluateSettings, tell: Callable[[dict[str, Any]], object] = lambda result: None
) -> dict[str, Any]:
    """Measures detected actions, as `hf-video evaluate --task detection`.

    Args:
        settings: annotated key frames, see `load_detections`, and a model; or a file of detections and its ground
            truth; and what differs from the defaults.
        tell: is called with the result.

    Returns:
        `mean_ap` and `ap`, as [`frame_mean_ap`]; of a model also what was measured.

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
    splits = load_detections(
        settings.data,
        video_root=settings.video_root,
        label_map=settings.label_map,
        exclude=settings.exclude,
        first_second=settings.first_second,
        **dataset_options(settings),
    )
    split = settings.choose_split(splits)
    labels = None if settings.label_map is None else read_label_map(settings.label_map)
    classes = action_names(splits[split]) if labels is None else list(labels.values())
    model, processor = load_action_detector(settings.model, device=settings.device, dtype=settings.dtype)
    known = class_names_of(model.config)
    if unknown := [name for name in classes if name not in known]:
        raise ValueError(
            f"{settings.model} does not know {len(unknown)} of the {len(classes)} actions of the data "
            f"({few(unknown)}). It knows {few(known)}; `hf-video train --task detection` teaches it others."
        )
    columns = [known.index(name) for name in classes]
    clips = VideoDataset(splits[split], BoxTask(processor), training=False, on_error=settings.on_error)
    loader = ReadAheadLoader(
        clips,
        batch_size=settings.batch_size,
        num_workers=settings.num_workers,
        reading_threads=settings.reading_threads,
        collate_fn=lambda items: clips.task.collate(items) if any(item is not None for item in items) else None,
    )
    measured, persons = list[int](), list[dict[str, Any]]()
    for batch in tqdm(loader, desc="Key frames"):
        if batch is None:
            continue
        sizes = batch["original_sizes"]
        with torch.inference_mode():
            outputs = model(batch["pixel_values"].to(model.device, model.dtype), original_sizes=sizes)
        for found in processor.post_process_action_detection(outputs, original_sizes=sizes, original=True):
            scores = found["action_scores"][:, columns]
            persons.append({"boxes": found["boxes"].cpu().numpy(), "action_scores": scores.cpu().numpy()})
        measured += [int(label["image_id"]) for label in batch["labels"]]
    broken = clips.broken_videos()
    if not measured:
        raise ValueError(f"None of the {len(clips)} key frames could be read: {few(broken)}.")
    rows = splits[split].select(measured)
    if settings.detections is not None:
        seconds = [second + settings.first_second for second in rows["second"]]
        frames = zip(_names_of_videos(rows["video"][:], settings), seconds, strict=True)
        write_boxes(settings.detections, detected_boxes(persons, frames), list(labels or classes))
    result = {"model": settings.model, "data": settings.data, "split": split, "num_key_frames": len(rows)}
    result |= measure_persons(persons, rows, classes) | ({"broken_videos": broken} if broken else {})
    tell(result)
    return result


def tell_precisions(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what [`evaluate_detections`] gives."""
    lines = [f"{result['num_key_frames']} key frames of the {result['split']} split"] if "split" in result else []
    width = max(map(len, ["action", *result["ap"]]))
    lines += [f"mAP at IoU 0.5  {result['mean_ap']:.2%}", "", f"{'action':{width}}  average precision"]
    cells = {name: "-" if value is None else f"{value:.2%}" for name, value in result["ap"].items()}
    return lines + [f"{name:{width}}  {cell:>17}" for name, cell in cells.items()]


def _names_of_videos(videos: list[str], settings: EvaluateSettings) -> list[str]:
    """The names of videos in AVA's form: as in the annotations, without suffix."""
    data = Path(settings.data).expanduser().absolute()
    root = data if data.is_dir() else data.parent
    if settings.video_root is not None:
        root = Path(settings.video_root).expanduser().absolute()
    paths = (Path(video) for video in videos)
    return [without_suffix(str(path.relative_to(root) if path.is_relative_to(root) else path)) for path in paths]
