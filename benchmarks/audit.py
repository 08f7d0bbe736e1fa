"""
Whether `hf-video audit` tells a model that uses time from one that does not.

Three models are trained by `hf-video train` from the start that ships, on fifteen clips a class, and audited on 240
others: photographs that cross the picture, whose class is the way that they go; the same with the frames of the
training clips shuffled, so that only the axis can be learned; and handwritten digits, of which one frame shows the
class. The script fails if the first is not named as using time, or one of the others is. The photographs are OpenCV's
samples, where Debian's `apt-get install opencv-doc` puts them. It takes about three minutes of one CPU core a model.
With `--smoke` sets are tiny, trainings have one step, and nothing is required of what is found.

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
from helpers.small_sets import SAMPLES, SETS, encode, write_set

from hf_video.evaluation import audit
from hf_video.evaluation.audit import tell_audit
from hf_video.inference import AuditSettings
from hf_video.reading import read_video
from hf_video.training import TrainSettings, train

# The set, whether the frames of its training clips are shuffled, and whether the model then has to use time.
MODELS = {
    "the way of photographs": ("crossing", False, True),
    "the way of photographs, trained on shuffled frames": ("crossing", True, False),
    "which digit": ("digits", False, False),
}


def shuffle_frames(folder: Path, seed: int) -> None:
    """Writes the videos of a folder anew with their frames in random order."""
    generator = np.random.default_rng(seed)
    for file in sorted(folder.rglob("*.mp4")):
        encode(file, generator.permutation(read_video(file)[0]))


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
    is_right = True
    for title, (name, is_shuffled, uses_time) in MODELS.items():
        with tempfile.TemporaryDirectory() as place:
            data, model = Path(place, "data"), Path(place, "model")
            number = 2 if arguments.smoke else 240 // len(SETS[name].classes)
            sizes = {"train_per_class": 2 if arguments.smoke else 15, "test_per_class": number}
            write_set(name, data, seed=arguments.seed, is_small=arguments.smoke, **sizes)
            if is_shuffled:
                shuffle_frames(data / "train", arguments.seed)
            places = {"data": str(data), "output_dir": str(model)}
            options = {"max_steps": 1} if arguments.smoke else {}
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                train(TrainSettings(**places, **options, seed=arguments.seed, device="cpu"))
            found = audit(AuditSettings(data=str(data), model=str(model), device="cpu"))
        print(f"\n{title}\n", *tell_audit(found), sep="\n", flush=True)
        is_right &= found["variants"]["frames_shuffled"]["is_used"] is uses_time
    return 0 if is_right or arguments.smoke else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
