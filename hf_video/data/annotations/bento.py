"""Annotations of Bento and MARS (`.annot`).

Bouts are frame numbers from 1, or these divided by the rate, told apart by a point in the numbers alone. The last
frame belongs to the bout: frame f is the time from (f - 1) / rate to f / rate.
"""

import math
import re
from collections.abc import Iterator, Sequence

from .table import Found, Medium, Table, new_name, row_of

_CHANNEL = re.compile(r"(.*?)-{4,}\s*$")
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_BOUT = re.compile(rf"\s*{_NUMBER}\s+{_NUMBER}(\s|$)")


def read(table: Table) -> None:
    """Fills the table with the bouts of all channels."""
    lines = table.text.splitlines()
    head = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    fps = float(head.get("annotation framerate") or 0)
    movies = re.findall(r"\S.*?\.\w{2,5}(?=[\s,;]|$)", head.get("movie file(s)", ""))
    media = [each for movie in movies if (each := table.medium(movie.strip(" ,;"), "", fps or None)) is not None]
    table.found.classes = dict.fromkeys(_listed(lines, "list of annotations:"), "state")
    if not movies:
        table.report("no_media", source=table.file.name)
    if not media:
        return
    medium, fps = media[0], fps or media[0].fps
    for other in media[1:]:
        table.other_view(other, medium, 0.0)
    first, last = (head.get(f"annotation {name} frame") for name in ("start", "stop"))
    if first and last:
        table.observe(medium, "", _time(medium, float(first) - 1), _time(medium, float(last)))
    scale = fps if _is_in_seconds(lines) else 1.0
    for channel, label, *times in _bouts(lines):
        if table.is_read(channel, re.fullmatch(r"model\d*", channel) is not None):
            table.found.classes.setdefault(label, "state")
            start, stop = (round(float(each) * scale) for each in times)
            table.add(medium, row_of(channel, label), _time(medium, start - 1), _time(medium, stop))


def _time(medium: Medium, frames: float) -> float:
    """When so many frames of a video are over, also behind its end."""
    return float(medium.times[int(frames)]) if 0 <= frames < len(medium.times) else frames / medium.fps


def _is_in_seconds(lines: Sequence[str]) -> bool:
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
    return below[start : [*below, ""].index("", start)]


def render(table: Table, predictions: Found) -> str:
    """The file with a further channel, of the model's segments."""
    lines = table.text.splitlines()
    (name, found), *others = predictions.items()
    if others:
        raise ValueError(f"{table.file} is of one moment, and the segments are of {', '.join(predictions)}.")
    fps, in_seconds = table.media[name].fps, _is_in_seconds(lines)
    rate = re.search(r"annotation framerate:\s*([\d.]+)", table.text, re.IGNORECASE)
    written = float(rate[1]) if rate else fps
    listed = {title: _listed(lines, title) for title in ("list of annotations:", "list of channels:")}
    new = new_name("model", listed["list of channels:"], "{}{}")
    labels = [*dict.fromkeys(each["class"] for each in found)]
    section = ["", f"{new}----------"]
    for label in labels:
        section += [f">{label}", next((line for line in lines if line.startswith("Start")), "Start\tStop\tDuration")]
        for each in sorted(found, key=lambda each: each["start"]):
            first, last = (math.ceil(each[end] * fps - 1e-6) for end in ("start", "end"))
            values = (first + 1, last, last - first if in_seconds else last - first - 1)
            if each["class"] == label and last > first:
                section.append("\t".join(f"{value / written:.12g}" if in_seconds else str(value) for value in values))
        section.append("")
    for (title, old), added in zip(listed.items(), (labels, [new]), strict=True):
        place = next(place for place, line in enumerate(lines) if line.strip().lower() == title) + len(old) + 1
        lines[place:place] = [each for each in added if each not in old]
    return "\n".join([*lines, *section, ""])
