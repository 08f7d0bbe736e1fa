"""Reads clips around key frames, by the times of a video of any rate."""

import math

import numpy as np

from hf_video.processing import VideoDetectionProcessor
from hf_video.reading import VideoReader, VideoReadError
from hf_video.reading.video import VideoSource


def read_key_frame_clip(video: VideoSource, second: float, processor: VideoDetectionProcessor) -> np.ndarray:
    """Read the clip around a key frame.

    Args:
        video: As for `read_video`. The frames of a folder count as `processor.fps` a second.
        second: The time of the key frame, after the first frame of the video.
        processor: Says how many frames a clip has, and how far they lie apart.

    Returns:
        (num_frames, height, width, 3) uint8 RGB. A clip that begins before the video repeats its first frame, and one
        that ends after it, its last.

    Raises:
        VideoReadError: If the video cannot be read, or shows nothing at `second`.
    """
    with VideoReader(video) as reader:
        end = len(reader) / processor.fps if math.isnan(reader.end) else reader.end
        if not 0 <= second < end:
            raise VideoReadError(
                f"{reader.name} has no key frame at {second:g} s: it lasts {end:.3f} s. If annotations count from "
                "elsewhere, first_second (--first-second) says where: 900 for AVA's files of 15 minutes."
            )
        return reader.read(reader.shown_at(processor.key_frame_times(second), processor.fps))
