"""Reads clips around key frames, by the times of a video of any rate."""

import math

import numpy as np

from hf_video.processing import VideoDetectionProcessor
from hf_video.reading import VideoReadError, probe_video
from hf_video.reading.sources import describe
from hf_video.reading.video_reading import TIME_ROUNDING, VideoSource, read_video_at


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
    timed = read_video_at(video, processor.key_frame_times(second), source_fps=processor.fps)
    if not 0 <= second < timed.end:
        raise VideoReadError(
            f"{describe(video)} has no key frame at {second:g} s: it lasts {timed.end:.3f} s. If annotations "
            "count from elsewhere, first_second (--first-second) says where: 900 for AVA's files of 15 minutes."
        )
    return timed.frames


def key_frame_times(video: VideoSource, processor: VideoDetectionProcessor, every: float = 1.0) -> list[float]:
    """The multiples of `every` seconds in a video, from 0. Frames of a folder count as `processor.fps` a second."""
    metadata = probe_video(video)
    duration = metadata.duration if metadata.duration is not None else metadata.total_num_frames / processor.fps
    return [number * every for number in range(math.ceil((duration - TIME_ROUNDING) / every))]
