"""Small videos of handwritten digits with captions, such as "a small red seven moves slowly left, then up".

A digit travels once or twice around a square, as in `hf_video.demo`. A caption says what digit it is, its size, its
colour, whether it is slow or quick, and in which two directions its round begins. The directions are in the order of
the frames alone. 200 of the 1280 captions are held out: all their words are in the training set, but no digit of their
size, colour and speed is. To tell them apart, a model must know each of these and the motion.
"""

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hf_video.demo import MOTIONS, round_places

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGIT_SIZES = {"small": 8, "big": 16}
COLORS = {"white": (1.0, 1.0, 1.0), "red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0), "blue": (0.0, 0.0, 1.0)}
ROUNDS = {"slowly": 1, "quickly": 2}
NUM_HELD_OUT = 200
IMAGE_SIZE, NUM_FRAMES = 32, 8
_SIDE = 16


class Scene(NamedTuple):
    """What a video shows."""

    number: int
    size: str
    color: str
    speed: str
    motion: str

    @property
    def caption(self) -> str:
        motion = self.motion.replace("-", ", then ")
        return f"a {self.size} {self.color} {NUMBERS[self.number]} moves {self.speed} {motion}"


def split_scenes(seed: int = 0) -> tuple[list[Scene], list[Scene]]:
    """The scenes of the training set and the `NUM_HELD_OUT` others. Digits of the same look and speed are in one split
    with all motions, next to each other."""
    looks = list(itertools.product(range(10), DIGIT_SIZES, COLORS, ROUNDS))
    order = np.random.default_rng(seed).permutation(len(looks))
    shuffled = (looks[index] for index in order)
    scenes = [
        Scene(number, size, color, speed, motion) for number, size, color, speed in shuffled for motion in MOTIONS
    ]
    return scenes[NUM_HELD_OUT:], scenes[:NUM_HELD_OUT]


def render_scene(scene: Scene, scan: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
    """The frames (8, 32, 32, 3) of a scene with the scan (8, 8) of a digit. Place and beginning are drawn from a few,
    and lie on a grid of 8 pixels."""
    size = DIGIT_SIZES[scene.size]
    digit = np.asarray(Image.fromarray(scan).resize((size, size), Image.Resampling.BICUBIC))
    colored = digit[..., None] * np.array(COLORS[scene.color])
    top_left = 8 * generator.integers(0, (IMAGE_SIZE - size - _SIDE) // 8, size=2, endpoint=True)
    delay = generator.integers(2) / 2
    places = top_left + _SIDE * round_places(scene.motion, NUM_FRAMES, delay, ROUNDS[scene.speed])
    frames = np.zeros((NUM_FRAMES, IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
    for frame, (row, column) in zip(frames, np.rint(places).astype(int), strict=True):
        frame[row : row + size, column : column + size] = colored
    return frames
