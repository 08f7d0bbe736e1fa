"""
Plans training on, and extraction from, a million and a hundred million clips: cores, bytes, shards, network, cost, and
where each stage saturates.

What a clip costs is measured here: processor time to decode and prepare 16 frames of 224 pixels at random places, the
bytes and requests that a local server sees, the rows of an index, and packing. Clips come from packed videos of 10 s
(320 x 240, a key frame a second), and from videos of five minutes (640 x 360, a key frame every 250 frames), that are
fetched whole or by ranges. All are encoded on the spot. The speed of a GPU, the machine and the prices are not
measured: they are the options, and the tables follow from them. It takes about three minutes on 2 CPU cores.

    python benchmarks/scale_plan.py [--train-clips 300] [--gpu-price 4.92] [--json] [--smoke]
"""

import hashlib
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import torch
from helpers.clip_plan import ClipCost, add_assumptions
from helpers.large_index import write_index
from helpers.measurement import in_own_process, make_parser, print_machine
from helpers.plan_tables import RowCost, make_tables, print_json, print_table
from helpers.range_server import RangeServer
from helpers.scene_video import FPS, encode_scene

from hf_video import VideoClipProcessor
from hf_video.data import load_video_dataset
from hf_video.data.manifest import INDEX_FILE
from hf_video.data.packs.packing import pack_videos
from hf_video.data.video_listing import list_videos
from hf_video.io import StoredFolder
from hf_video.jobs import ParquetParts
from hf_video.jobs.batches import portable_videos
from hf_video.reading import read_video

NUM_FRAMES, FRAME_STEP = 16, 4
PART_SIZE = 1000


@dataclass(frozen=True)
class Sizes:
    """How much is measured: seconds of a short and of a long video, clips of each, times that each clip is read,
    videos that are packed, and rows of an index in a training and in the driver of Ray."""

    seconds: tuple[int, int] = (10, 300)
    clips: int = 8
    rounds: int = 3
    packed: int = 48
    rows: int = 1_000_000
    driver_rows: int = 100_000


SMOKE = Sizes(seconds=(4, 10), clips=1, rounds=1, packed=2, rows=2000, driver_rows=2000)


def measure_clips(folder: Path, sizes: Sizes) -> dict[tuple[str, str], ClipCost]:
    """What clips of short and of long videos cost, by the kind of the video and the way that frames are chosen."""
    short, long = folder / "short.mp4", folder / "long.mp4"
    encode_scene(short, FPS * sizes.seconds[0], FPS, height=240, width=320)
    encode_scene(long, FPS * sizes.seconds[1], 250)
    found = {}
    for sampling in ("dense", "uniform"):
        rate = {"frame_sampling_rate": FRAME_STEP} if sampling == "dense" else {}
        processor = VideoClipProcessor(num_frames=NUM_FRAMES, sampling_strategy=sampling, **rate)
        for kind, path in (("10 s, packed", short), ("5 min, whole", long)):
            size = float(path.stat().st_size)
            seconds, pixel_bytes = _read_clips(path, processor, sizes)
            found[kind, sampling] = ClipCost(size, seconds, size, 1, pixel_bytes)
        with RangeServer(long.read_bytes(), latency=0, rate=1e9) as server:
            for number in range(sizes.clips):
                read_video(server.url, _draw(processor, number))
            asked = server.num_bytes / sizes.clips, server.num_requests / sizes.clips
        found["5 min, by ranges", sampling] = ClipCost(size, seconds, *asked, pixel_bytes)
    return found


def _draw(processor: VideoClipProcessor, number: int) -> Callable[..., np.ndarray]:
    return partial(processor.sample_frames, generator=np.random.default_rng(number))


def _read_clips(path: Path, processor: VideoClipProcessor, sizes: Sizes) -> tuple[float, float]:
    """Processor time of a clip, and its bytes when it is prepared. Of several times of one clip the least counts:
    whatever else the machine does only adds to them."""
    seconds = []
    for number in range(sizes.clips):
        times = []
        for _ in range(sizes.rounds):
            start = time.process_time()
            clips, _ = read_video(str(path), _draw(processor, number))
            pixels = processor(clips[0], do_sample_frames=False, return_tensors="pt")[processor.model_input_names[0]]
            times.append(time.process_time() - start)
        seconds.append(min(times))
    # A decoder of Ray sends pixels before they are normalised, a byte each.
    return statistics.mean(seconds), pixels.numel()


def measure_packing(folder: Path, num_videos: int) -> tuple[float, float]:
    """Bytes per second of processor time: of packing, which reads every shard back, and of SHA-256 alone."""
    content = (folder / "short.mp4").read_bytes()
    for number in range(num_videos):
        file = folder / "videos" / f"class_{number % 2}" / f"{number:08d}.mp4"
        file.parent.mkdir(parents=True, exist_ok=True)
        # A box that decoders skip makes each content its own.
        file.write_bytes(content + (16).to_bytes(4, "big") + b"free" + number.to_bytes(8, "big"))
    splits = load_video_dataset(folder / "videos")
    start = time.process_time()
    pack_videos(splits, StoredFolder(folder / "pack"), folder / "videos", progress=False)
    packed = time.process_time() - start
    start = time.process_time()
    for _ in range(num_videos):
        hashlib.sha256(content).digest()
    return tuple(num_videos * len(content) / seconds for seconds in (packed, time.process_time() - start))


def measure_training(folder: Path) -> tuple[float, float, float]:
    """Bytes and seconds to list a row of an index, and bytes of its place in the order of an epoch."""
    process = psutil.Process()
    begin, start = process.memory_info().rss, time.process_time()
    rows = load_video_dataset(folder)["train"]
    seconds, listed = time.process_time() - start, process.memory_info().rss
    # The sampler of a `Trainer`; its order lives as long as the epoch.
    order = iter(torch.utils.data.RandomSampler(rows, generator=torch.Generator().manual_seed(0)))
    next(order)
    ordered = process.memory_info().rss
    return (listed - begin) / len(rows), seconds / len(rows), (ordered - listed) / len(rows)


def measure_driver(folder: Path) -> tuple[float, float]:
    """Bytes and seconds of a video in the driver of Ray, before the first one is read: it lists the videos, divides
    them into parts, and pickles the row of each video."""
    process = psutil.Process()
    begin, start = process.memory_info().rss, time.process_time()
    videos = list_videos([str(folder)])
    parts = ParquetParts(str(folder / "none"), {}, PART_SIZE).plan(videos)
    pickled = [pickle.dumps(part._replace(videos=portable_videos(part.videos))) for part in parts]
    seconds, taken = time.process_time() - start, process.memory_info().rss - begin
    return taken / len(videos), seconds / sum(len(pickle.loads(part).videos) for part in pickled)


def measure_rows(folder: Path, sizes: Sizes) -> RowCost:
    """What the rows of large indexes cost. Each is listed in a process of its own."""
    found = []
    small = _write_index(folder / "small", SMOKE.rows)
    for measure, num_rows in ((measure_training, sizes.rows), (measure_driver, sizes.driver_rows)):
        large = _write_index(folder / measure.__name__, num_rows)
        found.append(in_own_process(1, _measure_second, measure, small, large))
    size = (folder / measure_training.__name__ / INDEX_FILE).stat().st_size
    (memory, seconds, order), driver = found
    return RowCost(size / sizes.rows, memory, seconds, order, *driver)


def _write_index(folder: Path, num_rows: int) -> Path:
    folder.mkdir()
    in_own_process(1, write_index, folder, num_rows)
    return folder


def _measure_second(measure: Callable[[Path], tuple[float, ...]], small: Path, large: Path) -> tuple[float, ...]:
    """What a process loads once, with the first index, does not grow with the rows."""
    measure(small)
    return measure(large)


def main() -> None:
    parser = make_parser(__doc__)
    add_assumptions(parser)
    parser.add_argument("--json", action="store_true", help="print the tables as JSON, with all digits")
    given = parser.parse_args()
    sizes = SMOKE if given.smoke else Sizes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        row = measure_rows(folder, sizes)
        torch.set_num_threads(1)
        costs = measure_clips(folder, sizes)
        packing = measure_packing(folder, sizes.packed)
    tables = make_tables(costs, row, packing, given)
    if given.json:
        print_json(tables)
        return
    print_machine("av", "fsspec", "pyarrow", threads=1)
    for table in tables:
        print_table(table)


if __name__ == "__main__":
    main()
