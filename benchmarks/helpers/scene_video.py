"""A video for benchmarks of reading, encoded on the spot."""

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

HEIGHT, WIDTH, FPS = 360, 640, 30


def encode_scene(path: Path, num_frames: int, key_frame_every: int, height: int = HEIGHT, width: int = WIDTH) -> None:
    """H.264 of a textured scene under a moving camera, so that frames depend on each other as in real footage."""
    generator = np.random.default_rng(0)
    scene = generator.integers(0, 256, (height // 8 + 50, width // 8 + 50, 3)).repeat(8, axis=0).repeat(8, axis=1)
    scene = np.clip(scene / 2 + generator.normal(64, 8, scene.shape), 0, 255).astype(np.uint8)
    options = {"preset": "veryfast", "g": str(key_frame_every), "sc_threshold": "0"}
    with av.open(os.fspath(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS, options=options)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for i in range(num_frames):
            top, left = int(200 + 200 * np.sin(i / 90)), int(200 + 200 * np.cos(i / 70))
            view = np.ascontiguousarray(scene[top : top + height, left : left + width])
            frame = av.VideoFrame.from_ndarray(view, format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
