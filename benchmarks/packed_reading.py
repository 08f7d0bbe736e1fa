"""
Compares reading clips from files with reading them from a pack of these files, and lists a large index.

The files are 10 s of H.264, 320 x 240, with a key frame each second: copies of one scene, each with a content of its
own, on the local disk and in its cache. A clip is 16 consecutive frames, resized and cropped. All clips must be
equal, otherwise no figure is printed. Files and pack take turns on one thread, each time in another order of clips,
and medians of processor time are compared. Decoding is most of it, so a pack gains nothing where the disk is near:
what is shown is what it costs. An index of a million rows is listed in a process of its own. It takes about 3 minutes
on 2 CPU cores.

    python benchmarks/packed_reading.py [--videos 48] [--rounds 5] [--rows 1000000] [--smoke]
"""

import hashlib
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from helpers.large_index import write_index
from helpers.measurement import in_own_process, make_parser, peak_memory, print_machine, print_ratio, take_turns
from helpers.scene_video import FPS, encode_scene

from hf_video.data import ClipDataset, load_video_dataset
from hf_video.data.manifest import INDEX_FILE
from hf_video.data.packs.packing import pack_videos
from hf_video.data.stored_videos import open_video
from hf_video.io import StoredFolder
from hf_video.processing import VideoClipProcessor


def write_videos(folder: Path, num_videos: int, num_frames: int) -> Path:
    """Two class folders. A number behind the last box of a file makes its content its own."""
    encode_scene(folder / "scene.mp4", num_frames, FPS, height=240, width=320)
    content = (folder / "scene.mp4").read_bytes()
    for number in range(num_videos):
        file = folder / "videos" / f"class_{number % 2}" / f"{number:08d}.mp4"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content + struct.pack(">I4sQ", 16, b"free", number))
    return folder / "videos"


def make_clips(data: Path) -> ClipDataset:
    processor = VideoClipProcessor(
        num_frames=16, sampling_strategy="dense", frame_sampling_rate=1, size=112, crop_size=112
    )
    return ClipDataset(load_video_dataset(data)["train"], processor, training=True)


def read_all(clips: ClipDataset) -> None:
    for index in torch.randperm(len(clips)).tolist():
        clips[index]


def require_equal_clips(files: ClipDataset, pack: ClipDataset) -> None:
    for index in range(len(files)):
        if not torch.equal(files[index]["pixel_values"], pack[index]["pixel_values"]):
            sys.exit(f"Clip {index} of the pack is not that of the files: there is nothing to compare.")


def compare_reading(data: Path, folder: Path, rounds: int) -> None:
    splits = load_video_dataset(data)
    counts = pack_videos(splits, StoredFolder(folder), data, progress=False)
    files, pack = make_clips(data), make_clips(folder)
    require_equal_clips(files, pack)
    contents = [open_video(row).read() for row in pack.dataset]  # type: ignore[union-attr]
    runs = {
        "files": lambda: read_all(files),
        "pack": lambda: read_all(pack),
        "sha256": lambda: [hashlib.sha256(content).hexdigest() for content in contents],
    }
    seconds = {
        name: statistics.median(times)
        for name, times in take_turns(runs, rounds=rounds, clock=time.process_time).items()
    }
    size = counts.num_bytes / len(files) / 1e3 if counts else 0
    print(f"{len(files)} clips are equal; a video has {size:.0f} KB; median of {rounds} rounds, of processor time")
    for name in ("files", "pack"):
        print(f"  {name:6} {len(files) / seconds[name]:8.1f} clips/s")
    print(f"  pack to files: ratio {seconds['files'] / seconds['pack']:.3f}")
    print_ratio("clips of a pack", seconds["pack"] / seconds["files"], "files", quantity="processor time")
    share = seconds["sha256"] / seconds["pack"]
    print(f"  the SHA-256 takes {seconds['sha256'] / len(files) * 1e3:.2f} ms a clip, {share:.1%} of reading it")


def list_index(folder: Path) -> tuple[float, float, float, float]:
    """Seconds to list an index, GiB that the rows take, peak memory in GiB, and seconds to look up a row."""
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    rows = load_video_dataset(folder)["train"]
    seconds = time.perf_counter() - start
    taken = (psutil.Process().memory_info().rss - before) / 2**30
    numbers = np.random.default_rng(0).integers(0, len(rows), 1000).tolist()
    start = time.perf_counter()
    for number in numbers:
        rows[number]
    return seconds, taken, peak_memory(), (time.perf_counter() - start) / len(numbers)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--videos", type=int, default=48, help="number of videos (default: 48)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each reads all clips (default: 5)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the index (default: 1000000)")
    arguments = parser.parse_args()
    num_videos, num_frames, rounds, num_rows = arguments.videos, 10 * FPS, arguments.rounds, arguments.rows
    if arguments.smoke:
        num_videos, num_frames, rounds, num_rows = 4, FPS, 1, 1000
    print_machine("av", "pyarrow", "datasets")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "large").mkdir()
        in_own_process(1, write_index, folder / "large", num_rows)
        seconds, taken, peak, lookup = in_own_process(1, list_index, folder / "large")
        torch.set_num_threads(1)
        compare_reading(write_videos(folder, num_videos, num_frames), folder / "pack", rounds)
        size = (folder / "large" / INDEX_FILE).stat().st_size / 2**20
    print(f"index of {num_rows:,} rows, {size:.0f} MiB: listed in {seconds:.1f} s")
    print(f"  its rows take {taken:.2f} GiB, peak memory {peak:.2f} GiB, {lookup * 1e3:.2f} ms to look up a row")


if __name__ == "__main__":
    main()
