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
@pytest.mark.parametrize("begin", [10, 10.6])
def test_how_far_borders_are_from_those_of_an_event(begin, stride):
    end, starts = begin + 7.3, np.arange(0, 40, stride)
    shares = [np.clip(min(start + WINDOW, end) - max(start, begin), 0, WINDOW) / WINDOW for start in starts]

    def largest_error(scores):
        windows = [(start, start + WINDOW, [score]) for start, score in zip(starts, scores, strict=True)]
        (found,) = segments_of(windows, SegmentFinder(["run"]))
        return max(abs(found.start - begin), abs(found.end - end))

    # Shares are exact if both windows around a border show a part of the event and a part of what is beside it.
    assert largest_error(shares) <= (0.35 if stride == WINDOW else 1e-9)
    assert largest_error([share >= 0.5 for share in shares]) <= stride / 2 + 1e-9
    # The worst classifiers: one answers from the first frame of an event on, one after the last.
    for scores in ([share > 0 for share in shares], [share == 1 for share in shares]):
        assert largest_error(scores) <= (WINDOW + stride) / 2 + 1e-9


def test_borders_are_where_the_score_passes_the_threshold():
    assert spans(find([0.1, 0.6, 0.9, 0.4])) == [("run", pytest.approx(1.8), pytest.approx(3.8))]
    # A score that only reaches the threshold gives no time.
    assert find([0.0, 0.5, 0.0]) == [] and spans(find([0.0, 0.5, 0.5, 0.0])) == [("run", 2.0, 3.0)]
    back = [[0.0, 0.1], [0.5, 0.1], [0.0, 0.1], [1.0, 0.0]]
    assert spans(find(back, NAMES[:2], exclusive=True, min_duration_off=2)) == [("run", 2.0, 5.0)]


def test_gaps_are_filled_before_short_segments_are_dropped():
    scores = [0, 1, 0, 1, 0, 0, 1, 0]
    assert spans(find(scores)) == [("run", 1.5, 2.5), ("run", 3.5, 4.5), ("run", 6.5, 7.5)]
    assert spans(find(scores, min_duration_off=1.5)) == [("run", 1.5, 4.5), ("run", 6.5, 7.5)]
    assert spans(find(scores, min_duration_off=1.5, min_duration_on=2)) == [("run", 1.5, 4.5)]
    assert find(scores, min_duration_on=1.5) == []
    # Exactly as long as the limit: the segment stays, the gap too.
    assert len(find(scores, min_duration_on=1.0, min_duration_off=1.0)) == 3


def test_several_classes_at_once():
    rows = [[0.9, 0.1, 0.9], [0.9, 0.9, 0.9], [0.1, 0.9, 0.9]]
    found = find(rows, NAMES, background=["rest"])
    assert spans(found) == [("run", 0.0, 2.5), ("jump", 1.5, 4.0)]
    assert [segment.class_id for segment in found] == [0, 1]


def test_exclusive_classes_follow_each_other():
    run, jump, rest = np.eye(3) * 0.8
    weak, strong = [0.4, 0.35, 0.25], [0.3, 0.65, 0.05]
    options = {"offset": 0.25, "exclusive": True, "background": ["rest"]}
    # One is held until another has reached the onset, and ends where their scores were equal.
    assert spans(find([run, weak, strong], NAMES, **options)) == [
        ("run", 0.0, pytest.approx(2.125)),
        ("jump", pytest.approx(2.125), 4.0),
    ]
    # Here they were equal before that.
    passed = [0.35, 0.4, 0.25]
    assert spans(find([run, passed, strong], NAMES, **options)) == [
        ("run", 0.0, pytest.approx(2.4)),
        ("jump", pytest.approx(2.4), 4.0),
    ]
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
    # The segment ends at 1.5 s. The middle of the third window is 3 s, so the class cannot be back in time.
    assert came == [2] and finder.finish() == []
    assert finder.add(0, 2, [1]) == [] and spans(finder.finish()) == [("run", 0, 2)] and finder.finish() == []


def slow_segments(rows, onset, offset, min_duration_on, min_duration_off):
    """The segments of each class alone, from all windows at once."""
    found = []
    for index, scores in enumerate(rows.T):
        is_on, runs = False, []
        for number, score in enumerate(scores):
            was_on, is_on = is_on, score >= (offset if is_on else onset)
            if is_on == was_on:
                continue
            level, before = (onset if is_on else offset), scores[number - 1]
            border = number + (level - before) / (score - before) if number else 0.0
            if not is_on:
                runs[-1][1::2] = border, number
            elif runs and border - runs[-1][1] < min_duration_off:
                runs[-1][1::2] = len(rows) + 1.0, len(rows)
            else:
                runs.append([border, len(rows) + 1.0, number, len(rows)])
        for start, end, first, last in runs:
            if end - start >= min_duration_on:
                found.append((index, start, end, scores[first:last].mean()))
    return sorted(found)


@pytest.mark.parametrize("seed", range(6))
def test_the_stream_finds_what_all_windows_at_once_give(seed):
    generator = np.random.default_rng(seed)
    rows = generator.random((200, 3))
    onset, offset = 0.7, generator.choice([0.7, 0.3])
    limits = {"min_duration_on": generator.choice([0, 2.2]), "min_duration_off": generator.choice([0, 1.2, 3.1])}
    found = find(rows, NAMES, onset=onset, offset=offset, **limits)
    expected = slow_segments(rows, onset, offset, **limits)
    assert len(expected) > 5
    np.testing.assert_allclose(sorted((s.class_id, s.start, s.end, s.score) for s in found), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onset": 0.3, "offset": 0.4}, "offset=0.4 and onset=0.3: 0 <= offset <= onset"),
        ({"onset": 0}, "onset=0: 0 <= offset <= onset <= 1 and onset > 0"),
        ({"background": ["rust"]}, "no class 'rust' as background. Did you mean rest?"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SegmentFinder(NAMES, **options)


def test_wrong_scores_are_refused_and_leave_the_rest():
    finder = SegmentFinder(NAMES)
    finder.add(0, 2, [1, 0, 0])
    with pytest.raises(ValueError, match="scores of the window at 1.000 s are not finite"):
        finder.add(1, 3, [0.1, np.nan, 0.2])
    assert spans(finder.finish()) == [("run", 0, 2)]
