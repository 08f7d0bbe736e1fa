from functools import cache
from itertools import groupby

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, cohen_kappa_score

from hf_video.evaluation import evaluate_frames, measure_agreement
from hf_video.evaluation.frames import _compare

NAMES = ["run", "dive", "rest"]


def test_a_video_by_hand():
    # Annotated run (0-4), rest (4-6), dive (6-10); predicted run (0-2), dive (2-3), run (3-4), rest, dive (5-10).
    result = evaluate_frames(
        [[0, 0, 1, 0, 2, 1, 1, 1, 1, 1]], [[0, 0, 0, 0, 2, 2, 1, 1, 1, 1]], NAMES, background=["rest"]
    )
    assert result["frame_accuracy"] == 0.8 and result["num_segments"] == 2 and result["num_frames"] == 10
    # run, dive, run, dive becomes run, dive with two deletions of four.
    assert result["edit_score"] == 0.5
    # At 0.10 the first run is right with IoU 0.5, the second finds it taken; the first dive has IoU below 0.
    assert result["f1"] == pytest.approx([4 / 6, 4 / 6, 4 / 6])
    assert result["classes"]["run"]["f1"] == pytest.approx([2 / 3] * 3)
    assert result["classes"]["rest"] == {"num_frames": 2, "num_segments": 0, "f1": None}


@pytest.mark.parametrize("several", [False, True])
def test_one_class_throughout_finds_one_segment_whatever_time_is_unknown(several):
    known = np.repeat([0, 1, 0, 1], 4)
    sparse = np.insert(known, [4, 8, 12], -100)
    figures = []
    for truth in (known, sparse):
        found = np.zeros(len(truth), int)
        if several:
            found = np.eye(3)[found]
            truth = np.where(truth[:, None] == -100, -100, np.eye(3)[np.maximum(truth, 0)])
        figures.append(evaluate_frames([found], [truth], NAMES))
    assert figures[0] == figures[1] and (figures[0]["num_segments"], figures[0]["num_frames"]) == (4, 16)
    assert figures[0]["edit_score"] < 0.5 and figures[0]["f1"][-1] < 0.5


def test_a_class_by_itself_where_a_frame_may_have_several():
    reference = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 0]])
    prediction = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1]])
    result = evaluate_frames([prediction], [reference], NAMES)
    assert result["frame_accuracy"] == pytest.approx(10 / 12)
    assert result["edit_score"] == pytest.approx(2 / 3)
    assert result["f1"] == pytest.approx([4 / 5] * 3) and result["classes"]["dive"]["f1"] == [1.0] * 3


@pytest.mark.parametrize("several", [False, True])
def test_average_precision_is_that_of_scikit_learn_over_the_frames_of_all_videos(several):
    generator = np.random.default_rng(0)
    scores = [generator.random((length, 3)).round(1) for length in (40, 60)]  # with ties
    references = [
        generator.integers(2, size=each.shape) if several else generator.integers(3, size=len(each)) for each in scores
    ]
    predictions = [(each > 0.5).astype(int) if several else each.argmax(1) for each in scores]
    references[0][:5] = -100
    result = evaluate_frames(predictions, references, NAMES, ["rest"], scores)
    ranks, truth = np.concatenate(scores)[5:], np.concatenate(references)[5:]
    expected = [
        average_precision_score(truth[:, index] if several else truth == index, ranks[:, index]) for index in range(3)
    ]
    assert [each["average_precision"] for each in result["classes"].values()] == pytest.approx(expected)
    assert result["mean_average_precision"] == pytest.approx(np.mean(expected[:2]))


def tracks_of(labels, reference, background):
    """The classes of known frames, -1 where there is no segment; for each class if a frame may have several."""
    is_known = reference != -100
    if labels.ndim == 1:
        return [np.where(labels != background, labels, -1)[is_known]]
    columns = enumerate(zip(labels.T, is_known.T, strict=True))
    return [np.where(of_class[known] == 1, number, -1) for number, (of_class, known) in columns]


def slow_figures(predictions, references, background=None):
    """Counts of the definitions, frame by frame and by recursion."""
    right, hits, wrong, missed, edits, pairs = [], 0, 0, 0, [], []
    for prediction, reference in zip(predictions, references, strict=True):
        right += [a == b for a, b in zip(prediction.flat, reference.flat, strict=True) if b != -100]
        pairs += zip(*(tracks_of(each, reference, background) for each in (prediction, reference)), strict=True)
    for pair in pairs:
        orders, places = [], []
        for labels in pair:
            runs = [list(run) for _, run in groupby(range(len(labels)), key=lambda frame, of=labels: of[frame])]
            runs = [run for run in runs if labels[run[0]] >= 0]
            orders.append([labels[run[0]] for run in runs])
            places.append([set(run) for run in runs])

        @cache
        def distance(i, j, orders=orders):
            if not i or not j:
                return i + j
            same = orders[0][i - 1] == orders[1][j - 1]
            return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + 1 - same)

        if any(orders):
            edits.append(1 - distance(len(orders[0]), len(orders[1])) / max(map(len, orders)))
        free = set(range(len(places[1])))
        for label, place in zip(orders[0], places[0], strict=True):
            shares = {
                number: len(place & other) / len(place | other)
                for number, other in enumerate(places[1])
                if orders[1][number] == label
            }
            best = max(shares, key=shares.get, default=None)
            if best in free and shares[best] >= 0.25:
                free.remove(best)
                hits += 1
            else:
                wrong += 1
        missed += len(free)
    return np.mean(right), np.mean(edits), 2 * hits / (2 * hits + wrong + missed)


@pytest.mark.parametrize(
    ("background", "share_unknown", "several"), [((), 0, False), (("rest",), 0.3, False), ((), 0.3, True)]
)
def test_against_an_independent_count(background, share_unknown, several):
    """Of one class a frame, or of several."""
    generator, shape, most = np.random.default_rng(0), (8, 3) if several else (8,), 2 if several else 3
    for _ in range(10):
        lengths = generator.integers(1, 6, 8)
        references = [np.repeat(generator.integers(0, most, shape), lengths, axis=0) for _ in range(4)]
        predictions = [
            np.where(generator.random(each.shape) < 0.2, generator.integers(0, most, each.shape), np.roll(each, 1, 0))
            for each in references
        ]
        # Whole segments are unknown, and what is predicted in them and beside them may be anything.
        is_unknown = np.repeat(generator.random(shape) < share_unknown, lengths, axis=0)
        references = [np.where(is_unknown, -100, each) for each in references]
        result = evaluate_frames(predictions, references, NAMES, background=background)
        found = result["frame_accuracy"], result["edit_score"], result["f1"][1]
        assert found == pytest.approx(slow_figures(predictions, references, *map(NAMES.index, background)))


def test_what_cannot_be_measured():
    with pytest.raises(ValueError, match=r"Video 0 has predictions of the shape \(2,\) and annotations of \(3,\)"):
        evaluate_frames([[0, 1]], [[0, 1, 1]], NAMES)
    with pytest.raises(ValueError, match="No frame of the videos has a known class"):
        evaluate_frames([[0, 1]], [[-100, -100]], NAMES)
    with pytest.raises(ValueError, match="The background 'other' is none of the classes"):
        evaluate_frames([[0]], [[0]], NAMES, background=["other"])


def test_the_agreement_of_model_and_person():
    """Frames of uneven length; one is unknown, and background is no class."""
    predicted, expected = np.array([0, 0, 1, 2, 2, 0, 1, 1]), np.array([0, 1, 1, 2, -100, 0, 0, 1])
    compared = _compare(np.cumsum([0.1, 0.2] * 4), predicted, expected, NAMES, ["rest"])
    found, known = measure_agreement([compared], NAMES[:2]), expected >= 0
    assert found["all"]["kappa_frames"] == pytest.approx(cohen_kappa_score(predicted[known], expected[known]))
    assert found["classes"]["run"]["bouts"] == [2, 2] and found["classes"]["dive"]["seconds"][1] == pytest.approx(0.5)
