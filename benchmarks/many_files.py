"""
What a file system is asked for in one epoch of short videos: as files, as rows of Parquet files that are copied into
the cache of `datasets` once, and as a stream of the same files. Calls that open a file of the data, and calls that
read from one and their bytes, are counted by strace (Debian: strace); what is mapped into memory is read in pages,
without calls. A network file system answers each call with a round trip or more: counts are the figure, not seconds.

It takes a minute or two. With `--smoke` there are 16 videos.

    python benchmarks/many_files.py [--videos 512] [--smoke]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from helpers.measurement import SKIPPED, make_parser, print_machine

from hf_video.demo import write_moving_digits

# Reads every clip once, without a model.
EPOCH = """
import sys
from itertools import islice
from hf_video.data import ClipTask, VideoDataset, VideoStream, load_video_dataset, load_video_stream
from hf_video.processing import VideoClipProcessor

data, way, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
task = ClipTask(VideoClipProcessor(num_frames=4, size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}))
if way == "stream":
    clips = islice(VideoStream(load_video_stream(data)[0], task, seed=0), number)
else:
    dataset = VideoDataset(load_video_dataset(data)["train"], task, training=True, seed=0)
    clips = (dataset[number] for number in range(len(dataset)))
print(sum(1 for clip in clips))
"""
WAYS = {
    "files": "files",
    "Parquet, copied once": "rows",
    "Parquet, the second epoch": "rows",
    "Parquet, streamed": "stream",
}
CALL = re.compile(r"(openat|read|pread64)\((.*)\)\s+= (\d+)(?:<(.*)>)?$")


def write_rows(videos: Path, folder: Path, files: int) -> None:
    """Writes the videos of class folders as Parquet files."""
    from datasets import ClassLabel, Dataset, Features, Video

    rows = [
        {"video": {"path": path.name, "bytes": path.read_bytes()}, "label": path.parent.name}
        for path in sorted(videos.glob("*/*.mp4"))
    ]
    classes = ClassLabel(names=sorted({row["label"] for row in rows}))
    dataset = Dataset.from_list(rows, features=Features({"video": Video(decode=False), "label": classes}))
    folder.mkdir()
    for number in range(files):
        dataset.shard(files, number).to_parquet(folder / f"train-{number:05}.parquet")


def count(data: Path, way: str, number: int, place: Path) -> tuple[int, int, int]:
    """The calls that open, and that read, and the bytes read, of files below a folder, in one epoch."""
    trace = place / "trace"
    words = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-y",
        "-s",
        "0",
        "-e",
        "trace=openat,read,pread64",
        "-o",
        str(trace),
    ]
    environment = os.environ | {"HF_DATASETS_CACHE": str(place / "cache"), "HF_HUB_OFFLINE": "1"}
    program = [sys.executable, "-c", EPOCH, str(data), way, str(number)]
    read = subprocess.run([*words, *program], env=environment, check=True, capture_output=True, text=True).stdout
    if int(read.split()[-1]) != number:
        raise RuntimeError(f"{read} of {number} videos were read.")
    calls: dict[str, int] = defaultdict(int)
    for line in trace.read_text(errors="replace").splitlines():
        if (found := CALL.search(line)) and str(place) in line and str(trace) not in line:
            name, _, result, _ = found.groups()
            calls["open" if name == "openat" else "read"] += 1
            calls["bytes"] += int(result) if name != "openat" else 0
    return calls["open"], calls["read"], calls["bytes"]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--videos", type=int, default=512, help="(default: %(default)s)")
    arguments = parser.parse_args()
    if shutil.which("strace") is None:
        print("strace is missing: apt-get install strace", file=sys.stderr)
        return SKIPPED
    number = 16 if arguments.smoke else arguments.videos
    print_machine("datasets", "av")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        write_moving_digits(
            place / "videos", train_per_class=number // 8, test_per_class=1, num_frames=16, image_size=48
        )
        shutil.rmtree(place / "videos" / "test")
        write_rows(place / "videos" / "train", place / "rows", files=4)
        size = sum(path.stat().st_size for path in (place / "videos").rglob("*.mp4"))
        number = number // 8 * 8
        print(f"{number} videos of {size / 2**20:.2f} MiB together")
        print(f"{'one epoch':28}{'opens':>8}{'reads':>8}{'MiB read':>10}")
        for name, way in WAYS.items():
            opens, reads, volume = count(place / ("videos" if way == "files" else "rows"), way, number, place)
            print(f"{name:28}{opens:8}{reads:8}{volume / 2**20:10.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
