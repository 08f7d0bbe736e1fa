"""Compute the features of every video once, with a frozen model, and train a linear classifier on them: one layer on
the pooled features, batch-normalised. It is saved as a whole model, for --model of other commands.

Features are kept: the next probe of the same model, processor and videos takes seconds. After an interruption the same
command continues. The probe with the lowest validation loss is measured on the test split, or if there is none,
on the validation split.

--help-all lists every setting; each field of transformers.TrainingArguments is one.

example: hf-video probe my_videos --model MCG-NJU/videomae-base --output-dir my_probe
"""

from __future__ import annotations

from hf_video.training.task_settings import ProbeSettings

from .command import command
from .printing import broken_lines


@command(
    help="train a small classifier on the features of a frozen model",
    usage="hf-video probe DATA --model MODEL --output-dir DIR [options]",
)
def run(settings: ProbeSettings) -> int:
    """Prints the accuracy, and where probe and report are."""
    from hf_video.metrics import measured_in, tell_count
    from hf_video.training import probe

    output_dir, features_dir, metrics = probe(settings)
    metric, value = measured_in(metrics)[0]
    figure = f"{metric.title} {metric.text(value, digits=1)} on {tell_count(metrics, metrics['split'])}"
    places = [f"model    {output_dir}", f"report   {output_dir / 'report' / 'report.md'}", f"features {features_dir}"]
    print(figure, *places, *broken_lines(metrics), sep="\n")
    return 0
