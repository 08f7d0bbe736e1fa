"""Writes the features of the windows of videos: `hf-video extract` for programs."""

from pathlib import Path

from transformers import PreTrainedModel

from hf_video.data.video_listing import list_videos
from hf_video.inference.inference_settings import ExtractSettings
from hf_video.inference.windows import windows_of
from hf_video.loading.classifiers import TrainedPart
from hf_video.loading.models import load_trained_model
from hf_video.output_folders import RunLock
from hf_video.processing import VideoClipProcessor

from .bulk import BulkResult, check_engine, run_in_bulk
from .feature_folder import Record, extract_to_folder, require_feature_folder
from .tasks import ExtractTask


def extract(settings: ExtractSettings) -> dict[str, Record] | BulkResult:
    """Writes features into a folder, as `hf-video extract`. The same call continues after an interruption.

    Args:
        settings: the videos, the model, the folder, and what differs from the defaults.

    Returns:
        What `features.json` says of each video, by id; or with an engine what the folder of rows holds.

    Raises:
        ValueError, OSError: a setting cannot be used, there is no such model, or the folder holds something else.
        KeyboardInterrupt: Ctrl-C was pressed; the message says how many videos are done.
    """
    check_engine(settings)
    if settings.engine is not None:
        return _extract_in_bulk(settings)
    folder = Path(settings.output).expanduser().absolute()
    require_feature_folder(folder)
    videos = list_videos(settings.videos, settings.video_root)
    model, processor = _load(settings, settings.device)
    windows = windows_of(settings, processor)
    folder.mkdir(parents=True, exist_ok=True)
    with RunLock() as lock:
        lock.take(folder)
        return extract_to_folder(
            model,
            processor,
            videos,
            folder,
            file_format=settings.format,
            batch_size=settings.batch_size,
            pooling=settings.pooling,
            layer=settings.layer,
            **windows,
        )


def _extract_in_bulk(settings: ExtractSettings) -> BulkResult:
    if "format" in settings.given and settings.format != "parquet":
        raise ValueError(f"--format {settings.format}: with --engine the rows are written as Parquet; leave it out.")
    videos = list_videos(settings.videos, settings.video_root)
    model, processor = _load(settings, "cpu" if settings.engine == "ray" else settings.device)
    windows = windows_of(settings, processor)
    task = ExtractTask(model, processor, pooling=settings.pooling, layer=settings.layer, **windows)
    return run_in_bulk(settings, videos, task, model)


def _load(settings: ExtractSettings, device: str) -> tuple[PreTrainedModel, VideoClipProcessor]:
    # What tokens give needs no head: encoders without one, such as V-JEPA 2's, have all that it takes.
    of_head = settings.pooling == "head" or (settings.pooling is None and settings.layer is None)
    part: TrainedPart = "features" if of_head else "base"
    return load_trained_model(settings.model, device=device, dtype=settings.dtype, part=part)
