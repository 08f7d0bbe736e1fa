"""Heat maps drawn: on frames, as a picture of all frames, and as a video."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from hf_video.inference.explanation import Clip, frame_shares, top_frames
from hf_video.texts import clock, font_families, one_line, shorten

from .timeline_picture import save_figure
from .video import VideoEncoder, enlarge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOR_MAP = "plasma"
# Share of the colour at the highest evidence; the rest is the frame. The exponent makes half of it well seen.
_OPACITY, _EXPONENT = 0.85, 0.75
_MOST_COLUMNS = 8
# Inches: the shorter side of a frame, and the least width of the picture.
_FRAME_SIZE, _LEAST_WIDTH = 1.6, 7.0
_MARK = "#d62728"
# Characters.
_LONGEST_LINE = 80


def overlay_heat_maps(images: np.ndarray, heat_maps: np.ndarray) -> np.ndarray:
    """
    Frames with heat maps on them. The colours are matplotlib's "plasma", in which equal steps look equal, from blue to
    yellow; they cover a frame the more, the higher the evidence.

    Args:
        images: (T, H, W, 3) uint8.
        heat_maps: (T, H, W) in [0, 1].

    Returns:
        (T, H, W, 3) uint8.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: shapes do not agree, or a value is outside of [0, 1].
    """
    heat_maps = np.asarray(heat_maps, dtype=np.float32)
    if images.shape != (*heat_maps.shape, 3) or not (heat_maps.min() >= 0 and heat_maps.max() <= 1):
        raise ValueError(
            f"Heat maps of the shape {heat_maps.shape} with values from {heat_maps.min():g} to {heat_maps.max():g} do "
            f"not fit images of the shape {images.shape}: the same T, H and W, and values in [0, 1] are expected."
        )
    from matplotlib import colormaps

    colors = (colormaps[_COLOR_MAP](np.arange(256))[:, :3] * 255).astype(np.float32)
    mixed = np.empty(images.shape, dtype=np.uint8)
    # A frame at a time: as numbers, a long clip would need many times the memory of its pixels.
    for image, heat, result in zip(images, heat_maps, mixed, strict=True):
        opacity = _OPACITY * heat[..., None] ** _EXPONENT
        result[:] = np.rint((1 - opacity) * image + opacity * colors[np.rint(heat * 255).astype(np.uint8)])
    return mixed


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


def write_heat_map_video(
    path: str | os.PathLike, images: np.ndarray, heat_maps: np.ndarray, times: Sequence[float], end: float
) -> None:
    """
    Writes an MP4 of frames with heat maps on them, for players and browsers. It begins with the first frame. Each
    frame is shown until the time of the next one. Frames of less than 240 rows are enlarged.

    Args:
        path: the file to write.
        images: (T, H, W, 3) uint8.
        heat_maps: (T, H, W) in [0, 1], see [`overlay_heat_maps`].
        times: (T,) seconds in rising order.
        end: seconds until which the last frame is shown.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
        ValueError: shapes do not agree, or a value is outside of [0, 1].
    """
    drawn = overlay_heat_maps(images, heat_maps)
    with VideoEncoder(path) as encoder:
        for image, seconds in zip(drawn, times, strict=True):
            encoder.add(enlarge(image), seconds - times[0])
        encoder.finish(end - times[0])


def write_heat_maps(folder: Path, clip: Clip, heat_map: np.ndarray, title: str) -> None:
    """Writes `heat_maps.png`, `heat_maps.mp4`, and `top_frames/` with a picture of each frame that counted most, the
    first one most, into a folder that exists."""
    save_figure(draw_heat_maps(clip.images, heat_map, clip.times.tolist(), title), folder / "heat_maps.png")
    write_heat_map_video(folder / "heat_maps.mp4", clip.images, heat_map, clip.times.tolist(), clip.end)
    (folder / "top_frames").mkdir()
    drawn = overlay_heat_maps(clip.images, heat_map)
    for place, frame in enumerate(top_frames(frame_shares(heat_map)), start=1):
        path = folder / "top_frames" / f"{place}_at_{clip.times[frame]:.2f}s.png"
        Image.fromarray(enlarge(drawn[frame])).save(path)
