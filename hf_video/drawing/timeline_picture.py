"""A picture of a timeline: frames above a row for each class, with its segments and scores."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf_video.inference.segments import Segment
from hf_video.inference.timeline import Timeline
from hf_video.texts import class_color, clock, count, font_families, one_line, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_ROWS = 24
_LEAST_ROWS = 3
# Points of a curve of scores. A point is the highest score in its time.
_NUM_POINTS = 1200
_NUM_THUMBNAILS = 12
_LONGEST_NAME = 32
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def draw_timeline(timeline: Timeline) -> "Figure":
    """
    A picture of the classes that a video shows over time: a row for each, those with a segment first, in the order in
    which they first appear, then the others by their highest score.

    Of more than 24 classes, only those with a segment have a row, at most the 24 that are seen longest, and at least
    three classes. The title says how many are left out.

    Args:
        timeline: has at least one window.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    scores, class_names, thumbnails = np.array(timeline.scores), timeline.finder.class_names, timeline.thumbnails
    segments = sorted(timeline.segments, key=lambda segment: (segment.start, segment.end))
    ranked = _classes_to_draw(segments, scores.max(axis=0))
    families = font_families()
    names = [shorten(one_line(class_names[index]) or f"class {index}", _LONGEST_NAME) for index in ranked]
    rows = {index: [segment for segment in segments if segment.class_id == index] for index in ranked}
    begin, end, curves = _curves(np.array(timeline.times), scores[:, ranked])
    height_of_pictures = 1.1 if thumbnails else 0.0
    height = 1.5 + height_of_pictures + 0.42 * len(rows)
    figure = Figure(figsize=(14, height), layout=ConstrainedLayoutEngine(h_pad=0.03, hspace=0.0))
    ratios = [height_of_pictures, 0.42 * len(rows) + 0.4] if thumbnails else [1]
    *above, axes = np.ravel(figure.subplots(len(ratios), 1, height_ratios=ratios, squeeze=False)).tolist()
    for strip in above:
        _draw_thumbnails(strip, thumbnails, begin, end)
    _draw_rows(axes, rows, curves, begin, end)
    axes.set_yticks(np.arange(len(rows)) + 0.5, names, family=families, parse_math=False)

    lines = [shorten(one_line(timeline.video), 90), _describe(segments, len(class_names), len(rows), end)]
    if timeline.ending is not None:
        lines.append(shorten(f"ends at {clock(end)}: {one_line(timeline.ending)}", 130))
        axes.axvline(end, color="tab:red", linestyle="--", linewidth=2, clip_on=False)
    figure.suptitle("\n".join(lines), fontsize=11, family=families, parse_math=False)
    return figure


def _classes_to_draw(segments: Sequence[Segment], highest: np.ndarray) -> list[int]:
    """The classes to draw, from top to bottom."""
    seconds = Counter[int]()
    for segment in segments:
        seconds[segment.class_id] += segment.end - segment.start  # type: ignore[assignment]
    kept = {index for index, _ in seconds.most_common(_MOST_ROWS)}
    shown = list(dict.fromkeys(segment.class_id for segment in segments if segment.class_id in kept))
    others = [index for index in np.argsort(-highest, kind="stable").tolist() if index not in shown]
    num_others = len(others) if len(highest) <= _MOST_ROWS else max(_LEAST_ROWS - len(shown), 0)
    return shown + others[:num_others]


def _curves(times: np.ndarray, scores: np.ndarray) -> tuple[float, float, np.ndarray]:
    """First and last second of windows, and their scores (num_points, num_classes) at even times between. A score
    holds around the middle of its window; where several share a point, it is the highest."""
    starts, ends = times.T
    middles = (starts + ends) / 2
    borders = np.concatenate([starts[:1], (middles[1:] + middles[:-1]) / 2, ends[-1:]])
    begin, end = float(borders[0]), float(borders[-1])
    points = (borders - begin) / (end - begin) * _NUM_POINTS
    firsts, lasts = np.floor(points[:-1]).astype(int), np.ceil(points[1:]).astype(int)
    curves = np.zeros((_NUM_POINTS, scores.shape[1]))
    for first, last, values in zip(firsts, lasts, scores, strict=True):
        place = slice(min(first, _NUM_POINTS - 1), last)
        curves[place] = np.maximum(curves[place], values)
    return begin, end, curves


def _draw_rows(
    axes: "Axes", rows: Mapping[int, Sequence[Segment]], curves: np.ndarray, begin: float, end: float
) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    times = np.repeat(np.linspace(begin, end, _NUM_POINTS + 1), 2)[1:-1]
    least = (end - begin) / 1000  # about a pixel
    for number, (class_id, row) in enumerate(rows.items()):
        color, floor = class_color(class_id), number + 0.94
        axes.axhspan(number + 0.06, floor, color="#f4f4f4", zorder=0)
        axes.fill_between(times, floor, floor - 0.88 * np.repeat(curves[:, number], 2), color="#b8b8b8", linewidth=0)
        if not row:
            continue
        bars = [(segment.start, max(segment.end - segment.start, least)) for segment in row]
        axes.broken_barh(bars, (number + 0.06, 0.88), facecolor=(color, 0.45), linewidth=0)
        axes.broken_barh(bars, (floor - 0.14, 0.14), facecolor=color, linewidth=0)
    step = next((step for step in _TICKS if (end - begin) / step <= 12), (end - begin) / 8)
    axes.xaxis.set_major_locator(MultipleLocator(step))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: clock(max(seconds, 0), int(step < 1))))
    axes.set(xlim=(begin, end), ylim=(len(rows), 0), xlabel="time (colour: a segment; grey: the score, from 0 to 1)")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#cccccc", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "left", "right"]].set_visible(False)


def _draw_thumbnails(axes: "Axes", thumbnails: Sequence[tuple[float, np.ndarray]], begin: float, end: float) -> None:
    """Pictures side by side over the axis of time, each where its time is."""
    axes.set(xlim=(begin, end), ylim=(0, 1))
    axes.axis("off")
    count = min(len(thumbnails), _NUM_THUMBNAILS)
    width = (end - begin) / count
    times = np.array([seconds for seconds, _ in thumbnails])
    for number in range(count):
        left = begin + number * width
        picture = thumbnails[int(np.abs(times - (left + width / 2)).argmin())][1]
        # An inset keeps the shape of a picture, whatever the axis of time is.
        inset = axes.inset_axes(((number + 0.02) / count, 0, 0.96 / count, 1))
        inset.imshow(picture)
        inset.axis("off")


def _describe(segments: Sequence[Segment], num_classes: int, num_rows: int, end: float) -> str:
    said = "no segment"
    if segments:
        num_shown = len({segment.class_id for segment in segments})
        said = f"{count(len(segments), 'segment')} of {count(num_shown, 'class', 'classes')}"
    left_out = f"; {num_classes - num_rows} of {num_classes} classes are left out" * (num_rows < num_classes)
    return f"{said} in {clock(end)}{left_out}"


def save_figure(figure: "Figure", path: str | os.PathLike) -> None:
    """Writes a picture as PNG."""
    figure.savefig(Path(path), format="png", dpi=110)
