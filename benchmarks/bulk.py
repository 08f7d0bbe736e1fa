"""
Compares `hf-video extract --engine local` and `--engine ray` with `hf-video extract`, which does one video after the
other in a plain loop: processor time for each video, of all processes that a command starts, Ray's own included. Each
command runs on few and on many videos. The difference, divided by the videos between, is the time of a video; the rest
is the start. The features of all must be equal, otherwise no figure is printed.

The videos are H.264, 10 s of 320 x 240 at 30 frames per second, encoded on the spot.
The model is a small VideoViT with random weights, for clips of 16 frames of 112 pixels. Each process computes with
one thread. It takes about ten minutes on 2 CPU cores. With --smoke, Ray is left out.

    python benchmarks/bulk.py [--few 16] [--many 112] [--rounds 2] [--smoke]
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pyarrow.dataset as ds
import torch
from helpers.measurement import make_parser, print_machine, print_ratio, require_agreement
from helpers.scene_video import encode_scene

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForVideoClassification
from hf_video.cli.main import main as main_of_command

NUM_FRAMES, SIZE, SECONDS, FPS = 16, 112, 10, 30
WINDOWS = ["--window", str(NUM_FRAMES), "--stride", str(NUM_FRAMES)]
# Seconds between two looks at the processes of a command.
PATIENCE = 0.1
PLAIN = "plain loop"
# The names of the processes of Ray that do our work.
WORK = re.compile("ray::(MapWorker|Write)")


def save_model(folder: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 768}
    VideoViTForVideoClassification(
        VideoViTConfig(image_size=SIZE, num_frames=NUM_FRAMES, num_labels=2, **sizes)
    ).save_pretrained(folder)
    crop_size = {"height": SIZE, "width": SIZE}
    processor = VideoClipProcessor(
        num_frames=NUM_FRAMES, frame_sampling_rate=1, size={"shortest_edge": SIZE}, crop_size=crop_size
    )
    processor.save_pretrained(folder)


def run(words: list[str]) -> np.ndarray:
    """Processor seconds of a command and of all that it starts, and of these those of Ray's own processes."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    program = [sys.executable, "-m", "hf_video.cli", "extract", *words, "--device", "cpu"]
    seconds: dict[tuple[int, float], tuple[float, bool]] = {}
    with tempfile.TemporaryFile() as said:
        command = subprocess.Popen(program, env=environment, stdout=said, stderr=subprocess.STDOUT)
        while command.poll() is None:
            for process in [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]:
                try:
                    times = process.cpu_times()
                    is_work = process.pid == command.pid or WORK.match(" ".join(process.cmdline()))
                    # An actor has another name before it begins and after it ends.
                    key = process.pid, process.create_time()
                    seconds[key] = times.user + times.system, not is_work and seconds.get(key, (0.0, True))[1]
                except psutil.NoSuchProcess:  # it has ended, and keeps the time that was seen last
                    pass
            time.sleep(PATIENCE)
        if command.returncode:
            said.seek(0)
            sys.exit(said.read().decode())
    return np.array([sum(each for each, _ in seconds.values()), sum(each for each, own in seconds.values() if own)])


def run_here(words: list[str]) -> np.ndarray:
    """What `run` measures, without another process."""
    start = time.process_time()
    with redirect_stdout(io.StringIO()):
        code = main_of_command(["extract", *words, "--device", "cpu"])
    if code:
        sys.exit(f"hf-video extract ended with {code}.")
    return np.array([time.process_time() - start, 0.0])


def read_features(folder: Path, engine: str) -> dict[str, np.ndarray]:
    if engine == PLAIN:
        return {path.stem: np.load(path) for path in folder.glob("*.npy")}
    rows = ds.dataset(folder, format="parquet").to_table(columns=["key", "piece", "features"]).to_pandas()
    return {key: np.stack(of_video["features"]) for key, of_video in rows.sort_values("piece").groupby("key")}


def compare(
    folder: Path, engines: list[str], few: int, many: int, rounds: int, seconds: int, run: Callable[..., np.ndarray]
) -> None:
    video = folder / "video.mp4"
    encode_scene(video, seconds * FPS, FPS, height=240, width=320)
    for number in (few, many):
        (folder / str(number)).mkdir()
        for each in range(number):
            os.link(video, folder / str(number) / f"{each:04d}.mp4")
    least: dict[tuple[str, int], np.ndarray] = {}
    for round_number in range(rounds):
        for number in (few, many):
            features = {}
            for engine in engines:
                output = folder / f"{engine} {number} {round_number}"
                words = [str(folder / str(number)), "--model", str(folder / "model"), "--output", str(output)]
                words += [*WINDOWS] if engine == PLAIN else [*WINDOWS, "--engine", engine, "--part-size", "8"]
                found = run(words)
                if (engine, number) not in least or found[0] < least[engine, number][0]:
                    least[engine, number] = found
                features[engine] = read_features(output, engine)
                shutil.rmtree(output)
            expected = features[PLAIN]
            for engine, values in features.items():
                if values.keys() != expected.keys():
                    sys.exit(f"{engine} has {len(values)} videos, not {len(expected)}: no figure means anything.")
                differences = [np.abs(values[name] - expected[name]).max() for name in expected]
                require_agreement(f"the features of {engine}", float(np.max(differences)), 1e-5)
    print(f"processor milliseconds of a video of {seconds} s, and processor seconds of the start:")
    of_video = {engine: (least[engine, many] - least[engine, few]) / (many - few) for engine in engines}
    for engine, (of_all, of_ray) in of_video.items():
        start = least[engine, few][0] - few * of_all
        ratio = "" if engine == PLAIN else f"   ratio {of_all / of_video[PLAIN][0]:.3f}"
        own = f", {1000 * of_ray:.1f} of it in Ray's own processes" if engine == "ray" else ""
        print(f"  {engine:12}{1000 * of_all:8.1f}{start:8.1f}{ratio}{own}")
        if engine != PLAIN:
            print_ratio(f"--engine {engine}", of_all / of_video[PLAIN][0], PLAIN, quantity="processor time")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--few", type=int, default=16, help="videos of the short runs (default: 16)")
    parser.add_argument("--many", type=int, default=112, help="videos of the long runs (default: 112)")
    parser.add_argument("--rounds", type=int, default=2, help="times that each runs; the least counts (default: 2)")
    arguments = parser.parse_args()
    has_ray = find_spec("ray") is not None and not arguments.smoke
    print_machine("av", "torch", *(["ray"] if has_ray else []), threads=1)
    if not has_ray:
        reason = "--smoke" if arguments.smoke else "Ray is missing: pip install 'hf-video-models[ray]'"
        print(f"without --engine ray ({reason})")
    few, many, rounds, seconds = arguments.few, arguments.many, arguments.rounds, SECONDS
    if arguments.smoke:
        few, many, rounds, seconds = 1, 4, 1, 1
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder, "model"))
        engines = [PLAIN, "local", *(["ray"] if has_ray else [])]
        compare(Path(folder), engines, few, many, rounds, seconds, run_here if arguments.smoke else run)


if __name__ == "__main__":
    main()
