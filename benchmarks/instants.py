"""
How well instants are found that a classifier of frames learned from a list of times.

Two videos of ten minutes are drawn, one to train and one of other digits to test. An instant is the moment at which a
digit begins to move left, right, up or down, also out of another motion. The table of these is learned by `hf-video
train --task frames` from the start that ships, and `hf-video timeline` finds those of the other video. The script
prints average precision at tolerances of 1 to 5 s and of 0.1 to 0.5 s, of which half counts on either side, as
SoccerNet counts action spotting; beside it that of as many instants at random times with the same scores, the mean of
20 draws. A second count in plain loops must give the same figures.

Wanted: ten times the precision of random instants, as the mean over 1 to 5 s. It takes about 20 minutes of one core.

    python benchmarks/instants.py [--seed 0] [--epochs 8] [--smoke]
"""

import contextlib
import csv
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from helpers.event_video import write_event_video
from helpers.measurement import GOAL_MISSED, make_parser, print_machine

from hf_video.evaluation import evaluate_points, read_predictions
from hf_video.evaluation.points import COARSE, FINE
from hf_video.inference import Segment, TimelineSettings
from hf_video.inference.timeline import make_timeline
from hf_video.loading.released import model_path
from hf_video.training import TrainFrameSettings, train

DRAWS, GOAL = 20, 10
# The training video is sampled so often in a second, and found instants have at least this score.
FPS, ONSET = 8.0, 0.05


def draw_instants(video: Path, seconds: float, seed: int, held_out: bool) -> list[Segment]:
    """Writes a video, and gives the begins of its events."""
    events = write_event_video(video, seconds=seconds, seed=seed, held_out=held_out)
    return [Segment(each.label, each.start, each.start) for each in events]


def write_table(file: Path, video: Path, instants: Sequence[Segment]) -> None:
    with file.open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(("path", "time", "label"))
        table.writerows((video.name, f"{each.start:.3f}", each.label) for each in instants)


def count_again(found: Sequence[Segment], true: Sequence[Segment], tolerance: float) -> float:
    """The mean average precision of the classes at a tolerance, in plain loops."""
    precisions = []
    for label in {each.label for each in true}:
        guesses = sorted((each for each in found if each.label == label), key=lambda each: -each.score)
        instants = sorted(each.start for each in true if each.label == label)
        taken = set[int]()
        for instant in instants:  # takes the most confident guess near it that is left
            for number, guess in enumerate(guesses):
                if number not in taken and abs(guess.start - instant) <= tolerance / 2 + 1e-6:
                    taken.add(number)
                    break
        hits, curve = 0, []
        for number in range(len(guesses)):
            hits += number in taken
            curve.append((hits / len(instants), hits / (number + 1)))
        best = [max([p for recall, p in curve if recall >= step / 10 - 1e-12], default=0.0) for step in range(11)]
        precisions.append(sum(best) / 11)
    return sum(precisions) / len(precisions)


def at_random(found: Sequence[Segment], seconds: float, generator: np.random.Generator) -> list[Segment]:
    times = generator.uniform(0, seconds, len(found))
    return [each._replace(start=time, end=time) for each, time in zip(found, times, strict=True)]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine("torch", "transformers", "av", threads=1)
    seconds = 40 if arguments.smoke else 600
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        learned, test, table = folder / "learned.mp4", folder / "test.mp4", folder / "points.csv"
        write_table(table, learned, draw_instants(learned, seconds, arguments.seed, held_out=False))
        true = draw_instants(test, seconds, arguments.seed, held_out=True)
        model, output = str(folder / "model"), folder / "found"
        options = {"max_steps": 1} if arguments.smoke else {"epochs": arguments.epochs}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            train(
                TrainFrameSettings(
                    data=str(table),
                    model=str(model_path("start")),
                    background="nothing",
                    fps=FPS,
                    output_dir=model,
                    seed=arguments.seed,
                    device="cpu",
                    **options,
                )
            )
            onset = 1e-6 if arguments.smoke else ONSET
            settings = TimelineSettings(video=str(test), model=model, onset=onset, output=str(output), device="cpu")
            make_timeline(settings)
        ((_, found),) = read_predictions(output / "segments.csv").items()
    figures = evaluate_points({"test": found}, {"test": true})
    generator = np.random.default_rng(arguments.seed)
    draws = [evaluate_points({"test": at_random(found, seconds, generator)}, {"test": true}) for _ in range(DRAWS)]
    chance = np.mean([each["mean_average_precision"] for each in draws], axis=0)
    again = [count_again(found, true, tolerance) for tolerance in FINE + COARSE]
    if not np.allclose(again, figures["mean_average_precision"], atol=1e-9):
        print(f"A second count differs: {again} against {figures['mean_average_precision']}", file=sys.stderr)
        return 1
    print(f"{len(true)} instants of {len(figures['classes'])} classes in {seconds} s, {len(found)} found\n")
    print("| tolerance, s | " + " | ".join(f"{each:g}" for each in FINE + COARSE) + " | 0.1 to 0.5 | 1 to 5 |")
    print("|---" * (len(FINE + COARSE) + 3) + "|")
    means = [[np.mean([each[name] for each in draws])] for name in ("average_map_fine", "average_map")]
    for name, row, last in (
        ("learned", figures["mean_average_precision"], (figures["average_map_fine"], figures["average_map"])),
        ("random", chance, np.ravel(means)),
    ):
        print(f"| {name} | " + " | ".join(f"{value:.1%}" for value in (*row, *last)) + " |")
    print("F1 | " + " | ".join(f"{value:.1%}" for value in figures["f1"]))
    return 0 if arguments.smoke or figures["average_map"] >= GOAL * np.ravel(means)[1] else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
