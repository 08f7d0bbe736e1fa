"""Measures classes of frames as MS-TCN does, the task `frames`: right frames, edit score and F1 of segments.

A segment is a run of frames of one class. Background is no segment. Frames of unknown class are taken out before, so
that a prediction which goes on over unknown time counts once: cut in pieces, it would find each of the annotations
around. The definitions are those of MS-TCN (https://arxiv.org/abs/1903.01945):

- The edit score of a video is 1 minus the Levenshtein distance of the two orders of segments, divided by the number of
  segments of the longer one. It is averaged over videos.
- Predicted segments are taken in their order. One is right if the annotated segment of its class with which it has the
  highest temporal IoU reaches the threshold and is not taken yet. Right and wrong segments of all videos are counted
  together for F1.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from tqdm.auto import tqdm

from hf_video.data.checks import find_broken
from hf_video.data.frame_labels import (
    POINT_WIDTH,
    UNKNOWN,
    annotated_videos,
    have_several_labels,
    split_videos,
)
from hf_video.data.rows import BYTES, is_multi_label, open_video, rows_without
from hf_video.data.trained_data import parts_by_file, read_in_training, was_split_by
from hf_video.inference.inference_settings import EvaluateSettings
from hf_video.inference.scores import is_frame_classifier, problem_type_of, score_frames
from hf_video.inference.segments import Segment
from hf_video.loading.class_names import background_of, class_names_of, points_of
from hf_video.loading.models import load_trained_model
from hf_video.metrics import average_precision
from hf_video.reading import VideoReadError
from hf_video.settings import few
from hf_video.texts import count, table_lines

from .agreement import Compared, measure_agreement, tell_agreement
from .classes import check_readable, load_measured, measured_part, tell_known, tell_split, trained_rows
from .matching import Tell, find_annotations
from .points import Spotted, measure_points, tell_points

# The usual thresholds of segments of frames.
TIOUS = (0.10, 0.25, 0.50)
# Columns of runs.
_TRACK, _LABEL, _TIMES = 0, 1, slice(2, 4)


def evaluate_frames(
    predictions: Sequence[Any],
    references: Sequence[Any],
    class_names: Sequence[str],
    background: Collection[str] = (),
    scores: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """The figures of `hf-video evaluate --task frame-classification`, as JSON can hold them.

    Args:
        predictions: for each video the class ids of its frames, (num_frames,); where a frame may have several classes,
            zeros and ones (num_frames, num_classes). Of these each class is measured by itself.
        references: the annotated classes in the same form. A frame of -100 is unknown: it is not measured, and those
            before and behind it follow each other.
        class_names: names by class id.
        background: names of classes that are no segments. Their frames count in `frame_accuracy`.
        scores: for each video the class probabilities of its frames, (num_frames, num_classes).

    Returns:
        Numbers; the shares `frame_accuracy`, `edit_score`, None if there is no segment, and `f1` for each of `tious`;
        and `classes`, with `num_frames`, `num_segments` and `f1`, by name. With `scores` a class has
        `average_precision` over the known frames of all videos together, as scikit-learn and FERAL count it, None if
        it has no frames (0 in FERAL), and `mean_average_precision` is the mean without background.

    Raises:
        ValueError: a video has other frames in `predictions` than in `references`, no frame is known, or a name of
            `background` is no class.
    """
    if strange := [name for name in background if name not in class_names]:
        raise ValueError(f"The background {strange[0]!r} is none of the classes: {few(class_names)}.")
    excluded, num_classes = [class_names.index(name) for name in background], len(class_names)
    tracks, right, num_frames = list[tuple[np.ndarray, np.ndarray]](), [np.empty(0, bool)], 0
    for number, pair in enumerate(zip(predictions, references, strict=True)):
        predicted, expected = map(np.asarray, pair)
        if predicted.shape != expected.shape:
            raise ValueError(
                f"Video {number} has predictions of the shape {predicted.shape} and annotations of {expected.shape}; "
                "one shape is expected."
            )
        is_known = expected != UNKNOWN
        right.append((predicted == expected)[is_known])
        num_frames += int(is_known.any(axis=tuple(range(1, expected.ndim))).sum())
        tracks += [(found[known], truth[known]) for found, truth, known in _tracks(predicted, expected)]
    if not num_frames:
        raise ValueError("No frame of the videos has a known class, so nothing can be measured.")
    runs = [
        [_runs(track, number, excluded) for number, track in enumerate(each)] for each in zip(*tracks, strict=True)
    ]
    orders = ([each[:, _LABEL].tolist() for each in pair] for pair in zip(*runs, strict=True))
    edit_scores = [_edit_score(*pair) for pair in orders if any(pair)]
    found, true = map(np.concatenate, runs)
    groups, true_groups = (each[:, _TRACK] * num_classes + each[:, _LABEL] for each in (found, true))
    hits = find_annotations(found[:, _TIMES], groups, true[:, _TIMES], true_groups, TIOUS) >= 0

    def by_class(labels: np.ndarray) -> np.ndarray:
        return np.bincount(labels[labels >= 0], minlength=num_classes)

    num_right = np.stack([by_class(found[row, _LABEL]) for row in hits], axis=1)
    annotated, num_found = by_class(true[:, _LABEL]), by_class(found[:, _LABEL])
    f1_by_class = 2 * num_right / np.maximum(num_found + annotated, 1)[:, None]
    frames_by_class = by_class(np.concatenate([expected for _, expected in tracks]))
    classes: dict[str, dict[str, Any]] = {
        name: {
            "num_frames": int(frames_by_class[index]),
            "num_segments": int(annotated[index]),
            "f1": None if index in excluded else f1_by_class[index].tolist(),
        }
        for index, name in enumerate(class_names)
    }
    result = {
        "num_videos": len(references),
        "num_frames": num_frames,
        "num_segments": len(true),
        "frame_accuracy": float(np.concatenate(right).mean()),
        "edit_score": _mean(edit_scores),
        "tious": list(TIOUS),
        "f1": (2 * num_right.sum(axis=0) / max(len(found) + len(true), 1)).tolist(),
        "classes": classes,
    }
    if scores is not None:
        precisions = _average_precisions(scores, references, num_classes)
        result["mean_average_precision"] = _mean(np.delete(precisions, excluded))
        for of_class, precision in zip(classes.values(), precisions, strict=True):
            of_class["average_precision"] = _mean([precision])
    return result


def _average_precisions(scores: Sequence[Any], references: Sequence[Any], num_classes: int) -> np.ndarray:
    """The average precision of each class over the known frames of all videos, (num_classes,); NaN without frames."""
    labels = np.concatenate([np.asarray(each) for each in references])
    if labels.ndim == 1:
        labels = np.where(labels[:, None] == UNKNOWN, UNKNOWN, labels[:, None] == np.arange(num_classes))
    pairs = zip(np.concatenate([*map(np.asarray, scores)]).T, labels.T, strict=True)
    known = [(ranks[truth != UNKNOWN, None], truth[truth != UNKNOWN, None]) for ranks, truth in pairs]
    return np.array([average_precision(*pair)[0] if len(pair[1]) else np.nan for pair in known])


def _mean(values: Any) -> float | None:
    """The mean of the values that are no NaN; None if there is none."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else None


def _tracks(predicted: np.ndarray, expected: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Predicted and annotated class ids of frames, and which are known; of each class if a frame may have several."""
    if expected.ndim == 1:
        return [(predicted, expected, expected != UNKNOWN)]
    return [
        (np.where(of_class == 1, label, UNKNOWN), np.where(truth == 1, label, UNKNOWN), truth != UNKNOWN)
        for label, (of_class, truth) in enumerate(zip(predicted.T, expected.T, strict=True))
    ]


def _runs(labels: np.ndarray, track: int, excluded: Collection[int]) -> np.ndarray:
    """The runs of frames of one class, (num_runs, 4): track, label, start and end."""
    borders = np.flatnonzero(np.diff(labels, prepend=np.nan, append=np.nan))
    starts, ends = borders[:-1], borders[1:]
    runs = np.stack([np.full(len(starts), track), labels[starts].astype(np.int64), starts, ends], axis=1)
    return runs[(runs[:, _LABEL] >= 0) & ~np.isin(runs[:, _LABEL], [*excluded])]


def _edit_score(found: Collection[int], annotated: Collection[int]) -> float:
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
    figures |= {"point_map": found["points"]["average_map"]} if "points" in found else {}
    return figures | {f"f1_{tiou * 100:.0f}": f1 for tiou, f1 in zip(TIOUS, found["f1"], strict=True)}


def evaluate_frame_classes(settings: EvaluateSettings, tell: Tell) -> dict[str, Any]:
    """Measures a classifier of frames on whole videos, see [`evaluate`]: what [`evaluate_frames`] gives, what was
    measured, and how many of the videos the model knows."""
    model, processor = load_trained_model(
        settings.model or "", part="any classifier", device=settings.device, dtype=settings.dtype
    )
    if not is_frame_classifier(model):
        raise ValueError(
            f"{settings.model} classifies clips: `hf-video train --task frames` makes a classifier of frames of a "
            "VideoMamba or VideoViT."
        )
    names = class_names_of(model.config)
    background = background_of(model.config) if settings.background is None else [settings.background]
    if not set(background) <= set(names):
        raise ValueError(f"--background {settings.background} is no class of {settings.model}: {', '.join(names)}.")
    training, data = load_measured(settings, names, point_width=0.0)
    width = getattr(model.config, "point_width", None) or POINT_WIDTH
    is_split = was_split_by(training, data, names)
    parts = None if is_split else parts_by_file(Path(settings.model or ""), data)
    data = read_in_training(training, data) if is_split else parts or data
    split = settings.choose_split(("train", "validation") if is_split else data)
    rows = data["train"] if is_split else data[split]
    # Segments may end after the video.
    files = rows.select_columns([each for each in ("video", BYTES) if each in rows.column_names])
    check_readable(settings, files)
    broken = list[str]()
    if is_split:
        how = (training["validation_fraction"], training["seed"], training.get("split_by"))
        videos = split_videos(data, *how, next(iter(background_of(model.config)), None), width)[0][split]
    else:
        broken += [] if settings.on_error == "error" else find_broken(files, decode=False)[0]
        videos = annotated_videos(rows.select(rows_without(rows, broken)), width)
    several = problem_type_of(model.config) == "multi_label_classification"
    if not several and (any(map(is_multi_label, data.values())) or have_several_labels(rows, width)):
        raise ValueError(f"{settings.model} gives a frame one class, and frames of {settings.data} have several.")
    outside = names.index(background[0]) if background else None
    spotted = list[Spotted]()
    for video in tqdm(videos, desc="Videos"):
        try:
            windows = [*score_frames(model, processor, open_video(video.row), batch_size=settings.batch_size)]
        except VideoReadError:
            if settings.on_error == "error":
                raise
            broken.append(video.row["video"])
            continue
        middles = np.array([(window.start + window.end) / 2 for window in windows])
        scores = np.array([window.scores for window in windows]).reshape(-1, len(names))
        labels = video.labels_at(middles, len(names), outside, several)
        spotted.append(Spotted(video.row["video"], middles, scores, labels, video.known_instants()))
    if not spotted:
        raise ValueError(f"None of the {len(videos)} videos could be read: {few(broken)}.")
    probabilities, references = [each.scores for each in spotted], [each.labels for each in spotted]
    predictions = [(each > 0.5).astype(np.float32) if several else each.argmax(axis=1) for each in probabilities]
    compared = [
        _compare(each.moments, predicted, each.labels, names, background)
        for each, predicted in zip(spotted, predictions, strict=True)
    ]
    # The last clip that was trained on may reach into the frame after it.
    after = processor.frame_interval or 0.0
    measured = [
        dict(video.row) | {"start": begin + after, "end": end}
        for video in videos
        for begin, end in video.parts
        if video.row["video"] not in broken
    ]
    result = {
        **measured_part(settings, split, is_split or parts is not None),
        **evaluate_frames(predictions, references, names, background, probabilities),
        **measure_points(spotted, names, points_of(model.config), width),
        "agreement": measure_agreement(compared, [name for name in names if name not in background]),
        **trained_rows(settings, datasets.Dataset.from_list(measured), by_video=True),
        **({"broken_videos": broken} if broken else {}),
    }
    tell(result)
    return result


def _compare(
    middles: np.ndarray, predicted: np.ndarray, expected: np.ndarray, names: Sequence[str], background: Collection[str]
) -> Compared:
    """The runs of frames of a video as segments in seconds."""
    steps, is_known = np.diff(middles) if len(middles) > 1 else np.ones(1), expected != UNKNOWN
    inner = (middles[1:] + middles[:-1]) / 2
    edges = np.concatenate([middles[:1] - steps[:1] / 2, inner, middles[-1:] + steps[-1:] / 2])
    excluded = [number for number, name in enumerate(names) if name in background]
    tracks = [*zip(*_tracks(np.where(is_known, predicted, UNKNOWN), expected), strict=True)][:2]
    found = [[run for track in of_kind for run in _runs(track, 0, excluded)] for of_kind in tracks]
    segments = [[Segment(names[label], edges[start], edges[end]) for _, label, start, end in runs] for runs in found]
    known = _runs(np.where(is_known.reshape(len(expected), -1).any(axis=1), 0, UNKNOWN), 0, ())
    return Compared(middles, [(edges[start], edges[end]) for *_, start, end in known], *segments)


def tell_frames(result: Mapping[str, Any]) -> list[str]:
    """The lines that show what `evaluate_frame_classes` gives."""
    lines = [f"{count(result['num_frames'], 'frame')} of {count(result['num_videos'], 'video')}{tell_split(result)}"]
    lines += [*tell_known(result), f"right frames  {result['frame_accuracy']:.1%}"]
    if result["edit_score"] is not None:
        lines.append(f"edit score    {result['edit_score']:.1%}")
    rows = [["class", *(f"F1@{tiou * 100:.0f}" for tiou in result["tious"]), "AP", "segments"]]
    for name, each in {"all": result, **result["classes"]}.items():
        if each["f1"] is not None:
            precision = each["mean_average_precision" if each is result else "average_precision"]
            shares = ["" if value is None else f"{value:.1%}" for value in (*each["f1"], precision)]
            rows.append([name, *shares, str(each["num_segments"])])
    lines += ["", *table_lines(rows), *(["", *tell_points(result["points"])] if "points" in result else [])]
    return [*lines, "", *tell_agreement(result["agreement"])]
