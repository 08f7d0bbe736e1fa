"""Writes the frames that a model saw as a video, with heat maps on them."""

import os
from collections.abc import Sequence

import numpy as np

from hf_video.inference.heat_maps import overlay_heat_maps

from .video_encoding import encode_video, enlarge


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
    with encode_video(path) as encoder:
        for image, seconds in zip(drawn, times, strict=True):
            encoder.add(enlarge(image), seconds - times[0])
        encoder.finish(end - times[0])
