"""Classify videos. VIDEO is a file, a URL, a folder of frames, a folder with videos inside, a list of videos
(CSV, list, JSON or Parquet), or a data set.

A file that fails is reported, and listed once more at the end; the others are classified all the same. The exit code
is then 1.

With --engine, for millions of videos, each video becomes a row in Parquet files, with its classes or its error.
"""

from __future__ import annotations

import csv
import json
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_video.inference.inference_settings import JsonLinesSettings, PredictSettings
from hf_video.io import replacing_file
from hf_video.output_folders import check_output_file
from hf_video.settings import setting

from .command import command
from .errors import is_debugging
from .printing import print_failed, print_rows, say, tell_failed

if TYPE_CHECKING:
    from hf_video.bulk import Prediction


@dataclass(kw_only=True)
class PredictCommandSettings(PredictSettings, JsonLinesSettings):
    """Settings of `hf-video predict`."""

    output: str | None = setting(
        None,
        "Also write FILE.csv: path, label and score of the best class. With --engine: folder for the table; new, "
        "empty, or one that this command began. A path or URL.",
        "FILE_OR_DIR",
    )


@command(help="classify videos")
def run(settings: PredictCommandSettings) -> int:
    """Prints the most likely classes of every file."""
    if settings.json and settings.engine is not None:
        raise ValueError(f"--json has no effect with --engine {settings.engine}.")

    if settings.engine is not None and str(settings.output).lower().endswith(".csv"):
        raise ValueError(f"--output {settings.output}: with --engine it is a folder. Leave .csv out, or --engine.")
    table = None if settings.engine else check_output_file("output", settings.output)
    if table is not None and table.suffix.lower() != ".csv":
        raise ValueError(f"--output {table}: a name that ends in .csv is expected, or --engine for a folder.")

    from hf_video.bulk import predict

    found = predict(settings, lambda prediction: _print(prediction, settings.json))
    if not isinstance(found, list):
        return print_rows(found)
    if table is not None:
        rows = [(each.video, each.labels[0], each.scores[0]) for each in found if each.error is None]
        with replacing_file(table) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("path", "label", "score"), *rows])
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
        form = "8.4g" if prediction.are_values else "6.1%"
        print(name, *(f"  {score:{form}}  {label}" for label, score in best), sep="\n", flush=True)
    else:
        say(tell_failed(name, reason))
