"""What `transformers.Trainer` takes, `VideoTrainer` takes as well."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset

from hf_video.data import collate_clips
from hf_video.training import VideoTrainer
from tests.testing.trainers import RandomClips, make_arguments, make_model, make_trainer, weights_of


class Stream(IterableDataset):
    """Clips without a length."""

    def __iter__(self):
        clips = RandomClips()
        return (clips[index] for index in range(len(clips)))


class Unlabelled(RandomClips):
    def __getitem__(self, index):
        return {"pixel_values": super().__getitem__(index)["pixel_values"]}


class WithoutViews(RandomClips):
    def __getitem__(self, index):
        item = super().__getitem__(index)
        return item | {"pixel_values": item["pixel_values"][0]}


def read_facts(trainer):
    return json.loads(Path(trainer.args.output_dir, "training_facts.json").read_text())


def test_streams_train_and_evaluate(tmp_path):
    trainer = make_trainer(tmp_path, Stream(), Stream(), max_steps=4)
    trainer.train()
    assert trainer.state.global_step == 4 and trainer.state.best_metric is not None
    listed = make_trainer(tmp_path / "listed")
    listed.model.load_state_dict(weights_of(trainer.model))
    assert trainer.evaluate()["eval_loss"] == listed.evaluate()["eval_loss"]
    facts = read_facts(trainer)
    assert facts["data"] == {"train": {}, "validation": {}} and "eval_loss" in facts["validation"]


@pytest.mark.parametrize("metric", ["eval_top1_accuracy", "loss"])
def test_the_best_metric_may_have_a_prefix(metric, tmp_path):
    trainer = make_trainer(tmp_path, metric_for_best_model=metric)
    trainer.train()
    name = f"eval_{metric.removeprefix('eval_')}"
    found = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert trainer.state.best_metric == (min(found) if "loss" in metric else max(found))


def test_the_default_metric_stands_for_that_of_several_classes(tmp_path):
    model = make_model(problem_type="multi_label_classification")
    arguments = make_arguments(tmp_path, metric_for_best_model="eval_top1_accuracy")
    trainer = VideoTrainer(model, arguments, eval_dataset=RandomClips())
    assert trainer.args.metric_for_best_model == "mean_average_precision" and trainer.args.greater_is_better


def test_several_evaluation_sets(tmp_path):
    sets = {"near": RandomClips(), "far": RandomClips(4)}
    trainer = make_trainer(tmp_path, eval_dataset=sets)
    trainer.train()
    found = [entry["eval_near_top1_accuracy"] for entry in trainer.state.log_history if "eval_near_loss" in entry]
    assert trainer.state.best_metric == max(found)
    facts = read_facts(trainer)
    assert facts["data"]["validation near"] == {"num_videos": 8}
    assert facts["data"]["validation far"] == {"num_videos": 4}
    assert {"eval_near_loss", "eval_far_loss"} <= set(facts["validation"])
    assert (
        make_trainer(tmp_path, eval_dataset=sets, metric_for_best_model="eval_far_loss").args.greater_is_better
        is False
    )
    with pytest.raises(
        ValueError, match="use near_top1_accuracy, near_mean_class_accuracy, near_loss, .* or far_loss"
    ):
        make_trainer(tmp_path, eval_dataset=sets, metric_for_best_model="loss")


@pytest.mark.parametrize("options", [{"compute_metrics": None}, {"prediction_loss_only": True}])
def test_where_the_loss_alone_is_measured_it_decides(options, tmp_path):
    trainer = make_trainer(tmp_path, **options)
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert trainer.state.best_metric == min(losses)


def test_videos_without_labels_are_predicted(tmp_path):
    trainer = make_trainer(tmp_path)
    prediction = trainer.predict(Unlabelled())
    assert prediction.label_ids is None and "test_loss" not in prediction.metrics
    torch.testing.assert_close(prediction.predictions, trainer.predict(RandomClips()).predictions)


def test_a_loss_of_the_user_has_the_word(tmp_path):
    """Classes of unequal weight, smoothed by no one else."""
    weight = torch.tensor([1.0, 3.0])

    def weighted(outputs, labels, num_items_in_batch=None):
        return cross_entropy(outputs["logits"], labels, weight=weight, reduction="sum") / num_items_in_batch

    trained = []
    for batch_size in (8, 2):
        options = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 8 // batch_size}
        trainer = make_trainer(
            tmp_path / str(batch_size), compute_loss_func=weighted, label_smoothing_factor=0.3, **options
        )
        trainer.train()
        trained.append(weights_of(trainer.model))
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-4, atol=1e-5)
    prediction = trainer.predict(RandomClips())
    logits, labels = torch.from_numpy(prediction.predictions), torch.from_numpy(prediction.label_ids)
    expected = cross_entropy(logits, labels, weight=weight, reduction="sum") / len(labels)
    assert prediction.metrics["test_loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_arguments_by_place_and_a_function_that_makes_the_model(tmp_path):
    sets = (RandomClips(), RandomClips())
    by_place = VideoTrainer(make_model(), make_arguments(tmp_path / "a"), None, *sets)
    made = VideoTrainer(None, make_arguments(tmp_path / "b"), collate_clips, *sets, None, lambda: make_model())
    for trainer in (by_place, made):
        trainer.train()
    torch.testing.assert_close(weights_of(made.model), weights_of(by_place.model), rtol=0, atol=0)


def test_clips_without_the_axis_of_views_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"shape \(2, 3, 16, 16\), which lacks the axis of views in front"):
        make_trainer(tmp_path, WithoutViews()).train()
