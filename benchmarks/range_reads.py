"""
Reads clips of 16 frames of a five-minute video from a URL: by ranges, as `hf_video.reading.read_video` does, and
with the whole file downloaded first.

The video is H.264, 640 x 360, 30 frames per second, with B-frames and a key frame every 250 frames, encoded on the
spot. A server in this process answers 50 ms late, over a line of 100 Mbit/s. A dense clip takes every fourth frame, a
uniform one the middle of each sixteenth of the video. The frames must be those of the file on disk, otherwise no
figure is printed. Both ways take turns, and medians are compared. It takes about a minute on 2 CPU cores.

    python benchmarks/range_reads.py [--rounds 5] [--latency 0.05] [--megabits 100] [--smoke]
"""

import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from helpers.measurement import make_parser, print_machine, print_ratio
from helpers.range_server import RangeServer
from helpers.scene_video import FPS, encode_scene
from huggingface_hub import get_session

from hf_video.reading import read_video

SECONDS, KEY_FRAME_EVERY = 300, 250
NUM_FRAMES, STEP = 16, 4


def choose_frames(num_frames: int, round_number: int) -> dict[str, np.ndarray]:
    """The frames of each kind of clip; dense clips of all rounds lie at different places."""
    last = num_frames - NUM_FRAMES * STEP
    start = int(np.random.default_rng(round_number).integers(last))
    return {
        "dense": start + STEP * np.arange(NUM_FRAMES),
        "uniform": (num_frames * (np.arange(NUM_FRAMES) + 0.5) / NUM_FRAMES).astype(int),
    }


def download(url: str) -> io.BytesIO:
    return io.BytesIO(get_session().get(url).content)


def measure(server: RangeServer, read: Callable[[], Any]) -> tuple[int, int, float, Any]:
    """Requests, bytes, seconds, and what was read."""
    server.num_requests = server.num_bytes = 0
    start = time.perf_counter()
    result = read()
    return server.num_requests, server.num_bytes, time.perf_counter() - start, result


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="clips of each kind (default: 5)")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before every answer (default: 0.05)")
    parser.add_argument("--megabits", type=float, default=100, help="Mbit/s of the line (default: 100)")
    arguments = parser.parse_args()
    rounds, num_seconds = (1, 20) if arguments.smoke else (arguments.rounds, SECONDS)
    figures: dict[str, list[tuple[int, int, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        encode_scene(path, FPS * num_seconds, KEY_FRAME_EVERY)
        data = path.read_bytes()
        with RangeServer(data, arguments.latency, arguments.megabits * 1e6 / 8) as server:
            for round_number in range(rounds):
                for name, frames in choose_frames(FPS * num_seconds, round_number).items():

                    def choose(metadata: Any, frames: np.ndarray = frames) -> np.ndarray:
                        return frames

                    expected = read_video(str(path), choose)[0]
                    requests, num_bytes, by_ranges, found = measure(server, lambda: read_video(server.url, choose)[0])
                    *_, whole, _ = measure(server, lambda: read_video(download(server.url), choose)[0])
                    if not np.array_equal(found, expected):
                        raise SystemExit(f"The {name} clip by ranges has other frames: there is nothing to compare.")
                    figures.setdefault(name, []).append((requests, num_bytes, by_ranges, whole))

    print_machine("av", "fsspec")
    print(
        f"{FPS * num_seconds} frames, {len(data) / 1e6:.1f} MB, the same frames as from disk; median of {rounds} "
        f"clips, {arguments.latency * 1000:.0f} ms, {arguments.megabits:.0f} Mbit/s\n"
    )
    print(f"{'':10}{'requests':>10}{'of the file':>13}{'seconds':>10}{'whole file':>12}{'ratio':>8}")
    for name, rows in figures.items():
        requests, num_bytes, by_ranges, whole = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{name:10}{requests:10.0f}{num_bytes / len(data):13.1%}{by_ranges:10.2f}{whole:12.2f}"
            f"{whole / by_ranges:7.1f}x"
        )
        print_ratio(f"{name} by ranges", by_ranges / whole, "the whole file")
        line = requests * arguments.latency + num_bytes * 8 / arguments.megabits / 1e6
        print_ratio(f"{name} by ranges", by_ranges / line, "what the line takes", is_limit=True)


if __name__ == "__main__":
    main()
