"""Copies of videos with classes and persons drawn on them, whose colours are those of the class or the track."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from hf_video.drawing import annotate_detections, annotate_video
from hf_video.inference import KeyFrame, Person, Segment
from hf_video.reading import read_video
from hf_video.texts import class_color
from tests.testing.videos import encode_video


@pytest.fixture
def segments():
    return [Segment("jump", 0.0, 1.0, 0.9, 7), Segment("run", 1.0, 2.0, 0.8, 2)]


def test_the_annotated_video_has_the_colours_of_the_classes(segments, tmp_path):
    video = encode_video(tmp_path / "match.mp4", np.full((20, 240, 320, 3), 128, np.uint8), fps=10)
    annotate_video(video, tmp_path / "annotated.mp4", segments, 2.0)
    frames, *_ = read_video(str(tmp_path / "annotated.mp4"), lambda metadata: [5, 15])
    for frame, segment in zip(frames, segments, strict=True):
        color = 255 * np.array(to_rgb(class_color(segment.class_id)))
        middle = round(320 * (segment.start + 0.25) / 2)
        strip, bar = frame[25:31, 1:4].reshape(-1, 3), frame[-4:-1, middle : middle + 9].reshape(-1, 3)
        # The codec halves the resolution of colours.
        for pixels in (strip, bar):
            np.testing.assert_allclose(np.median(pixels, axis=0), color, atol=16)


def test_boxes_are_drawn_around_their_key_frames_alone(tmp_path):
    source, target = tmp_path / "video.mp4", tmp_path / "annotated.mp4"
    encode_video(source, np.zeros((20, 60, 80, 3), np.uint8), fps=5)
    person = Person(3, 0.9, (10.0, 30.0, 40.0, 55.0), {"walk": 0.8, "a very " + "long " * 20 + "name": 0.7})
    annotate_detections(source, target, [KeyFrame(1.0, [person]), KeyFrame(3.0, [])])
    frames, metadata = read_video(target)
    assert frames.shape == (20, 240, 320, 3) and abs(metadata.duration - 4) < 0.05
    is_drawn = frames.max(axis=(1, 2, 3)) > 60
    # The key frames are the frames 5 and 15, of which one has a person, and are shown for half a second around them.
    assert np.flatnonzero(is_drawn).tolist() == [3, 4, 5, 6, 7]
    color = np.array(list(bytes.fromhex(class_color(3)[1:])))
    for row, column in ((4 * 30, 4 * 25), (4 * 55, 4 * 25), (4 * 42, 4 * 10), (4 * 42, 4 * 40)):
        edge = frames[5, row - 3 : row + 4, column - 3 : column + 4].astype(int)
        assert np.abs(edge - color).max(axis=-1).min() < 60
