"""Figures of segments: cases worked out by hand, and a slow second implementation on random cases."""

import json

import numpy as np
import pytest

from hf_video.evaluation import evaluate_segments, read_ground_truth, read_predictions
from hf_video.evaluation.segments import TIOUS
from hf_video.inference import Segment


def dive(start, end, score=1.0):
    return Segment("dive", start, end, score)


def average_precisions(predictions, ground_truth, tious=(0.5,), label="dive"):
    return evaluate_segments(predictions, ground_truth, tious)["classes"][label]["average_precision"]


def test_a_ranking_worked_out_by_hand():
    truth = {"a": [dive(0, 10), dive(20, 30)], "b": [dive(0, 4)]}
    predictions = {
        "a": [dive(0, 10, 0.9), dive(40, 50, 0.8), dive(1, 10, 0.7), dive(22, 32, 0.6)],
        "b": [dive(0, 3, 0.5)],
    }
    # At 0.5: right, wrong, wrong (its segment is taken), right (IoU 8/12), right (IoU 3/4).
    # Precision 1, 1/2, 1/3, 2/4, 3/5; the highest from there on 1, 3/5, 3/5, 3/5, 3/5. Each of three segments is worth
    # a third of recall: (1 + 3/5 + 3/5) / 3 = 11/15.
    # At 0.7 the fourth is wrong: precision 1, ..., 2/5 at the last: (1 + 2/5) / 3 = 7/15.
    # At 0.8 the last is wrong as well: 1 / 3.
    found = average_precisions(predictions, truth, (0.5, 0.7, 0.8))
    np.testing.assert_allclose(found, [11 / 15, 7 / 15, 1 / 3], rtol=1e-12)


def test_the_mean_is_over_annotated_classes_and_then_over_thresholds():
    truth = {"a": [dive(0, 10), Segment("jump", 0, 10), Segment("run", 5, 6)]}
    predictions = {"a": [dive(0, 10, 0.3), Segment("jump", 0, 6, 0.9), Segment("sing", 0, 9, 0.9)]}
    result = evaluate_segments(predictions, truth, [0.5, 0.7])
    # dive 1, 1; jump (IoU 0.6) 1, 0; run has no prediction; sing is annotated nowhere.
    assert list(result["classes"]) == ["dive", "jump", "run"]
    np.testing.assert_allclose(result["mean_average_precision"], [2 / 3, 1 / 3])
    assert result["average_map"] == pytest.approx(1 / 2)
    # Two, then one right of three predictions and three segments.
    np.testing.assert_allclose(result["precision"], [2 / 3, 1 / 3])
    np.testing.assert_allclose(result["recall"], [2 / 3, 1 / 3])
    np.testing.assert_allclose(result["f1"], [2 / 3, 1 / 3])
    assert "1 prediction, whose label no annotation has ('sing')" in result["warnings"][0]


def test_videos_and_classes_without_predictions_are_missed():
    truth = {"a": [dive(0, 10)], "b": [dive(0, 10)], "c": []}
    result = evaluate_segments({"a": [dive(0, 10)]}, truth, [0.5])
    assert result["classes"]["dive"]["average_precision"] == [0.5]
    assert result["warnings"] == [
        "Without predictions, so that all of them counts as missed: 2 of 3 videos ('b', 'c')."
    ]
    result = evaluate_segments({}, truth)
    assert result["average_map"] == 0 and result["f1"] == [0] * 5 and result["precision"] == [0] * 5
    assert result["median_border_error"] == [None] * 5


def test_predictions_elsewhere_are_wrong():
    truth = {"a": [dive(0, 10)], "b": [Segment("run", 0, 10)]}
    # In a video without annotations of the class, or one that the ground truth does not have: wrong, then right.
    for video in ("b", "z"):
        assert average_precisions({video: [dive(0, 10, 0.9)], "a": [dive(0, 10, 0.5)]}, truth) == [0.5]
    result = evaluate_segments({"z": [dive(0, 10)] * 3, "a": [], "b": []}, truth)
    elsewhere, missed = result["warnings"]
    assert "3 predictions" in elsewhere and "('z')" in elsewhere
    assert "1 annotation" in missed and "('run')" in missed
    with pytest.raises(ValueError, match="No prediction is for a video of the ground truth: 'a.mp4' against 'a', 'b'"):
        evaluate_segments({"a.mp4": [dive(0, 10)]}, truth)


def test_border_errors_are_those_of_right_predictions():
    truth = {"a": [dive(0, 10), dive(20, 30)], "b": [Segment("run", 0, 10)]}
    predictions = {"a": [dive(1, 10.5), dive(40, 50)], "b": [Segment("run", 0, 12)]}
    result = evaluate_segments(predictions, truth, [0.5, 0.9])
    assert result["median_border_error"] == [0.75, None]  # of 0, 0.5, 1 and 2
    assert result["p90_border_error"] == [pytest.approx(1.7), None]


def slow_average_precision(predictions, ground_truth, label, tiou):
    """The definition once more, without arrays: predictions (score, video, start, end), highest score first."""
    ranked = [(each.score, video, each) for video in predictions for each in predictions[video] if each.label == label]
    ranked.sort(key=lambda entry: -entry[0])
    waiting = {video: [each for each in ground_truth[video] if each.label == label] for video in ground_truth}
    total = sum(map(len, waiting.values()))
    curve, right = [], 0
    for rank, (_, video, prediction) in enumerate(ranked, start=1):
        best, best_iou = None, -1.0
        for candidate in waiting.get(video, []):
            shared = max(0.0, min(prediction.end, candidate.end) - max(prediction.start, candidate.start))
            union = prediction.end - prediction.start + candidate.end - candidate.start - shared
            iou = shared / union if union > 0 else 0.0
            if iou > best_iou:
                best, best_iou = candidate, iou
        if best is not None and best_iou >= tiou:
            waiting[video].remove(best)
            right += 1
        curve.append((right / total, right / rank))
    area, last = 0.0, 0.0
    for recall in sorted({recall for recall, _ in curve} - {0.0}):
        area += (recall - last) * max(precision for other, precision in curve if other >= recall)
        last = recall
    return area


def random_segments(generator, videos, labels, most, score_steps):
    return {
        video: [
            Segment(
                str(generator.choice(labels)),
                start := float(generator.integers(0, 40)) / 2,
                start + float(generator.integers(0, 16)) / 2,
                float(generator.integers(0, score_steps)) / score_steps,
            )
            for _ in range(generator.integers(0, most))
        ]
        for video in videos
    }


def test_a_slow_implementation_agrees_on_random_cases():
    compared = partly_right = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        truth = random_segments(generator, "abcd", ["x", "y", "z"], 8, 1)
        # Few steps give equal scores; "v" is a class and "e" a video that only predictions have.
        predictions = random_segments(generator, "abce", ["x", "y", "z", "v"], 20, int(generator.choice([3, 10**6])))
        if not any(truth.values()):
            continue
        for label, found in evaluate_segments(predictions, truth)["classes"].items():
            expected = [slow_average_precision(predictions, truth, label, tiou) for tiou in TIOUS]
            np.testing.assert_allclose(found["average_precision"], expected, rtol=1e-12, atol=1e-15)
            compared += 1
            partly_right += 0 < expected[2] < 1
    assert compared > 140 and partly_right > 60


SOUND = {"results": {"a": [{"label": "dive", "score": 0.5, "segment": [0, 2.5]}]}}
TRUTH = {
    "database": {
        "a": {"subset": "validation", "annotations": [{"label": "dive", "segment": [0, 2]}]},
        "b": {"subset": "training", "annotations": []},
    }
}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_files_in_the_layout_of_activitynet(tmp_path):
    assert read_predictions(write(tmp_path / "p.json", SOUND)) == {"a": [Segment("dive", 0.0, 2.5, 0.5)]}
    truth = write(tmp_path / "t.json", TRUTH)
    assert read_ground_truth(truth) == {"a": [Segment("dive", 0.0, 2.0)], "b": []}
    assert list(read_ground_truth(truth, "training")) == ["b"]
    with pytest.raises(ValueError, match="no video of the subset 'trainng', only of training, validation"):
        read_ground_truth(truth, "trainng")


def segment(**changes):
    entry = {"label": "dive", "score": 0.5, "segment": [0, 2.5]} | changes
    return {"results": {"a": [{name: value for name, value in entry.items() if value is not ...}]}}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", r"p\.json .*line 1"),
        (TRUTH, "`results` is missing"),
        (segment(score=...), "`results.a.0.score` is missing"),
        (segment(score=float("nan")), "score` .*nan"),
        (segment(segment=[1]), "segment`"),
    ],
)
def test_files_that_cannot_be_used(content, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        read_predictions(write(tmp_path / "p.json", content))
    with pytest.raises(ValueError, match="`database` is missing"):
        read_ground_truth(write(tmp_path / "t.json", SOUND))


def test_nothing_to_measure():
    with pytest.raises(ValueError, match="no annotated segment"):
        evaluate_segments({}, {"a": []})
    for tious in ([], [0.5, 1.1]):
        with pytest.raises(ValueError, match="above 0 and up to 1"):
            evaluate_segments({}, {"a": [dive(0, 1)]}, tious)
