"""The captioned digits: captions that are held out, and what the order of frames alone shows."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from hf_video.demo import MOTIONS


@pytest.fixture
def digits(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("helpers.captioned_digits")


def test_200_captions_are_held_out_and_all_their_words_are_trained(digits):
    train, test = digits.split_scenes()
    captions = {scene.caption for scene in train}, {scene.caption for scene in test}
    assert [len(each) for each in captions] == [1080, 200] and not captions[0] & captions[1]
    words = [{word for caption in each for word in caption.split()} for each in captions]
    assert words[1] <= words[0]
    assert (
        digits.Scene(7, "small", "red", "slowly", "left-up").caption == "a small red seven moves slowly left, then up"
    )


@pytest.mark.parametrize("speed", ["slowly", "quickly"])
def test_motions_differ_by_the_order_of_frames_alone(digits, speed):
    scan = np.full((8, 8), 255, np.uint8)
    seen, sets = set(), set()
    for motion in MOTIONS:
        frames = digits.render_scene(digits.Scene(3, "big", "blue", speed, motion), scan, np.random.default_rng(0))
        assert frames.shape == (8, 32, 32, 3) and not frames[..., :2].any()
        seen.add(frames.tobytes())
        sets.add(tuple(sorted(frame.tobytes() for frame in frames)))
    assert len(seen) == len(MOTIONS) and len(sets) == 1
