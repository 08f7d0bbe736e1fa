"""
Instants that a model finds: when a digit appears and when it vanishes, by average precision at tolerances.

In a noisy video a handwritten digit that moves is there for one to five seconds, and then is not there for as long.
The list of times has only instants, in the column `time`: "appears" and "vanishes". `hf-video train --task frames`
learns them on one video of ten minutes; another one of ten minutes, with other digits, is the test. No single frame
tells an instant: a digit is there on one side of it, and on the other is none.

Wanted: a mean average precision of at least 0.9 over tolerances of 1 to 5 s. It takes five minutes on an idle core.

    python benchmarks/points.py [--epochs 20] [--seed 0] [--smoke]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from helpers.measurement import GOAL_MISSED, make_parser, print_machine
from PIL import Image

from hf_video.cli.main import main as hf_video
from hf_video.demo import encode_frames, load_digit_scans

WANTED, RATE, SIZE, DIGIT = 0.9, 16, 32, 12
SIZES = {"family": "videovit", "num-frames": 16, "image-size": SIZE, "patch-size": 16, "tubelet-size": 1, "fps": 8}
SIZES |= {"hidden-size": 48, "num-hidden-layers": 2, "num-attention-heads": 4, "clip-overlap": 0.5}


def write_points(folder: Path, name: str, seconds: int, seed: int) -> Path:
    """A video, and the table of its instants."""
    generator = np.random.default_rng([seed, name == "test"])
    digits = load_digit_scans(seed=0)[name == "test"]
    frames = generator.integers(0, 60, (seconds * RATE, SIZE, SIZE))
    rows, begin = [], generator.uniform(1, 5)
    while (end := begin + generator.uniform(1, 5)) < seconds - 1:
        digit = Image.fromarray(digits[generator.integers(len(digits))]).resize((DIGIT, DIGIT))
        place, step = generator.uniform(0, SIZE - DIGIT, 2), generator.normal(0, 0.5, 2)
        for number, frame in enumerate(frames[round(begin * RATE) : round(end * RATE)]):
            row, column = np.abs((place + number * step) % (2 * (SIZE - DIGIT)) - (SIZE - DIGIT)).astype(int)
            frame[row : row + DIGIT, column : column + DIGIT] += np.asarray(digit) * 3 // 4
        rows += [f"{name}.mp4,{time:.3f},{label}" for time, label in ((begin, "appears"), (end, "vanishes"))]
        begin = end + generator.uniform(1, 5)
    encode_frames(folder / f"{name}.mp4", frames.clip(0, 255).astype(np.uint8), RATE)
    table = folder / f"{name}.csv"
    table.write_text("\n".join(["path,time,label", *rows]) + "\n")
    return table


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine("torch", "transformers", "av", threads=1)
    seconds, epochs = (60, 1) if arguments.smoke else (600, arguments.epochs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training, test = (write_points(folder, part, seconds, arguments.seed) for part in ("training", "test"))
        sizes = [word for key, value in SIZES.items() for word in (f"--{key}", str(value))]
        words = ["--task", "frames", "--device", "cpu", "--background", "rest", "--epochs", str(epochs), *sizes]
        words += ["--seed", str(arguments.seed), "--report-to", "none", "--disable-tqdm", "--learning-rate", "0.002"]
        words += ["--metric-for-best-model", "point_map", "--output-dir", str(folder / "model")]
        if hf_video(["train", str(training), *words]):
            return 1
        measured = folder / "measured.json"
        words = ["--task", "frames", "--device", "cpu", "--model", str(folder / "model"), "--output", str(measured)]
        if hf_video(["evaluate", str(test), *words]):
            return 1
        found = json.loads(measured.read_text())["points"]["average_map"]
    return 0 if arguments.smoke or found >= WANTED else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
