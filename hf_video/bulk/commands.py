"""`hf-video predict`, `extract`, `index` and `detect` for programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_video.data.video_listing import ListedVideo, list_videos, names_several
from hf_video.inference.inference_settings import DetectSettings, ExtractSettings, IndexSettings, PredictSettings
from hf_video.inference.scores import problem_type_of
from hf_video.inference.video_text import load_search_model
from hf_video.inference.windows import windows_of
from hf_video.loading.class_names import class_names_of
from hf_video.loading.models import load_action_detector, load_trained_model
from hf_video.output_folders import RunLock, check_output_file
from hf_video.reading.sources import kind_of
from hf_video.settings import few

from .run import Todo, run, telling_what_is_kept
from .tasks import Task, detect_task, extract_task, index_task, predict_task, zero_shot_task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .export import Annotate, DetectionResult

    AnySettings = PredictSettings | ExtractSettings | IndexSettings | DetectSettings

# Settings that cut a video into windows, where one clip would stand for it.
_OF_WINDOWS = ("window", "stride", "fps", "frame_sampling_rate", "last_window")


class Prediction(NamedTuple):
    """The most likely classes of a video, as it was named: their names, the most likely first, and their probabilities
    or, if they `are_values`, those of a regression; or the error why there are none."""

    video: str
    labels: list[str]
    scores: list[float]
    error: Exception | None = None
    are_values: bool = False


class RowsResult(NamedTuple):
    """What a folder of rows, or its URL, holds after a run: videos and rows, of which the run wrote `num_new`; and
    (video, reason) of the videos with an error."""

    place: str
    num_videos: int
    num_rows: int
    num_new: int
    errors: list[tuple[str, str]]


def predict(
    settings: PredictSettings, tell: Callable[[Prediction], object] = lambda prediction: None
) -> list[Prediction] | RowsResult:
    """Classifies videos, as `hf-video predict`: the predictions in the order of the videos, with which `tell` is
    called as soon as they are there; or with an engine what the folder of rows holds. A video that fails has an error,
    and the others go on.

    Raises:
        ValueError, OSError: a setting cannot be used, or there is no such model.
    """
    if settings.engine is not None and settings.output is None:
        raise ValueError(f"--engine {settings.engine} writes Parquet files: say where with --output DIR.")
    if settings.labels is None:
        views = {"num_clips": settings.num_clips, "num_crops": settings.num_crops}
        load, (model, processor) = _load(settings, load_trained_model, **views)
        task = predict_task(model, processor, class_names_of(model.config), settings.top_k)
    else:
        labels = split_labels(settings.labels, settings.template)
        load, found = _load(settings, load_search_model)
        model, task = found.network, zero_shot_task(found, labels, settings.top_k, settings.template)
    if settings.engine is not None:
        return write_rows(settings, list_videos(settings.videos, settings.video_root), task, model, load)
    videos: list[ListedVideo] = []
    for word in settings.videos:
        # A word that names one video stands for itself, whatever it is.
        several = names_several(word)
        videos += list_videos([word], settings.video_root) if several else [ListedVideo(word, word)]
    are_values = settings.labels is None and problem_type_of(model.config) == "regression"
    predictions, todo = [], [Todo(video) for video in videos]
    for row in run(task, model, todo, settings.batch_size, threads=settings.reading_threads):
        best, scores = [], []
        if row.piece is not None and row.output is not None:
            best, scores = task.values(row.piece, row.output)
        predictions.append(Prediction(row.todo.video.source, best, scores, row.error, are_values))
        tell(predictions[-1])
    return predictions


def split_labels(labels: str, template: str = "{}") -> list[str]:
    """The classes of "a;b;c". It is a `ValueError` if there are not two different ones, or the template has no place
    for a class."""
    names = [name for each in labels.split(";") if (name := each.strip())]
    if len(set(names)) < max(len(names), 2):
        raise ValueError(f"--labels {labels!r}: two or more different classes are expected, as in 'a dog;a cat'.")
    if template.count("{}") != 1:
        raise ValueError(f"--template {template!r}: a text with {{}} once is expected, the place of the class.")
    return names


def extract(settings: ExtractSettings) -> dict[str, dict[str, Any]] | RowsResult:
    """Writes features into a folder, as `hf-video extract`: what `features.json` says of each video, by id; or with an
    engine what the folder of rows holds. The same call continues after an interruption.

    Raises:
        ValueError, OSError: a setting cannot be used, there is no such model, or the folder holds something else.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    videos = list_videos(settings.videos, settings.video_root)
    # What tokens give needs no head: encoders without one, such as V-JEPA 2's, have all that it takes.
    of_head = settings.pooling == "head" or (settings.pooling is None and settings.layer is None)
    load, (model, processor) = _load(settings, load_trained_model, part="features" if of_head else "base")
    windows = windows_of(settings, processor)
    task = extract_task(model, processor, windows, settings)
    if settings.engine is not None:
        return write_rows(settings, videos, task, model, load)
    from .export import extract_to_folder

    folder = Path(settings.output).expanduser().absolute()
    return extract_to_folder(task, model, videos, folder, windows, settings.batch_size)


def build_index(settings: IndexSettings) -> RowsResult:
    """Writes the index of videos, as `hf-video index`: what the folder holds. The same call continues after an
    interruption, adds videos, does changed ones again, and with `prune` removes those that are not named.

    Raises:
        ValueError, OSError: a setting cannot be used, there is no such model or video, or the folder holds something
            else, such as the index of another model.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    videos = list_videos(settings.videos, settings.video_root)
    sources = [video.source for video in videos if video.rows is None and kind_of(video.source) == "path"]
    if missing := [source for source in sources if not os.path.exists(source)]:
        raise FileNotFoundError(f"{few(missing)} does not exist. The index is as it was.")
    load, model = _load(settings, load_search_model)
    is_cut = any(name in settings.given for name in _OF_WINDOWS)
    task = index_task(model, windows_of(settings, model.processor) if is_cut else None, settings.source_fps)
    return write_rows(settings, videos, task, model.network, load, notes={"model": load.args[0]}, prune=settings.prune)


def detect(settings: DetectSettings, annotate: Annotate | None = None) -> DetectionResult | RowsResult:
    """Finds the people of videos and their actions, as `hf-video detect`: what was found; or with an engine what the
    folder of rows holds. A video that fails has an error, and the others go on. With a folder, the same call continues
    after an interruption. `annotate` also writes a video, such as [`hf_video.drawing.annotate_detections`].

    Raises:
        ValueError, OSError: a setting cannot be used, there is no such model, or something else is at the output.
        ImportError: scipy, which finds the tracks, is not installed.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    from .export import ANNOTATED, WRITERS, detect_to_files

    if settings.engine and (annotate or "format" in settings.given):
        raise ValueError("With --engine rows are written as Parquet into a folder, without --annotate and --format.")
    if settings.seconds and "every" in settings.given:
        raise ValueError(f"--every {settings.every:g} has no effect with --seconds: leave out one of them.")
    videos = list_videos(settings.videos, settings.video_root)
    output = Path(settings.output).expanduser().absolute()
    is_file = output.suffix in WRITERS and not output.is_dir()
    suffixes = [output.suffix if is_file else f".{settings.format}", *([ANNOTATED] if annotate else [])]
    if is_file and len(videos) > 1:
        raise ValueError(f"--output {output} is a file for one video, not {len(videos)}: name a folder.")
    for suffix in suffixes if is_file else ():
        check_output_file("output", str(output.with_suffix(suffix)))
    load, (model, processor) = _load(settings, load_action_detector)
    task = detect_task(model, processor, class_names_of(model.config), settings)
    if settings.engine is not None:
        return write_rows(settings, videos, task, model, load)
    return detect_to_files(task, model, processor, videos, output, suffixes, settings, annotate)


def write_rows(
    settings: AnySettings,
    videos: Sequence[ListedVideo],
    task: Task,
    model: PreTrainedModel,
    load: Callable[..., Sequence[Any]],
    *,
    notes: dict[str, Any] | None = None,
    prune: bool = False,
) -> RowsResult:
    """Writes the rows of videos that are not there, with the engine of `settings`, into the folder `output`. `load`
    loads the model for other processes. It is a `ChildProcessError` if some cannot be done."""
    if settings.engine == "ray" and find_spec("ray") is None:
        raise ImportError("--engine ray needs Ray, which is not installed: pip install 'hf-video-models[ray]'")
    # It needs pyarrow.dataset, and that imports pandas.
    from .rows import RowFolder

    if settings.engine == "ray" and (stored := [video.source for video in videos if video.rows is not None]):
        raise ValueError(
            f"{stored[0]} is stored inside a data set, which would pass through the memory of Ray: use --engine local."
        )
    folder = RowFolder(str(settings.output), task, notes)
    folder.is_claimed()
    with RunLock() as lock, telling_what_is_kept("rows", str(folder), len(videos), lambda: folder.left(videos)):
        if (path := folder.stored.path) is not None:
            path.mkdir(parents=True, exist_ok=True)
            lock.take(path)
        folder.claim()
        todo = folder.left(videos, retry_errors=settings.retry_errors, prune=prune)
        num_old = len(folder.facts())
        if settings.engine == "ray":
            from .ray import run_on_ray

            run_on_ray(folder, todo, partial(load, device=settings.device), lambda: folder.left(videos), settings)
        else:
            threads = getattr(settings, "reading_threads", None)
            rows = run(task, model, todo, settings.batch_size, threads=threads, total=len(videos))
            folder.write(rows, settings.part_size)
        if lost := folder.left(videos):
            raise ChildProcessError(
                f"{len(lost)} of {len(videos)} videos are not done, such as {lost[0].video.source}: the processes "
                "that read them died each time, as memory ran out or a video ends them, or a machine of the cluster "
                "does not see --output. The rows of the others are kept. The same command tries again."
            )
    facts = folder.facts()
    failed = facts[facts["error"].notna()].drop_duplicates("key")
    errors = list(zip(failed["path"], failed["error"], strict=True))
    return RowsResult(str(folder), facts["key"].nunique(), len(facts), len(facts) - num_old, errors)


def _load(settings: AnySettings, load: Callable[..., Any], **options: Any) -> tuple[partial, Any]:
    """What loads the model in another process, and what it gives here; with Ray others compute."""
    place = Path(settings.model).expanduser()
    name = str(place.absolute()) if place.is_dir() else settings.model
    loading = partial(load, name, dtype=settings.dtype, **options)
    return loading, loading(device="cpu" if settings.engine == "ray" else settings.device)
