"""Measure top-1 and top-5 accuracy, or mean average precision if a video may have several classes. Probabilities
are averaged over the views of a video.

With --task retrieval, DATA are videos with `caption`, a text or a list, in a JSON file as those of MSRVTT and DiDeMo,
or as for `hf-video train --task retrieval`: R@1, R@5 and R@10 of search among videos by text, and among texts by
video. With --task detection, DATA are persons at key frames, as for `hf-video train --task detection`, or a file of
detections with --ground-truth: mean average precision at IoU 0.5. With --task frames, DATA are segments of long
videos, as for `hf-video train --task frames`: the share of right frames, edit score and F1 of segments as MS-TCN
measures them. With --task segments, DATA are predicted segments of untrimmed videos, in ActivityNet's layout or as a
table, both of which `hf-video timeline` writes; --ground-truth has the annotated ones, and may be a list of times or
an annotation file: average precision at thresholds of temporal IoU, as ActivityNet defines it, and precision, recall,
F1 and border errors of all predictions.

With --against, DATA and FILE are the annotations of two persons, which are compared. This, and --task frames and
segments, prints how far both sides agree: Cohen's kappa by frames and by bins of 1 s, F1 of segments, and the bouts,
seconds and first bout of each side.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_video.inference.inference_settings import EvaluateSettings, JsonResultSettings
from hf_video.output_folders import check_output_file

from .command import command
from .printing import print_result


@dataclass(kw_only=True)
class EvaluateCommandSettings(EvaluateSettings, JsonResultSettings):
    """Settings of `hf-video evaluate`."""


@command(help="measure a trained model on labelled or captioned videos, or detected actions or segments")
def run(settings: EvaluateCommandSettings) -> int:
    """Prints the metrics, and writes the files that the options name."""
    from hf_video.training.task import evaluate, find_task

    names = ("output", "predictions", "detections")
    output, *tables = (check_output_file(name, getattr(settings, name)) for name in names)
    for name, table in zip(names[1:], tables, strict=True):
        if output is not None and table is not None and output.resolve() == table.resolve():
            raise ValueError(f"--output and --{name} are both {output}. Give each its own file.")

    evaluate(settings, lambda result: print_result(settings, result, find_task(settings.task).load("show")))
    return 0
