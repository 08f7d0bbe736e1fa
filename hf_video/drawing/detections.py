"""A copy of a video with the persons at its key frames drawn on it: boxes, tracks, and actions with their scores."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_video.inference.detection import KeyFrame, Person
from hf_video.reading.frame_streaming import stream_frames
from hf_video.texts import class_color, clock, font_families, one_line, shorten

from .videos import VideoEncoder, enlarge

# Seconds before and after a key frame at which its persons are shown: a box says nothing of other times.
_LONGEST_SHOWN = 0.5
_MOST_ACTIONS = 4
_LONGEST_NAME = 40


def annotate_detections(
    source: Any, target: str | os.PathLike, key_frames: Sequence[KeyFrame], *, source_fps: float | None = None
) -> None:
    """
    Writes an MP4 of a video with the persons that were found in it. What was found at a key frame is shown for half a
    second before and after it, or up to half way to the next one. Frames keep their times; frames of less than 240
    rows are enlarged. There is no sound.

    Args:
        source: the video, what `stream_frames` takes.
        target: the file to write.
        key_frames: what `detect_actions` gives, in the order of their times.
        source_fps: the rate of a folder of frames.

    Raises:
        ImportError: matplotlib, which draws the texts, is not installed.
        VideoReadError: the video is damaged.
        OSError: `target` cannot be written.
    """
    seconds = np.array([frame.second for frame in key_frames])
    steps = np.diff(seconds, prepend=-np.inf, append=np.inf) / 2
    starts = seconds - steps[:-1].clip(max=_LONGEST_SHOWN)
    ends = seconds + steps[1:].clip(max=_LONGEST_SHOWN)
    drawn: tuple[Any, np.ndarray] | None = None
    end: float | None = None
    with VideoEncoder(target) as encoder:
        for frame in stream_frames(source, source_fps=source_fps):
            raw = frame.image
            image = enlarge(raw)
            (shown,) = np.nonzero((starts <= frame.seconds) & (frame.seconds < ends))
            if len(shown):
                key = int(shown[0]), image.shape
                if drawn is None or drawn[0] != key:
                    drawn = key, _draw(key_frames[key[0]], image.shape, len(image) / len(raw))
                colors, opacity = drawn[1][..., :3], drawn[1][..., 3:]
                image = np.rint((1 - opacity) * image + 255 * opacity * colors).astype(np.uint8)
            encoder.add(image, frame.seconds)
            end = frame.seconds + frame.duration if frame.duration else None
        encoder.finish(end)


def _draw(found: KeyFrame, shape: tuple[int, ...], factor: float) -> np.ndarray:
    """Boxes and texts of a key frame for images that are enlarged by a factor: (height, width, 4), colours and opacity
    from 0 to 1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    height, width = shape[:2]
    # A pixel is a point, and y points down.
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    canvas = FigureCanvasAgg(figure)
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    size = float(np.clip(height / 24, 10, 40))
    style: dict[str, Any] = {"family": font_families(), "parse_math": False, "va": "top", "color": "white"}
    style |= {"fontsize": size, "linespacing": 1.1, "zorder": 3}
    axes.text(size / 2, height - 2 * size, clock(found.second, 1), bbox={"color": "black", "alpha": 0.6}, **style)
    for person in found.persons:
        color = class_color(person.track)
        left, top, right, bottom = (factor * value for value in person.box)
        outline: dict[str, Any] = {"fill": False, "zorder": 2}
        for edge, thickness in (("white", size / 2), (color, size / 3)):
            axes.add_patch(
                Rectangle((left, top), right - left, bottom - top, edgecolor=edge, linewidth=thickness, **outline)
            )
        text = axes.text(left, top, _label(person), bbox={"color": color, "pad": size / 6}, **style)
        extent = text.get_window_extent(canvas.get_renderer())
        # Above the box if there is room, or else below, and inside of the frame.
        above, below = top - extent.height - size / 3, bottom + size / 3
        row = above if above >= 0 else min(below, height - extent.height)
        text.set_position((max(min(left, width - extent.width - size / 6), size / 6), max(row, 0)))
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), dtype=np.float32) / 255


def _label(person: Person) -> str:
    """The track and score of a person, and its actions, a line each."""
    names = [(shorten(one_line(name), _LONGEST_NAME), score) for name, score in person.actions.items()]
    lines = [f"{name} {score:.0%}" for name, score in names[:_MOST_ACTIONS]]
    more = [f"and {len(names) - _MOST_ACTIONS} more"] if len(names) > _MOST_ACTIONS else []
    return "\n".join([f"#{person.track} {person.score:.0%}", *lines, *more])
