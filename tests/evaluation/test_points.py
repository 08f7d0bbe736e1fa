import numpy as np
import pytest

from hf_video.evaluation import evaluate_points
from hf_video.evaluation.points import Spotted, measure_points
from hf_video.inference.segments import Segment


def points(*rows, label="whistle"):
    return [Segment(label, time, time, score) for time, score in rows]


def test_instants_by_hand():
    true = {"a": points((10.0, 1.0), (20.0, 1.0)), "b": [*points((5.0, 1.0)), Segment("goal", 7.0, 7.0)]}
    found = {"a": points((10.2, 0.9), (10.1, 0.8), (22.0, 0.4)), "b": points((50.0, 0.7))}
    result = evaluate_points(found, true)
    assert (result["num_points"], result["num_predictions"]) == (4, 4)
    assert result["tolerances"] == [0.1, 0.2, 0.3, 0.4, 0.5, 1, 2, 3, 4, 5]
    # At 0.2 s half of the tolerance reaches the second prediction alone, with precision 1/2 at a recall of 1/3. From
    # 0.4 s on it is the first one, with precision 1, and from 4 s on also the last one, with 1/2 at a recall of 2/3.
    precision = result["classes"]["whistle"]["average_precision"]
    first, second, both = 4 / 11 * 0.5, 4 / 11, (4 + 3 * 0.5) / 11
    assert precision == pytest.approx([0, second * 0.5, first, second, second, second, second, second, both, both])
    assert result["classes"]["goal"] == {"num_points": 1, "average_precision": [0.0] * 10}
    mean = np.array(precision) / 2
    assert result["mean_average_precision"] == pytest.approx(mean.tolist())
    assert result["average_map"] == pytest.approx((mean[5] / 2 + mean[6:9].sum() + mean[9] / 2) / 4)
    assert result["average_map_fine"] == pytest.approx((mean[0] / 2 + mean[1:4].sum() + mean[4] / 2) / 4)
    # The last prediction is below 0.5, and so none of F1.
    assert result["f1"][5] == result["f1"][9] == pytest.approx(2 / 7)


def test_without_an_instant():
    with pytest.raises(ValueError, match="no instant"):
        evaluate_points({"a": points((1.0, 0.5))}, {"a": []})


def test_clips_that_overlap_have_each_instant_once():
    """In any order, as those of a training."""
    parts = []
    for begin in (2, 0, 1):
        moments = np.arange(begin, begin + 2, 0.25) + 0.125
        scores = (np.abs(moments - 1.5) <= 0.25)[:, None].astype(float)
        labels, instants = np.zeros(len(moments), int), [(1.5, 0)] if begin < 2 else []
        parts.append(Spotted("a", moments, scores, labels, instants))
    found = measure_points(parts, ["whistle"], ["whistle"], 0.5)["points"]
    assert found["num_points"] == 1 and found["average_map"] == 1


def spotting(true, found, tolerance, num_thresholds=200):
    """Average precision of a class as SoccerNet's kit counts it: instants choose, thresholds give the curve."""
    scored, num_true = [], sum(map(len, true))
    for instants, predictions in zip(true, found, strict=True):
        taken = set()
        for instant in sorted(instants):
            near = [each for each in predictions if abs(each[0] - instant) <= tolerance / 2 and each not in taken]
            taken |= {max(near, key=lambda each: each[1])} if near else set()
        scored += [(score, (time, score) in taken) for time, score in predictions]
    curve = []
    for threshold in np.linspace(0, 1, num_thresholds):
        kept = [is_right for score, is_right in scored if score >= threshold]
        curve.append((sum(kept) / num_true, sum(kept) / len(kept) if kept else 0.0))
    return (
        sum(max([precision for recall, precision in curve if recall >= at / 10], default=0) for at in range(11)) / 11
    )


@pytest.mark.parametrize("seed", range(5))
def test_an_independent_count(seed):
    """Instants at multiples of 1/64 s, so that no distance is rounded, and scores that thresholds tell apart."""
    generator = np.random.default_rng(seed)
    true, found = {}, {}
    scores = iter((generator.permutation(199) + 0.5) / 199)
    for video in "abc":
        true[video], found[video] = [], []
        for label in ("whistle", "goal"):
            times = generator.choice(64 * 60, 12, replace=False) / 64
            true[video] += points(*((time, 1.0) for time in times), label=label)
            near = np.round((times + generator.normal(0, 0.6, 12)) * 64) / 64
            others = np.concatenate([near, generator.choice(64 * 60, 15) / 64])
            found[video] += points(*((time, next(scores)) for time in others), label=label)
    result = evaluate_points(found, true)
    means = []
    for number, tolerance in enumerate(result["tolerances"]):
        expected = {}
        for label in ("whistle", "goal"):
            times, pairs = (
                [[each for each in kind[video] if each.label == label] for video in "abc"] for kind in (true, found)
            )
            of_true = [[each.start for each in of_video] for of_video in times]
            of_found = [[(each.start, each.score) for each in of_video] for of_video in pairs]
            expected[label] = spotting(of_true, of_found, tolerance)
            assert result["classes"][label]["average_precision"][number] == pytest.approx(expected[label])
        means.append(sum(expected.values()) / 2)
    assert result["average_map"] == pytest.approx(sum((means[at] + means[at + 1]) / 2 for at in range(5, 9)) / 4)
    assert 0 < result["average_map_fine"] < result["average_map"] < 1
