"""The videos and checks of `hf-video demo`, a small real task: which way does a handwritten digit go around a square?

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
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm.auto import tqdm

from hf_video.io import new_folder, read_own_json

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

    No scan is in both `train` and `test`. The seed and the versions of the libraries determine every byte.

    Args:
        folder: a new or empty folder. A folder of the same arguments is left as it is.
        train_per_class, test_per_class: videos of each class in `train/` and `test/`.
        num_frames: frames of a video, a multiple of 8: a round has four sides and begins on the first half of one.
        image_size: height and width in pixels, even and at least 32.
        fps: frames per second.
        seed: chooses digits, squares and starting points.

    Returns:
        The folder, as `load_video_dataset` reads it.

    Raises:
        ImportError: scikit-learn is not installed.
        FileExistsError: `folder` holds anything else.
    """
    arguments = {name: value for name, value in locals().items() if name != "folder"}
    folder = Path(folder).expanduser().absolute()
    if _is_complete(folder, arguments):
        return folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(f"{folder} is not empty, and no data set of moving digits with {arguments}.")
    digits = dict(zip(_SPLITS, load_digit_scans(seed), strict=True))
    videos = [
        (split, motion, number, np.random.default_rng([seed, split_number, motion_number, number]))
        for split_number, split in enumerate(_SPLITS)
        for motion_number, motion in enumerate(MOTIONS)
        for number in range(arguments[f"{split}_per_class"])
    ]
    with new_folder(folder) as staged:
        for split, motion, number, generator in tqdm(videos, desc="Writing moving digits", unit="video", disable=None):
            file = staged / split / motion / f"{number:04d}.mp4"
            file.parent.mkdir(parents=True, exist_ok=True)
            frames = _render(generator.choice(digits[split]), motion, num_frames, image_size, generator)
            encode_frames(file, frames, fps)
        (staged / MANIFEST).write_text(json.dumps(arguments, indent=2) + "\n")
    return folder


def _is_complete(folder: Path, arguments: dict[str, int]) -> bool:
    return read_own_json(folder / MANIFEST) == arguments and all(
        len(list((folder / split / motion).glob("*.mp4"))) == arguments[f"{split}_per_class"]
        for split in _SPLITS
        for motion in MOTIONS
    )


def load_digit_scans(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The scans to train on and the scans held out, each (N, 8, 8), 0 to 255."""
    (training, _), (held_out, _) = load_labelled_scans(seed)
    return training, held_out


def load_labelled_scans(
    seed: int,
) -> tuple[tuple[NDArray[np.uint8], NDArray[np.int64]], tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """The scans of `load_digit_scans`, each with the digits (N,) that they show."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "The moving digits are drawn from scikit-learn's digits. Install it: pip install 'hf-video-models[demo]'"
        ) from error
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(seed).permutation(len(images))
    images, labels = images[order], digits.target[order]
    held_out = round(_HELD_OUT_SHARE * len(images))
    return (images[held_out:], labels[held_out:]), (images[:held_out], labels[:held_out])


def round_places(motion: str, num_frames: int, delay: float, num_rounds: int = 1) -> NDArray[np.float64]:
    """The places (T, 2) of a round or several, as (row, column) in the unit square, begun `delay` sides after a
    corner."""
    corner, clockwise = MOTIONS[motion]
    travelled = delay + 4 * num_rounds * np.arange(num_frames) / num_frames
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
    places = top_left + side * round_places(motion, num_frames, delay=generator.uniform(0, 0.5))
    frames = np.zeros((num_frames, image_size, image_size), np.uint8)
    for frame, (row, column) in zip(frames, np.rint(places).astype(int), strict=True):
        frame[row : row + digit_size, column : column + digit_size] = scaled
    return frames


def encode_frames(file: Path, frames: NDArray[np.uint8], fps: int) -> None:
    """Writes frames (T, H, W), or (T, H, W, 3) with colours, as an H.264 file, the same bytes each time."""
    # One thread and bit-exact muxing make the bytes repeatable; qp fixes the quality, g=1 codes every frame alone.
    with av.open(file, "w", container_options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=fps, options={"qp": "20", "g": "1", "threads": "1"})
        stream.pix_fmt = "yuv420p"
        stream.height, stream.width = frames.shape[1:3]
        for frame in frames:
            container.mux(
                stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24" if frame.ndim == 3 else "gray"))
            )
        container.mux(stream.encode())


def check_reloaded(trainer: Any, folder: Path, digits: Path, accuracy: float) -> dict[str, bool]:
    """Whether the model that Transformers loads from a folder is the trained one, by texts that describe each
    comparison."""
    from transformers import AutoModelForVideoClassification, AutoVideoProcessor, pipeline

    from hf_video.data import ClipTask, VideoDataset, load_video_dataset
    from hf_video.evaluation import evaluate_dataset
    from hf_video.inference import weights_digest
    from hf_video.metrics import top_k_accuracy

    model, processor = (kind.from_pretrained(folder) for kind in (AutoModelForVideoClassification, AutoVideoProcessor))
    clips = VideoDataset(load_video_dataset(digits)["test"], ClipTask(processor), training=False)
    scores, labels = evaluate_dataset(model, clips, batch_size=32, progress=False)
    trained, loaded = (weights_digest(each.state_dict()) for each in (trainer.model, model))
    best = pipeline("video-classification", model=str(folder), device="cpu")(clips.rows[0]["video"], top_k=1)[0]
    return {
        "the loaded weights are the trained ones, bit by bit": loaded == trained,
        "the accuracy is the same": top_k_accuracy(scores, labels) == accuracy,
        'pipeline("video-classification") gives the same score': bool(abs(best["score"] - scores[0].max()) <= 1e-5),
    }


def shuffled_accuracy(trainer: Any, digits: Path) -> float:
    """The top-1 accuracy on the held-out digits if the frames of every clip are in random order."""
    from hf_video.data import ClipTask, VideoDataset, load_video_dataset
    from hf_video.evaluation import evaluate_dataset
    from hf_video.metrics import top_k_accuracy

    class ShuffledFrames(ClipTask):
        def make(self, row: Any, key: Any, training: bool) -> Any:
            item: Any = super().make(row, key, training)
            order = np.random.default_rng(key[2]).permutation(item["pixel_values"].shape[1])
            return {**item, "pixel_values": item["pixel_values"][:, order]}

    clips = VideoDataset(load_video_dataset(digits)["test"], ShuffledFrames(trainer.processing_class), training=False)
    return top_k_accuracy(*evaluate_dataset(trainer.model, clips, batch_size=32))
