"""Classifies videos: `hf-video predict` for programs."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

from transformers import PreTrainedModel

from hf_video.data.video_listing import ListedVideo, list_videos, names_several
from hf_video.inference.inference_settings import PredictSettings
from hf_video.loading.class_names import class_names_of
from hf_video.loading.models import load_search_model, load_trained_model

from .batches import VideoOutputs
from .bulk import BulkResult, check_engine, run_in_bulk
from .runner import LocalEngine, Part, Sink, run
from .tasks import PredictTask, Task
from .zero_shot import ZeroShotTask, split_labels


class Prediction(NamedTuple):
    """The most likely classes of a video.

    Attributes:
        video: the video as it was named.
        labels: names of classes, the most likely first.
        scores: their probabilities, or values of a regression.
        error: why there are none; None if there are.
    """

    video: str
    labels: list[str]
    scores: list[float]
    error: Exception | None = None


def predict(
    settings: PredictSettings, tell: Callable[[Prediction], object] = lambda prediction: None
) -> list[Prediction] | BulkResult:
    """Classifies videos, as `hf-video predict`. A video that fails has an error, and the others go on.

    Args:
        settings: the videos, the model, and what differs from the defaults.
        tell: is called with each prediction as soon as it is there; not with an engine.

    Returns:
        The predictions in the order of the videos; or with an engine what the folder of rows holds.

    Raises:
        ValueError, OSError: a setting cannot be used, or there is no such model.
    """
    check_engine(settings)
    if settings.engine is None and settings.output is not None:
        raise ValueError(f"--output {settings.output} has no effect without --engine local or --engine ray.")
    if settings.engine is not None and settings.output is None:
        raise ValueError(f"--engine {settings.engine} writes Parquet files: say where with --output DIR.")
    if "reading_threads" in settings.given and settings.engine == "ray":
        raise ValueError("--reading-threads has no effect with --engine ray.")
    is_bulk = settings.engine is not None
    videos = list_videos(settings.videos, settings.video_root) if is_bulk else _name_videos(settings)
    model, task = _zero_shot(settings) if settings.labels is not None else _trained(settings)
    if is_bulk:
        return run_in_bulk(settings, videos, task, model)
    teller = _Teller(tell)
    engine = LocalEngine(model, settings.batch_size, reading_threads=settings.reading_threads)
    run(task, videos, teller, engine, progress=False)
    return teller.predictions


def _trained(settings: PredictSettings) -> tuple[PreTrainedModel, PredictTask]:
    """A classifier, and the task that gives its classes."""
    if "template" in settings.given:
        raise ValueError(f"--template {settings.template!r} has no effect without --labels.")
    model, processor = load_trained_model(
        settings.model,
        device=_device(settings),
        dtype=settings.dtype,
        num_clips=settings.num_clips,
        num_crops=settings.num_crops,
    )
    return model, PredictTask(processor, class_names_of(model.config), settings.top_k)


def _zero_shot(settings: PredictSettings) -> tuple[PreTrainedModel, PredictTask]:
    """A model of videos and texts, and the task that compares with the classes of the settings."""
    labels = split_labels(settings.labels or "", settings.template)
    for name in ("num_clips", "num_crops"):
        if name in settings.given:
            raise ValueError(f"--{name.replace('_', '-')} has no effect with --labels: leave it out.")
    model = load_search_model(settings.model, device=_device(settings), dtype=settings.dtype)
    return model.network, ZeroShotTask(model, labels, settings.top_k, settings.template)


def _device(settings: PredictSettings) -> str:
    return "cpu" if settings.engine == "ray" else settings.device


def _name_videos(settings: PredictSettings) -> list[ListedVideo]:
    """The videos that words name, in their order. A word that names one video stands for itself, whatever it is."""
    found: list[ListedVideo] = []
    for word in settings.videos:
        several = names_several(word)
        found += list_videos([word], settings.video_root) if several else [ListedVideo(word, word)]
    return found


class _Teller(Sink):
    """Keeps predictions, and tells of each as it comes."""

    is_kept = False

    def __init__(self, tell: Callable[[Prediction], object]) -> None:
        self.predictions: list[Prediction] = []
        self._tell = tell

    def write(self, task: Task, part: Part, outputs: Iterator[VideoOutputs]) -> None:
        for of_video in outputs:
            name, gathered = of_video.video.source, of_video.gather()
            if of_video.error is not None:
                prediction = Prediction(name, [], [], of_video.error)
            else:
                # Not `describe`: the first array of Arrow imports pandas.
                prediction = Prediction(name, *cast(PredictTask, task).find_best(gathered[1][0]))
            self.predictions.append(prediction)
            self._tell(prediction)
