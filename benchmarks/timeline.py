"""
How well `hf-video timeline` finds the events of a ten-minute video, and where they begin and end.

In the video a digit moves left, right, up or down, stands still, or is not there; its frame rate varies, with gaps. A
small VideoViT is trained on windows of another such video, of other digits. Its targets are the shares of a window
that the classes take. `hf-video evaluate --task segments` measures what the command found. The whole is done anew for
each seed: videos, digits and model.

The command has its default options but for three. `--background` names the class that is no event. `--min-duration-on`
and `--min-duration-off` are the length of a window, at most half of the shortest event or pause. By default windows
are half a window apart, so that each decides about that time alone. Two kinds of error come from a lone window. One at
a border shows a motion too short to tell its direction, and becomes a false segment; one with a gap of half a second
in the frame rate shows too little of the motion, and cuts an event in two.

The script fails if F1 at a temporal IoU of 0.5 is below 0.95 for a seed, or the median error of borders above half a
window. It takes a little more than two minutes for a seed on 2 idle CPU cores.

    python benchmarks/timeline.py [--seeds 3] [--threads 2] [--smoke]
"""

import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.event_training import (
    NUM_FRAMES,
    WINDOW_SECONDS,
    make_processor,
    make_window_classifier,
    read_windows,
    train,
)
from helpers.event_video import BACKGROUND, write_event_video, write_ground_truth
from helpers.measurement import GOAL_MISSED, make_parser, print_machine
from transformers import set_seed

from hf_video.cli.main import main as hf_video

TIOU, F1_GOAL, BORDER_GOAL = 0.5, 0.95, 0.5
# Of `hf-video timeline`. What a lone window says is no segment, and no end of one.
OPTIONS = (
    *("--background", BACKGROUND),
    *("--min-duration-on", WINDOW_SECONDS),
    *("--min-duration-off", WINDOW_SECONDS),
)
# Samples from one window of the training video to the next: borders of events fall anywhere in a window.
TRAINING_STRIDE = 3


def run(*words: Any) -> str:
    """What a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = hf_video([str(word) for word in words])
    if code:
        sys.exit(f"hf-video {words[0]} failed: {errors.getvalue()}")
    return out.getvalue()


def measure(folder: Path, seed: int, training_seconds: float, epochs: int, seconds: float) -> dict[str, Any]:
    """The figures of `hf-video evaluate --task segments` for a model and a video made with a seed."""
    set_seed(seed)
    begin = time.perf_counter()
    events = write_event_video(folder / "training.mp4", seconds=training_seconds, seed=seed, held_out=False)
    windows = read_windows(folder / "training.mp4", events, NUM_FRAMES, TRAINING_STRIDE)
    model = train(make_window_classifier(), *windows, epochs)
    model.save_pretrained(folder / "model")
    make_processor().save_pretrained(folder / "model")
    events = write_event_video(folder / "test.mp4", seconds=seconds, seed=seed, held_out=True)
    write_ground_truth(folder / "truth.json", {"test": (seconds, events)})
    trained = time.perf_counter()
    files = ["--model", folder / "model", "--output", folder / "found"]
    run("timeline", folder / "test.mp4", *files, "--device", "cpu", *OPTIONS)
    done = time.perf_counter()
    words = ["--task", "segments", "--ground-truth", folder / "truth.json", "--json"]
    found = json.loads(run("evaluate", folder / "found" / "segments.json", *words))
    return {**found, "training": trained - begin, "timeline": done - trained}


def print_figures(found: dict[str, Any]) -> tuple[float, float]:
    """Prints the figures of a run; returns F1 and the median border error in windows, infinite if nothing is right."""
    at = found["tious"].index(TIOU)
    precisions = " ".join(f"{value:.3f}" for value in found["mean_average_precision"])
    print(
        f"  {found['num_predictions']} segments found, {found['num_segments']} events; F1 {found['f1'][at]:.3f} "
        f"(precision {found['precision'][at]:.3f}, recall {found['recall'][at]:.3f}) at temporal IoU {TIOU}"
    )
    print(
        f"  mean average precision at {', '.join(f'{tiou:g}' for tiou in found['tious'])}: {precisions}, "
        f"mean {found['average_map']:.3f}"
    )
    errors = [found[name][at] for name in ("median_border_error", "p90_border_error")]
    median, high = (float("inf") if error is None else error for error in errors)
    print(
        f"  border error: median {median:.2f} s = {median / WINDOW_SECONDS:.2f} windows, "
        f"90% below {high:.2f} s = {high / WINDOW_SECONDS:.2f} windows"
    )
    print(f"  training {found['training']:.0f} s, hf-video timeline {found['timeline']:.1f} s")
    return found["f1"][at], median / WINDOW_SECONDS


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine("torch", "transformers", "av", threads=arguments.threads)
    print(f"hf-video timeline {' '.join(map(str, OPTIONS))}; a window is {WINDOW_SECONDS:g} s")
    seeds, training_seconds, epochs, seconds = (1, 24, 1, 24) if arguments.smoke else (arguments.seeds, 1500, 16, 600)
    scores, errors = [], []
    for seed in range(seeds):
        print(f"seed {seed}")
        with tempfile.TemporaryDirectory() as folder:
            score, error = print_figures(measure(Path(folder), seed, training_seconds, epochs, seconds))
        scores.append(score)
        errors.append(error)
    print(f"F1 at temporal IoU {TIOU}: mean {np.mean(scores):.3f}, lowest {min(scores):.3f}; wanted: {F1_GOAL}")
    print(f"median border error: highest {max(errors):.2f} windows; wanted: at most {BORDER_GOAL}")
    is_good = min(scores) >= F1_GOAL and max(errors) <= BORDER_GOAL
    return 0 if is_good or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
