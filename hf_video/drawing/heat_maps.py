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
from hf_video.texts import clock, font_families, one_line, replace_json, shorten

from .timeline_picture import save_figure
from .videos import enlarge, write_heat_map_video

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_COLUMNS = 8
# Inches: the shorter side of a frame, and the least width of the picture.
_FRAME_SIZE, _LEAST_WIDTH = 1.6, 7.0
_MARK = "#d62728"
# Characters.
_LONGEST_LINE = 80
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
        title: what is shown. Lines of more than 80 characters are cut.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: shapes do not agree, or a value is outside of [0, 1].
    """
    drawn = overlay_heat_maps(images, heat_maps)
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Rectangle

    shares = frame_shares(heat_maps)
    # With their neighbours of the same share.
    marked = np.isclose(shares[:, None], shares[top_frames(shares)], rtol=1e-6, atol=0).any(axis=1)
    num_frames, height, width = heat_maps.shape
    num_rows = -(-num_frames // _MOST_COLUMNS)
    num_columns = -(-num_frames // num_rows)
    inch = min(height, width) / _FRAME_SIZE
    layout = ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.06, wspace=0.0)
    page_width = max(num_columns * (width / inch + 0.1), _LEAST_WIDTH)
    figure = Figure(figsize=(page_width, num_rows * (2 * height / inch + 0.7) + 1.5), layout=layout)
    cells = figure.subplots(num_rows, num_columns, squeeze=False)
    for cell in cells.flat:
        cell.axis("off")
    for cell, share, is_marked, *pair, seconds in zip(cells.flat, shares, marked, images, drawn, times, strict=False):
        color, y = _MARK if is_marked else "#777777", 0.0
        cell.set_title(clock(seconds, 2), fontsize=8, pad=3)
        for image in pair:
            cell.imshow(image, extent=(0, width, y + height, y), interpolation="antialiased")
            y += height + 0.04 * inch
        if is_marked:
            box = Rectangle((0, y - height - 0.04 * inch), width, height, fill=False, clip_on=False)
            box.set(edgecolor=_MARK, linewidth=2.5)
            cell.add_patch(box)
        # The longest bar is as long as the frame.
        cell.barh(y + 0.08 * inch, width * share / (shares.max() or 1), 0.07 * inch, color=color)
        weight = "bold" if is_marked else "normal"
        cell.text(width / 2, y + 0.26 * inch, f"{share:.1%}", ha="center", fontsize=8, color=color, weight=weight)
        cell.set(xlim=(0, width), ylim=(y + 0.3 * inch, 0))
    over_grey = overlay_heat_maps(np.full((1, 1, 256, 3), 128, dtype=np.uint8), np.linspace(0, 1, 256)[None, None])
    colors = ScalarMappable(cmap=ListedColormap(over_grey[0, 0] / 255))
    legend = figure.colorbar(colors, ax=cells, location="bottom", shrink=2.4 / page_width, aspect=16)
    legend.set_ticks([0, 1], labels=["no evidence", "the highest"], fontsize=8)
    legend.set_label(
        "colour: evidence at a place, as a share of the highest in the clip (here over grey)\n"
        "number and bar: share of all evidence that lies on the frame; red: the frames that counted most",
        fontsize=8,
    )
    lines = (shorten(one_line(line), _LONGEST_LINE) for line in title.split("\n"))
    figure.suptitle("\n".join(lines), fontsize=10, family=font_families(), parse_math=False)
    return figure


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
