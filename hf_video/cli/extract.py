"""`hf-video extract`: writes the features of the sliding windows of videos."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hf_video.inference.inference_settings import ExtractSettings
from hf_video.loading.models import load_trained_model
from hf_video.training.output_folder import RunLock

from .bulk import check_options, model_device, run_bulk_command
from .command import Command
from .timeline import window_options

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hf_video.loading.classifiers import TrainedPart
    from hf_video.processing import VideoClipProcessor

DESCRIPTION = """\
Slide windows over videos of any length, and write what a model sees in each: one file for each video, and
features.json with the times of all windows and the settings of temporal localisation (feat_stride, num_frames,
default_fps).

VIDEO is a file, a URL, a folder of frames, a folder with videos inside, a list of videos (CSV, list or JSON), or a
data set. Features of videos in a folder or list keep their paths from there. Each frame is decoded once.

The same command continues after an interruption, and adds videos to a folder. A video that fails is reported, and
listed once more at the end; the exit code is then 1.

With --engine, for millions of videos, each video becomes a row in Parquet files, with its features or its error.
"""
EPILOG = """\
example: hf-video extract my_videos --model my_model --output my_features --window 16 --stride 8
"""


def run(settings: ExtractSettings) -> int:
    """Prints how many windows there are, and the videos that failed."""
    check_options(settings)
    return _extract_to_folder(settings) if settings.engine is None else _extract_in_bulk(settings)


def _load(settings: ExtractSettings, device: str) -> tuple[PreTrainedModel, VideoClipProcessor]:
    # What tokens give needs no head: encoders without one, such as V-JEPA 2's, have all that it takes.
    of_head = settings.pooling == "head" or (settings.pooling is None and settings.layer is None)
    part: TrainedPart = "features" if of_head else "base"
    return load_trained_model(settings.model, device=device, dtype=settings.dtype, part=part)


def _extract_in_bulk(settings: ExtractSettings) -> int:
    from hf_video.data.video_listing import list_videos
    from hf_video.jobs.tasks import ExtractTask

    if "format" in settings.given and settings.format != "parquet":
        raise ValueError(f"--format {settings.format}: with --engine the rows are written as Parquet; leave it out.")
    videos = list_videos(settings.videos, settings.video_root)
    model, processor = _load(settings, model_device(settings))
    windows = window_options(settings, processor)
    task = ExtractTask(model, processor, pooling=settings.pooling, layer=settings.layer, **windows)
    return run_bulk_command(settings, videos, task, model)


def _extract_to_folder(settings: ExtractSettings) -> int:
    from hf_video.data.video_listing import list_videos
    from hf_video.jobs.feature_folder import SUMMARY_FILE, extract_to_folder, require_feature_folder

    folder = Path(settings.output).expanduser().absolute()
    require_feature_folder(folder)
    videos = list_videos(settings.videos, settings.video_root)
    model, processor = _load(settings, settings.device)
    windows = window_options(settings, processor)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {
        "file_format": settings.format,
        "pooling": settings.pooling,
        "layer": settings.layer,
        "batch_size": settings.batch_size,
    }
    with RunLock() as lock:
        lock.take(folder)
        records = extract_to_folder(model, processor, videos, folder, **chosen, **windows)
    failed = [record for record in records.values() if "error" in record]
    num_windows = sum(record["num_windows"] for record in records.values() if "error" not in record)
    num_videos = len(records) - len(failed)
    counted = f"{num_videos} video{'' if num_videos == 1 else 's'}"
    print(f"features {folder}\n{num_windows} windows of {counted}, see {SUMMARY_FILE}")
    if failed:
        print(f"{len(failed)} of {len(records)} videos failed:", file=sys.stderr)
        for record in failed:
            print(f"  {record['source']}\n    {record['error']}", file=sys.stderr)
    return 1 if failed else 0


COMMAND = Command(
    name="extract",
    settings=ExtractSettings,
    run=run,
    help="write features of the sliding windows of videos",
    description=DESCRIPTION,
    epilog=EPILOG,
)
