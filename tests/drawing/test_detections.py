"""The copy of a video with the persons at its key frames."""

import numpy as np

from hf_video.drawing import annotate_detections
from hf_video.inference import KeyFrame, Person
from hf_video.reading import read_video
from hf_video.texts import class_color
from tests.testing.videos import encode_video


def test_boxes_are_drawn_around_their_key_frames_alone(tmp_path):
    source, target = tmp_path / "video.mp4", tmp_path / "annotated.mp4"
    encode_video(source, np.zeros((20, 60, 80, 3), np.uint8), fps=5)
    person = Person(3, 0.9, (10.0, 30.0, 40.0, 55.0), {"walk": 0.8, "a very " + "long " * 20 + "name": 0.7})
    annotate_detections(source, target, [KeyFrame(1.0, [person]), KeyFrame(3.0, [])])
    frames, metadata = read_video(target)
    assert frames.shape == (20, 240, 320, 3) and abs(metadata.duration - 4) < 0.05
    is_drawn = frames.max(axis=(1, 2, 3)) > 60
    # Key frames are at the frames 5 and 15, and shown for half a second before and after them.
    assert np.flatnonzero(is_drawn).tolist() == [3, 4, 5, 6, 7, 13, 14, 15, 16, 17]
    color = np.array(list(bytes.fromhex(class_color(3)[1:])))
    for row, column in ((4 * 30, 4 * 25), (4 * 55, 4 * 25), (4 * 42, 4 * 10), (4 * 42, 4 * 40)):
        edge = frames[5, row - 3 : row + 4, column - 3 : column + 4].astype(int)
        assert np.abs(edge - color).max(axis=-1).min() < 60
    assert frames[15, :200].max() < 60
