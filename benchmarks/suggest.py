"""
How many stretches have to be labelled until a model is as good as with all labels: those that `hf-video suggest`
chooses, against random ones.

Two sets of stretches. Of a ten-minute video of known events (a digit moves in one of four directions, or nothing
happens), 200 stretches of 3 s; the test is a video of other digits. Of people who walk (PETS 2009, as OpenCV
distributes it), 1,000 clips of 1.6 s: walks left, walks right, nobody; the test are the last 17 seconds. The model is
the bundled model, frozen, with a logistic regression on its features that is trained anew after each 5 stretches.
The first 5 are random, the same for all. `--ways` compares two other choices: the most uncertain stretches, and those
that cover the features best, without looking at scores.

Wanted on both sets: at most half as many stretches as random ones need, in the mean of 5 seeds, until the macro F1 of
windows is that of all labels. Random ones are drawn three times for a seed. It takes eight minutes of one CPU core.

    python benchmarks/suggest.py [--sets events people] [--ways different random] [--seeds 5] [--smoke]
"""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from helpers.event_video import class_shares, write_event_video
from helpers.measurement import GOAL_MISSED, SKIPPED, make_parser, print_machine
from helpers.small_sets import VIDEO
from helpers.walking_scene import SPAN, TEST_FRAMES, WINDOW, Place, Scene, draw_places, read_clips, read_scene
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from torch.nn.functional import interpolate
from transformers import AutoModelForVideoClassification, AutoVideoProcessor

import hf_video
from hf_video.inference import choose_stretches, extract_window_features
from hf_video.inference.features import choose_features, encode_clips

SECONDS, RATE, FIRST, STEP, DRAWS = 3.0, 8, 5, 5, 3
# What counts as almost as good.
NEAR = 0.01
START = Path(hf_video.__file__).parent / "start"
CHOSEN, UNCERTAIN, DIFFERENT, RANDOM = "chosen", "uncertain", "different", "random"
GOAL = 0.5


class Windows(NamedTuple):
    """Features (n, size) and class ids (n,) of windows."""

    features: np.ndarray
    labels: np.ndarray


class Pool(NamedTuple):
    """Windows, of which stretch each is, (n,), where stretches are, see `choose_stretches`, and windows for tests."""

    windows: Windows
    stretches: np.ndarray
    places: np.ndarray
    test: Windows

    def means(self, values: np.ndarray) -> np.ndarray:
        """The mean over the windows of each stretch of their values (n, ...)."""
        totals = np.zeros((len(self.places), *values.shape[1:]))
        np.add.at(totals, self.stretches, values)
        return (totals.T / np.bincount(self.stretches)).T


class Probe:
    """A logistic regression on features of unit deviation."""

    def __init__(self, pool: Pool, is_labelled: np.ndarray):
        self.mean, self.deviation = pool.windows.features.mean(axis=0), pool.windows.features.std(axis=0) + 1e-6
        seen = is_labelled[pool.stretches]
        self.classes = np.unique(pool.windows.labels[seen])
        if len(self.classes) > 1:
            model = LogisticRegression(max_iter=300)
            self.model = model.fit(self._scaled(pool.windows.features[seen]), pool.windows.labels[seen])

    def _scaled(self, features: np.ndarray) -> np.ndarray:
        return (features - self.mean) / self.deviation

    def f1(self, test: Windows) -> float:
        one = np.full(len(test.labels), self.classes[0])
        found = self.model.predict(self._scaled(test.features)) if len(self.classes) > 1 else one
        return f1_score(test.labels, found, average="macro", zero_division=0)

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Probabilities (n, classes)."""
        if len(self.classes) < 2:
            return np.full((len(features), 2), 0.5)
        return self.model.predict_proba(self._scaled(features))


def choose(way: str, pool: Pool, probe: Probe, is_labelled: np.ndarray, order: np.ndarray) -> list[int]:
    """The next stretches to label; `order` is random."""
    if way == RANDOM:
        return order[~is_labelled[order]][:STEP].tolist()
    scores = probe.scores(pool.windows.features)
    lower, higher = np.sort(scores, axis=1)[:, -2:].T
    uncertainties = pool.means(1 - (higher - lower))
    if way == UNCERTAIN:
        return np.where(is_labelled, -1, uncertainties).argsort()[-STEP:].tolist()
    features = pool.means(pool.windows.features)
    if way == DIFFERENT:
        return choose_stretches(np.ones(len(order)), features, pool.places, STEP, is_labelled)
    ids = pool.means(scores).argmax(axis=1)
    return choose_stretches(uncertainties, features, pool.places, STEP, is_labelled, ids)


def labels_needed(pool: Pool, way: str, goal: float, seed: int, draw: int = 0) -> tuple[int, int]:
    """The number of labelled stretches when F1 is for the first time near the goal, and when it is there."""
    order = np.random.default_rng([seed, draw]).permutation(len(pool.places))
    is_labelled, near = np.zeros(len(order), bool), 0
    is_labelled[np.random.default_rng(seed).permutation(len(order))[:FIRST]] = True
    while True:
        probe, count = Probe(pool, is_labelled), int(is_labelled.sum())
        f1 = probe.f1(pool.test)
        near = near or (count if f1 >= goal - NEAR else 0)
        if f1 >= goal:
            return near, count
        is_labelled[choose(way, pool, probe, is_labelled, order)] = True


def event_pool(model: Any, seed: int, is_small: bool) -> Pool:
    processor, found = AutoVideoProcessor.from_pretrained(START), []
    options: dict[str, Any] = {"num_frames": RATE, "stride": RATE // 2, "fps": RATE, "last": "drop", "batch_size": 32}
    for held_out in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            video = Path(folder, "events.mp4")
            events = write_event_video(video, seconds=60 if is_small else 600, seed=seed, held_out=held_out)
            windows = extract_window_features(model, processor, video, **options)
        middles = np.add(windows.starts, windows.ends) / 2
        shares = [class_shares(events, middle - 1e-3, middle + 1e-3) for middle in middles]
        found.append((Windows(windows.features, np.argmax(shares, axis=1)), middles))
    (windows, middles), (test, _) = found
    numbers, stretches = np.unique(middles // SECONDS, return_inverse=True)
    return Pool(windows, stretches, numbers[:, None], test)


def people_pool(model: Any, seen: Scene, unseen: Scene, seed: int, is_small: bool) -> Pool:
    """Clips are beside each other if they share frames and their windows overlap by half."""
    places, tests = draw_places(seen, 24 if is_small else 1000, seed), draw_places(unseen, 24 if is_small else 600, 0)
    where = np.array([(place.frame / SPAN, *(2 * corner / WINDOW for corner in place[1:3])) for place in places])
    return Pool(people(model, seen, places), np.arange(len(places)), where, people(model, unseen, tests))


def people(model: Any, scene: Scene, places: list[Place]) -> Windows:
    mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in (model.config.image_mean, model.config.image_std))
    side, found = model.config.image_size, []
    for first in range(0, len(places), 32):
        clips = (read_clips(scene, places[first : first + 32]) + 1) / 2
        small = interpolate(clips.flatten(0, 1), (side, side), mode="bilinear", antialias=True)
        clips = ((small - mean) / deviation).unflatten(0, (len(clips), -1))
        found.append(encode_clips(model, clips, choose_features(model)).numpy())
    return Windows(np.concatenate(found), np.array([place.label for place in places]))


def measure(name: str, pools: Iterable[Pool], ways: Sequence[str]) -> float:
    """Prints how many stretches each way needs; gives those of the chosen ones as a share of the random ones."""
    needed: dict[str, list[tuple[int, int]]] = {way: [] for way in ways}
    goals, size = [], 0
    for seed, pool in enumerate(pools):
        size = len(pool.places)
        goals.append(Probe(pool, np.ones(size, bool)).f1(pool.test))
        for way, found in needed.items():
            draws = DRAWS if way == RANDOM else 1
            found += [labels_needed(pool, way, goals[-1], seed, draw) for draw in range(draws)]
    print(f"{name}: F1 of all {size} stretches {np.mean(goals):.3f} ({min(goals):.3f} to {max(goals):.3f})")
    means = {way: np.mean(found, axis=0) for way, found in needed.items()}
    for way, (near, there) in means.items():
        share = there / means[RANDOM][1]
        counts = " ".join(str(count) for _, count in needed[way])
        print(f"  {way:12}{near:6.0f} to within {NEAR}{there:6.0f} to reach it, {share:.2f} of random ({counts})")
    return float(means[CHOSEN][1] / means[RANDOM][1])


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=("events", "people"), default=["events", "people"])
    parser.add_argument("--ways", nargs="+", choices=(CHOSEN, UNCERTAIN, DIFFERENT, RANDOM), default=[CHOSEN, RANDOM])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--video", type=Path, default=VIDEO, help="vtest.avi of OpenCV (default: %(default)s)")
    arguments = parser.parse_args()
    if not arguments.smoke and not arguments.video.is_file():
        print(f"{arguments.video} is missing: apt-get install opencv-doc, or name it with --video", file=sys.stderr)
        return SKIPPED
    torch.set_num_threads(1)
    print_machine("torch", "transformers", "av", "scikit-learn", threads=1)
    model = AutoModelForVideoClassification.from_pretrained(START, dtype=torch.float32).eval()
    seeds = range(1 if arguments.smoke else arguments.seeds)
    shares, ways = [], [CHOSEN, *(way for way in arguments.ways if way not in (CHOSEN, RANDOM)), RANDOM]
    if "events" in arguments.sets:
        shares.append(measure("events", (event_pool(model, seed, arguments.smoke) for seed in seeds), ways))
    if "people" in arguments.sets:
        scene = read_scene(None if arguments.smoke else arguments.video)
        border = max(len(scene.frames) - TEST_FRAMES, len(scene.frames) // 2)
        parts = scene.part(0, border), scene.part(border, len(scene.frames))
        shares.append(measure("people", (people_pool(model, *parts, seed, arguments.smoke) for seed in seeds), ways))
    return 0 if arguments.smoke or max(shares) <= GOAL else GOAL_MISSED


if __name__ == "__main__":
    sys.exit(main())
