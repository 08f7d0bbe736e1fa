"""The moving digits: what is on disk, and that only the order of frames tells the class."""

import sys
from pathlib import Path

import av
import numpy as np
import pytest

from hf_video.data import load_video_dataset
from hf_video.demo import MOTIONS, load_digit_scans, round_places, write_moving_digits

SMALL = {"train_per_class": 2, "test_per_class": 1, "num_frames": 16, "image_size": 32}


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def decode(path: Path) -> np.ndarray:
    with av.open(path) as container:
        return np.stack([frame.to_ndarray(format="gray") for frame in container.decode(video=0)]).astype(int)


def test_what_is_written(tmp_path):
    folder = write_moving_digits(tmp_path / "digits", **SMALL)
    dataset = load_video_dataset(folder)
    assert {split: len(rows) for split, rows in dataset.items()} == {"train": 16, "test": 8}
    assert dataset["train"].features["label"].names == sorted(MOTIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]
    with av.open(dataset["test"][0]["video"]) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        assert (stream.codec_context.name, stream.width, stream.height) == ("h264", 32, 32)
        assert (len(frames), stream.average_rate) == (16, 12)
        assert all(frame.key_frame for frame in frames)


def test_bytes_depend_on_the_seed_alone(tmp_path):
    first, again, other = (
        contents_of(write_moving_digits(tmp_path / name, **SMALL, seed=seed))
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert first == again
    assert not set(first.values()) & set(other.values())


def test_digits_of_test_are_not_in_train():
    train, test = load_digit_scans(seed=0)
    assert not {digit.tobytes() for digit in train} & {digit.tobytes() for digit in test}


@pytest.mark.parametrize("motion", MOTIONS)
def test_motion_is_as_named(tmp_path, motion):
    folder = write_moving_digits(tmp_path / "digits", train_per_class=1, test_per_class=1)
    frames = decode(folder / "train" / motion / "0000.mp4")
    rows, columns = np.indices(frames.shape[1:])
    centres = np.array([[np.average(rows, weights=f), np.average(columns, weights=f)] for f in frames])
    directions = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
    first, turn = (np.array(directions[word]) for word in motion.split("-"))
    # A side takes 8 of 32 frames; the round begins before the middle of one.
    side = np.abs(centres - centres[0]).max()
    assert (centres[4] - centres[0]) @ first > 0.4 * side
    assert (centres[16] - centres[8]) @ turn > 0.4 * side
    assert abs((centres[4] - centres[0]) @ turn) < 1.5


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_only_the_order_of_frames_tells_the_class(stride):
    """Over all starting points, the classes pass the same sets of places, also where frames are sampled regularly."""
    delays = (np.arange(64) + 0.5) / 128

    def shuffled_rounds(motion: str) -> list[list[list[float]]]:
        rounds = (round_places(motion, 32, delay)[stride // 2 :: stride] for delay in delays)
        return sorted(sorted(places.round(6).tolist()) for places in rounds)

    expected = shuffled_rounds("right-down")
    assert len({str(places) for places in expected}) > 1
    assert all(shuffled_rounds(motion) == expected for motion in MOTIONS)


def test_a_complete_data_set_of_the_same_arguments_alone_is_reused(tmp_path):
    folder = write_moving_digits(tmp_path / "digits", **SMALL)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert write_moving_digits(folder, **SMALL) == folder
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    with pytest.raises(FileExistsError, match="'seed': 1"):
        write_moving_digits(folder, **SMALL, seed=1)
    next(folder.rglob("*.mp4")).unlink()
    with pytest.raises(FileExistsError, match="no data set of moving digits"):
        write_moving_digits(folder, **SMALL)


def test_nothing_of_others_is_touched(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        write_moving_digits(tmp_path, **SMALL)
    with pytest.raises(FileExistsError, match="not empty"):
        write_moving_digits(tmp_path / "mine.txt", **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_interrupted_writing_leaves_nothing(tmp_path, monkeypatch):
    open_file, calls = av.open, []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return open_file(*arguments, **options)

    monkeypatch.setattr(av, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_moving_digits(tmp_path / "digits", **SMALL)
    assert not list(tmp_path.iterdir())


def test_without_scikit_learn(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'hf-video-models\[demo\]'"):
        write_moving_digits(tmp_path / "digits", **SMALL)
    assert not list(tmp_path.iterdir())
