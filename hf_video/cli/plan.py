"""Say what more labels would bring, before they are made, and which labels to look at again.

The features of every clip are computed once, with a frozen model. A small classifier on them learns from growing parts
of the clips and is measured on the others, those of other videos where there are enough. What it would reach with more
clips is foretold with a band of 80 %, if the new clips are like those of DATA. A training of the whole model mostly
reaches more than the small classifier.

A label is doubted if the small classifier, whenever it learns from other clips, takes the clip for one other class.
Where the features do not tell the classes apart, this is said, and no label is doubted.

example: hf-video plan my_videos --more 30
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hf_video.texts import count
from hf_video.training.task_settings import PlanSettings

from .command import command
from .printing import broken_lines

# Doubted labels that are printed.
_SHOWN = 20
# The share of doubted clips above which most of them are no wrong labels.
_MANY = 0.15


@command(help="foretell what more labels would bring, and find labels to look at again")
def run(settings: PlanSettings) -> int:
    """Prints the curve, the forecast for each class, and the doubted labels."""
    from hf_video.training import plan

    result = plan(settings)
    print(json.dumps(result) if settings.json else "\n".join([*_lines(result), *broken_lines(result)]))
    return 0


def _lines(result: Mapping[str, Any]) -> list[str]:
    from hf_video.evaluation.classes import tell_known
    from hf_video.loading.released import told_name

    more, classes, doubts = result["more"], result["classes"], result["doubts"]
    others = "other videos" if result["by_video"] else "other clips, perhaps of the same videos,"
    lines = [
        f"{count(result['num_clips'], 'clip')} of {count(len(classes), 'class', 'classes')}",
        f"Accuracy of a small classifier on the features of {told_name(result['model'])}, measured on {others} than "
        "it learned from (80 % bands in brackets):",
        *tell_known(result),
    ]
    most = max(each["clips"] for each in classes.values()) / result["num_clips"]
    lines.append(f"{'chance':22} {most:6.1%} (always guessing the most frequent class)")
    lines += [f"{each['clips_a_class']:6.0f} clips a class   {_share(each['accuracy'])}" for each in result["curve"]]
    lines.append(f"with all of them       {_share(result['now'])}; a training of the whole model mostly reaches more")
    lines.append(f"{count(more, 'more clip')} of each class would bring {_gain(result['gain'])}")
    width = max(map(len, classes))
    for name, each in classes.items():
        lines.append(f"  {name:{width}}  {each['clips']:4} clips   {_share(each['now'])}  {_gain(each['gain'])}")
    if result["is_chance"]:
        lines.append(
            f"The features do not tell these classes apart: by chance, {1 / len(classes):.0%} of each class are "
            "right. Nothing follows for your clips or labels; try another --model, such as one trained on these clips."
        )
    if doubts:
        rest = "look at it" if len(doubts) == 1 else "the most doubtful first; look at these"
        lines.append(f"{count(len(doubts), 'label')} in doubt{';' if len(doubts) == 1 else ','} {rest}:")
    if len(doubts) > _MANY * result["num_clips"]:
        lines.append(
            "  These are too many to be wrong labels alone: the clips may share something else, such as light or "
            "place, or the features may not show the difference. `hf-video evaluate --split train --predictions "
            "FILE.csv` with a trained model lists what that takes for another class."
        )
    for each in doubts[:_SHOWN]:
        end = "its end" if each["end"] is None else f"{each['end']:g} s"
        span = "" if each["start"] is each["end"] is None else f" ({each['start'] or 0:g} s to {end})"
        lines.append(f"  {each['video']}{span} is {each['label']!r}, and always taken for {each['taken_for']!r}")
    return [*lines, f"  and {len(doubts) - _SHOWN} more, which --json lists"] if len(doubts) > _SHOWN else lines


def _share(band: Sequence[float]) -> str:
    low, middle, high = band
    return f"{middle:6.1%} ({low:.1%} to {high:.1%})"


def _gain(band: Sequence[float]) -> str:
    low, middle, high = band
    return f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"
