"""`VideoTrainer` on values in place of classes, one or several a video."""

import json

import numpy as np
import pytest
import torch
from transformers import EvalPrediction

from hf_video.inference import predict_scores
from hf_video.metrics import compute_metrics, regression_metrics
from tests.testing import trainers
from tests.testing.trainers import RandomClips, make_model


class Valued(RandomClips):
    """The values are twice the brightness of a clip, and minus it."""

    def __init__(self, num_values, **options):
        super().__init__(**options)
        self.num_values = num_values

    def __getitem__(self, index):
        item = super().__getitem__(index)
        values = [2.0 * item["labels"], -1.0 * item["labels"]][: self.num_values]
        return item | {"labels": values if len(values) > 1 else values[0]}


def make_trainer(folder, num_values, problem_type="regression", **options):
    model = make_model(num_labels=num_values, problem_type=problem_type)
    return trainers.make_trainer(folder, Valued(num_values), Valued(num_values), model=model, **options)


@pytest.mark.parametrize(("num_values", "problem_type"), [(1, None), (2, "regression")])
def test_it_trains_measures_errors_and_returns_to_the_least(num_values, problem_type, tmp_path):
    trainer = make_trainer(tmp_path, num_values, problem_type, num_train_epochs=4)
    before = trainer.evaluate()
    trainer.train()
    errors = [entry["eval_mse"] for entry in trainer.state.log_history if "eval_mse" in entry][1:]
    prediction = trainer.predict(trainer.eval_dataset)
    labels = prediction.label_ids.reshape(8, num_values).astype(np.float64)
    expected = np.square(prediction.predictions - labels).mean()
    assert prediction.metrics["test_mse"] == pytest.approx(expected)
    assert prediction.metrics["test_loss"] == pytest.approx(expected, rel=1e-5)
    assert trainer.state.best_metric == min(errors) == pytest.approx(expected) and expected < before["eval_mse"]
    facts = json.loads((tmp_path / "training_facts.json").read_text())
    assert facts["validation"]["eval_mse"] == min(errors)


@pytest.mark.parametrize("metric", ["eval_mae", "eval_r2"])
def test_the_best_checkpoint_is_that_of_any_metric(metric, tmp_path):
    trainer = make_trainer(tmp_path, 1, num_train_epochs=3, metric_for_best_model=metric)
    trainer.train()
    name = f"eval_{metric.removeprefix('eval_')}"
    found = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert trainer.state.best_metric == (max(found) if "r2" in metric else min(found))


def test_what_suits_classes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="label_smoothing_factor is 0.1, but a video has values"):
        make_trainer(tmp_path, 1, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="'top5_accuracy', which is not measured: use mse, mae, r2 or loss"):
        make_trainer(tmp_path, 1, metric_for_best_model="top5_accuracy")
    with pytest.raises(ValueError, match="must be class ids, got float64; regression_metrics measures values"):
        compute_metrics(EvalPrediction(predictions=np.zeros((2, 1)), label_ids=np.array([0.0, 1.0])))


def test_errors_are_those_of_their_formulas():
    found, true = np.array([[1.0, 0.0], [2.0, 4.0], [0.0, 2.0]]), np.array([[1.0, 1.0], [0.0, 3.0], [2.0, 2.0]])
    metrics = regression_metrics(EvalPrediction(predictions=found, label_ids=true))
    # Column by column: squared errors 0 + 4 + 4 and 1 + 1 + 0, spread around the mean 1 + 1 + 0 + ... = 2 and 2.
    assert metrics == {"mse": pytest.approx(10 / 6), "mae": pytest.approx(1.0), "r2": pytest.approx((-3 + 0) / 2)}
    assert "r2" not in regression_metrics(EvalPrediction(predictions=found, label_ids=np.ones((3, 2))))
    with pytest.raises(ValueError, match=r"got \(3, 2\) and \(2, 2\)"):
        regression_metrics(EvalPrediction(predictions=found, label_ids=true[:2]))


def test_scores_of_a_model_that_names_no_problem_type_are_its_values():
    model = make_model(num_labels=1).eval()
    clips = torch.randn(2, 2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(predict_scores(model, clips), model(clips).logits)
