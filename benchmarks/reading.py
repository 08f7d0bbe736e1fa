"""
Compares readers of 16 evenly spaced frames of a five-minute video: `hf_video.reading.read_video` with
`transformers.video_utils.load_video`, on PyAV and on torchcodec, and with torchcodec by itself; and with itself where
the decoder leaves no frames out.

The video is a FILE, or H.264, 640 x 360, 30 frames per second, with a key frame every 60 frames, encoded on the spot.
The frames of all readers must be the same bytes, otherwise no figure is printed. Readers take turns, and medians are
compared: of the time that passes, and of processor time, which says more on a busy machine. It takes about two minutes
on 2 CPU cores.

    python benchmarks/reading.py [FILE] [--rounds 7] [--smoke]
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from helpers.measurement import make_parser, print_machine, print_ratio
from helpers.scene_video import FPS, encode_scene
from transformers.utils import is_torchcodec_usable
from transformers.video_utils import VideoMetadata, load_video

from hf_video.reading import probe_video, read_video, seeking

SECONDS, KEY_FRAME_EVERY = 300, 60
NUM_FRAMES = 16


def spread(metadata: Any, **kwargs: Any) -> np.ndarray:
    return np.linspace(0, metadata.total_num_frames - 1, NUM_FRAMES).round().astype(int)


def read_all_between(path: str) -> np.ndarray:
    """With all frames decoded between a key frame and those that are wanted."""
    codecs, seeking.SKIPPING_CODECS = seeking.SKIPPING_CODECS, ()
    try:
        return read_video(path, spread)[0]
    finally:
        seeking.SKIPPING_CODECS = codecs


def make_readers(path: str) -> dict[str, Callable[[], Any]]:
    readers: dict[str, Callable[[], Any]] = {
        "hf_video": lambda: read_video(path, spread)[0],
        "hf_video, none left out": lambda: read_all_between(path),
        "transformers, pyav": lambda: load_video(path, backend="pyav", sample_indices_fn=spread)[0],
    }
    if is_torchcodec_usable(decode="video"):
        from torchcodec.decoders import VideoDecoder

        def read_with_torchcodec() -> Any:
            decoder = VideoDecoder(path, dimension_order="NHWC")
            indices = spread(VideoMetadata(total_num_frames=len(decoder)))
            return decoder.get_frames_at(indices.tolist()).data.numpy()

        readers["transformers, torchcodec"] = lambda: (
            load_video(path, backend="torchcodec", sample_indices_fn=spread)[0].permute(0, 2, 3, 1).numpy()
        )
        readers["torchcodec alone"] = read_with_torchcodec
    return readers


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("file", nargs="?", metavar="FILE", help="a video (default: one of a moving scene)")
    parser.add_argument("--rounds", type=int, default=7, help="times that every reader reads (default: 7)")
    arguments = parser.parse_args()
    rounds, num_seconds = (1, 2) if arguments.smoke else (arguments.rounds, SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file or os.path.join(folder, "video.mp4")
        if not arguments.file:
            encode_scene(Path(path), FPS * num_seconds, KEY_FRAME_EVERY)
        num_frames = probe_video(path).total_num_frames
        readers = make_readers(path)
        frames = {name: read() for name, read in readers.items()}
        for name, read in frames.items():
            if not np.array_equal(read, frames["hf_video"]):
                raise SystemExit(f"{name} gives other frames than hf_video: there is nothing to compare.")
        wall: dict[str, list[float]] = {name: [] for name in readers}
        processor: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(rounds):
            for name, read in readers.items():
                started = time.perf_counter(), time.process_time()
                read()
                wall[name].append(time.perf_counter() - started[0])
                processor[name].append(time.process_time() - started[1])

    print_machine("av", "transformers")
    print(f"{NUM_FRAMES} of {num_frames} frames, the same bytes from every reader, median of {rounds} rounds\n")
    print(f"{'reader':26}{'ms':>8}{'times ours':>12}{'processor ms':>14}{'times ours':>12}")
    for name in readers:
        print(f"{name:26}", end="")
        for seconds, width in ((wall, 8), (processor, 14)):
            median, ours = statistics.median(seconds[name]), statistics.median(seconds["hf_video"])
            print(f"{median * 1000:{width}.0f}{median / ours:12.2f}", end="")
        print()
    for quantity, seconds in (("time", wall), ("processor time", processor)):
        median = {name: statistics.median(values) for name, values in seconds.items()}
        for name in list(readers)[1:]:
            print_ratio("16 frames of a long video", median["hf_video"] / median[name], name, quantity=quantity)
    if len(readers) == 3:
        print("\ntorchcodec is not compared: it is not installed or finds no FFmpeg libraries.")


if __name__ == "__main__":
    main()
