"""
Plans training on, and extraction from, a million and a hundred million clips: cores, bytes, shards, network, cost, and
where each stage saturates.

What a clip costs is measured here: processor time to decode and prepare 16 frames of 224 pixels, the bytes and
requests that a local server sees, and the rows of an index. Clips come from packed videos of 10 s (320 x 240), and
from videos of five minutes (640 x 360, a key frame every 250 frames), one of each, that are fetched whole or by
ranges. The speed of a GPU, the machine and the prices are not measured: they are the options, and the tables follow
from them. It takes about two minutes on 2 CPU cores.

    python benchmarks/scale_plan.py [--train-clips 300] [--gpu-price 4.92] [--smoke]
"""

import math
import statistics
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from helpers.large_index import write_index
from helpers.measurement import in_own_process, make_parser, print_machine
from helpers.range_server import RangeServer
from helpers.scene_video import FPS, encode_scene

from hf_video import VideoClipProcessor
from hf_video.data import load_video_dataset
from hf_video.data.manifest import INDEX_FILE
from hf_video.processing import read_video

NUM_FRAMES, ROUNDS = 16, 5
SHARD_SIZE = 1e9
SCALES = (1_000_000, 100_000_000)
# (option, default, what it is, where the default comes from)
ASSUMPTIONS = (
    ("train-clips", 300.0, "clips/s that one GPU trains on", "assumed, of the order of a ViT-B"),
    ("feature-clips", 1500.0, "clips/s of which one GPU computes features", "assumed"),
    ("gpus", 8, "GPUs of a machine", "AWS p5.48xlarge"),
    ("cores", 192, "cores of a machine", "AWS p5.48xlarge, which counts vCPUs"),
    ("memory", 2048.0, "GiB of memory of a machine", "AWS p5.48xlarge"),
    ("network", 100.0, "Gbit/s of a machine to the object store", "assumed"),
    ("requests", 5500.0, "requests/s that a prefix of the object store answers", "AWS S3, request rate guidelines"),
    ("gpu-price", 4.92, "$ of a GPU hour", "AWS p5.48xlarge, capacity blocks, 2025"),
    ("core-price", 0.0425, "$ of a core hour, for cores beside the GPUs", "AWS c5, on demand"),
    ("storage-price", 23.0, "$ of a TB for a month", "AWS S3 Standard, first 50 TB"),
    ("request-price", 0.4, "$ of a million requests", "AWS S3 Standard"),
)


@dataclass(frozen=True)
class ClipCost:
    """What one clip of 16 frames costs.

    Attributes:
        stored_bytes: bytes of its video.
        core_seconds: processor time to decode and prepare it.
        fetched_bytes, num_requests: what is asked of an object store.
    """

    stored_bytes: float
    core_seconds: float
    fetched_bytes: float
    num_requests: float


@dataclass(frozen=True)
class IndexCost:
    """Bytes that a row of an index takes in its file and in memory, bytes of memory of a row's place in a shuffled
    order, and seconds to list a row."""

    file_bytes: float
    row_bytes: float
    order_bytes: float
    seconds: float


def plan_epoch(clips: int, cost: ClipCost, rate: float, given: Namespace) -> dict[str, float]:
    """What it takes to read every clip once, for GPUs that take `rate` clips per second each, and to store the videos.

    Cores that the machines of the GPUs do not have are rented beside them.
    """
    gpu_hours = clips / rate / 3600
    cores = rate * cost.core_seconds
    rented = max(cores - given.cores / given.gpus, 0.0)
    terabytes = clips * cost.stored_bytes / 1e12
    price = gpu_hours * (given.gpu_price + rented * given.core_price)
    return {
        "cores_per_gpu": cores,
        "megabytes_per_second": rate * cost.fetched_bytes / 1e6,
        "core_hours": clips * cost.core_seconds / 3600,
        "hours": gpu_hours / given.gpus,
        "terabytes": terabytes,
        "shards": math.ceil(clips * cost.stored_bytes / SHARD_SIZE),
        "dollars_a_month": terabytes * given.storage_price,
        "dollars": price + clips * cost.num_requests / 1e6 * given.request_price,
    }


def saturation(cost: ClipCost, given: Namespace) -> tuple[float, float, float]:
    """Clips per second at which decoding and network of a machine are at their limits, and a prefix of the object
    store, whatever the number of machines."""
    return (
        given.cores / cost.core_seconds,
        given.network * 1e9 / 8 / cost.fetched_bytes,
        given.requests / cost.num_requests,
    )


def measure_clips(folder: Path, rounds: int, seconds: tuple[int, int]) -> dict[tuple[str, str], ClipCost]:
    """What clips of short and of long videos cost, by the kind of the video and the way that frames are chosen."""
    short, long = folder / "short.mp4", folder / "long.mp4"
    encode_scene(short, FPS * seconds[0], FPS, height=240, width=320)
    encode_scene(long, FPS * seconds[1], 250)
    found = {}
    for sampling in ("dense", "uniform"):
        rate = {"frame_sampling_rate": 4} if sampling == "dense" else {}
        processor = VideoClipProcessor(num_frames=NUM_FRAMES, sampling_strategy=sampling, **rate)
        times = {path: statistics.median(_time(path, processor) for _ in range(rounds)) for path in (short, long)}
        size = float(short.stat().st_size)
        found["10 s, packed", sampling] = ClipCost(size, times[short], size, 1)
        size = float(long.stat().st_size)
        found["5 min, whole", sampling] = ClipCost(size, times[long], size, 1)
        with RangeServer(long.read_bytes(), 0, 1e9) as server:
            read_video(server.url, processor.sample_frames)
            by_ranges = server.num_bytes, server.num_requests
        found["5 min, by ranges", sampling] = ClipCost(size, times[long], *by_ranges)
    return found


def _time(path: Path, processor: VideoClipProcessor) -> float:
    """Processor time of reading and preparing a clip. Preparing counts, since it is done where clips are decoded."""
    start = time.process_time()
    processor(str(path), return_tensors="pt")
    return time.process_time() - start


def measure_index(folder: Path, num_rows: int) -> IndexCost:
    """What the rows of an index cost; it runs in a process of its own."""
    process = psutil.Process()
    begin, start = process.memory_info().rss, time.perf_counter()
    rows = load_video_dataset(folder)
    seconds, listed = time.perf_counter() - start, process.memory_info().rss
    order = list(torch.utils.data.RandomSampler(rows["train"], generator=torch.Generator().manual_seed(0)))
    shuffled = process.memory_info().rss
    size = (folder / INDEX_FILE).stat().st_size
    return IndexCost(
        size / num_rows, (listed - begin) / num_rows, (shuffled - listed) / len(order), seconds / num_rows
    )


def print_table(title: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table of Markdown; each column has a format."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        cells = (format(value, spec) for value, spec in zip(row, columns.values(), strict=True))
        print(f"| {' | '.join(cells)} |")


def add_assumptions(parser: ArgumentParser) -> None:
    for name, default, what, source in ASSUMPTIONS:
        parser.add_argument(
            f"--{name}", type=type(default), default=default, help=f"{what} (default: {default}; {source})"
        )


def main() -> None:
    parser = make_parser(__doc__)
    add_assumptions(parser)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the index (default: 1000000)")
    given = parser.parse_args()
    rounds, seconds, num_rows = (1, (4, 10), 2000) if given.smoke else (ROUNDS, (10, 300), given.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_index(folder, num_rows)
        index = in_own_process(1, measure_index, folder, num_rows)
        torch.set_num_threads(1)
        costs = measure_clips(folder, rounds, seconds)
    print_machine("av", "fsspec", "pyarrow", threads=1)
    print_plan(costs, index, given)


def print_plan(costs: Mapping[tuple[str, str], ClipCost], index: IndexCost, given: Namespace) -> None:
    case = {"video": "", "frames": ""}
    print_table(
        "**A clip of 16 frames**, measured",
        {**case, "core ms": ".0f", "MB stored": ".2f", "MB fetched": ".2f", "requests": ".0f"},
        (
            (*of, cost.core_seconds * 1e3, cost.stored_bytes / 1e6, cost.fetched_bytes / 1e6, cost.num_requests)
            for of, cost in costs.items()
        ),
    )
    print_table(
        "**A row of an index**, measured",
        {
            "bytes in the file": ".0f",
            "in memory": ".0f",
            "of its place in a shuffled order": ".0f",
            "µs to list": ".1f",
        },
        [(index.file_bytes, index.row_bytes, index.order_bytes, index.seconds * 1e6)],
    )
    print_table(
        "**Assumed**",
        {"option": "", "value": "g", "what it is": "", "source": ""},
        (
            (f"`--{name}`", getattr(given, name.replace("-", "_")), what, source)
            for name, _, what, source in ASSUMPTIONS
        ),
    )
    columns = {"cores a GPU": ".0f", "MB/s a GPU": ",.0f", "core hours": ",.0f", "hours": ",.1f"}
    columns |= {"TB": ",.1f", "shards": ",.0f", "$ a month": ",.0f", "$": ",.0f"}
    for use, rate in {"an epoch of training": given.train_clips, "features once": given.feature_clips}.items():
        for clips in SCALES:
            print_table(
                f"**{clips:,} clips, {use}**, {rate:g} clips/s a GPU, {given.gpus} GPUs",
                case | columns,
                ((*of, *plan_epoch(clips, cost, rate, given).values()) for of, cost in costs.items()),
            )
    stages = ("decoding, a machine", "network, a machine", "object store, a prefix", "training GPUs, a machine")
    print_table(
        "**Where a stage saturates**, in clips/s",
        case | dict.fromkeys(stages, ",.0f"),
        ((*of, *saturation(cost, given), given.gpus * given.train_clips) for of, cost in costs.items()),
    )
    rows_in_memory = given.memory * 2**30 / given.gpus / (index.row_bytes + index.order_bytes)
    print_table(
        "**Where the index saturates**, in rows, with a process for each GPU",
        {"the memory of a machine": ",.0f", "a minute to list": ",.0f"},
        [(rows_in_memory, 60 / index.seconds)],
    )


if __name__ == "__main__":
    main()
