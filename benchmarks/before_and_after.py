"""
Compares this tree with another commit of it: start, reading, windows, `predict`, `extract`, bulk `extract`, `timeline`
and training, of VideoViT and of VideoMamba. A change that makes one of them slower shows here.

The commit is checked out into a temporary folder. Every job runs in processes of its own, whose `hf_video` is that of
one tree or the other, in turns. A process does its job once unmeasured and then a few times, and prints the least
processor seconds; start is the whole process. Two processes that follow each other are a pair, and the median of the
ratios of the pairs is the figure: what else the machine does is much the same for both, and one lucky process does not
decide. Processor time is that of all threads and ended children, so that a busy machine adds little. It takes about
15 minutes on 2 CPU cores, and a clone with the commit: without git it is skipped. Outputs are not compared, as
versions may differ in them: that they are right is for the tests to say.

    python benchmarks/before_and_after.py COMMIT [--jobs reading training] [--turns 3] [--limit 1.03] [--smoke]
"""

import contextlib
import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from helpers.measurement import GOAL_MISSED, SKIPPED, make_parser, print_machine
from helpers.scene_video import encode_scene

ROOT = Path(__file__).parents[1]
SIZE, NUM_FRAMES, FPS = 112, 16, 30
ROUNDS = 3


def command(*words: str | Path) -> None:
    from hf_video.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([str(word) for word in words])
    if code:
        sys.exit(f"{said.getvalue()}\nhf-video {words[0]} ended with {code}.")


def start(folder: Path) -> None:
    from hf_video import VideoClipProcessor, VideoViTForVideoClassification  # noqa: F401


def uniform_reading(folder: Path) -> None:
    from hf_video.reading import read_video

    for _ in range(4):
        read_video(
            str(folder / "long.mp4"),
            lambda metadata: np.linspace(0, metadata.total_num_frames - 1, NUM_FRAMES).round().astype(int),
        )


def dense_reading(folder: Path) -> None:
    from hf_video.reading import read_video

    for first in range(0, 800, 50):
        read_video(str(folder / "long.mp4"), lambda metadata, first=first: np.arange(first, first + NUM_FRAMES))


def windows(folder: Path) -> None:
    from hf_video.reading import group_samples, timed_samples

    samples = timed_samples(str(folder / "long.mp4"))
    for _ in group_samples(samples, NUM_FRAMES, NUM_FRAMES // 2, transform=lambda frames: [f.image for f in frames]):
        pass


def predict(folder: Path) -> None:
    command("predict", folder / "videos", "--model", folder / "model", "--device", "cpu")


def extract(folder: Path, *options: str) -> None:
    output = folder / "features"
    shutil.rmtree(output, ignore_errors=True)
    words = ["--model", folder / "model", "--window", "16", "--stride", "8", "--device", "cpu", "--output", output]
    command("extract", folder / "videos", *words, *options)


def bulk_extract(folder: Path) -> None:
    extract(folder, "--engine", "local", "--part-size", "8")


def timeline(folder: Path) -> None:
    output = folder / "timeline"
    shutil.rmtree(output, ignore_errors=True)
    command("timeline", folder / "long.mp4", "--model", folder / "model", "--device", "cpu", "--output", output)


def training(folder: Path, *model: str | Path) -> None:
    output = folder / "run"
    shutil.rmtree(output, ignore_errors=True)
    steps = ["--num-frames", "8", "--image-size", "64", "--max-steps", "12", "--batch-size", "4", "--num-workers", "0"]
    command("train", folder / "labelled", *steps, *model, "--output-dir", output, "--device", "cpu")


def videomamba_training(folder: Path) -> None:
    training(folder, "--model", folder / "videomamba")


JOBS: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        *(start, uniform_reading, dense_reading, windows, predict, extract, bulk_extract, timeline),
        *(training, videomamba_training),
    )
}


def prepare(folder: Path, num_videos: int, num_frames: int) -> None:
    """Writes the videos and the models that the jobs share."""
    import hf_video

    encode_scene(folder / "long.mp4", num_frames, 60)
    encode_scene(folder / "short.mp4", 3 * FPS, FPS, height=240, width=320)
    for index in range(num_videos):
        for name in (Path("videos", f"{index}.mp4"), Path("labelled", "ab"[index % 2], f"{index}.mp4")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / "short.mp4", folder / name)
    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 768}
    config = hf_video.VideoViTConfig(image_size=SIZE, num_frames=NUM_FRAMES, num_labels=2, **sizes)
    hf_video.VideoViTForVideoClassification(config).save_pretrained(folder / "model")
    config = hf_video.VideoMambaConfig.preset("tiny", num_hidden_layers=4, num_frames=NUM_FRAMES, num_labels=2)
    hf_video.VideoMambaForVideoClassification(config).save_pretrained(folder / "videomamba")
    processor = hf_video.VideoClipProcessor(
        num_frames=NUM_FRAMES,
        frame_sampling_rate=1,
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
    )
    for name in ("model", "videomamba"):
        processor.save_pretrained(folder / name)


def processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure(job: str, folder: Path, rounds: int) -> None:
    """Prints the least processor seconds of a job in this process."""
    least = np.inf
    for _ in range(rounds + 1):
        begin = processor_seconds()
        JOBS[job](folder)
        least = min(least, processor_seconds() - begin)
    print(least)


def seconds_of(job: str, tree: Path, folder: Path, rounds: int) -> float:
    """Processor seconds of a job with the `hf_video` of a tree."""
    program = [sys.executable, __file__, "HEAD", "--measure", job, str(folder), str(rounds)]
    before = os.times()
    environment = os.environ | {"PYTHONPATH": str(tree)}
    run = subprocess.run(program, env=environment, cwd=tree, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{job} of {tree.name} failed:\n{run.stderr[-2000:]}")
    after = os.times()
    whole = after.children_user + after.children_system - before.children_user - before.children_system
    return whole if job == "start" else float(run.stdout.split()[-1])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD", help="what to compare with (default: HEAD)")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--turns", type=int, default=3, help="processes of each job and tree (default: 3)")
    parser.add_argument("--limit", type=float, default=1.03, help="the greatest ratio that is good (default: 1.03)")
    parser.add_argument("--measure", nargs=3, metavar=("JOB", "FOLDER", "ROUNDS"), help="what a process of it runs")
    arguments = parser.parse_args()
    if arguments.measure:
        job, folder, rounds = arguments.measure
        return measure(job, Path(folder), int(rounds))
    if not (ROOT / ".git").exists():
        print("There is no git history: no other commit can be checked out.", file=sys.stderr)
        sys.exit(SKIPPED)
    jobs = ["uniform_reading"] if arguments.smoke else arguments.jobs
    turns, rounds = (1, 0) if arguments.smoke else (arguments.turns, ROUNDS)
    print_machine("torch", "transformers", "av")
    ratios = []
    with tempfile.TemporaryDirectory() as temporary:
        folder, before = Path(temporary, "files"), Path(temporary, "before")
        folder.mkdir()
        prepare(folder, 2 if arguments.smoke else 24, 60 if arguments.smoke else 1200)
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(before), arguments.commit], check=True, capture_output=True)
        try:
            for job in jobs:
                seconds: dict[Path, list[float]] = {before: [], ROOT: []}
                begin = time.perf_counter()
                for _ in range(turns):
                    for tree, found in seconds.items():
                        found.append(seconds_of(job, tree, folder, rounds))
                old, new = map(statistics.median, seconds.values())
                pairs = [after / earlier for earlier, after in zip(*seconds.values(), strict=True)]
                shown = ", ".join(f"{pair:.3f}" for pair in pairs)
                took = time.perf_counter() - begin
                ratios.append(statistics.median(pairs))
                words = f"{job}: {ratios[-1]:.3f}; {old:.2f} s at {arguments.commit}, {new:.2f} s here"
                print(f"{words}; pairs {shown} ({took:.0f} s)", flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True, capture_output=True)
    slower = sum(ratio > arguments.limit for ratio in ratios)
    if slower and not arguments.smoke:
        print(f"{slower} of {len(ratios)} jobs are above {arguments.limit}.")
        sys.exit(GOAL_MISSED)


if __name__ == "__main__":
    main()
