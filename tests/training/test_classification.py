"""`VideoTrainer`: its metrics and its losses, values in place of classes, and what `transformers.Trainer` takes."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from transformers import EvalPrediction, Trainer

from hf_video.data import collate_clips
from hf_video.metrics import compute_metrics, regression_metrics
from hf_video.training import VideoTrainer
from tests.testing.trainers import RandomClips, make_arguments, make_model, make_trainer, weights_of


class Unlabelled(RandomClips):
    def __getitem__(self, index):
        return {"pixel_values": super().__getitem__(index)["pixel_values"]}


class WithoutViews(RandomClips):
    def __getitem__(self, index):
        item = super().__getitem__(index)
        return item | {"pixel_values": item["pixel_values"][0]}


class Valued(RandomClips):
    """The values are twice the brightness of a clip, and minus it."""

    def __init__(self, num_values):
        super().__init__()
        self.num_values = num_values

    def __getitem__(self, index):
        item = super().__getitem__(index)
        values = [2.0 * item["labels"], -1.0 * item["labels"]][: self.num_values]
        return item | {"labels": values if len(values) > 1 else values[0]}


SETS = {"near": RandomClips(), "far": RandomClips(4)}


def test_it_learns_and_returns_to_the_best_checkpoint_and_a_plain_trainer_does_the_same(tmp_path):
    trained, metrics = [], []
    for kind in (VideoTrainer, Trainer):
        model = make_model(num_hidden_layers=2)
        # They are no predictions.
        model.config.output_hidden_states = True
        # By an equal accuracy a plain trainer keeps the first.
        arguments = make_arguments(tmp_path / kind.__name__, num_train_epochs=3, metric_for_best_model="loss")
        sets = {"train_dataset": RandomClips(), "eval_dataset": RandomClips()}
        options = {"data_collator": collate_clips, "compute_metrics": compute_metrics}
        trainer = kind(model, arguments, **sets, **options)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        metrics.append(trainer.evaluate())
        assert metrics[-1]["eval_loss"] < before
        assert trainer.state.best_metric == metrics[-1]["eval_loss"]
        trained.append(weights_of(trainer.model))
    torch.testing.assert_close(trained[0], trained[1], rtol=0, atol=0)
    assert metrics[0]["eval_top1_accuracy"] == metrics[1]["eval_top1_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("problem", "options", "expected"),
    [
        (None, {}, "top1_accuracy"),
        (None, {"compute_metrics": None}, "-loss"),
        (None, {"prediction_loss_only": True}, "-loss"),
        (None, {"metric_for_best_model": "loss"}, "-loss"),
        (None, {"eval_dataset": SETS}, "near_top1_accuracy"),
        (None, {"eval_dataset": SETS, "metric_for_best_model": "eval_far_loss"}, "-eval_far_loss"),
        (None, {"metric_for_best_model": "own", "compute_metrics": lambda prediction: {"own": 1.0}}, "own"),
        ("multi_label_classification", {"metric_for_best_model": "eval_top1_accuracy"}, "mean_average_precision"),
        ("regression", {}, "-mse"),
        ("regression", {"metric_for_best_model": "eval_mae"}, "-eval_mae"),
        ("regression", {"metric_for_best_model": "eval_r2"}, "eval_r2"),
    ],
)
def test_the_metric_of_the_best_checkpoint(problem, options, expected, tmp_path):
    """One with a minus is best when it is least."""
    args = make_trainer(tmp_path, model=make_model(problem_type=problem), **options).args
    assert args.metric_for_best_model == expected.removeprefix("-")
    assert args.greater_is_better is not expected.startswith("-")


def test_several_evaluation_sets(tmp_path):
    trainer = make_trainer(tmp_path, eval_dataset=SETS)
    trainer.train()
    found = [entry["eval_near_top1_accuracy"] for entry in trainer.state.log_history if "eval_near_loss" in entry]
    assert trainer.state.best_metric == max(found)
    facts = json.loads((tmp_path / "training_facts.json").read_text())
    assert facts["data"]["validation near"] == {"num_videos": 8}
    assert facts["data"]["validation far"] == {"num_videos": 4}
    assert {"eval_near_loss", "eval_far_loss"} <= set(facts["validation"])
    known = "use near_top1_accuracy, near_mean_class_accuracy, near_loss, .* or far_loss"
    with pytest.raises(ValueError, match=known):
        make_trainer(tmp_path, eval_dataset=SETS, metric_for_best_model="loss")


def test_videos_without_labels_are_predicted(tmp_path):
    trainer = make_trainer(tmp_path)
    prediction = trainer.predict(Unlabelled())
    assert prediction.label_ids is None and "test_loss" not in prediction.metrics
    torch.testing.assert_close(prediction.predictions, trainer.predict(RandomClips()).predictions)


def test_arguments_by_place_and_a_function_that_makes_the_model(tmp_path):
    sets = (RandomClips(), RandomClips())
    by_place = VideoTrainer(make_model(), make_arguments(tmp_path / "a"), None, *sets)
    made = VideoTrainer(None, make_arguments(tmp_path / "b"), collate_clips, *sets, None, lambda: make_model())
    for trainer in (by_place, made):
        trainer.train()
    torch.testing.assert_close(weights_of(made.model), weights_of(by_place.model), rtol=0, atol=0)


def test_clips_without_the_axis_of_views_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"\(2, 3, 16, 16\).*one shape \(views, frames, channels, height, width\)"):
        make_trainer(tmp_path, WithoutViews()).train()


@pytest.mark.parametrize(("num_values", "problem_type"), [(1, None), (2, "regression")])
def test_values_are_learned_and_the_weights_with_the_least_error_come_back(num_values, problem_type, tmp_path):
    model = make_model(num_labels=num_values, problem_type=problem_type)
    trainer = make_trainer(tmp_path, Valued(num_values), Valued(num_values), model=model, num_train_epochs=4)
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


def test_what_suits_classes_is_refused_for_values(tmp_path):
    make = partial(make_trainer, tmp_path, model=make_model(num_labels=1, problem_type="regression"))
    with pytest.raises(ValueError, match="class_weights are for classes, and a regression has values"):
        make(class_weights={"LABEL_0": 1.0})
    with pytest.raises(ValueError, match="label_smoothing_factor is for one class a video"):
        make(label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="'top5_accuracy', which is not measured: use mse, mae, r2 or loss"):
        make(metric_for_best_model="top5_accuracy")
    with pytest.raises(ValueError, match="must be class ids from 0 to 0, got float64"):
        compute_metrics(EvalPrediction(predictions=np.zeros((2, 1)), label_ids=np.array([0.0, 1.0])))


def test_errors_are_those_of_their_formulas():
    found, true = np.array([[1.0, 0.0], [2.0, 4.0], [0.0, 2.0]]), np.array([[1.0, 1.0], [0.0, 3.0], [2.0, 2.0]])
    metrics = regression_metrics(EvalPrediction(predictions=found, label_ids=true))
    # Column by column: squared errors 0 + 4 + 4 and 1 + 1 + 0, spread around the mean 1 + 1 + 0 + ... = 2 and 2.
    assert metrics == {"mse": pytest.approx(10 / 6), "mae": pytest.approx(1.0), "r2": pytest.approx((-3 + 0) / 2)}
    assert "r2" not in regression_metrics(EvalPrediction(predictions=found, label_ids=np.ones((3, 2))))
