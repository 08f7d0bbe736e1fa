"""
Whether `hf-video audit` tells a model that uses time from one that does not.

Two models are trained by `hf-video train` from the bundled model, on fifteen clips of each of four classes, and
audited on 240 others. In the clips of both, photographs cross the picture. For the first the class is the way that
they go, which the order of frames alone shows. For the second the class is the corner with a lamp, which each frame
shows, and the frames of its training clips are shuffled. The script fails if the first is not named as using time and
left and right, or the second is not named as using left and right, but not time. The photographs are OpenCV's samples,
where Debian's `apt-get install opencv-doc` puts them. It takes about three minutes of one CPU core a model. With
`--smoke` sets are tiny, trainings have one step, and nothing is required of what is found.

    python benchmarks/audit.py [--seed 0] [--smoke]
"""

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from helpers.measurement import GOAL_MISSED, SKIPPED, make_parser, print_machine
from helpers.small_sets import SAMPLES, SETS, SIZE, encode, write_set

from hf_video.evaluation import audit_model
from hf_video.evaluation.audit import tell_audit
from hf_video.inference import AuditSettings
from hf_video.training import TrainSettings, train

CORNERS = {"top left": (0, 0), "top right": (0, 1), "bottom left": (1, 0), "bottom right": (1, 1)}
# Whether a variant costs points, by its name.
EXPECTED = {
    "the way": {"frames_shuffled": True, "mirrored": True},
    "the lamp": {"frames_shuffled": False, "mirrored": True},
}


def write_lamps(folder: Path, *, train_per_class: int, test_per_class: int, seed: int, is_small: bool) -> None:
    """Writes a set as `write_set` does, with the frames of training clips in random order."""
    crossing = SETS["crossing"]
    draw = crossing.open(is_small)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for split, number in {"train": train_per_class, "test": test_per_class}.items():
        for place, (label, corner) in enumerate(CORNERS.items()):
            (folder / split / label).mkdir(parents=True)
            for index in range(number):
                generator = np.random.default_rng([seed, split == "test", place, index])
                frames = draw(str(generator.choice(crossing.classes)), split == "test", generator)
                row, column = SIZE * (0.25 + 0.5 * np.array(corner)) + generator.uniform(-6, 6, 2)
                frames[:, np.hypot(rows - row, columns - column) < 10] = 255
                shown = frames if split == "test" else generator.permutation(frames)
                encode(folder / split / label / f"{index:03}.mp4", shown)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.smoke and not SAMPLES.is_dir():
        print(f"{SAMPLES} is missing: apt-get install opencv-doc", file=sys.stderr)
        return SKIPPED
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    torch.set_num_threads(threads)
    print_machine("torch", "transformers", "av", threads=threads)
    sizes = {"train_per_class": 2 if arguments.smoke else 15, "test_per_class": 2 if arguments.smoke else 60}
    is_right = True
    for title, expected in EXPECTED.items():
        with tempfile.TemporaryDirectory() as place:
            data, model = Path(place, "data"), Path(place, "model")
            if title == "the way":
                write_set("crossing", data, seed=arguments.seed, is_small=arguments.smoke, **sizes)
            else:
                write_lamps(data, seed=arguments.seed, is_small=arguments.smoke, **sizes)
            places = {"data": str(data), "output_dir": str(model)}
            options = {"max_steps": 1} if arguments.smoke else {}
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                train(TrainSettings(**places, **options, seed=arguments.seed, device="cpu"))
            found = audit_model(AuditSettings(data=str(data), model=str(model), device="cpu"))
        print(f"\n{title}\n", *tell_audit(found), sep="\n", flush=True)
        is_right &= all(found["variants"][name]["is_used"] is value for name, value in expected.items())
    return 0 if is_right or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
