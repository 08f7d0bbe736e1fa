"""Measures an action detector on annotated key frames."""

from collections.abc import Iterable, Mapping
from typing import Any

import datasets

from hf_video.data.detections import action_names

from .detection_evaluation import annotated_boxes, detected_boxes, frame_mean_ap


def measure_persons(persons: Iterable[Mapping[str, Any]], rows: datasets.Dataset) -> dict[str, Any]:
    """The mean average precision of what a detector found at key frames.

    Args:
        persons: for each row, what `post_process_action_detection(..., original=True)` gives.
        rows: annotations, as of `load_detections`.

    Returns:
        As [`frame_mean_ap`].
    """
    frames = zip(rows["video"][:], rows["second"][:], strict=True)
    return frame_mean_ap(detected_boxes(persons, frames), annotated_boxes(rows), action_names(rows))
