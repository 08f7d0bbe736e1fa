import copy

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerState, set_seed

from hf_video.data import ClipMixing, MixingCollator, collate_clips
from hf_video.metrics import compute_metrics
from hf_video.models.videovit import VideoViTConfig, VideoViTForVideoClassification
from hf_video.training import VideoTrainer, VideoTrainingArguments, multi_label_loss, soft_target_loss
from hf_video.training.callbacks import SetEpochCallback


class RandomClips(Dataset):
    """Clips drawn from (epoch, index), as those of a `ClipDataset`; the class shows in their brightness."""

    def __init__(self, length=8, num_views=1):
        self.length, self.num_views, self.epoch = length, num_views, 0
        self.epochs_seen = []

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.epochs_seen.append(self.epoch)
        generator = torch.Generator().manual_seed(1000 * self.epoch + index)
        clips = torch.randn(self.num_views, 2, 3, 16, 16, generator=generator) + 2 * (index % 2)
        return {"pixel_values": clips, "labels": index % 2}


@pytest.fixture
def model():
    set_seed(0)
    return VideoViTForVideoClassification(
        VideoViTConfig(
            image_size=16,
            patch_size=8,
            num_frames=2,
            hidden_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            num_labels=2,
        )
    )


def arguments(folder, **options):
    defaults = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    return VideoTrainingArguments(
        output_dir=str(folder), use_cpu=True, disable_tqdm=True, learning_rate=1e-2, **defaults | options
    )


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_training_learns_and_returns_to_the_best_checkpoint(model, tmp_path):
    trainer = VideoTrainer(
        model=model,
        args=arguments(tmp_path, num_train_epochs=4),
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
            args=arguments(tmp_path / str(number)),
            train_dataset=RandomClips(),
            eval_dataset=RandomClips(),
            data_collator=collate_clips,
            compute_metrics=compute_metrics,
        )
        trainer.train()
        trained.append(weights(trainer.model))
    torch.testing.assert_close(trained[0], trained[1], rtol=0, atol=0)


def test_every_epoch_has_its_own_clips(model, tmp_path):
    dataset = RandomClips(8)
    trainer = VideoTrainer(
        model=model, args=arguments(tmp_path, num_train_epochs=3), train_dataset=dataset, eval_dataset=RandomClips()
    )
    trainer.train()
    assert dataset.epochs_seen == [0] * 8 + [1] * 8 + [2] * 8


def test_the_epoch_reaches_the_data_set_where_the_data_loader_does_not_pass_it_on():
    loader = DataLoader(RandomClips())
    SetEpochCallback().on_epoch_begin(None, TrainerState(epoch=2.0), None, train_dataloader=loader)
    assert loader.dataset.epoch == 2


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(model, tmp_path):
    def trainer(folder, **options):
        return VideoTrainer(
            model=copy.deepcopy(model),
            args=arguments(folder, num_train_epochs=3, load_best_model_at_end=False, **options),
            train_dataset=RandomClips(),
            eval_dataset=RandomClips(),
        )

    whole = trainer(tmp_path / "whole")
    whole.train()
    parts = tmp_path / "parts"
    trainer(parts, save_strategy="steps", save_steps=3, save_total_limit=None).train()
    resumed = trainer(parts)
    resumed.train(resume_from_checkpoint=str(parts / "checkpoint-3"))  # in the middle of the second epoch
    torch.testing.assert_close(weights(resumed.model), weights(whole.model), rtol=0, atol=0)


def test_gradient_accumulation_gives_the_gradient_of_the_whole_batch(model, tmp_path):
    trained = []
    for number, (batch_size, accumulation) in enumerate(((8, 1), (2, 4))):
        trainer = VideoTrainer(
            model=copy.deepcopy(model),
            args=arguments(
                tmp_path / str(number),
                max_steps=1,
                optim="sgd",
                max_grad_norm=0,
                warmup_steps=0,
                per_device_train_batch_size=batch_size,
                gradient_accumulation_steps=accumulation,
            ),
            train_dataset=RandomClips(),
            eval_dataset=RandomClips(),
        )
        trainer.train()
        trained.append(weights(trainer.model))
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-5, atol=1e-6)


def test_several_training_views_of_a_video_are_clips_of_their_own(model, tmp_path):
    for num_views in (1, 2):
        dataset = RandomClips(8 // num_views)
        clips = [dataset[index]["pixel_values"][0] for index in range(8 // num_views)]
        items = [
            {"pixel_values": torch.stack([clip] * num_views), "labels": i % 2, "sample_key": (0, 0, i)}
            for i, clip in enumerate(clips)
        ]
        trainer = VideoTrainer(
            model=copy.deepcopy(model), args=arguments(tmp_path), train_dataset=items, eval_dataset=items
        )
        batch = collate_clips(items)
        trainer.model.train()
        assert batch["pixel_values"].ndim == 5
        expected = torch.nn.functional.cross_entropy(trainer.model(batch["pixel_values"]).logits, batch["labels"])
        loss = trainer.compute_loss(trainer.model, batch, num_items_in_batch=len(batch["labels"])).item()
        assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_soft_targets_leave_the_problem_type_alone(model, tmp_path):
    class SoftClips(RandomClips):
        def __getitem__(self, index):
            item = super().__getitem__(index)
            return item | {"sample_key": (0, self.epoch, index)}

    mixing = ClipMixing(mixup_alpha=0.8, cutmix_alpha=1.0)
    trainer = VideoTrainer(
        model=model,
        args=arguments(tmp_path, num_train_epochs=1, label_smoothing_factor=0.1),
        train_dataset=SoftClips(),
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


def test_layer_decay_reaches_the_optimizer(model, tmp_path):
    trainer = VideoTrainer(
        model=model, args=arguments(tmp_path, layer_decay=0.5, weight_decay=0.1), eval_dataset=RandomClips()
    )
    optimizer = trainer.create_optimizer()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(model.classifier.weight)] == 1e-2
    assert rates[id(model.videovit.layers[0].mlp.fc1.weight)] == 0.5e-2
    assert rates[id(model.videovit.embeddings.patch_embeddings.projection.weight)] == 0.25e-2
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays[id(model.classifier.weight)] == 0.1 and decays[id(model.classifier.bias)] == 0.0


def test_weight_decay_spares_the_same_parameters_without_layer_decay(model, tmp_path):
    trainer = VideoTrainer(model=model, args=arguments(tmp_path, no_weight_decay=["fc1"]), eval_dataset=RandomClips())
    (decayed,) = [group for group in trainer.create_optimizer().param_groups if group["weight_decay"]]
    names = {name for name, p in model.named_parameters() if any(p is q for q in decayed["params"])}
    assert names == {
        "videovit.embeddings.patch_embeddings.projection.weight",
        "videovit.layers.0.attention.qkv.weight",
        "videovit.layers.0.attention.o_proj.weight",
        "videovit.layers.0.mlp.fc2.weight",
        "classifier.weight",
    }


def test_a_metric_that_is_not_measured_is_named_at_the_start(model, tmp_path):
    def trainer(**options):
        arguments_ = arguments(tmp_path, metric_for_best_model="nope")
        return VideoTrainer(model=model, args=arguments_, eval_dataset=RandomClips(), **options)

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
        own = {"compute_loss_func": soft_target_loss if soft else multi_label_loss} if trainer_class is Trainer else {}
        trainer = trainer_class(
            model=copy.deepcopy(model),
            # Five clips: the last part of the only step is a smaller one.
            args=arguments(
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
        trained.append(weights(trainer.model))
    assert not torch.equal(trained[0]["classifier.weight"], model.classifier.weight)
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-6, atol=1e-7)
