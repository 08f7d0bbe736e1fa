"""Chooses the stretches of videos that a person should label next: `hf-video suggest` for programs."""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from hf_video.data.annotations import TOOLS, find_format, write_annotations
from hf_video.data.annotations.new import SUFFIXES, write_new_annotations
from hf_video.data.rows import TO_LABEL, UNKNOWN_SPANS
from hf_video.data.tables import open_tables, require_videos
from hf_video.data.video_listing import list_videos
from hf_video.io import replacing_file
from hf_video.loading.class_names import background_of, class_names_of, points_of
from hf_video.loading.configurations import load_config
from hf_video.loading.models import load_trained_model, require_model
from hf_video.output_folders import check_output_file
from hf_video.processing import VideoClipProcessor
from hf_video.texts import replace_json

from .inference_settings import SuggestSettings
from .scores import is_frame_classifier, problem_type_of, require_classes, score_frames, score_windows
from .windows import windows_of

# What the name of a file ends in, by its format.
_ENDINGS = {**SUFFIXES, "csv": ".csv", "json": ".json"}
# The share of a stretch that may have labels: files round their times.
_ROUNDING = 0.01


class Stretch(NamedTuple):
    """A part of a video, from `start` to `end` in seconds after its first frame; how uncertain the model is about it,
    from 0 to 1; the mean of the features that the head of the model saw, (hidden_size,) float32; and the id of the
    class with the highest mean score."""

    video: str
    start: float
    end: float
    uncertainty: float
    features: np.ndarray
    class_id: int = 0


def suggest(
    settings: SuggestSettings, tell_failed: Callable[[str, Exception], object] = lambda video, error: None
) -> list[Stretch]:
    """Chooses the stretches to label next, and writes them, as `hf-video suggest`. In the file each is an event of the
    class "to label", which a person replaces. What reads the file leaves those out that still have this class: their
    time is unknown.

    Args:
        settings: the videos, the model, the file, and what differs from the defaults.
        tell_failed: is called with each of several videos that cannot be read, and why; the others go on.

    Returns:
        The stretches, the most useful one first; fewer than `count` if no more are left.

    Raises:
        ValueError, OSError: a setting cannot be used, there is no such model, the file cannot be written, the only
            video is damaged, or no stretch is left.
    """
    output = check_output_file("output", settings.output) or Path()
    videos = list_videos(settings.videos, settings.video_root)
    names = [each.source for each in videos]
    format = _choose_format(settings, output, names)
    config = load_config(require_model(settings.model))
    require_classes(settings.model, config)
    classes = [name for name in class_names_of(config) if name not in points_of(config)]
    labelled = {} if settings.annotations is None else _labelled_spans(settings, bool(background_of(config)))
    with TemporaryDirectory() as folder:  # what cannot be written is refused before the model is loaded
        anything = [Stretch(name, 0.0, 0.1, 0.0, np.empty(0)) for name in names]
        _write(format, anything, Path(folder, f"new{_ENDINGS[format]}"), settings, classes)
    model, processor = load_trained_model(
        settings.model, part="any classifier", device=settings.device, dtype=settings.dtype
    )
    options = windows_of(settings, processor, is_frame_classifier(model)) | {"batch_size": settings.batch_size}
    found = list[Stretch]()
    for video in videos:
        try:
            found += measure_stretches(model, processor, video.open(), settings.seconds, name=video.source, **options)
        except (OSError, ValueError) as error:
            if len(videos) == 1:
                raise
            tell_failed(video.source, error)
    is_labelled = np.array([_is_labelled(each, labelled.get(each.video, ())) for each in found], bool)
    if is_labelled.all():
        raise ValueError("No stretch of the videos that can be read is left to label: all have labels.")
    rows = {name: 2 * number for number, name in enumerate(names)}
    places = np.array([(rows[each.video], round(each.start / settings.seconds)) for each in found])
    uncertainties, features, ids = (np.array([each[column] for each in found]) for column in (3, 4, 5))
    best = choose_stretches(uncertainties, features, places, settings.count, is_labelled, ids)
    chosen = [found[row] for row in best]
    _write(format, chosen, output, settings, classes)
    return chosen


def choose_stretches(
    uncertainties: np.ndarray,
    features: np.ndarray,
    places: np.ndarray,
    count: int,
    is_labelled: np.ndarray | None = None,
    class_ids: np.ndarray | None = None,
) -> list[int]:
    """The stretches to label next, one after the other: that with the largest product of its squared uncertainty and
    its distance, in features, to the nearest one that is labelled or chosen. It is the greedy choice of k centers
    (Sener and Savarese, arXiv:1708.00489) weighted by the uncertainty of the model. The product is divided by the
    square root of how many are labelled of the class for which the model takes it, so that rare classes are seen.

    Args:
        uncertainties: (n,) at least 0.
        features: (n, size), brought to a mean of 0 and a deviation of 1 over all stretches.
        places: (n, k), where stretches are: two are beside each other, and not both chosen, if no number differs by
            more than 1.
        count: how many to choose.
        is_labelled: (n,) bool, which have labels; none by default.
        class_ids: (n,) int, the classes for which the model takes them; all the same by default.

    Returns:
        The rows; fewer than `count` if no more are left.
    """
    values = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-6)
    is_open = np.ones(len(values), bool) if is_labelled is None else ~is_labelled
    ids = np.zeros(len(values), int) if class_ids is None else class_ids
    weights = uncertainties**2 / np.sqrt(1 + np.bincount(ids[~is_open], minlength=ids.max() + 1))[ids]
    distances = np.full(len(values), np.inf)

    def take(row: int) -> None:
        np.minimum(distances, np.linalg.norm(values - values[row], axis=1), out=distances)

    for row in np.flatnonzero(~is_open):
        take(int(row))
    chosen: list[int] = []
    while len(chosen) < count and is_open.any():
        gains = weights * np.where(np.isinf(distances), 1.0, distances)
        chosen.append(int(np.where(is_open, gains, -1.0).argmax()))
        take(chosen[-1])
        is_open &= (np.abs(places - places[chosen[-1]]) > 1).any(axis=1)
    return chosen


def measure_stretches(
    model: PreTrainedModel,
    processor: VideoClipProcessor,
    video: Any,
    seconds: float = 3.0,
    *,
    name: str = "",
    **options: Any,
) -> list[Stretch]:
    """The stretches of a video, from one pass over it with the options of [`score_windows`] or [`score_frames`]. A
    window or token frame counts for the stretch in which its middle is; a last one of less than half is left out."""
    score = score_frames if is_frame_classifier(model) else score_windows
    is_exclusive = problem_type_of(model.config) == "single_label_classification"
    measured, end = defaultdict[int, list[tuple[Any, ...]]](list), 0.0
    for window in score(model, processor, video, with_features=True, **options):
        number, end = int((window.start + window.end) / 2 // seconds), window.end
        lower, higher = np.sort(window.scores)[-2:] if is_exclusive else (0, np.abs(2 * window.scores - 1).min())
        measured[number].append((1 - (higher - lower), window.features, window.scores))
    found = []
    for number, of_windows in measured.items():
        uncertainty, features, scores = (np.mean(each, axis=0) for each in zip(*of_windows, strict=True))
        start, until = number * seconds, min((number + 1) * seconds, end)
        found.append(Stretch(name or str(video), start, until, float(uncertainty), features, int(scores.argmax())))
    return [each for each in found if each.end - each.start >= seconds / 2 or len(found) == 1]


def _choose_format(settings: SuggestSettings, output: Path, videos: Sequence[str]) -> str:
    """The format of the file; a `ValueError` if it is unknown, or does not hold such videos."""
    by_name = [format for format, ending in _ENDINGS.items() if output.name.lower().endswith(ending)]
    if not (format := settings.format or "".join(by_name[:1])):
        raise ValueError(f"--output {output}: a name in {', '.join(_ENDINGS.values())} is expected, or --format.")
    if format in TOOLS and (others := [video for video in videos if not Path(video).is_file()]):
        raise ValueError(f"A project of a tool is about video files on this machine, and {others[0]} is none.")
    if format == "eaf" and len(videos) > 1:
        raise ValueError(
            f"A file of ELAN is about one video, not {len(videos)}: name one, or choose another --format."
        )
    return format


def _labelled_spans(settings: SuggestSettings, has_background: bool) -> dict[str, list[tuple[float, float]]]:
    """The time of each video from which a training on the annotations would learn: their segments, and if the model
    has a background, all time that is not unknown."""
    tables = open_tables(settings.annotations, settings.video_root, choices={"point_width": settings.seconds})
    videos, found = require_videos(tables), defaultdict[str, list[tuple[float, float]]](list)
    for name, table in tables.items():
        starts, ends = table.times().values()
        times = zip(starts.fill_null(0.0).to_pylist(), ends.fill_null(math.inf).to_pylist(), strict=True)
        unknown = table.column(UNKNOWN_SPANS).to_pylist()
        for video, span, spans in zip(videos[name].to_pylist(), times, unknown, strict=True):
            borders = [0.0, *chain(*sorted(spans or ())), math.inf]
            known = [*zip(borders[::2], borders[1::2], strict=True)]
            found[video] = known if has_background else [*found[video], span]
    return found


def _is_labelled(stretch: Stretch, spans: Sequence[tuple[float, float]]) -> bool:
    most = _ROUNDING * (stretch.end - stretch.start)
    return any(min(stretch.end, end) - max(stretch.start, start) > most for start, end in spans)


def _write(
    format: str, stretches: Sequence[Stretch], output: Path, settings: SuggestSettings, classes: Sequence[str]
) -> None:
    """Writes a list, a copy of the project of the person if it is of this tool, or a new project."""
    rows = [{"path": each.video, "label": TO_LABEL, "start": each.start, "end": each.end} for each in stretches]
    events = [{**row, "media": row["path"], "class": TO_LABEL} for row in rows]
    if format == "json":
        replace_json(output, rows)
    elif format == "csv":
        with replacing_file(output) as path, path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    elif settings.annotations is not None and find_format(settings.annotations) is TOOLS[format]:
        root = settings.video_root or Path(stretches[0].video).parent
        write_annotations(settings.annotations, events, output, root)
    else:
        write_new_annotations(format, events, output, classes)
