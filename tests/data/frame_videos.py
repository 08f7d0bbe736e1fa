"""Videos of known segments: bright for a while, then dark, and grey otherwise."""

import numpy as np

from ..video_files import encode_video

SECONDS, RATE = 4, 10
SEGMENTS = (("bright", 1, 2), ("dark", 2, 3.5))
LEVELS = {"bright": 230, "dark": 20}


def write_flashes(folder, num_videos, name="times.csv"):
    """Videos 0.mp4, 1.mp4, ... and a file of their segments."""
    levels = np.full(SECONDS * RATE, 120)
    for label, start, end in SEGMENTS:
        levels[int(start * RATE) : int(end * RATE)] = LEVELS[label]
    generator = np.random.default_rng(0)
    for number in range(num_videos):
        noise = generator.integers(-8, 8, (len(levels), 32, 32, 3))
        frames = (levels[:, None, None, None] + noise).astype(np.uint8)
        encode_video(folder / f"{number}.mp4", frames, fps=RATE)
    rows = [f"{number}.mp4,{label},{start},{end}" for number in range(num_videos) for label, start, end in SEGMENTS]
    file = folder / name
    file.write_text("\n".join(["path,label,start,end", *rows]) + "\n")
    return file
