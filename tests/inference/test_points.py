"""Instants in scores of frames."""

import numpy as np
import pytest

from hf_video.inference.points import PointFinder, find_points
from hf_video.inference.segments import SegmentFinder, segments_of

STEP, WIDTH = 0.125, 0.5
TIMES = np.arange(0, 20, STEP) + STEP / 2


def labelled(*instants, width=WIDTH):
    """Scores of a model that knows its labels, (n, 1)."""
    return np.max([abs(TIMES - each) <= width / 2 for each in instants], axis=0)[:, None].astype(float)


@pytest.mark.parametrize("instant", [3.0, 3.03, 3.1, 7.77])
@pytest.mark.parametrize("width", [0.125, 0.25, WIDTH])
def test_an_instant_is_found_in_the_middle_of_its_label(instant, width):
    """Also if the model sees it for shorter than it learned."""
    ((label, time, score),) = [
        each for each in find_points(TIMES, labelled(instant, width=width), [0], WIDTH) if each[2]
    ]
    assert (label, score) == (0, 1) and abs(time - instant) <= STEP / 2 + 1e-6


def test_the_highest_of_close_ones_stays():
    scores = 0.9 * labelled(5.0) + 0.8 * labelled(5.4) + 0.7 * labelled(9.0) + 0.3 * labelled(12.0)
    found = find_points(TIMES, scores.clip(max=0.9), [0], WIDTH)
    assert [round(time) for _, time, score in found if score >= 0.5] == [5, 9]
    finder = PointFinder([0], WIDTH, window=5.0, onset=0.5)
    found = [each for time, row in zip(TIMES, scores, strict=True) for each in finder.add(time, row)]
    assert [round(time) for _, time, _ in [*found, *finder.finish()]] == [5]


def slow_points(scores, window):
    """The moments with the highest mean, each with a look at all others."""
    means = np.array([scores[abs(TIMES - time) <= WIDTH / 2].mean() for time in TIMES])
    return [
        number
        for number, time in enumerate(TIMES)
        if all(
            means[other] < means[number] for other in np.flatnonzero(abs(TIMES - time) <= window) if other != number
        )
    ]


def test_random_scores_against_a_look_at_all_moments():
    scores = np.random.default_rng(0).random((len(TIMES), 3))
    for window in (0.3, WIDTH, 2.0):
        finder = PointFinder([2, 0], WIDTH, window)
        found, late = [], 0.0
        for time, row in zip(TIMES, scores, strict=True):
            new = finder.add(time, row)
            late = max([late, *(time - each[1] for each in new)])
            found += new
        found += finder.finish()
        assert late <= WIDTH + window + 2 * STEP and finder.finish() == []
        for label in (0, 2):
            numbers = slow_points(scores[:, label], window)
            times = [time for found_label, time, _ in found if found_label == label]
            assert len(times) == len(numbers) and np.all(np.abs(times - TIMES[numbers]) <= WIDTH / 2)


def test_a_class_of_points_has_no_segments():
    """One of segments beside it is as before."""
    scores = np.concatenate([labelled(3.0), labelled(8.0), 1 - labelled(3.0) - labelled(8.0)], axis=1)
    windows = [(time - STEP / 2, time + STEP / 2, row) for time, row in zip(TIMES, scores, strict=True)]
    options = {"exclusive": True, "background": ["rest"]}
    finder = SegmentFinder(["kick", "run", "rest"], points=["kick"], point_width=WIDTH, **options)
    kick, run = sorted(segments_of(windows, finder), key=lambda each: each.start)
    assert kick.is_point and (kick.label, kick.start, kick.score) == ("kick", pytest.approx(3.0), 1)
    assert kick.shown_until == kick.end + 1
    plain = SegmentFinder(["kick", "run", "rest"], **options)
    assert not run.is_point and run == [*segments_of(windows, plain)][1]


def test_a_gap_ends_what_was_before():
    finder = SegmentFinder(["kick"], points=["kick"], point_width=WIDTH)
    found = [each for at in range(3) for each in finder.add(at / 8, (at + 1) / 8, [1.0])]
    assert found == [] and [each.is_point for each in finder.add(9.0, 9.125, [0.0], begins_anew=True)] == [True]
