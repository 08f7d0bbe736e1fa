"""`hf-video predict`: classifies videos."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_video.inference.inference_settings import JsonLinesSettings, PredictSettings
from hf_video.loading.models import load_trained_model

from .boundary import is_debugging
from .bulk import check_options, model_device, run_bulk_command
from .command import Command

if TYPE_CHECKING:
    from hf_video.data.video_listing import ListedVideo
    from hf_video.jobs.batches import VideoOutputs
    from hf_video.jobs.runner import Part, Sink
    from hf_video.jobs.tasks import Task

DESCRIPTION = """\
Classify videos. FILE is a video file, a URL, a folder of frames, a folder with videos inside, a list of videos (CSV,
list, JSON, or a manifest), or a data set.

A file that fails is reported, and listed once more at the end; the others are classified all the same. The exit code
is then 1.

With --engine, for millions of videos, each video becomes a row in Parquet files, with its classes or its error.
"""


@dataclass(kw_only=True)
class PredictCommandSettings(PredictSettings, JsonLinesSettings):
    """Output"""


def run(settings: PredictCommandSettings) -> int:
    """Prints the most likely classes of every file."""
    check_options(settings)
    if settings.engine is None and settings.output is not None:
        raise ValueError(f"--output {settings.output} has no effect without --engine local or --engine ray.")
    if settings.engine is not None and settings.output is None:
        raise ValueError(f"--engine {settings.engine} writes Parquet files: say where with --output DIR.")
    for name, engines in (("json", ("local", "ray")), ("reading_threads", ("ray",))):
        if name in settings.given and settings.engine in engines:
            raise ValueError(f"{settings.given[name][0]} has no effect with --engine {settings.engine}.")

    from hf_video.data.video_listing import list_videos
    from hf_video.jobs.runner import LocalEngine
    from hf_video.jobs.runner import run as run_task
    from hf_video.jobs.tasks import PredictTask
    from hf_video.loading.class_names import class_names_of

    videos = _name_videos(settings) if settings.engine is None else list_videos(settings.videos, settings.video_root)
    views = {"num_clips": settings.num_clips, "num_crops": settings.num_crops}
    model, processor = load_trained_model(settings.model, device=model_device(settings), dtype=settings.dtype, **views)
    task = PredictTask(processor, class_names_of(model.config), settings.top_k)
    if settings.engine is not None:
        return run_bulk_command(settings, videos, task, model)
    engine = LocalEngine(model, settings.batch_size, reading_threads=settings.reading_threads)
    failed = [path for path, _ in run_task(task, videos, _printer(settings), engine, progress=False).errors]
    if failed:
        print(f"{len(failed)} of {len(videos)} files failed:", *failed, sep="\n  ", file=sys.stderr)
    return 1 if failed else 0


def _name_videos(settings: PredictCommandSettings) -> list[ListedVideo]:
    """The videos that words name, in their order. A word that names one video stands for itself, whatever it is."""
    from hf_video.data.video_listing import ListedVideo, list_videos, names_several

    found: list[ListedVideo] = []
    for word in settings.videos:
        found += list_videos([word], settings.video_root) if names_several(word) else [ListedVideo(word, word)]
    return found


def _printer(settings: PredictCommandSettings) -> Sink:
    """A sink that prints lines as the scores come."""
    from hf_video.jobs.batches import reason_of
    from hf_video.jobs.runner import Sink

    class Printer(Sink):
        is_kept = False

        def write(self, task: Task, part: Part, outputs: Iterator[VideoOutputs]) -> None:
            for of_video in outputs:
                name, gathered = of_video.video.source, of_video.gather()
                if of_video.error is not None:
                    self._fail(name, of_video.error)
                    continue
                columns = task.describe(*gathered)
                best = list(zip(*(columns[column].to_pylist()[0] for column in ("labels", "scores")), strict=True))
                if settings.json:
                    rows = [{"label": label, "score": score} for label, score in best]
                    print(json.dumps({"video": name, "predictions": rows}), flush=True)
                else:
                    print(name, *(f"  {score:6.1%}  {label}" for label, score in best), sep="\n", flush=True)

        def _fail(self, name: str, error: Exception) -> None:
            if is_debugging():
                traceback.print_exception(error)
            if settings.json:
                print(json.dumps({"video": name, "error": reason_of(error)}), flush=True)
            else:
                print(f"{name}\n  cannot be classified: {reason_of(error)}", file=sys.stderr)

    return Printer()


COMMAND = Command(
    name="predict",
    settings=PredictCommandSettings,
    run=run,
    help="classify videos",
    description=DESCRIPTION,
)
