"""A picture of heat maps: the frames of a clip in rows, and below each frame the same with its heat map."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_video.inference.heat_maps import frame_shares, overlay_heat_maps, top_frames

from .clock import clock
from .drawable_text import find_fonts, one_line, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_COLUMNS = 8
# Inches. The shorter side of a frame is as long as that.
_FRAME_SIZE = 1.6
_GAP = 0.08
_LINE = 0.24
_BAR = 0.07
_MARGIN = 0.25
_TITLE_LINE = 0.24
_LEAST_WIDTH = 7.0
_MARK = "#d62728"
# Characters.
_LONGEST_LINE = 90


def draw_heat_maps(images: np.ndarray, heat_maps: np.ndarray, times: Sequence[float], title: str) -> "Figure":
    """
    A picture of the frames of a clip, and below each frame the same with its heat map and its share of the evidence.
    The frames that counted most have a frame in red.

    Args:
        images: (T, H, W, 3) uint8.
        heat_maps: (T, H, W) in [0, 1], see [`overlay_heat_maps`].
        times: (T,) seconds of each frame.
        title: what is shown. Lines of more than 90 characters are cut.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: shapes do not agree, or a value is outside of [0, 1].
    """
    drawn = overlay_heat_maps(images, heat_maps)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shares = frame_shares(heat_maps)
    # With their neighbours of the same share.
    marked = np.isclose(shares[:, None], shares[top_frames(shares)], rtol=1e-6, atol=0).any(axis=1)
    num_rows = -(-len(images) // _MOST_COLUMNS)
    num_columns = -(-len(images) // num_rows)
    scale = _FRAME_SIZE / min(images.shape[1:3])
    height, width = scale * images.shape[1], scale * images.shape[2]
    step_x, step_y = width + _GAP, 2 * (height + _LINE) + _BAR + 2.5 * _GAP
    lines = title.split("\n")
    page_width = max(num_columns * step_x - _GAP + 2 * _MARGIN, _LEAST_WIDTH)
    top = 1.4 * _MARGIN + _TITLE_LINE * len(lines)
    page_height = top + num_rows * step_y + 0.75

    figure = Figure(figsize=(page_width, page_height))
    FigureCanvasAgg(figure)
    # One unit is an inch, from the upper left corner.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    _write_title(axes, lines, page_width)
    left = (page_width - num_columns * step_x + _GAP) / 2
    for number, share in enumerate(shares):
        row, column = divmod(number, num_columns)
        x, y = left + column * step_x, top + row * step_y
        axes.text(x + width / 2, y + 0.7 * _LINE, clock(times[number], 2), ha="center", fontsize=8)
        y += _LINE
        for image in (images[number], drawn[number]):
            axes.imshow(image, extent=(x, x + width, y + height, y), aspect="auto", interpolation="antialiased")
            y += height + _GAP / 2
        color = _MARK if marked[number] else "#777777"
        if marked[number]:
            _draw_box(axes, x, y - 0.5 * _GAP - height, width, height)
        # The longest bar is as long as the frame.
        axes.barh(y + _BAR / 2, width * share / (shares.max() or 1), _BAR, left=x, color=color)
        weight = "bold" if marked[number] else "normal"
        axes.text(
            x + width / 2, y + _BAR + 0.75 * _LINE, f"{share:.1%}", ha="center", fontsize=8, color=color, weight=weight
        )
    _draw_legend(axes, page_width, top + num_rows * step_y)
    axes.set(xlim=(0, page_width), ylim=(page_height, 0))
    return figure


def _write_title(axes: "Axes", lines: Sequence[str], page_width: float) -> None:
    fonts = find_fonts(lines)
    for number, line in enumerate(lines):
        size = 11 if number == 0 else 10
        drawable = "".join("?" if character in fonts.missing else character for character in one_line(line))
        text = axes.text(
            page_width / 2,
            _MARGIN + _TITLE_LINE * (number + 0.5),
            shorten(drawable, _LONGEST_LINE),
            ha="center",
            va="center",
            family=fonts.families,
            parse_math=False,
            fontsize=size,
        )
        # At the figure's own resolution, in which an inch is `dpi` pixels.
        room = (page_width - 2 * _MARGIN) * axes.figure.dpi
        text.set_fontsize(size * min(1.0, room / max(text.get_window_extent().width, 1)))


def _draw_box(axes: "Axes", x: float, y: float, width: float, height: float) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=_MARK, linewidth=2.5))


def _draw_legend(axes: "Axes", page_width: float, y: float) -> None:
    """A bar of the colours as they are on grey, from no evidence to the highest."""
    bar_width, bar_height = 2.4, 0.14
    x = (page_width - bar_width) / 2
    heat = np.linspace(0, 1, 256)[None, None]
    bar = overlay_heat_maps(np.full((1, 1, 256, 3), 128, dtype=np.uint8), heat)[0]
    axes.imshow(bar, extent=(x, x + bar_width, y + bar_height, y), aspect="auto")
    axes.text(x - 0.08, y + bar_height / 2, "no evidence", ha="right", va="center", fontsize=8)
    axes.text(x + bar_width + 0.08, y + bar_height / 2, "the highest", ha="left", va="center", fontsize=8)
    explanation = "colour: evidence at a place, as a share of the highest in the clip (here over grey)"
    axes.text(page_width / 2, y + 0.28, explanation, ha="center", va="center", fontsize=8)
    explanation = "number and bar: share of all evidence that lies on the frame; red: the frames that counted most"
    axes.text(page_width / 2, y + 0.46, explanation, ha="center", va="center", fontsize=8)
