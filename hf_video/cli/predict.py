"""Classify videos. FILE is a video file, a URL, a folder of frames, a folder with videos inside, a list of videos
(CSV, list, JSON or Parquet), or a data set.

A file that fails is reported, and listed once more at the end; the others are classified all the same. The exit code
is then 1.

With --engine, for millions of videos, each video becomes a row in Parquet files, with its classes or its error.
"""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_video.inference.inference_settings import JsonLinesSettings, PredictSettings

from .command import command
from .errors import is_debugging
from .printing import print_failed, print_rows, say

if TYPE_CHECKING:
    from hf_video.bulk import Prediction


@dataclass(kw_only=True)
class PredictCommandSettings(PredictSettings, JsonLinesSettings):
    """Settings of `hf-video predict`."""


@command(help="classify videos")
def run(settings: PredictCommandSettings) -> int:
    """Prints the most likely classes of every file."""
    if settings.json and settings.engine is not None:
        raise ValueError(f"--json has no effect with --engine {settings.engine}.")

    from hf_video.bulk import predict

    found = predict(settings, lambda prediction: _print(prediction, settings.json))
    if not isinstance(found, list):
        return print_rows(found)
    failed = [(each.video, each.error) for each in found if each.error is not None]
    return print_failed(failed, len(found))


def _print(prediction: Prediction, as_json: bool) -> None:
    name, error = prediction.video, prediction.error
    reason = str(error) or type(error).__name__
    best = list(zip(prediction.labels, prediction.scores, strict=True))
    if error is not None and is_debugging():
        traceback.print_exception(error)
    if as_json:
        rows = [{"label": label, "score": score} for label, score in best]
        found = {"predictions": rows} if error is None else {"error": reason}
        print(json.dumps({"video": name, **found}), flush=True)
    elif error is None:
        print(name, *(f"  {score:6.1%}  {label}" for label, score in best), sep="\n", flush=True)
    else:
        say(f"{name}\n  cannot be classified: {reason}")
