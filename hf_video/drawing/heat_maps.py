"""Heat maps drawn: a picture of all frames, the frames that counted most, and the folder of an explanation."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from PIL import Image

import hf_video
from hf_video.inference.explanation import Clip, frame_shares, overlay_heat_maps, top_frames

from .texts import clock, font_families, one_line, replace_json, shorten
from .timeline_picture import save_figure
from .videos import enlarge, write_heat_map_video

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
# Characters of a class name in the title.
_LONGEST_NAME = 60


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
    families = font_families()
    for number, line in enumerate(lines):
        size = 11 if number == 0 else 10
        text = axes.text(
            page_width / 2,
            _MARGIN + _TITLE_LINE * (number + 0.5),
            shorten(one_line(line), _LONGEST_LINE),
            ha="center",
            va="center",
            family=families,
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


def describe_frames(clip: Clip, heat_map: np.ndarray) -> list[dict[str, Any]]:
    """What a heat map (T, H, W) in [0, 1] says of each frame: its time in `seconds`, its `share` of the evidence, and
    its `highest` place, column and row in pixels of the video; None where there is no evidence."""
    entries = []
    for seconds, share, heat in zip(clip.times, frame_shares(heat_map), heat_map, strict=True):
        column, row = clip.places[np.unravel_index(heat.argmax(), heat.shape)].tolist()
        highest = [round(column, 1), round(row, 1)] if share else None
        entries.append({"seconds": round(float(seconds), 3), "share": round(float(share), 6), "highest": highest})
    return entries


def write_heat_maps(folder: Path, clip: Clip, heat_map: np.ndarray, details: dict[str, Any]) -> None:
    """Writes `heat_maps.png`, `heat_maps.mp4`, and `top_frames/` with a picture of each frame that counted most, the
    first one most, into a folder that exists. The details are `video`, `label`, `class_id` and `score` of what was
    explained."""
    name = shorten(one_line(details["label"]) or f"class {details['class_id']}", _LONGEST_NAME)
    title = f"{one_line(details['video'])}\nwhat speaks for {name} ({details['score']:.1%})"
    save_figure(draw_heat_maps(clip.images, heat_map, clip.times.tolist(), title), folder / "heat_maps.png")
    write_heat_map_video(folder / "heat_maps.mp4", clip.images, heat_map, clip.times.tolist(), clip.end)
    (folder / "top_frames").mkdir()
    drawn = overlay_heat_maps(clip.images, heat_map)
    for place, frame in enumerate(top_frames(frame_shares(heat_map)), start=1):
        path = folder / "top_frames" / f"{place}_at_{clip.times[frame]:.2f}s.png"
        Image.fromarray(enlarge(drawn[frame])).save(path)


def write_explanation(folder: Path, clip: Clip, details: dict[str, Any]) -> None:
    """Writes `explanation.json` into a folder that exists: the details, the sizes of clip and video, and versions."""
    height, width = clip.images.shape[1:3]
    sizes = {"end": round(clip.end, 3), "image_size": [height, width], "video_size": list(clip.video_size)}
    libraries = {"torch": torch.__version__, "transformers": transformers.__version__}
    versions = {"python": platform.python_version(), "hf_video": hf_video.__version__} | libraries
    replace_json(folder / "explanation.json", details | sizes | {"versions": versions})
