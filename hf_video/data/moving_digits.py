"""A small real task for trials and tests: which way does a handwritten digit go around a square?

Scans of handwritten digits travel once around a square. The class is how the round begins: the direction of the first
side and of the next. Only the order of the frames shows the class:

- all classes pass the same places, in squares of random place and size;
- a round begins anywhere on the first half of a side, so that regular sampling of frames takes the same places in all
  classes, in whatever direction the digit moves;
- every frame is coded on its own, so that no frame has traces of the one before.

A model that sees the frames of a video shuffled can therefore only guess.

The scans are scikit-learn's `load_digits`: the test set of E. Alpaydin and C. Kaynak, "Optical Recognition of
Handwritten Digits", UCI Machine Learning Repository, 1998, 8 x 8 pixels.
"""

import json
import os
import tempfile
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm.auto import tqdm

# The corner where the first side begins, counted clockwise from the top left, and whether the digit goes clockwise.
MOTIONS = {
    "down-left": (1, True),
    "down-right": (0, False),
    "left-down": (1, False),
    "left-up": (2, True),
    "right-down": (0, True),
    "right-up": (3, False),
    "up-left": (2, False),
    "up-right": (3, True),
}
MANIFEST = "moving_digits.json"

_SPLITS = ("train", "test")
_CORNERS = np.array([(0, 0), (0, 1), (1, 1), (1, 0)], dtype=np.float64)  # (row, column), clockwise
_HELD_OUT_SHARE = 0.2


def write_moving_digits(
    folder: str | os.PathLike,
    *,
    train_per_class: int = 100,
    test_per_class: int = 25,
    num_frames: int = 32,
    image_size: int = 48,
    fps: int = 12,
    seed: int = 0,
) -> Path:
    """Write a data set of moving digits: H.264 files in `train/<class>/` and `test/<class>/`, eight classes.

    No scan is in both `train` and `test`. The seed and the versions of the libraries determine every byte. The data
    set is built in a temporary folder beside `folder` and moved there when it is complete.

    Args:
        folder: A new or empty folder. A folder that this function completed with the same arguments is left as it is.
        train_per_class: Videos of each class in `train/`.
        test_per_class: Videos of each class in `test/`.
        num_frames: Frames of a video, a multiple of 8: a round has four sides and begins on the first half of one.
        image_size: Height and width in pixels, even and at least 32.
        fps: Frames per second.
        seed: Chooses digits, squares and starting points.

    Returns:
        The folder, as `load_video_dataset` reads it.

    Raises:
        ImportError: If scikit-learn is not installed.
        ValueError: If a count or a size is not as described.
        FileExistsError: If `folder` holds anything else.
    """
    arguments = {
        "train_per_class": train_per_class,
        "test_per_class": test_per_class,
        "num_frames": num_frames,
        "image_size": image_size,
        "fps": fps,
        "seed": seed,
    }
    least = {"num_frames": 8, "image_size": 32, "seed": 0}
    factors = {"num_frames": 8, "image_size": 2}
    for name, value in arguments.items():
        if value < least.get(name, 1) or value % factors.get(name, 1):
            multiple = f" and a multiple of {factors[name]}" if name in factors else ""
            raise ValueError(
                f"{name} is {value}; a whole number of at least {least.get(name, 1)}{multiple} is expected."
            )
    folder = Path(folder).expanduser().absolute()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        if _is_complete(folder, arguments):
            return folder
        raise FileExistsError(
            f"{folder} is not empty, and not a complete data set of moving digits with the arguments {arguments}. "
            "Choose another folder, or remove this one."
        )
    digits = dict(zip(_SPLITS, load_digit_scans(seed), strict=True))
    videos = [
        (split, motion, number, np.random.default_rng([seed, split_number, motion_number, number]))
        for split_number, split in enumerate(_SPLITS)
        for motion_number, motion in enumerate(MOTIONS)
        for number in range(arguments[f"{split}_per_class"])
    ]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        staged = Path(temporary) / folder.name
        for split, motion, number, generator in tqdm(videos, desc="Writing moving digits", unit="video"):
            file = staged / split / motion / f"{number:04d}.mp4"
            file.parent.mkdir(parents=True, exist_ok=True)
            frames = _render(generator.choice(digits[split]), motion, num_frames, image_size, generator)
            _encode(file, frames, fps)
        (staged / MANIFEST).write_text(json.dumps(arguments, indent=2) + "\n")
        if folder.exists():
            folder.rmdir()
        staged.rename(folder)
    return folder


def _is_complete(folder: Path, arguments: dict[str, int]) -> bool:
    try:
        written = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return written == arguments and all(
        len(list((folder / split / motion).glob("*.mp4"))) == arguments[f"{split}_per_class"]
        for split in _SPLITS
        for motion in MOTIONS
    )


def load_digit_scans(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The scans to train on and the scans held out, each (N, 8, 8), 0 to 255."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "The moving digits are drawn from scikit-learn's digits. Install it: pip install 'hf-video-models[demo]'"
        ) from error
    images = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
    images = np.random.default_rng(seed).permutation(images)
    held_out = round(_HELD_OUT_SHARE * len(images))
    return images[held_out:], images[:held_out]


def _round(motion: str, num_frames: int, delay: float) -> NDArray[np.float64]:
    """The places (T, 2) of one round, as (row, column) in the unit square, begun `delay` sides after a corner."""
    corner, clockwise = MOTIONS[motion]
    travelled = delay + 4 * np.arange(num_frames) / num_frames
    position = (corner + travelled if clockwise else corner - travelled) % 4
    passed = position.astype(int)
    share = (position - passed)[:, None]
    return (1 - share) * _CORNERS[passed % 4] + share * _CORNERS[(passed + 1) % 4]


def _render(
    digit: NDArray[np.uint8], motion: str, num_frames: int, image_size: int, generator: np.random.Generator
) -> NDArray[np.uint8]:
    """The frames (T, H, W) of a digit on its round."""
    digit_size = image_size // 3
    scaled = np.asarray(Image.fromarray(digit).resize((digit_size, digit_size), Image.Resampling.BICUBIC))
    room = image_size - digit_size
    side = generator.integers(room * 2 // 3, room, endpoint=True)
    top_left = generator.integers(0, room - side, size=2, endpoint=True)
    places = top_left + side * _round(motion, num_frames, delay=generator.uniform(0, 0.5))
    frames = np.zeros((num_frames, image_size, image_size), np.uint8)
    for frame, (row, column) in zip(frames, np.rint(places).astype(int), strict=True):
        frame[row : row + digit_size, column : column + digit_size] = scaled
    return frames


def _encode(file: Path, frames: NDArray[np.uint8], fps: int) -> None:
    # One thread and bit-exact muxing make the bytes repeatable; qp fixes the quality, g=1 codes every frame alone.
    with av.open(file, "w", container_options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=fps, options={"qp": "20", "g": "1", "threads": "1"})
        stream.pix_fmt = "yuv420p"
        stream.height, stream.width = frames.shape[1:]
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="gray")))
        container.mux(stream.encode())
