"""`hf-video evaluate-segments`: measures predicted segments of untrimmed videos against annotated ones."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from hf_video.output_folders import check_output_file
from hf_video.settings import Settings, setting

from .command import Command


@dataclass(kw_only=True)
class EvaluateSegmentsSettings(Settings):
    """Data and output"""

    predictions: str = setting(
        help="JSON in ActivityNet's layout, as `hf-video timeline` writes it.", metavar="PREDICTIONS", form="word"
    )
    ground_truth: str = setting(
        help="JSON in the layout of ActivityNet's annotations.", metavar="GROUND_TRUTH", form="word"
    )
    tiou: list[float] = setting([0.3, 0.4, 0.5, 0.6, 0.7], "Thresholds of temporal IoU.", "X", form="several")
    subset: str | None = setting(None, "Subset of the ground truth to measure on; by default all videos.", "NAME")
    json: bool = setting(False, "Print one JSON object.")
    output: str | None = setting(None, "Also write the JSON object to FILE, which must not exist.", "FILE")


def run(settings: EvaluateSegmentsSettings) -> int:
    """Prints the figures, and writes the file that the option names. What was left out, or counts as wrong, is said
    on stderr."""
    from hf_video.inference import evaluate_segments, read_ground_truth, read_predictions
    from hf_video.inference.segment_evaluation import TIOUS
    from hf_video.io import replace_text

    output = check_output_file("output", settings.output)
    predictions = read_predictions(settings.predictions)
    result = evaluate_segments(
        predictions, read_ground_truth(settings.ground_truth, settings.subset), settings.tiou or TIOUS
    )
    try:
        if output is not None:
            replace_text(output, json.dumps(result, indent=2) + "\n")
    finally:  # after a full disk the figures are still printed
        for warning in result["warnings"]:
            print(f"warning: {warning}", file=sys.stderr)
        print(json.dumps(result) if settings.json else _describe(result))
    return 0


def _describe(result: dict[str, Any]) -> str:
    # A name of several lines would break the table.
    names = [" ".join(label.split()) for label in result["classes"]]
    width = max(map(len, ["median border error", *names]))
    head = f"{'temporal IoU':{width}}" + "".join(f"  {tiou:7.2f}" for tiou in result["tious"])
    shares = {"average precision": "mean_average_precision", "precision": "precision", "recall": "recall", "F1": "f1"}
    borders = {"median border error": "median_border_error", "90% of them below": "p90_border_error"}
    lines = [
        f"{result['num_segments']} segments of {len(result['classes'])} classes in {result['num_videos']} videos, "
        f"{result['num_predictions']} predictions",
        "",
        f"{head}     mean",
    ]
    lines += [f"{title:{width}}{_percents(result[key])}" for title, key in shares.items()]
    lines[3] += f"  {result['average_map']:7.1%}"
    for title, key in borders.items():
        cells = ("-" if value is None else f"{value:.2f} s" for value in result[key])
        lines.append(f"{title:{width}}" + "".join(f"  {cell:>7}" for cell in cells))
    lines += ["", f"{'average precision':{width}}" + head[width:] + "  segments"]
    lines += [
        f"{label:{width}}{_percents(each['average_precision'])}  {each['num_segments']:8d}"
        for label, each in zip(names, result["classes"].values(), strict=True)
    ]
    return "\n".join(lines)


def _percents(values: list[float]) -> str:
    return "".join(f"  {value:7.1%}" for value in values)


COMMAND = Command(
    name="evaluate-segments",
    settings=EvaluateSegmentsSettings,
    run=run,
    help="measure predicted segments of untrimmed videos: average precision at temporal IoUs",
    description="Measure predicted segments against annotated ones: average precision at thresholds of temporal "
    "IoU, as ActivityNet defines it, and precision, recall, F1 and border errors of all predictions.",
)
