"""Measures a classifier of frames on the segments of whole videos."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm

from hf_video.data import is_multi_label, load_video_dataset
from hf_video.data.checks import count_trained
from hf_video.data.frame_labels import AnnotatedVideo, annotated_videos, have_several_labels, split_videos
from hf_video.data.holding_out import further_columns
from hf_video.data.rows import open_video
from hf_video.inference.frame_evaluation import evaluate_frames
from hf_video.inference.frame_scoring import is_frame_classifier, score_frames
from hf_video.inference.inference_settings import EvaluateSettings
from hf_video.inference.prediction import problem_type_of
from hf_video.loading.class_names import background_of, class_names_of
from hf_video.loading.models import load_trained_model
from hf_video.reading import VideoReadError

from .training_data import read_training, was_split_by


def evaluate_frame_classes(settings: EvaluateSettings) -> dict[str, Any]:
    """Measures the classes of frames of whole videos, as `hf-video evaluate --task frame-classification`.

    Args:
        settings: labelled segments, see `load_video_dataset`, a classifier of frames, and what differs from the
            defaults.

    Returns:
        What [`evaluate_frames`] gives, what was measured, and how many of the videos the model knows.

    Raises:
        ValueError, OSError: a setting or a video cannot be used, or the model does not know a class of the data.
    """
    model, processor = load_trained_model(
        settings.model or "", part="any classifier", device=settings.device, dtype=settings.dtype
    )
    if not is_frame_classifier(model):
        raise ValueError(
            f"{settings.model} classifies clips: `hf-video train --task frame-classification` makes a classifier of "
            "frames of a VideoMamba or VideoViT."
        )
    names = class_names_of(model.config)
    background = background_of(model.config) if settings.background is None else [settings.background]
    if not set(background) <= set(names):
        raise ValueError(f"--background {settings.background} is no class of {settings.model}: {', '.join(names)}.")
    training = read_training(settings.model or "")
    columns = further_columns(training.get("split_by"))
    data = load_video_dataset(settings.data, labels=names, video_root=settings.video_root, columns=columns)
    is_split = was_split_by(training, data, names)
    parts = ("train", "validation") if is_split else tuple(data)
    split = settings.split or next(name for name in ("test", "validation", "train") if name in parts)
    if split not in parts:
        raise ValueError(f"--split {split}: {settings.data} only has {', '.join(parts)}.")
    if is_split:
        how = (training["validation_fraction"], training["seed"], training.get("split_by"))
        videos = split_videos(data, *how)[0][split]
    else:
        videos = annotated_videos(data[split])
    several = problem_type_of(model.config) == "multi_label_classification"
    if not several and (any(map(is_multi_label, data.values())) or have_several_labels(videos)):
        raise ValueError(f"{settings.model} gives a frame one class, and frames of {settings.data} have several.")
    outside = names.index(background[0]) if background else None
    predictions, references, broken = list[np.ndarray](), list[np.ndarray](), list[str]()
    for video in tqdm(videos, desc="Videos"):
        try:
            source = open_video(video.row)
            windows = [
                (window.start, window.end, window.scores)
                for window in score_frames(model, processor, source, batch_size=settings.batch_size)
            ]
        except VideoReadError:
            if settings.on_error == "error":
                raise
            broken.append(video.row["video"])
            continue
        middles = np.array([(start + end) / 2 for start, end, _ in windows])
        scores = np.array([each for _, _, each in windows]).reshape(-1, len(names))
        predictions.append((scores > 0.5).astype(np.float32) if several else scores.argmax(axis=1))
        references.append(video.labels_at(middles, len(names), outside, several))
    if not references:
        raise ValueError(f"None of the {len(videos)} videos could be read: {', '.join(broken[:3])}.")
    result: dict[str, Any] = {"model": settings.model, "data": settings.data, "split": split}
    if is_split:
        result["part_of_training"] = "trained on" if split == "train" else "held out"
    result |= evaluate_frames(predictions, references, names, background)
    # The last clip that was trained on may reach into the frame after it.
    measured = [video for video in videos if video.row["video"] not in broken]
    rows = _rows_of(measured, after=processor.frame_interval or 0.0)
    if (found := count_trained(Path(settings.model or ""), rows)) is not None:
        result["known_videos"] = found
    return result | ({"broken_videos": broken} if broken else {})


def _rows_of(videos: Sequence[AnnotatedVideo], after: float) -> Dataset:
    """A row for each video, from some seconds after the begin of its part to the end of it."""
    rows = [dict(video.row) | {"start": video.begin + after, "end": video.end} for video in videos]
    return Dataset.from_list(rows)
