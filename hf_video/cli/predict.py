"""`hf-video predict`: classifies videos."""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_video.inference.inference_settings import JsonLinesSettings, PredictSettings
from hf_video.loading.models import locate_model
from hf_video.reading.sources import kind_of
from hf_video.settings import few

from .bulk import print_rows
from .command import Command
from .errors import is_debugging

if TYPE_CHECKING:
    from hf_video.jobs.classification import Prediction

DESCRIPTION = """\
Classify videos. FILE is a video file, a URL, a folder of frames, a folder with videos inside, a list of videos (CSV,
list, JSON or Parquet), or a data set.

A file that fails is reported, and listed once more at the end; the others are classified all the same. The exit code
is then 1.

With --engine, for millions of videos, each video becomes a row in Parquet files, with its classes or its error.
"""


@dataclass(kw_only=True)
class PredictCommandSettings(PredictSettings, JsonLinesSettings):
    """Settings of `hf-video predict`."""


def run(settings: PredictCommandSettings) -> int:
    """Prints the most likely classes of every file."""
    if settings.json and settings.engine is not None:
        raise ValueError(f"--json has no effect with --engine {settings.engine}.")
    # What can be refused at once is: PyTorch takes seconds to import.
    locate_model(settings.model)
    if settings.engine is None and not any(
        kind_of(each) != "path" or os.path.exists(each) for each in settings.videos
    ):
        raise FileNotFoundError(f"None of the videos exists: {few(settings.videos)}.")
    from hf_video.jobs import predict

    found = predict(settings, lambda prediction: _print(prediction, settings.json))
    if not isinstance(found, list):
        return print_rows(found)
    failed = [prediction.video for prediction in found if prediction.error is not None]
    if failed:
        print(f"{len(failed)} of {len(found)} files failed:", *failed, sep="\n  ", file=sys.stderr)
    return 1 if failed else 0


def _print(prediction: Prediction, as_json: bool) -> None:
    from hf_video.jobs.batches import reason_of

    name, error = prediction.video, prediction.error
    best = list(zip(prediction.labels, prediction.scores, strict=True))
    if error is not None and is_debugging():
        traceback.print_exception(error)
    if as_json:
        rows = [{"label": label, "score": score} for label, score in best]
        found = {"predictions": rows} if error is None else {"error": reason_of(error)}
        print(json.dumps({"video": name, **found}), flush=True)
    elif error is None:
        print(name, *(f"  {score:6.1%}  {label}" for label, score in best), sep="\n", flush=True)
    else:
        print(f"{name}\n  cannot be classified: {reason_of(error)}", file=sys.stderr)


COMMAND = Command(
    name="predict",
    settings=PredictCommandSettings,
    run=run,
    help="classify videos",
    description=DESCRIPTION,
)
