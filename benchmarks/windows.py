"""
Compares the sliding windows of a video with one sequential decode of it to RGB, by `stream_frames` and by PyAV alone.
All decode with the same threads of FFmpeg (its own choice). Every frame is in two windows: 16 frames, stride 8.

Without a FILE the videos are H.264 of a moving texture with the noise of a camera, encoded on the spot at rates as the
web has them: 0.5 Mbit/s at 240p, 1 at 360p and 2.5 at 720p. The rate that is printed is that of the file. Fewer bits
take less time to decode, so that whatever windows add weighs more.

The frames of the windows must be those of the decode, otherwise no figure is printed. Readers take turns, and the
least time of each counts: by the clock, and of all processors together. Then memory: it must not grow over 10,000
windows of frames that are made one by one. It takes about three minutes on 2 CPU cores.

    python benchmarks/windows.py [FILE ...] [--rounds 7] [--smoke]
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from helpers.measurement import fastest, make_parser, print_machine, print_ratio

from hf_video.reading import sliding_windows
from hf_video.reading.frame_streaming import stream_frames

NUM_FRAMES, STRIDE, FPS = 16, 8, 30


def encode(path: str, height: int, width: int, num_frames: int, bit_rate: int) -> None:
    """A texture that moves, so that frames depend on each other, with noise, so that they differ as real ones do."""
    generator = np.random.default_rng(0)
    noise = generator.integers(-6, 7, (8, height, width, 3), dtype=np.int16)
    scene = generator.integers(32, 224, (height // 8, width // 8, 3), dtype=np.int16)
    scene = scene.repeat(8, axis=0).repeat(8, axis=1)
    with av.open(path, "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS, options={"preset": "veryfast", "g": "60"})
        stream.height, stream.width, stream.pix_fmt = *scene.shape[:2], "yuv420p"
        stream.bit_rate = bit_rate
        for i in range(num_frames):
            picture = np.roll(scene, i, axis=1) + noise[generator.integers(8)]
            frame = av.VideoFrame.from_ndarray(picture.astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def decode(path: str) -> None:
    for frame in stream_frames(path):
        _ = frame.image


def decode_with_pyav(path: str) -> None:
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            frame.to_ndarray(format="rgb24", threads=1)


def slide(path: str) -> None:
    for _ in sliding_windows(path, num_frames=NUM_FRAMES, stride=STRIDE):
        pass


def require_equal(path: str) -> None:
    """Raises SystemExit if the frames of windows are not those of the decode."""
    windows = sliding_windows(path, num_frames=NUM_FRAMES, stride=NUM_FRAMES)
    found = (image for window in windows for image in window.frames[: window.num_real])
    if not all(np.array_equal(image, frame.image) for image, frame in zip(found, stream_frames(path), strict=True)):
        sys.exit("Windows hold other frames than the decode gives: there is nothing to compare.")


def resident_memory() -> float:
    """Resident memory of this process in MiB."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 2**10


def watch_memory(num_windows: int) -> tuple[float, float]:
    """Resident memory in MiB after a tenth of the windows and after all."""

    def frames() -> Iterator[np.ndarray]:
        for i in range(num_windows * STRIDE + STRIDE):
            yield np.full((112, 112, 3), i % 256, dtype=np.uint8)

    early = 0.0
    for i, _ in enumerate(sliding_windows(frames(), num_frames=NUM_FRAMES, stride=STRIDE, source_fps=FPS), 1):
        if i == num_windows // 10:
            early = resident_memory()
    return early, resident_memory()


def measure(path: str, rounds: int) -> None:
    """Prints the figures of a file."""
    require_equal(path)
    with av.open(path) as container:
        stream = container.streams.video[0]
        sizes = [packet.size for packet in container.demux(stream) if packet.size]
        bit_rate = sum(sizes) * 8 * float(stream.average_rate) / len(sizes)
    print(f"{stream.width} x {stream.height}, {len(sizes)} frames at {bit_rate / 1e6:.2f} Mbit/s")
    readers = {"decode": decode, "PyAV": decode_with_pyav, "windows": slide}
    for name, clock in {"clock": time.perf_counter, "processors": time.process_time}.items():
        least = fastest(readers, path, rounds=rounds, clock=clock)
        times = ", ".join(f"{reader} {seconds * 1000:.0f} ms" for reader, seconds in least.items())
        ratios = [least["windows"] / least[peer] for peer in ("decode", "PyAV")]
        print(f"    {name + ':':12}{times}: windows {ratios[0]:.2f}x of decode, {ratios[1]:.2f}x of PyAV")
        case, quantity = (
            f"windows of {stream.width} x {stream.height}",
            "time" if name == "clock" else "processor time",
        )
        print_ratio(case, ratios[1], "PyAV", quantity=quantity)
        print_ratio(case, ratios[0], "one decode", quantity=quantity, is_limit=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="videos to read (default: those made on the spot)")
    parser.add_argument("--rounds", type=int, default=7, help="times that every reader reads (default: 7)")
    arguments = parser.parse_args()
    videos = [(240, 320, 1200, 500_000), (360, 640, 600, 1_000_000), (720, 1280, 300, 2_500_000)]
    videos = [(48, 64, 40, 50_000)] if arguments.smoke else [] if arguments.files else videos
    rounds, num_windows = (1, 100) if arguments.smoke else (arguments.rounds, 10_000)
    print_machine("av")
    for path in arguments.files:
        measure(path, rounds)
    with tempfile.TemporaryDirectory() as folder:
        for height, width, num_frames, bit_rate in videos:
            path = os.path.join(folder, f"{height}.mp4")
            encode(path, height, width, num_frames, bit_rate)
            measure(path, rounds)
    early, late = watch_memory(num_windows)
    print(f"memory after {num_windows // 10} windows {early:.0f} MiB, after {num_windows} windows {late:.0f} MiB")


if __name__ == "__main__":
    main()
