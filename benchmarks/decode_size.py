"""
What a training clip of large frames costs a worker, with the setting `decode_to_size` and without: processor time of
reading 16 frames, a distance of 4 apart, and making 224 x 224 pixels of them, from H.264 with a key frame every 250
frames.

It takes a minute or two. With `--smoke` frames are small.

    python benchmarks/decode_size.py [--rounds 5] [--smoke]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import torch
from datasets import Dataset
from helpers.measurement import GOAL_MISSED, make_parser, print_machine, take_turns
from PIL import Image
from sklearn.datasets import load_sample_images

from hf_video.data import ClipAugmentation, ClipTask, VideoDataset
from hf_video.processing import VideoClipProcessor

NUM_FRAMES, DISTANCE, LENGTH = 16, 4, 300


def write_video(path: Path, height: int, width: int) -> None:
    """A photograph over which a camera moves."""
    photo = Image.fromarray(load_sample_images().images[0]).resize((width + 160, height + 160))
    pixels = np.asarray(photo)
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "veryfast", "g": "250", "threads": "1"})
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for number in range(LENGTH):
            top, left = (round(80 + 75 * f(number / 50)) for f in (np.sin, np.cos))
            frame = np.ascontiguousarray(pixels[top : top + height, left : left + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode())


def reading(path: Path, **augmentation: object) -> Callable[[int], None]:
    processor = VideoClipProcessor(
        num_frames=NUM_FRAMES,
        frame_sampling_rate=DISTANCE,
        sampling_strategy="dense",
        size={"shortest_edge": 256},
        crop_size={"height": 224, "width": 224},
    )
    task = ClipTask(processor, augmentation=ClipAugmentation(**augmentation))
    clips = VideoDataset(Dataset.from_dict({"video": [str(path)] * 8}), task, training=True, seed=0)

    def read(number: int) -> None:
        for row in range(number):
            clips[row]

    return read


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine("torch", "av", threads=1)
    number, rounds = (1, 1) if arguments.smoke else (8, arguments.rounds)
    print("milliseconds of processor time a clip")
    print(f"{'frames':14}{'crop':28}{'resized after':>14}{'decoded to size':>17}{'ratio':>8}")
    ratios = []
    for height, width in ((90, 160),) if arguments.smoke else ((720, 1280), (1080, 1920)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "video.mp4")
            write_video(path, height, width)
            for crop, options in {"of its own size": {}, "half of the frame or more": {"crop_min_area": 0.5}}.items():
                runs = {way: reading(path, decode_to_size=way, **options) for way in (False, True)}
                seconds = take_turns(runs, number, rounds=rounds, clock=time.process_time)
                after, straight = (1000 * min(each) / number for each in seconds.values())
                ratios.append(straight / after)
                print(f"{height} x {width:<7}{crop:28}{after:14.0f}{straight:17.0f}{ratios[-1]:8.2f}", flush=True)
    return 0 if arguments.smoke or max(ratios) < 0.8 else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
