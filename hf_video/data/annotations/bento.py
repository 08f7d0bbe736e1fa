"""Annotations of Bento and MARS (`.annot`).

Bouts are frame numbers from 1, or these divided by the rate, told apart by a point in the numbers alone. The last
frame belongs to the bout: frame f is the time from (f - 1) / rate to f / rate.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_video.io import replace_text

from .table import Table, What

_CHANNEL = re.compile(r"(.*?)-{4,}\s*$")
_BOUT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s+(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(\s|$)")


def read(table: Table) -> None:
    """Fills the table with the bouts of all channels."""
    lines = table.text.splitlines()
    head = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    fps = float(head.get("annotation framerate") or 0)
    movies = re.findall(r"\S.*?\.\w{2,5}(?=[\s,;]|$)", head.get("movie file(s)", ""))
    media = [table.medium(movie.strip(" ,;"), "", fps or None) for movie in movies]
    medium = next((each for each in media if each is not None), None)
    for other in media:
        if medium is not None and other is not None and other is not medium:
            table.report("other_view", media=other.name, of=medium.name, offset=0.0)
    table.found.classes = dict.fromkeys(_listed(lines, "list of annotations:"), "state")
    if not movies:
        table.report("no_media", source=table.file.name)
    if medium is None:
        return
    in_seconds, fps = is_in_seconds(lines), fps or medium.fps
    first, last = (head.get(f"annotation {name} frame") for name in ("start", "stop"))
    if first and last:
        table.observe(medium, _time(medium, float(first) - 1), _time(medium, float(last)))
    for channel, label, start, stop in _bouts(lines):
        if not table.is_read(channel, re.fullmatch(r"model\d*", channel) is not None):
            continue
        table.found.classes.setdefault(label, "state")
        frames = [round(float(each) * fps) if in_seconds else round(float(each)) for each in (start, stop)]
        table.add(medium, What(channel, "", label, {}), _time(medium, frames[0] - 1), _time(medium, frames[1]))


def _time(medium: Any, frames: float) -> float:
    """When so many frames of a video are over, also behind its end."""
    count = len(medium.times) - 1
    return float(medium.times[int(frames)]) if 0 <= frames <= count else frames / medium.fps


def is_in_seconds(lines: Sequence[str]) -> bool:
    """Whether bouts are in seconds."""
    return any("." in start + stop for _, _, start, stop in _bouts(lines))


def _bouts(lines: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """Channel, class, start and stop of each bout."""
    channel = label = None
    for line in lines:
        if found := _CHANNEL.match(line):
            channel, label = found[1].strip(), None
        elif line.startswith(">"):
            label = line[1:].strip()
        elif channel is not None and label is not None and (bout := _BOUT.match(line)):
            yield channel, label, bout[1], bout[2]


def _listed(lines: Sequence[str], title: str) -> list[str]:
    """The lines below a title, up to an empty one."""
    below = [line.strip() for line in lines]
    start = next((place + 1 for place, line in enumerate(below) if line.lower() == title), len(below))
    end = next((place for place in range(start, len(below)) if not below[place]), len(below))
    return below[start:end]


def write(table: Table, predictions: Mapping[str, Sequence[Mapping[str, Any]]], output: Path) -> None:
    """Writes the file with a further channel, of the model's segments."""
    lines = table.text.splitlines()
    (name, found), *others = predictions.items()
    if others:
        raise ValueError(f"{table.file} is of one moment, and the segments are of {', '.join(predictions)}.")
    fps, in_seconds = table.media[name].fps, is_in_seconds(lines)
    rate = re.search(r"annotation framerate:\s*([\d.]+)", table.text, re.IGNORECASE)
    written = float(rate[1]) if rate else fps
    channels, classes = _listed(lines, "list of channels:"), _listed(lines, "list of annotations:")
    new, count = "model", 2
    while new in channels:
        new, count = f"model{count}", count + 1
    section = [f"{new}----------"]
    header = next((line for line in lines if line.startswith("Start")), "Start\tStop\tDuration")
    labels = [*dict.fromkeys(each["class"] for each in found)]
    for label in labels:
        section += [f">{label}", header]
        for each in sorted(found, key=lambda each: each["start"]):
            first, last = (math.ceil(each[end] * fps - 1e-6) for end in ("start", "end"))
            values = (first + 1, last, max(last - first, 0) if in_seconds else max(last - first - 1, 0))
            if each["class"] == label and last > first:
                section.append("\t".join(f"{value / written:.12g}" if in_seconds else str(value) for value in values))
        section.append("")
    for title, old, added in (
        ("list of annotations:", classes, [each for each in labels if each not in classes]),
        ("list of channels:", channels, [new]),
    ):
        place = next(place for place, line in enumerate(lines) if line.strip().lower() == title) + len(old) + 1
        lines[place:place] = added
    end = max((place for place, line in enumerate(lines) if line.strip()), default=0) + 1
    replace_text(output, "\n".join([*lines[:end], "", *section, *lines[end:], ""]))
