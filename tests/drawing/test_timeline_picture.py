"""The picture of a timeline: its rows, and what its title says."""

import numpy as np
import pytest

from hf_video.drawing import draw_timeline
from hf_video.drawing.timeline_picture import save_figure
from hf_video.inference import Segment, SegmentFinder, Timeline


def texts_of(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def make_timeline(names, segments=(), high=(), ending=None):
    """A timeline of a minute; `high` is the classes with higher scores."""
    timeline = Timeline(SegmentFinder(names), "match")
    scores = np.full((60, len(names)), 0.01, np.float32)
    for place, index in enumerate(high):
        scores[10 * place, index] = 0.9 - place / 10
    timeline.times, timeline.scores = [(number, number + 2.0) for number in range(60)], list(scores)
    timeline.segments, timeline.ending = list(segments), ending
    return timeline


def drawn(timeline):
    figure = draw_timeline(timeline)
    (title,) = (text for text in texts_of(figure) if text.startswith("match"))
    return [label.get_text() for label in figure.axes[-1].get_yticklabels()], title


def test_every_class_has_a_row(tmp_path):
    names = ["rest", "run", "jump", "sit"]
    segments = [Segment("jump", 10.5, 20.5, 0.9, 2), Segment("run", 30.5, 40.5, 0.8, 1)]
    assert drawn(make_timeline(names, segments, high=[2, 1, 3])) == (
        ["jump", "run", "sit", "rest"],
        "match\n2 segments of 2 classes in 0:01:01",
    )
    empty = make_timeline(names, ending="the file is damaged")
    assert drawn(empty) == (names, "match\nno segment in 0:01:01\nends at 0:01:01: the file is damaged")
    empty.thumbnails = [(number, np.zeros((9, 16, 3), np.uint8)) for number in range(30)]
    figure = draw_timeline(empty)
    assert len(figure.axes) == 2 and len(figure.axes[0].child_axes) == 12
    save_figure(figure, tmp_path / "a.png")


NAMES = [f"c{index}" for index in range(400)]


@pytest.mark.parametrize(
    ("segments", "rows", "num_left_out"),
    [
        ([Segment("c300", 10.5, 20.5, 0.9, 300)], ["c300", "c7", "c5"], 397),
        # Those with the most time.
        ([Segment(f"c{index}", index, index + 1 + index / 100, 0.9, index) for index in range(50)], NAMES[26:50], 376),
    ],
)
def test_of_many_classes_those_that_are_seen_have_rows(segments, rows, num_left_out):
    found, title = drawn(make_timeline(NAMES, segments, high=[300, 7, 5]))
    assert found == rows and f"; {num_left_out} of 400 classes are left out" in title
