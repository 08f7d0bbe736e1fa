import tracemalloc

import numpy as np
import pytest

from hf_video.inference.segments import SegmentFinder, segments_of

NAMES = ["run", "jump", "rest"]
WINDOW, STRIDE = 2.0, 1.0


def spans(segments):
    return [(segment.label, segment.start, segment.end) for segment in segments]


def find(scores, names=NAMES[:1], **options):
    """The segments of windows of 2 s that begin every second; `scores` has one row, or one number, for each."""
    rows = np.reshape(scores, (len(scores), len(names)))
    windows = ((i * STRIDE, i * STRIDE + WINDOW, row) for i, row in enumerate(rows))
    return list(segments_of(windows, SegmentFinder(names, **options)))


def test_a_window_speaks_for_the_time_around_its_middle():
    assert spans(find([0, 0, 1, 1, 0, 0])) == [("run", 2.5, 4.5)]
    assert spans(find([1, 0, 0, 1])) == [("run", 0.0, 1.5), ("run", 3.5, 5.0)]
    assert spans(find([0.7])) == [("run", 0.0, 2.0)]
    assert find([0.49] * 5) == [] and spans(find([0.5] * 5)) == [("run", 0.0, 6.0)]
    # Windows at uneven distances, and a short one at the end.
    uneven = [(0, 2, [0]), (1.5, 3.5, [1]), (2.5, 4.5, [0]), (4, 4.2, [1])]
    assert spans(segments_of(uneven, SegmentFinder(["run"]))) == [("run", 1.75, 3.0), ("run", 3.8, 4.2)]


@pytest.mark.parametrize("stride", [0.25, 1.0, 2.0])
@pytest.mark.parametrize("begin", np.linspace(10, 12, 9))
def test_borders_are_within_half_a_stride_of_an_event_that_half_of_a_window_shows(begin, stride):
    end, starts = begin + 7.3, np.arange(0, 40, stride)
    shares = [np.clip(min(start + WINDOW, end) - max(start, begin), 0, WINDOW) / WINDOW for start in starts]
    windows = [(start, start + WINDOW, [share]) for start, share in zip(starts, shares, strict=True)]
    (found,) = segments_of(windows, SegmentFinder(["run"]))
    assert max(abs(found.start - begin), abs(found.end - end)) <= stride / 2 + 1e-9
    # The worst classifiers: one answers from the first frame of an event on, one after the last.
    for onset in (1e-6, 1.0):
        (found,) = segments_of(windows, SegmentFinder(["run"], onset=onset))
        assert max(abs(found.start - begin), abs(found.end - end)) <= (WINDOW + stride) / 2 + 1e-9


def test_hysteresis_holds_a_segment_until_the_score_is_below_offset():
    scores = [0.4, 0.8, 0.4, 0.3, 0.29, 0.4]
    assert spans(find(scores, onset=0.8, offset=0.3)) == [("run", 1.5, 4.5)]
    assert spans(find(scores, onset=0.8)) == [("run", 1.5, 2.5)]
    assert find(scores, onset=0.81, offset=0.3) == []


def test_gaps_are_filled_before_short_segments_are_dropped():
    scores = [0, 1, 0, 1, 0, 0, 1, 0]
    assert spans(find(scores)) == [("run", 1.5, 2.5), ("run", 3.5, 4.5), ("run", 6.5, 7.5)]
    assert spans(find(scores, min_duration_off=1.5)) == [("run", 1.5, 4.5), ("run", 6.5, 7.5)]
    assert spans(find(scores, min_duration_off=1.5, min_duration_on=2)) == [("run", 1.5, 4.5)]
    assert find(scores, min_duration_on=1.5) == []
    # Exactly as long as the limit: the segment stays, the gap too.
    assert len(find(scores, min_duration_on=1.0, min_duration_off=1.0)) == 3


def test_the_score_is_the_mean_of_the_windows_from_start_to_end():
    first, second = find([0.1, 0.9, 0.6, 0.1, 0.1, 0.8])
    assert (first.score, second.score) == pytest.approx((0.75, 0.8))
    (filled,) = find([0.1, 0.9, 0.6, 0.2, 0.1, 0.8, 0.0], min_duration_off=3)
    assert filled.score == pytest.approx((0.9 + 0.6 + 0.2 + 0.1 + 0.8) / 5)


def test_several_classes_at_once():
    rows = [[0.9, 0.1, 0.9], [0.9, 0.9, 0.9], [0.1, 0.9, 0.9]]
    found = find(rows, NAMES, background=["rest"])
    assert spans(found) == [("run", 0.0, 2.5), ("jump", 1.5, 4.0)]
    assert [segment.class_id for segment in found] == [0, 1]


def test_exclusive_classes_follow_each_other():
    run, jump, rest, weak = [0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.2, 0.1, 0.7], [0.4, 0.35, 0.25]
    options = {"onset": 0.5, "offset": 0.25, "exclusive": True, "background": ["rest"]}
    assert spans(find([run, weak, jump, jump], NAMES, **options)) == [("run", 0.0, 2.5), ("jump", 2.5, 5.0)]
    assert spans(find([run, rest, run], NAMES, **options)) == [("run", 0.0, 1.5), ("run", 2.5, 4.0)]
    # The background fills no time of its own, another class does.
    assert spans(find([run, rest, run], NAMES, **options, min_duration_off=2)) == [("run", 0.0, 4.0)]
    split = [("run", 0.0, 1.5), ("jump", 1.5, 2.5), ("run", 2.5, 4.0)]
    assert sorted(spans(find([run, jump, run], NAMES, **options, min_duration_off=2)), key=lambda s: s[1]) == split
    # Unless it is too short to be a segment.
    limits = {"min_duration_on": 1.2, "min_duration_off": 2}
    assert spans(find([run, jump, run, jump], NAMES, **options, **limits)) == [("run", 0.0, 3.5), ("jump", 3.5, 5.0)]


def test_segments_come_as_soon_as_nothing_can_change_them():
    finder, came = SegmentFinder(["run"], min_duration_off=1.5), []
    for number, score in enumerate([1, 0, 0, 0, 0]):
        came += [number] * len(finder.add(number, number + WINDOW, [score]))
    # The segment ends at 1.5 s. That the class is not back at 3 s is known from the fourth window on.
    assert came == [3] and finder.finish() == []
    assert finder.add(0, 2, [1]) == [] and spans(finder.finish()) == [("run", 0, 2)] and finder.finish() == []


def slow_segments(rows, onset, offset, min_duration_on, min_duration_off):
    """The segments of each class alone, from all windows at once."""
    borders = np.array([0.0, *np.arange(1.5, len(rows)), len(rows) + 1.0])
    found = []
    for index, scores in enumerate(rows.T):
        is_on, runs = False, []
        for number, score in enumerate(scores):
            is_on = score >= (offset if is_on else onset)
            if is_on and runs and (runs[-1][1] == number or borders[number] - borders[runs[-1][1]] < min_duration_off):
                runs[-1][1] = number + 1
            elif is_on:
                runs.append([number, number + 1])
        for first, last in runs:
            if borders[last] - borders[first] >= min_duration_on:
                found.append((index, borders[first], borders[last], scores[first:last].mean()))
    return sorted(found)


@pytest.mark.parametrize("seed", range(20))
def test_the_stream_finds_what_all_windows_at_once_give(seed):
    generator = np.random.default_rng(seed)
    rows = generator.random((200, 3))
    onset, offset = 0.7, generator.choice([0.7, 0.3])
    limits = {"min_duration_on": generator.choice([0, 2.2]), "min_duration_off": generator.choice([0, 1.2, 3.1])}
    found = find(rows, NAMES, onset=onset, offset=offset, **limits)
    expected = slow_segments(rows, onset, offset, **limits)
    assert len(expected) > 5
    np.testing.assert_allclose(sorted((s.class_id, s.start, s.end, s.score) for s in found), expected)


@pytest.mark.parametrize("seed", range(5))
def test_exclusive_segments_never_overlap(seed):
    rows = np.random.default_rng(seed).dirichlet([0.3] * 3, 300)
    found = find(rows, NAMES, offset=0.2, exclusive=True, min_duration_on=1.5, min_duration_off=2.5)
    found.sort(key=lambda segment: segment.start)
    assert len(found) > 20
    for one, other in zip(found, found[1:], strict=False):
        assert one.end <= other.start and (one.label != other.label or other.start - one.end >= 1)


@pytest.mark.parametrize("num_windows", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_memory_and_output_do_not_grow_with_the_stream(num_windows):
    finder, rows = SegmentFinder([str(i) for i in range(50)], min_duration_off=3.0), np.random.default_rng(0)
    tracemalloc.start()
    sizes = []
    for number in range(num_windows):
        for segment in finder.add(number, number + WINDOW, rows.random(50)):
            # However long the stream, a segment comes within its gap.
            assert number - segment.end < 6
        if (number + 1) % (num_windows // 4) == 0:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(sizes) < min(sizes) + 20_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onset": 0.3, "offset": 0.4}, r"offset=0.4 must be from 0 to onset=0.3"),
        ({"onset": 0}, "onset=0 cannot begin"),
        ({"onset": float("nan")}, "onset=nan cannot begin"),
        ({"min_duration_on": -1}, "min_duration_on=-1 must be a number of seconds"),
        ({"min_duration_off": float("inf")}, "min_duration_off=inf"),
        ({"background": ["rust"]}, "no class 'rust' as background. Did you mean rest?"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SegmentFinder(NAMES, **options)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ((1, 3, [0.1, np.nan, 0.2]), r"scores of the window at 1.000 s are not finite"),
        ((1, 3, [0.1]), r"shape \(1,\); \(3,\) is expected"),
        ((3, 3, [0, 0, 0]), "has no length"),
        ((-1, 2, [0, 0, 0]), "does not come after the one from 0 to 2 s"),
    ],
)
def test_wrong_windows_are_refused_and_leave_the_rest(window, message):
    finder = SegmentFinder(NAMES)
    finder.add(0, 2, [1, 0, 0])
    with pytest.raises(ValueError, match=message):
        finder.add(*window)
    assert spans(finder.finish()) == [("run", 0, 2)]
