import numpy as np
import pytest
from scipy.stats import binomtest

from hf_video.metrics import chance_accuracy, wilson_interval
from hf_video.training import assess, write_report

NAMES = ["left", "right", "up", "down"]


def measured(right, number=240, training=None, **changes):
    """What a report holds of balanced classes, of whose videos the first `right` are recognised."""
    share = right / number
    low, high = wilson_interval(share, number)
    metrics = {"top1_accuracy": share, "mean_class_accuracy": share, "num_videos": number, "split": "test"}
    metrics |= {"chance": 0.25, "top1_interval": [low, high], "class_names": NAMES}
    return metrics | ({} if training is None else {"training_top1_accuracy": training}) | changes


@pytest.mark.parametrize(("right", "number"), [(186, 240), (0, 10), (10, 10), (1, 3)])
def test_the_interval_is_wilsons(right, number):
    expected = binomtest(right, number).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson_interval(right / number, number), expected, atol=1e-6)


def test_chance_is_the_share_of_the_most_frequent_class():
    assert chance_accuracy(np.array([0, 1, 1, 2, 1])) == 0.6


def test_the_figure_comes_with_chance_interval_and_gap():
    first, second, third = assess(measured(186, training=0.975))
    assert first == "top-1 accuracy 77.5% on 240 test videos (chance 25.0%, 95% interval 71.8% to 82.3%)"
    assert second == "on clips that it was trained on 97.5%, 20.0 points more"
    assert third.startswith("next     a large gap: more clips")


@pytest.mark.parametrize(
    ("metrics", "advice"),
    [
        (measured(66, training=0.3), "no better than chance: another --model, more --epochs, or more clips"),
        (measured(66, training=1.0), "no better than chance, but it knows its own clips by heart"),
        (measured(150, training=0.7), "it does not know its own clips yet: more --epochs"),
        (measured(16, 20, training=0.92), "20 videos are few for a figure"),
        (measured(236, training=1.0), "the clips with the highest loss, in report/worst_clips.png"),
        # Nine of ten videos are of one class, and the others are recognised as well.
        (measured(216, training=0.95, chance=0.9, mean_class_accuracy=0.9), "the clips with the highest loss"),
    ],
)
def test_the_next_thing_to_try(metrics, advice):
    assert assess(metrics)[-1].startswith(f"next     {advice}")


def test_a_result_of_several_labels_has_neither_chance_nor_interval(tmp_path):
    scores, labels = np.array([[2.0, -1], [-1, 2]]), np.array([[1.0, 0], [0, 1]])
    training = {"mean_average_precision": 1.0}
    metrics = write_report(
        tmp_path, scores=scores, labels=labels, class_names=["run", "jump"], training_metrics=training
    )
    assert "chance" not in metrics and "top1_interval" not in metrics
    first, second, _ = assess(metrics)
    assert first == "mean average precision 100.0% on 2 validation videos"
    assert second == "on clips that it was trained on 100.0%, no more"


def test_the_report_shows_chance_and_interval_beside_top_1(tmp_path):
    scores, labels = np.eye(4)[[0, 1, 2, 3, 3, 3]], np.array([0, 1, 2, 3, 3, 0])
    history = [{"eval_loss": 0.9, "eval_top1_accuracy": 0.5, "epoch": 1.0, "step": 2}]
    training = {"top1_accuracy": 1.0, "mean_class_accuracy": 1.0}
    metrics = write_report(
        tmp_path,
        scores=scores,
        labels=labels,
        class_names=NAMES,
        log_history=history,
        training_metrics=training,
    )
    assert metrics["chance"] == pytest.approx(1 / 3) and metrics["training_top1_accuracy"] == 1.0
    assert metrics["top1_interval"] == pytest.approx(wilson_interval(5 / 6, 6))
    summary = (tmp_path / "report.md").read_text()
    for row in ("| top-1 by chance | 33.33% |", "| top-1 accuracy on training clips | 100.00% |", "95% interval"):
        assert row in summary
