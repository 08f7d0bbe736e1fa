import copy

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from transformers import Trainer, TrainerState

from hf_video.data import ClipMixing, ClipTask, MixingCollator, VideoDataset, collate_clips
from hf_video.metrics import compute_metrics
from hf_video.processing import VideoClipProcessor
from hf_video.training import CrossEntropy, VideoTrainer
from hf_video.training.callbacks import SetEpochCallback
from tests.testing.trainers import (
    LAST_WEIGHTS,
    RandomClips,
    labelled_clips,
    make_arguments,
    make_model,
    make_trainer,
    weights_of,
)


@pytest.fixture
def model():
    return make_model()


def test_training_learns_and_returns_to_the_best_checkpoint(model, tmp_path):
    trainer = VideoTrainer(
        model=model,
        args=make_arguments(tmp_path, num_train_epochs=4),
        train_dataset=RandomClips(16),
        eval_dataset=RandomClips(),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    assert trainer.state.best_metric == trainer.evaluate()["eval_top1_accuracy"] == 1.0


def test_a_plain_trainer_does_the_same(model, tmp_path):
    trained = []
    for number, trainer_class in enumerate((VideoTrainer, Trainer)):
        trainer = trainer_class(
            model=copy.deepcopy(model),
            args=make_arguments(tmp_path / str(number)),
            train_dataset=RandomClips(),
            eval_dataset=RandomClips(),
            data_collator=collate_clips,
            compute_metrics=compute_metrics,
        )
        trainer.train()
        trained.append(weights_of(trainer.model))
    torch.testing.assert_close(trained[0], trained[1], rtol=0, atol=0)


@pytest.mark.parametrize("kind", [VideoTrainer, Trainer])
def test_metrics_are_of_the_logits_whatever_else_a_model_gives(tmp_path, kind):
    model = make_model(num_hidden_layers=2)
    model.config.output_hidden_states = True
    options = {"data_collator": collate_clips, "compute_metrics": compute_metrics}
    trainer = kind(model, make_arguments(tmp_path), eval_dataset=RandomClips(), **options)
    found = trainer.evaluate()["eval_top1_accuracy"]
    model.config.output_hidden_states = False
    assert found == trainer.evaluate()["eval_top1_accuracy"]


def test_the_epoch_reaches_the_data_set_where_the_data_loader_does_not_pass_it_on():
    loader = DataLoader(RandomClips())
    SetEpochCallback().on_epoch_begin(None, TrainerState(epoch=2.0), None, train_dataloader=loader)
    assert loader.dataset.epoch == 2


@pytest.mark.parametrize("how", ["subset", "split", "joined", "nested"])
def test_the_epoch_reaches_data_sets_inside_of_others(how, tmp_path):
    clips = labelled_clips([0, 1] * 4)
    wrapped = {
        "subset": lambda: Subset(clips, range(8)),
        "split": lambda: random_split(clips, [8, 0])[0],
        "joined": lambda: ConcatDataset([clips]),
        "nested": lambda: Subset(ConcatDataset([Subset(clips, range(8))]), range(8)),
    }[how]()
    seen = set()

    def collate(items):
        seen.update(item["sample_key"] for item in items)
        return collate_clips(items)

    make_trainer(tmp_path, wrapped, data_collator=collate, **LAST_WEIGHTS, num_train_epochs=3).train()
    assert len(seen) == 3 * 8 and {epoch for _, epoch, _ in seen} == {0, 1, 2}


class NumberTask(ClipTask):
    columns = ("video", "number")

    def make(self, row, key, training):
        pixels = np.random.default_rng(key[2]).normal(size=(1, 2, 3, 16, 16)).astype(np.float32)
        return {"pixel_values": torch.from_numpy(pixels), "labels": row["number"]}


def test_a_task_of_a_users_own_learns_a_number(tmp_path):
    rows = Dataset.from_dict({"video": ["a.mp4", "b.mp4"] * 4, "number": [0.0, 3.0] * 4})
    task = NumberTask(VideoClipProcessor(num_frames=2, size=16, crop_size=16))
    clips = VideoDataset(rows, task, training=True)
    model = make_model(num_labels=1, problem_type="regression")
    trainer = make_trainer(tmp_path, clips, clips, model=model, **LAST_WEIGHTS, num_train_epochs=8)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2
    with pytest.raises(ValueError, match="but not 'number'"):
        VideoDataset(rows.remove_columns("number"), task, training=True)


def test_soft_targets_leave_the_problem_type_alone(model, tmp_path):
    mixing = ClipMixing(mixup_alpha=0.8, cutmix_alpha=1.0)
    trainer = VideoTrainer(
        model=model,
        args=make_arguments(tmp_path, num_train_epochs=1, label_smoothing_factor=0.1),
        train_dataset=RandomClips(training=True),
        eval_dataset=RandomClips(),
        data_collator=MixingCollator(mixing, 2, label_smoothing=0.1),
    )
    targets = next(iter(trainer.get_train_dataloader()))["labels"]
    assert targets.shape == (4, 2) and ((targets > 0) & (targets < 1)).all()
    trainer.train()
    assert trainer.model.config.problem_type in (None, "single_label_classification")
    items = [RandomClips()[index] for index in range(8)]
    batch = collate_clips(items)
    with torch.no_grad():
        logits = trainer.model.eval()(batch["pixel_values"]).logits
    expected = torch.nn.functional.cross_entropy(logits, batch["labels"])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-4)


def test_a_metric_that_is_not_measured_is_named_at_the_start(model, tmp_path):
    def trainer(**options):
        arguments = make_arguments(tmp_path, metric_for_best_model="nope")
        return VideoTrainer(model=model, args=arguments, eval_dataset=RandomClips(), **options)

    with pytest.raises(
        ValueError, match="'nope', which is not measured: use top1_accuracy, mean_class_accuracy or loss"
    ):
        trainer()
    trainer(compute_metrics=lambda prediction: {"nope": 1.0})


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification"])
def test_a_plain_trainer_accumulates_float_labels_right_with_the_loss_for_them(model, tmp_path, problem_type):
    soft = problem_type == "single_label_classification"
    model.config.problem_type = problem_type if not soft else None

    class FloatClips(RandomClips):
        def __getitem__(self, index):
            item = super().__getitem__(index)
            return item | {"labels": torch.tensor([0.25, 0.75] if soft else [1.0, index % 2])}

    trained = []
    for trainer_class in (VideoTrainer, Trainer):
        own = {"compute_loss_func": CrossEntropy(problem_type)} if trainer_class is Trainer else {}
        trainer = trainer_class(
            model=copy.deepcopy(model),
            # Five clips: the last part of the only step is a smaller one.
            args=make_arguments(
                tmp_path / trainer_class.__name__,
                gradient_accumulation_steps=2,
                num_train_epochs=1,
                optim="sgd",
                max_grad_norm=0,
                warmup_steps=0,
                eval_strategy="no",
                load_best_model_at_end=False,
            ),
            train_dataset=FloatClips(5),
            eval_dataset=FloatClips(5),
            data_collator=collate_clips,
            **own,
        )
        trainer.train()
        assert trainer.state.global_step == 1 and trainer.model.config.problem_type == model.config.problem_type
        trained.append(weights_of(trainer.model))
    assert not torch.equal(trained[0]["classifier.weight"], model.classifier.weight)
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-6, atol=1e-7)
