"""The folder of an explanation: heat maps as a picture and a video, the frames that counted most, and all of it as
JSON."""

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

import hf_video
from hf_video.files import replace_text
from hf_video.inference.clip_reading import Clip
from hf_video.inference.heat_maps import frame_shares, overlay_heat_maps, top_frames

from .drawable_text import find_fonts, one_line, shorten
from .heat_map_picture import draw_heat_maps
from .heat_map_video import write_heat_map_video
from .timeline_picture import save_figure
from .video_encoding import enlarge

# Characters of a class name in the title.
_LONGEST_NAME = 60


def describe_frames(clip: Clip, heat_map: np.ndarray) -> list[dict[str, Any]]:
    """
    What a heat map says of each frame: its time in `seconds`, its `share` of the evidence, and its `highest` place,
    column and row in pixels of the video; None where there is no evidence.

    Args:
        clip: the clip.
        heat_map: (T, H, W) in [0, 1].
    """
    entries = []
    for seconds, share, heat in zip(clip.times, frame_shares(heat_map), heat_map, strict=True):
        column, row = clip.places[np.unravel_index(heat.argmax(), heat.shape)].tolist()
        highest = [round(column, 1), round(row, 1)] if share else None
        entries.append({"seconds": round(float(seconds), 3), "share": round(float(share), 6), "highest": highest})
    return entries


def write_heat_maps(folder: Path, clip: Clip, heat_map: np.ndarray, details: dict[str, Any]) -> None:
    """
    Writes `heat_maps.png`, `heat_maps.mp4`, and `top_frames/` with a picture of each frame that counted most, the
    first one most. Frames of less than 240 rows are enlarged.

    Args:
        folder: a folder that exists.
        clip: the clip.
        heat_map: (T, H, W) in [0, 1].
        details: what was explained: `video`, `label`, `class_id` and `score`.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: writing failed.
    """
    fonts = find_fonts([details["video"], details["label"]])
    name = shorten(fonts.shown(details["label"], f"class {details['class_id']}"), _LONGEST_NAME)
    title = f"{one_line(details['video'])}\nwhat speaks for {name} ({details['score']:.1%})"
    save_figure(draw_heat_maps(clip.images, heat_map, clip.times.tolist(), title), folder / "heat_maps.png")
    write_heat_map_video(folder / "heat_maps.mp4", clip.images, heat_map, clip.times.tolist(), clip.end)
    (folder / "top_frames").mkdir()
    drawn = overlay_heat_maps(clip.images, heat_map)
    for place, frame in enumerate(top_frames(frame_shares(heat_map)), start=1):
        path = folder / "top_frames" / f"{place}_at_{clip.times[frame]:.2f}s.png"
        Image.fromarray(enlarge(drawn[frame])).save(path)


def write_explanation(folder: Path, clip: Clip, details: dict[str, Any]) -> None:
    """
    Writes `explanation.json`: the details, the sizes of clip and video, and versions.

    Args:
        folder: a folder that exists.
        clip: the clip.
        details: what there is to say.
    """
    height, width = clip.images.shape[1:3]
    sizes = {"end": round(clip.end, 3), "image_size": [height, width], "video_size": list(clip.video_size)}
    libraries = {"torch": torch.__version__, "transformers": transformers.__version__}
    versions = {"python": platform.python_version(), "hf_video": hf_video.__version__} | libraries
    text = json.dumps(details | sizes | {"versions": versions}, indent=2, ensure_ascii=False) + "\n"
    # A file name may have bytes that are no UTF-8. Python's escapes for them are those of JSON.
    replace_text(folder / "explanation.json", text.encode("utf-8", "backslashreplace").decode("utf-8"))
