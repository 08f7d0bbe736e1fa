"""The captioned digits: captions that are held out, files, and what the order of frames alone shows."""

import json

import numpy as np
import pytest

from hf_video.captioned_digits import Scene, render_scene, split_scenes, write_captioned_digits
from hf_video.data.caption_dataset import load_captions
from hf_video.demo import MOTIONS
from hf_video.reading import read_video


def test_200_captions_are_held_out_and_all_their_words_are_trained():
    train, test = split_scenes()
    captions = {scene.caption for scene in train}, {scene.caption for scene in test}
    assert [len(each) for each in captions] == [1080, 200] and not captions[0] & captions[1]
    words = [{word for caption in each for word in caption.split()} for each in captions]
    assert words[1] <= words[0]
    assert Scene(7, "small", "red", "slowly", "left-up").caption == "a small red seven moves slowly left, then up"


@pytest.mark.parametrize("speed", ["slowly", "quickly"])
def test_motions_differ_by_the_order_of_frames_alone(speed):
    scan = np.full((8, 8), 255, np.uint8)
    seen, sets = set(), set()
    for motion in MOTIONS:
        frames = render_scene(Scene(3, "big", "blue", speed, motion), scan, np.random.default_rng(0))
        assert frames.shape == (8, 32, 32, 3) and not frames[..., :2].any()
        seen.add(frames.tobytes())
        sets.add(tuple(sorted(frame.tobytes() for frame in frames)))
    assert len(seen) == len(MOTIONS) and len(sets) == 1


def test_files_are_read_as_captions_and_are_the_same_each_time(tmp_path):
    folders = [write_captioned_digits(tmp_path / name, num_train=3, num_test=2) for name in ("a", "b")]
    data = load_captions(folders[0])
    assert {split: len(rows) for split, rows in data.items()} == {"train": 3, "test": 2}
    assert json.loads((folders[0] / "test.json").read_text())[0]["caption"] == split_scenes()[1][0].caption
    frames, _ = read_video(data["train"][0]["video"])
    assert frames.shape == (8, 32, 32, 3)
    assert all((folders[1] / name).read_bytes() == (folders[0] / name).read_bytes() for name in ("train/00002.mp4",))
    with pytest.raises(FileExistsError, match="is not empty"):
        write_captioned_digits(folders[0])
