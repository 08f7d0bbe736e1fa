"""
Seconds from the start of `hf-video train` to the end of its first step, for a data set of many videos.

The videos are copies of a few moving digits, each with a content of its own. `hf-video inspect --quick --output` opens
them and writes a manifest. A process of its own then trains a tiny model on the manifest, and ends with the first
step; its time is split by stage. The script fails if the first step ends later than 30 s after the start. For 200,000
videos it takes about 5 minutes on 2 CPU cores, almost all of them for the check. With --without-manifest it trains on
the folder itself.

    python benchmarks/startup.py [--videos 200000] [--without-manifest] [--smoke]
"""

import importlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from helpers.measurement import GOAL_MISSED, make_parser, peak_memory, print_machine
from helpers.stage_clock import StageClock

from hf_video.cli.main import main as run_command

LIMIT = 30.0
MODEL = "--num-frames 4 --image-size 32 --hidden-size 24 --num-hidden-layers 1 --num-attention-heads 2 --batch-size 8"
# Functions that the command calls before it trains, in the modules that call them.
STAGES = {
    ("fine_tuning", "load_data"): "list the videos",
    ("run_start", "describe_data"): "describe the data",
    ("fine_tuning", "readable_videos"): "check the videos",
    ("fine_tuning", "training_splits"): "hold out, find repeated clips",
    ("fine_tuning", "load_model"): "make the model",
}


def train_one_step(data: str, output_dir: str, begin: float) -> None:
    """Runs `hf-video train` up to the end of the first step, prints seconds of its stages, and ends the process."""
    clock = StageClock(begin)
    from hf_video.training import VideoTrainer

    clock.lap("import")
    for (module, name), stage in STAGES.items():
        caller = importlib.import_module(f"hf_video.training.{module}")
        setattr(caller, name, clock.timed(stage, getattr(caller, name)))

    def end(*_: Any, **__: Any) -> NoReturn:
        clock.lap("first step")
        print(json.dumps({"seconds": clock.seconds, "gib": peak_memory()}), flush=True)
        os._exit(0)

    init = VideoTrainer.__init__

    def init_trainer(self: VideoTrainer, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.callback_handler.on_step_end = end  # type: ignore[method-assign]
        clock.lap("other")

    VideoTrainer.__init__ = init_trainer  # type: ignore[method-assign]
    code = run_command(["train", data, "--output-dir", output_dir, *MODEL.split(), "--device", "cpu"])
    sys.exit(f"The training ended with exit code {code}, without a step.")


def write_videos(folder: Path, num_videos: int) -> Path:
    """Class folders with `num_videos` videos. A number behind the last box of a file makes its content its own."""
    from hf_video.demo import write_moving_digits

    sizes = {"train_per_class": 4, "test_per_class": 1, "num_frames": 8, "image_size": 32}
    originals = sorted((write_moving_digits(folder / "digits", **sizes) / "train").glob("*/*.mp4"))
    contents = [(original.parent.name, original.read_bytes()) for original in originals]
    for number in range(num_videos):
        name, content = contents[number % len(contents)]
        file = folder / "videos" / name / f"{number:08d}.mp4"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content + struct.pack(">I4sQ", 16, b"free", number))
    return folder / "videos"


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--videos", type=int, default=200_000, help="number of videos")
    parser.add_argument("--without-manifest", action="store_true", help="train on the folder itself")
    parser.add_argument("--first-step", nargs=3, metavar=("DATA", "DIR", "SECONDS"), help="train in this process")
    arguments = parser.parse_args()
    if arguments.first_step:
        data, output_dir, begin = arguments.first_step
        train_one_step(data, output_dir, float(begin))
    print_machine("torch", "transformers", "datasets", "pyarrow")
    num_videos = 64 if arguments.smoke else arguments.videos
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_videos(folder, num_videos)
        if not arguments.without_manifest:
            begin = time.perf_counter()
            if code := run_command(["inspect", str(data), "--quick", "--output", str(folder / "videos.parquet")]):
                sys.exit(f"hf-video inspect ended with exit code {code}.")
            data = folder / "videos.parquet"
            seconds = time.perf_counter() - begin
            print(f"manifest of {num_videos} videos: {seconds:.1f} s, {data.stat().st_size / 2**20:.1f} MiB")
        words = [str(data), str(folder / "model"), str(time.time())]
        child = subprocess.run([sys.executable, __file__, "--first-step", *words], stdout=subprocess.PIPE, text=True)
        if child.returncode:
            sys.exit(f"The training ended with exit code {child.returncode}.")
        measured = json.loads(child.stdout.splitlines()[-1])
        for stage, seconds in measured["seconds"].items():
            print(f"  {stage:30} {seconds:6.1f} s")
        total = sum(measured["seconds"].values())
        print(
            f"first step of {num_videos} videos: {total:.1f} s after the start, peak memory {measured['gib']:.2f} GiB"
        )
    return 0 if total <= LIMIT or arguments.smoke or arguments.without_manifest else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
