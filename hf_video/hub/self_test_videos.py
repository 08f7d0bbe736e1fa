"""Draws the two small videos of a self-test: waves and stripes that move, in frames that all differ."""

import io
from functools import cache
from typing import NamedTuple

import av
import numpy as np


class SelfTestVideo(NamedTuple):
    """
    What a video is like.

    Attributes:
        file: its name beside the self-test.
        height: height of its frames in pixels.
        width: width of its frames in pixels.
        num_frames: number of its frames.
        fps: frames per second.
    """

    file: str
    height: int
    width: int
    num_frames: int
    fps: int


# One is wide and longer than most clips, the other one is upright and shorter.
SELF_TEST_VIDEOS = (SelfTestVideo("wide.mp4", 240, 320, 80, 25), SelfTestVideo("upright.mp4", 288, 240, 30, 12))
_STRIPES = 80


@cache
def encode(video: SelfTestVideo) -> bytes:
    """The video as an MP4 file, H.264. The versions of the libraries determine every byte."""
    file = io.BytesIO()
    # One thread and bit-exact muxing make the bytes repeatable.
    with av.open(file, "w", format="mp4", container_options={"fflags": "+bitexact"}) as container:
        options = {"crf": "32", "preset": "veryfast", "threads": "1"}
        stream = container.add_stream("libx264", rate=video.fps, options=options)
        stream.pix_fmt, stream.height, stream.width = "yuv420p", video.height, video.width
        for frame in draw(video):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def draw(video: SelfTestVideo) -> np.ndarray:
    """The frames (num_frames, height, width, 3) uint8 RGB: waves that drift at another speed in each channel, a square
    of stripes on its way through the picture, and light that changes with time."""
    times = np.arange(video.num_frames, dtype=np.float32)[:, None, None]
    drift = 2 * np.pi * times / np.array((40, 56, 72), np.float32)
    down, across = (2 * np.pi * np.arange(size, dtype=np.float32)[None, :, None] for size in video[1:3])
    rows = 40 * np.sin(down / np.array((64, 40, 88), np.float32) - drift) + 25 * np.sin(times / 7)
    columns = 40 * np.sin(across / np.array((48, 72, 96), np.float32) + drift)
    frames = (120 + rows[:, :, None] + columns[:, None]).clip(0, 255).astype(np.uint8)
    lines = np.arange(_STRIPES)
    stripes = (np.add.outer(lines // 6, lines // 4) % 2)[..., None] * np.array([255, 200, 80], np.uint8)
    for number, frame in enumerate(frames):
        top, left = 3 * number % (video.height - _STRIPES), 5 * number % (video.width - _STRIPES)
        frame[top : top + _STRIPES, left : left + _STRIPES] = stripes
    return frames
