"""Videos of two handwritten digits in one frame, each on a round of its own, with boxes: a task for action detection.

A digit travels once around a square in its half of the frame, as in `hf_video.demo`. Its action is its motion, which
the order of the frames alone shows. The key frame is the middle one. In `shuffled.csv` are the scenes of `test.csv`
with their frames in random order, and the boxes of the frame that is then the middle one: the boxes can be found, and
the motions only be guessed.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hf_video.demo import MOTIONS, encode_frames, load_digit_scans, round_places

ACTIONS = tuple(MOTIONS)
HEIGHT, WIDTH, NUM_FRAMES, FPS = 32, 64, 8, 4
KEY_FRAME = NUM_FRAMES // 2
_DIGIT_SIZE = 12
_SIDES = (14, 20)
_COLUMNS = ("video", "second", "x1", "y1", "x2", "y2", "action", "person")


class Scene(NamedTuple):
    """A video of two digits.

    Attributes:
        frames: (8, 32, 64, 3) uint8.
        boxes: (2, 4) x1, y1, x2, y2 in pixels at the key frame.
        actions: the motion of each digit.
    """

    frames: NDArray[np.uint8]
    boxes: NDArray[np.float64]
    actions: list[str]


def render_scene(scans: NDArray[np.uint8], generator: np.random.Generator, *, shuffled: bool = False) -> Scene:
    """A scene with two of the scans (N, 8, 8), in random motions. `shuffled` puts its frames into random order."""
    half, room = WIDTH // 2, HEIGHT - _DIGIT_SIZE
    frames = np.zeros((NUM_FRAMES, HEIGHT, WIDTH, 3), np.uint8)
    corners, actions = [], []
    for left in (0, half):
        digit = Image.fromarray(generator.choice(scans)).resize((_DIGIT_SIZE,) * 2, Image.Resampling.BICUBIC)
        motion = str(generator.choice(ACTIONS))
        side = generator.integers(*_SIDES, endpoint=True)
        start = generator.integers(0, room - side, size=2, endpoint=True) + (0, left)
        places = start + side * round_places(motion, NUM_FRAMES, delay=generator.uniform(0, 0.5))
        places = np.rint(places).astype(int)
        for frame, (row, column) in zip(frames, places, strict=True):
            frame[row : row + _DIGIT_SIZE, column : column + _DIGIT_SIZE] = np.asarray(digit)[..., None]
        corners.append(places[:, ::-1])
        actions.append(motion)
    order = generator.permutation(NUM_FRAMES) if shuffled else np.arange(NUM_FRAMES)
    top_left = np.stack(corners, axis=1)[order[KEY_FRAME]]
    boxes = np.concatenate([top_left, top_left + _DIGIT_SIZE], axis=1).astype(float)
    return Scene(frames[order], boxes, actions)


def write_two_digits(folder: Path, num_videos: int) -> None:
    """Writes videos of held-out scans into `test/` and `shuffled/`, their boxes and actions into CSV files."""
    scans = load_digit_scans(seed=0)[1]
    for split in ("test", "shuffled"):
        (folder / split).mkdir(parents=True)
        with open(folder / f"{split}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(_COLUMNS)
            for index in range(num_videos):
                scene = render_scene(scans, np.random.default_rng([0, 1, index]), shuffled=split == "shuffled")
                name = f"{split}/{index:05d}.mp4"
                encode_frames(folder / name, scene.frames, FPS)
                for person, (box, action) in enumerate(zip(scene.boxes, scene.actions, strict=True)):
                    shares = (box / (WIDTH, HEIGHT, WIDTH, HEIGHT)).tolist()
                    table.writerow([name, KEY_FRAME // FPS, *shares, action, person])
