"""Metrics equal what they count, and refuse what they cannot count."""

import numpy as np
import pytest
from transformers import EvalPrediction

from hf_video.metrics import (
    average_precision,
    calibration_error,
    compute_metrics,
    confusion_matrix,
    recognised_shares,
    retrieval_recall,
    top_k_accuracy,
)

SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.6, 0.1, 0.3]])
LABELS = np.array([1, 1, 2, 2])


def test_top_k_accuracy_counts_hits_among_the_k_best():
    assert top_k_accuracy(SCORES, LABELS) == 0.5
    assert top_k_accuracy(SCORES, LABELS, k=2) == 1.0
    assert top_k_accuracy(SCORES, LABELS, k=5) == 1.0  # no further than the classes


def test_top_1_is_the_argmax_also_for_equal_scores():
    scores = np.zeros((4, 3))
    assert top_k_accuracy(scores, np.array([0, 0, 1, 2])) == (scores.argmax(1) == [0, 0, 1, 2]).mean()


def test_confusion_matrix_has_true_classes_in_rows():
    assert confusion_matrix(SCORES, LABELS).tolist() == [[0, 0, 0], [1, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize(("num_classes", "has_top5"), [(5, False), (6, True)])
def test_top_5_is_reported_when_it_says_something(num_classes, has_top5):
    scores = np.eye(num_classes)
    metrics = compute_metrics(EvalPrediction(predictions=scores, label_ids=np.arange(num_classes)))
    assert metrics["top1_accuracy"] == 1.0
    assert ("top5_accuracy" in metrics) is has_top5


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (SCORES, LABELS[:2], r"\(4, 3\) and \(2,\)"),
        (SCORES[:0], LABELS[:0], "at least one video"),
        (SCORES, np.array([0, 1, 2, 3]), "class ids from 0 to 2, got int64 from 0 to 3"),
    ],
)
def test_shapes_and_ids_are_checked(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        top_k_accuracy(scores, labels)
    with pytest.raises(ValueError, match=message):
        confusion_matrix(scores, labels)


def test_accuracy_of_each_class_and_none_without_videos():
    assert recognised_shares(confusion_matrix(SCORES, LABELS))[1:].tolist() == [0.5, 0.5]
    assert np.isnan(recognised_shares(confusion_matrix(SCORES, LABELS))[0])


def test_calibration_error_is_the_gap_between_confidence_and_accuracy():
    sure = np.array([[0.9, 0.1]] * 10)
    labels = np.array([0] * 6 + [1] * 4)
    assert calibration_error(sure, labels) == pytest.approx(0.9 - 0.6)
    # Two intervals of confidence: 0.9 with half of the answers right, 0.6 with all of them.
    scores = np.array([[0.9, 0.1]] * 2 + [[0.4, 0.6]] * 2)
    assert calibration_error(scores, np.array([0, 1, 1, 1])) == pytest.approx((0.4 + 0.4) / 2)
    assert calibration_error(np.eye(3), np.arange(3)) == 0
    with pytest.raises(ValueError, match="rows that sum to 1: apply a softmax"):
        calibration_error(np.array([[2.0, 1.0]]), np.array([0]))


def test_average_precision_is_that_of_scikit_learn_with_equal_scores_too():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 2, (50, 6))
    scores = generator.normal(size=(50, 6)).round(1)
    found = average_precision(scores, targets)
    expected = [metrics.average_precision_score(targets[:, index], scores[:, index]) for index in range(6)]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert not np.allclose(found, average_precision(-scores, targets))


def test_classes_that_no_video_has_are_left_out_of_the_mean():
    scores = np.array([[0.9, 0.2, 0.5], [0.8, 0.7, 0.5], [0.1, 0.6, 0.5]])
    targets = np.array([[1.0, 0, 0], [0, 1, 0], [1, 0, 0]])
    assert average_precision(scores, targets)[:2].tolist() == [pytest.approx((1 + 2 / 3) / 2), 1.0]
    assert np.isnan(average_precision(scores, targets)[2])
    metrics = compute_metrics(EvalPrediction(predictions=scores, label_ids=targets))
    assert metrics == {"mean_average_precision": pytest.approx((5 / 6 + 1) / 2)}


def test_targets_are_checked():
    with pytest.raises(ValueError, match=r"\(4, 3\) and \(4,\)"):
        average_precision(SCORES, LABELS)
    with pytest.raises(ValueError, match="targets of 0 or 1"):
        average_precision(SCORES, SCORES)
    with pytest.raises(ValueError, match="No video has a class"):
        compute_metrics(EvalPrediction(predictions=SCORES, label_ids=np.zeros((4, 3))))


def test_the_best_rank_counts_where_several_are_relevant():
    scores = np.array([[0.9, 0.1, 0.2, 0.3], [0.8, 0.4, 0.7, 0.6]])
    relevant = np.array([[True, True, False, False], [False, False, True, True]])
    recall = retrieval_recall(scores, relevant, ks=(1, 2))
    assert recall == {
        **{"text_to_video_r1": 75.0, "text_to_video_r2": 100.0},
        **{"video_to_text_r1": 50.0, "video_to_text_r2": 100.0},
    }
    texts_apart = retrieval_recall(scores, relevant, -scores, ks=(1,))
    assert texts_apart == {"text_to_video_r1": 25.0, "video_to_text_r1": 50.0}


def test_a_tie_counts_against_retrieval_and_queries_without_an_answer_do_not_count():
    tied = retrieval_recall(np.zeros((3, 3)), np.eye(3, dtype=bool), ks=(1, 2, 3))
    assert [tied[f"text_to_video_r{k}"] for k in (1, 2, 3)] == [0, 0, 100]
    one = retrieval_recall(np.eye(3), np.diag([True, False, False]))
    assert one["text_to_video_r1"] == one["video_to_text_r1"] == 100


@pytest.mark.parametrize(
    "scores, relevant, message",
    [
        (np.full((2, 2), np.nan), np.eye(2, dtype=bool), "NaN"),
        (np.zeros((2, 2)), np.zeros((2, 2), dtype=bool), "no text belongs"),
    ],
)
def test_recall_needs_scores_and_answers(scores, relevant, message):
    with pytest.raises(ValueError, match=message):
        retrieval_recall(scores, relevant)
