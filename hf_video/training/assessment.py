"""Says what the result of a training is worth, and what to try next."""

from collections.abc import Mapping
from typing import Any

from hf_video.metrics import measured_in, tell_count

# A difference to the training clips, and a width of the interval, of more than this is worth a remark.
LARGE_GAP, WIDE_INTERVAL = 0.15, 0.2
# A model that knows fewer of its own training clips has not learned enough.
WELL_LEARNED = 0.9
TRAINING = "training_"


def assess(metrics: Mapping[str, Any]) -> list[str]:
    """Two or three lines: the result with chance and interval, the gap to the training clips, and what to try next.

    Args:
        metrics: what `hf_video.training.train` returns and `report/metrics.json` holds. Chance and interval are left
            out for videos of several classes, the gap where the training clips were not measured.
    """
    metric, value = measured_in(metrics)[0]
    line = f"{metric.title} {metric.text(value, 1)} on {tell_count(metrics, metrics['split'])}"
    if "chance" in metrics:
        low, high = metrics["top1_interval"]
        line += f" (chance {metrics['chance']:.1%}, 95% interval {low:.1%} to {high:.1%})"
    lines = [line]
    own = metrics.get(TRAINING + metric.name)
    if own is not None:
        gap = f"{100 * (own - value):.1f} points more" if own > value else "no more"
        lines.append(f"on clips that it was trained on {metric.text(own, 1)}, {gap}")
    return [*lines, f"next     {_next_step(metrics, value, own)}"]


def _next_step(metrics: Mapping[str, Any], value: float, own: float | None) -> str:
    low, high = metrics.get("top1_interval", (value, value))
    # Of the mean over classes, since a rare class that is recognised costs videos of the frequent one.
    if "chance" in metrics and metrics["mean_class_accuracy"] - (value - low) <= 1 / len(metrics["class_names"]):
        if own is not None and own >= WELL_LEARNED:
            return "no better than chance, but it knows its own clips by heart: more clips, or another --model"
        return "no better than chance: another --model, more --epochs, or more clips"
    if own is not None and own < WELL_LEARNED:
        return "it does not know its own clips yet: more --epochs, or a higher --learning-rate"
    if own is not None and own - value > LARGE_GAP:
        return "a large gap: more clips, another --model, or more augmentation, as --crop-min-area 0.3"
    if high - low > WIDE_INTERVAL:
        return f"{tell_count(metrics)} are few for a figure: measure on more"
    return "the clips with the highest loss, in report/worst_clips.png"
