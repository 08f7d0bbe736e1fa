"""
Plans trainings on, and features of, millions of clips: what a clip costs, and what ends first.

What a clip costs is measured: processor time to decode and prepare 16 frames of 224 pixels at random places, and the
bytes of its video. Videos of 10 s (320 x 240, a key frame a second) and of five minutes (640 x 360, a key frame every
250 frames) are encoded on the spot. What a row of a Parquet list costs a training is measured, too. The speed of a
GPU, the machine and the prices are not measured: they are the options, and the second table follows from them. It
takes about a minute on a CPU core.

    python benchmarks/scale_plan.py [--train-clips 300] [--gpu-price 4.92] [--smoke]
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch
from datasets import Dataset, disable_progress_bars, load_dataset
from helpers.measurement import make_parser, print_machine
from helpers.scene_video import FPS, encode_scene

from hf_video import VideoClipProcessor
from hf_video.reading import read_video

NUM_FRAMES, FRAME_STEP = 16, 4
# Name, default, and what it is.
ASSUMPTIONS = (
    ("train-clips", 300.0, "clips/s that one GPU trains on"),
    ("feature-clips", 1500.0, "clips/s of which one GPU computes features"),
    ("gpus", 8, "GPUs of a machine (AWS p5.48xlarge)"),
    ("cores", 192, "vCPUs of a machine (AWS p5.48xlarge)"),
    ("network", 100.0, "Gbit/s between the machine and its videos"),
    ("gpu-price", 4.92, "$ of a GPU hour (AWS p5.48xlarge, capacity blocks, US East, end of 2024)"),
)


class ClipCost(NamedTuple):
    """What a clip costs.

    Attributes:
        core_seconds: processor time to decode and prepare it.
        num_bytes: size of its video: the most that is fetched for it.
    """

    core_seconds: float
    num_bytes: float


def measure_clips(folder: Path, num_clips: int, seconds: tuple[int, int]) -> dict[tuple[str, str], ClipCost]:
    """The cost of a clip by the length of its video and the way that frames are chosen."""
    short, long = folder / "short.mp4", folder / "long.mp4"
    encode_scene(short, FPS * seconds[0], FPS, height=240, width=320)
    encode_scene(long, FPS * seconds[1], 250)
    found = {}
    for sampling in ("dense", "uniform"):
        rate = {"frame_sampling_rate": FRAME_STEP} if sampling == "dense" else {}
        processor = VideoClipProcessor(num_frames=NUM_FRAMES, sampling_strategy=sampling, **rate)
        for length, path in (("10 s", short), ("5 min", long)):
            found[length, sampling] = ClipCost(read_clips(path, processor, num_clips), path.stat().st_size)
    return found


def read_clips(path: Path, processor: VideoClipProcessor, num_clips: int) -> float:
    """Mean processor time of a clip. Each is read three times, and the least counts."""
    seconds = []
    for number in range(num_clips):
        times = []
        for _ in range(3):
            start = time.process_time()
            draw = partial(processor.sample_frames, generator=np.random.default_rng(number))
            clips, _ = read_video(str(path), draw)
            processor(clips[0], do_sample_frames=False, return_tensors="pt")
            times.append(time.process_time() - start)
        seconds.append(min(times))
    return statistics.mean(seconds)


def measure_rows(folder: Path, num_rows: int) -> tuple[float, float]:
    """Bytes of memory and seconds to list a row of a Parquet file as `datasets` reads it."""
    paths = [f"videos/{number:09d}.mp4" for number in range(num_rows)]
    Dataset.from_dict({"path": paths, "label": ["walks"] * num_rows}).to_parquet(folder / "rows.parquet")
    before, start = psutil.Process().memory_info().rss, time.process_time()
    rows = load_dataset("parquet", data_files=str(folder / "rows.parquet"), split="train", cache_dir=str(folder))
    order = torch.randperm(len(rows)).tolist()  # as the sampler of a `Trainer` holds it
    seconds, taken = time.process_time() - start, psutil.Process().memory_info().rss - before
    return taken / len(order), seconds / len(order)


def plan(cost: ClipCost, clips_of_gpu: float, given: argparse.Namespace) -> tuple[float, str, float]:
    """Clips/s of a machine, the stage that keeps it from more, and $ of a million clips."""
    stages = {
        "GPUs": given.gpus * clips_of_gpu,
        "decoding": given.cores / cost.core_seconds,
        "network": given.network * 1e9 / 8 / cost.num_bytes,
    }
    limit = min(stages, key=lambda name: stages[name])
    return stages[limit], limit, given.gpus * given.gpu_price * 1e6 / stages[limit] / 3600


def main() -> None:
    parser = make_parser(__doc__)
    for name, default, what in ASSUMPTIONS:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{what} (default: {default:g})")
    given = parser.parse_args()
    disable_progress_bars()
    torch.set_num_threads(1)
    print_machine("av", "datasets", threads=1)
    with tempfile.TemporaryDirectory() as name:
        costs = measure_clips(Path(name), 1 if given.smoke else 8, (1, 2) if given.smoke else (10, 300))
        row_bytes, row_seconds = measure_rows(Path(name), 1000 if given.smoke else 1_000_000)
    print("\n| video | frames | core ms | MB at most | trained: clips/s | limit | $ | features: clips/s | limit | $ |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (length, sampling), cost in costs.items():
        cells = [length, sampling, f"{1000 * cost.core_seconds:.0f}", f"{cost.num_bytes / 1e6:.2f}"]
        for clips_of_gpu in (given.train_clips, given.feature_clips):
            speed, limit, dollars = plan(cost, clips_of_gpu, given)
            cells += [f"{speed:,.0f}", limit, f"{dollars:.2f}"]
        print(f"| {' | '.join(cells)} |")
    print(f"\nA row takes {row_bytes:.0f} bytes of each process; a core lists {1 / row_seconds:,.0f} rows a second.")


if __name__ == "__main__":
    main()
