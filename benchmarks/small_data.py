"""
Trains on fifteen clips a class by `hf-video train`: from the bundled model, from random weights, and with each part
of the start's defaults left out. Measures top-1 accuracy on 240 clips or so of the same kind.

Nine small sets, none of which shares code, photographs or textures with what the start was trained on. Photographs
that cross the picture, cameras that zoom and turn, and people who walk (PETS 2009) are motions that the generator of
its videos has. What two things do to each other and what a drawn figure does are motions that it does not have.
Digits, surfaces, gears that are good or broken, and postures are no motions at all. The photographs and the people
are OpenCV's samples, where Debian's `apt-get install opencv-doc` puts them. The error from random weights has to fall
to a fifth where the generator has the motions, to a half elsewhere.

From the start a training takes two minutes of one CPU core, from random weights four: it is trained once a set.
With `--smoke` sets are tiny and trainings have one step.

    python benchmarks/small_data.py [--sets crossing digits] [--rows scratch start] [--seeds 3] [--smoke]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from helpers.measurement import GOAL_MISSED, SKIPPED, in_own_process, make_parser, print_machine
from helpers.small_sets import SAMPLES, SETS, write_set

import hf_video.cli.main
from hf_video.settings import settings_of
from hf_video.training.task_settings import TrainSettings

TRAIN_PER_CLASS, TEST_CLIPS = 15, 240
SCRATCH, START = "from random weights", "from the bundled model"
# The words of the command by the name of a row. The parts are what the start changes of the defaults of `train`.
PARTS: dict[str, list[str]] = {
    SCRATCH: ["--model", "scratch"],
    START: [],
    "random weights, else as start": [
        *("--image-size", "64", "--num-frames", "8", "--patch-size", "8"),
        *("--hidden-size", "128", "--num-hidden-layers", "4", "--num-attention-heads", "4"),
        *(
            word
            for each in settings_of(TrainSettings).values()
            if each.from_start is not None
            for word in each.spell(each.from_start).split()
        ),
    ],
    "20 epochs": ["--num-train-epochs", "20"],
    "rate of 1e-4": ["--learning-rate", "1e-4"],
    "no label smoothing": ["--label-smoothing-factor", "0"],
    "no crops": ["--crop-min-area", "1"],
    "no change of colours": ["--color-jitter", "0"],
    "best checkpoint": ["--load-best-model-at-end"],
}
GOALS = {"motion": 0.2, "other motion": 0.5, "no motion": 0.5}


class Run(NamedTuple):
    """What a training reached on the test clips, and the seconds from start to end, of the clock and of processors."""

    accuracy: float
    seconds: float
    processor_seconds: float


def train(data: Path, folder: Path, seed: int, words: list[str], is_small: bool) -> Run:
    """Runs the public command; on small inputs in a fork, which need not import everything anew."""
    command = ["train", str(data), "--output-dir", str(folder), "--device", "cpu", "--seed", str(seed), *words]
    command += ["--disable-tqdm"]
    before, begin = os.times(), time.perf_counter()
    if is_small:
        in_own_process(1, hf_video.cli.main.main, [*command, "--max-steps", "1"])
    else:
        program = [sys.executable, "-m", "hf_video.cli", *command]
        subprocess.run(program, stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - begin, os.times()
    spent = sum(after[2:4]) - sum(before[2:4])  # of ended programs, user and system
    metrics = json.loads((folder / "report" / "metrics.json").read_text())
    return Run(metrics["top1_accuracy"], seconds, spent)


def print_table(runs: dict[str, Run], names: list[str], rows: list[str]) -> None:
    """The mean over seeds of each row and set."""
    print(f"\n{'top-1, mean of seeds':28}" + "".join(f"{name:>10}" for name in names) + "  seconds  of processors")
    for row in rows:
        of_sets = [of_row(runs, name, row) for name in names]
        cells = "".join(
            f"{np.mean([run.accuracy for run in found]):10.1%}" if found else " " * 10 for found in of_sets
        )
        _, seconds, spent = np.mean([run for found in of_sets for run in found], axis=0)
        print(f"{row:28}{cells}{seconds:9.0f}{spent:15.0f}")


def of_row(runs: dict[str, Run], name: str, row: str) -> list[Run]:
    return [run for key, run in runs.items() if key.startswith(f"{name}, {row}, ")]


def print_goals(runs: dict[str, Run], names: list[str]) -> bool:
    """Says how far the error falls in each set. Gives whether all goals are met."""
    are_met = True
    for name in names:
        scratch, start = (1 - np.mean([run.accuracy for run in of_row(runs, name, row)]) for row in (SCRATCH, START))
        goal = GOALS[SETS[name].kind]
        are_met &= bool(start <= goal * scratch)
        share = f"{start / scratch:.2f} of it" if scratch else "none before"
        print(
            f"{name} ({SETS[name].kind}): the error falls from {scratch:.1%} to {start:.1%}, {share}; wanted: {goal}"
        )
    return are_met


def sizes_of(name: str, is_small: bool) -> dict[str, int]:
    number = len(SETS[name].classes)
    return {
        "train_per_class": 2 if is_small else TRAIN_PER_CLASS,
        "test_per_class": -(-(8 if is_small else TEST_CLIPS) // number),
    }


def add_runs(
    runs: dict[str, Run], name: str, seed: int, rows: Mapping[str, list[str]], arguments: argparse.Namespace
) -> None:
    """Writes a set, trains each row on it, and prints what they reach."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place, "data")
        write_set(name, data, seed=seed, is_small=arguments.smoke, **sizes_of(name, arguments.smoke))
        if arguments.smoke and name != arguments.sets[0]:
            return
        for row, words in rows.items():
            if row == SCRATCH and seed >= arguments.scratch_seeds:
                continue
            folder = Path(place, row)
            run = runs[f"{name}, {row}, {seed}"] = train(data, folder, seed, words, arguments.smoke)
            if arguments.picture and row == START and (name, seed) == (arguments.sets[0], 0):
                shutil.copy(folder / "report" / "curves.png", arguments.picture)
            took = f"{run.seconds:.0f} s, {run.processor_seconds:.0f} s of processors"
            print(f"  {row}, seed {seed}: {run.accuracy:.1%} in {took}", flush=True)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="(default: all)")
    parser.add_argument("--rows", nargs="+", choices=PARTS, help="what to train (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scratch-seeds", type=int, default=1, help="seeds of the slow row (default: %(default)s)")
    parser.add_argument(
        "--picture", type=Path, help="PNG file for the curves of the first training from the bundled model"
    )
    arguments = parser.parse_args()
    if not arguments.smoke and not SAMPLES.is_dir():
        print(f"{SAMPLES} is missing: apt-get install opencv-doc", file=sys.stderr)
        return SKIPPED
    rows = {row: words for row, words in PARTS.items() if row in (arguments.rows or PARTS)}
    if arguments.smoke:
        rows = dict([*rows.items()][:2])
    print_machine("torch", "transformers", "av", threads=int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    runs: dict[str, Run] = {}
    for name in arguments.sets:
        train_clips, test_clips = sizes_of(name, arguments.smoke).values()
        classes = ", ".join(SETS[name].classes)
        print(
            f"{name}, {SETS[name].kind}: {train_clips} training and {test_clips} test clips of {classes}", flush=True
        )
        for seed in range(1 if arguments.smoke else arguments.seeds):
            add_runs(runs, name, seed, rows, arguments)
    print_table(runs, arguments.sets, list(rows))
    if arguments.smoke or not {SCRATCH, START} <= rows.keys():
        return 0
    return 0 if print_goals(runs, arguments.sets) else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
