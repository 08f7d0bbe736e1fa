"""Runs a task with the engine that settings name: one row a video, in Parquet files."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from hf_video.data.video_listing import ListedVideo
from hf_video.inference.inference_settings import DetectSettings, ExtractSettings, IndexSettings, PredictSettings
from hf_video.output_folders import RunLock

from .runner import Engine, LocalEngine, run
from .tasks import Task

# Without an engine these have no effect; the others are those of Ray.
_OF_BULK = ("part_size", "retry_errors")
_OF_RAY = ("ray_address", "min_decoders", "max_decoders", "models", "num_gpus")


class BulkResult(NamedTuple):
    """What a folder of rows holds after a run.

    Attributes:
        place: the folder or its URL.
        num_rows: number of rows, old and new.
        num_new: number of rows that the run wrote.
        errors: (video, reason) of the rows with an error.
    """

    place: str
    num_rows: int
    num_new: int
    errors: list[tuple[str, str]]


def check_engine(settings: ExtractSettings | PredictSettings | IndexSettings | DetectSettings) -> None:
    """Refuses settings that have no effect.

    Raises:
        ValueError: a setting is given without the engine that it is for.
        ImportError: Ray is asked for and not installed.
    """
    for name in (*_OF_BULK, *_OF_RAY):
        flag = f"--{name.replace('_', '-')}"
        if name in settings.given and settings.engine is None:
            raise ValueError(f"{flag} has no effect without --engine local or --engine ray.")
        if name in settings.given and name in _OF_RAY and settings.engine != "ray":
            raise ValueError(f"{flag} has no effect without --engine ray.")
    if settings.engine == "ray" and find_spec("ray") is None:
        raise ImportError("--engine ray needs Ray, which is not installed: pip install 'hf-video-models[ray]'")


def run_in_bulk(
    settings: ExtractSettings | PredictSettings | IndexSettings | DetectSettings,
    videos: Sequence[ListedVideo],
    task: Task,
    model: PreTrainedModel,
    *,
    notes: dict[str, Any] | None = None,
    renews: bool = False,
    prunes: bool = False,
) -> BulkResult:
    """Does the videos that are left.

    Args:
        settings: the engine, and the folder as `output`.
        videos: all videos of the folder.
        task: what is computed of each.
        model: with Ray on the CPU, since other processes compute with it.
        notes: see `ParquetParts`.
        renews: whether local files that changed are done again.
        prunes: whether rows of videos that are not among these are removed, too.

    Raises:
        ValueError, OSError: see [`run`].
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    # It needs pyarrow.dataset, and that imports pandas.
    from .parquet_parts import ParquetParts

    engine: Engine
    if settings.engine == "ray":
        from .ray_engine import RayEngine

        of_ray = {name: getattr(settings, name) for name in ("min_decoders", "max_decoders", "models", "num_gpus")}
        address, device = settings.ray_address, settings.device
        engine = RayEngine(model, settings.batch_size, address=address, device=device, **of_ray)
    else:
        reading_threads = getattr(settings, "reading_threads", None)
        engine = LocalEngine(model, settings.batch_size, reading_threads=reading_threads)
    sink = ParquetParts(str(settings.output), task.key(model), settings.part_size, notes)
    sink.check()
    with RunLock() as lock:
        if sink.path is not None:
            sink.path.mkdir(parents=True, exist_ok=True)
            lock.take(sink.path)
        if settings.retry_errors:
            sink.forget_errors()
        if renews:
            sink.forget_changed(videos, others=prunes)
        report = run(task, videos, sink, engine)
    return BulkResult(
        str(sink.place), len(sink.finished) + report.num_new, report.num_new, sink.known_errors() + report.errors
    )
