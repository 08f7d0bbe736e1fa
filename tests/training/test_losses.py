"""Losses against their formulas and those of torch, in batches that are accumulated, and of a teacher."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForVideoClassification, Trainer, default_data_collator

from hf_video.data import collate_clips
from hf_video.training import LOSSES, CrossEntropy, FocalLoss, VideoTrainer, VideoTrainingArguments
from hf_video.training.losses import Distillation, make_distillation, make_loss
from tests.testing.trainers import LAST_WEIGHTS, RandomClips, make_arguments, make_model, make_trainer, weights_of

from .test_trainer import gradients, pixels, rows

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 1.0]])
WEIGHTS = torch.tensor([0.5, 2.0, 3.5])
SINGLE, MULTI = "single_label_classification", "multi_label_classification"
TARGETS = {
    "class ids": torch.tensor([0, 2]),
    "soft": torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5]]),
    "several": torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
}


def classification_loss(logits, labels, problem_type=SINGLE, *, num_label_values=None, **options):
    kind = FocalLoss if "focal_gamma" in options else CrossEntropy
    return kind(problem_type, **options)({"logits": logits}, labels, num_label_values)


def by_hand(logits, targets, problem, weights, gamma):
    """The weighted focal loss, term by term."""
    total = 0.0
    for scores, row in zip(logits, targets, strict=True):
        for index, (target, weight) in enumerate(zip(row, weights, strict=True)):
            if problem == SINGLE:
                p = scores[index].exp() / scores.exp().sum()
            else:
                p = 1 / (1 + (-scores[index]).exp())
                total -= (1 - target) * p**gamma * (1 - p).log()
            total -= weight * target * (1 - p) ** gamma * p.log()
    return total / (len(logits) if problem == SINGLE else logits.numel())


@pytest.mark.parametrize(
    ("kind", "smoothing", "is_weighted", "gamma"),
    [
        ("class ids", 0.0, False, None),
        ("class ids", 0.3, False, None),
        ("class ids", 0.3, True, 2.0),
        ("class ids", 0.0, False, 0.0),
        ("soft", 0.0, False, None),
        ("soft", 0.0, True, None),
        ("soft", 0.0, True, 0.5),
        ("several", 0.0, False, None),
        ("several", 0.0, True, None),
        ("several", 0.0, True, 2.0),
    ],
)
def test_weights_and_focal_loss_are_those_of_the_formulas(kind, smoothing, is_weighted, gamma):
    labels, problem = TARGETS[kind], MULTI if kind == "several" else SINGLE
    logits, exact = LOGITS.clone().requires_grad_(), LOGITS.double().requires_grad_()
    weights = WEIGHTS if is_weighted else None
    options = {"label_smoothing_factor": smoothing, "class_weights": weights}
    options |= {} if gamma is None else {"focal_gamma": gamma}
    loss = classification_loss(logits, labels, problem, **options)
    targets = labels.double()
    if kind == "class ids":
        targets = F.one_hot(labels, 3) * (1 - smoothing) + smoothing / 3
    expected = by_hand(exact, targets, problem, WEIGHTS if is_weighted else torch.ones(3), gamma or 0.0)
    torch.testing.assert_close(loss, expected.float())
    loss.backward()
    expected.backward()
    torch.testing.assert_close(logits.grad, exact.grad.float())


def test_values_have_squared_errors_and_hard_soft_targets_are_classes():
    loss = classification_loss(LOGITS[:, :1], torch.tensor([1.0, 2.0]), "regression")
    torch.testing.assert_close(loss, torch.tensor(((2 - 1) ** 2 + (0 - 2) ** 2) / 2))
    labels = TARGETS["class ids"]
    hard = F.one_hot(labels, 3).float()
    torch.testing.assert_close(classification_loss(LOGITS, hard), F.cross_entropy(LOGITS, labels))


def test_sure_logits_have_finite_gradients_and_half_precision_is_summed_in_float32():
    for kind, labels in TARGETS.items():
        logits = torch.tensor([[300.0, -300.0, 0.0], [300.0, 0.0, -300.0]]).requires_grad_()
        classification_loss(logits, labels, MULTI if kind == "several" else SINGLE, focal_gamma=0.5).backward()
        assert torch.isfinite(logits.grad).all()
    assert classification_loss(LOGITS.bfloat16(), torch.tensor([0, 1])).dtype == torch.float32


@pytest.mark.parametrize("kind", [FocalLoss, CrossEntropy])
@pytest.mark.parametrize("labels", ["class ids", "soft", "several"])
def test_gradients_of_an_accumulated_batch_are_those_of_the_whole(tmp_path, labels, kind):
    """By `VideoTrainer`, and by a plain `Trainer` with the loss."""
    problem_type = MULTI if labels == "several" else SINGLE
    # Parts whose classes weigh differently.
    labels = TARGETS[labels][[0, 0, 1, 0]]
    model = make_model(num_labels=3, problem_type=problem_type)
    loss, clips = kind(problem_type, class_weights=WEIGHTS), pixels(2, 3, 16, 16)
    loss(model.train()(clips), labels).backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    arguments = partial(VideoTrainingArguments, loss="focal" if kind is FocalLoss else "cross_entropy")
    for options in (
        {"trainer_class": VideoTrainer, "class_weights": WEIGHTS, "arguments_class": arguments},
        {"trainer_class": Trainer, "compute_loss_func": loss},
    ):
        items = rows(pixel_values=clips, labels=labels)
        found = gradients(model, items, tmp_path, data_collator=default_data_collator, **options)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


class DoubleLoss(CrossEntropy):
    def sum_of_classes(self, *terms):
        return 2 * super().sum_of_classes(*terms)


@pytest.mark.parametrize("is_row", [True, False])
def test_a_loss_of_ones_own_is_a_row_or_is_given_to_the_trainer(is_row, tmp_path, monkeypatch):
    """Of twice the loss, SGD takes the steps that it takes at twice the rate. No setting changes a loss that is
    given."""
    monkeypatch.setitem(LOSSES, "double", DoubleLoss)
    options = {"num_train_epochs": 1, "optim": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0, **LAST_WEIGHTS}
    own = {"loss": "double"} if is_row else {"compute_loss_func": DoubleLoss(), "label_smoothing_factor": 0.3}
    expected = make_trainer(tmp_path, **options, learning_rate=0.02)
    found = make_trainer(tmp_path, **options, learning_rate=0.01, **own)
    for trainer in (expected, found):
        trainer.train()
    torch.testing.assert_close(weights_of(found.model), weights_of(expected.model))
    # A callable is the loss of evaluations, too; a row is for training alone, so that evaluation losses compare.
    factor = found.evaluate()["eval_loss"] / expected.evaluate()["eval_loss"]
    assert factor == pytest.approx(1 if is_row else 2, rel=1e-4)


def test_the_settings_of_a_loss_are_those_of_its_name(tmp_path):
    arguments = make_arguments(tmp_path, loss="focal", focal_gamma=1.5)
    assert make_loss(arguments, MULTI, WEIGHTS) == FocalLoss(MULTI, 0.0, WEIGHTS, 1.5)


def test_errors():
    with pytest.raises(ValueError, match="problem_type is 'ranking'"):
        CrossEntropy("ranking")
    with pytest.raises(ValueError, match="class_weights are for classes"):
        CrossEntropy("regression", class_weights=WEIGHTS)


def make_teacher(**options):
    teacher = make_model(**options)
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return teacher


def make_student(folder, teacher=None, weight=0.3, **options):
    model = make_model()
    distillation = Distillation(teacher or make_teacher(), model, weight=weight, temperature=2.0)
    return make_trainer(folder, model=model, distillation=distillation, **options)


@pytest.fixture
def batch():
    return collate_clips([RandomClips()[index] for index in range(8)])


def test_the_loss_of_a_student_is_the_one_computed_by_hand(tmp_path, batch):
    trainer = make_student(tmp_path)
    student, teacher = trainer.model.train(), trainer.distillation.teacher
    pixels, labels = batch["pixel_values"], batch["labels"]
    logits, known = student(pixels).logits, teacher(pixels).logits
    p, q = (known / 2).softmax(-1), (logits / 2).softmax(-1)
    taught = 4 * (p * (p / q).log()).sum(-1).mean()
    by_hand = 0.7 * F.cross_entropy(logits, labels) + 0.3 * taught
    loss = trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(8))
    torch.testing.assert_close(loss, by_hand, rtol=1e-5, atol=1e-6)
    weights = [*student.parameters()]
    found, expected = (torch.autograd.grad(each, weights, retain_graph=True) for each in (loss, by_hand))
    torch.testing.assert_close(found, expected)
    # Half of a step's clips are half of its loss.
    half = trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(16))
    torch.testing.assert_close(half, by_hand / 2, rtol=1e-5, atol=1e-6)
    # Soft targets count as one clip each.
    trainer.distillation.weight = 1.0
    soft = batch | {"labels": F.one_hot(labels, 2).float()}
    loss = trainer.compute_loss(student, soft, num_items_in_batch=torch.tensor(16))
    torch.testing.assert_close(loss, taught, rtol=1e-5, atol=1e-6)
    # Evaluation losses are of the labels alone, so that they compare.
    trainer.model.eval()
    torch.testing.assert_close(trainer.compute_loss(student, dict(batch)), F.cross_entropy(logits, labels))


def test_the_teacher_stays_as_it_is_and_no_part_of_the_student(tmp_path):
    teacher = make_teacher(hidden_dropout_prob=0.5).train()
    before = weights_of(teacher)
    trainer = make_student(tmp_path, teacher, ema_decay=0.9)
    trainer.train()
    torch.testing.assert_close(weights_of(teacher), before, rtol=0, atol=0)
    assert not any(module.training for module in teacher.modules())
    assert not any(weight.requires_grad or weight.grad is not None for weight in teacher.parameters())
    optimised = {id(weight) for group in trainer.optimizer.param_groups for weight in group["params"]}
    assert optimised == {id(weight) for weight in trainer.model.parameters()}
    assert set(weights_of(trainer.model)) == set(weights_of(make_model()))
    trainer.save_model()
    AutoModelForVideoClassification.from_pretrained(tmp_path)


def test_classes_are_matched_by_name(batch):
    student, teacher = make_model(), make_teacher(num_labels=3)
    student.config.id2label = {0: "left", 1: "right"}
    teacher.config.id2label = {0: "up", 1: "right", 2: "left"}
    with torch.no_grad():
        logits, known = student(batch["pixel_values"]).logits, teacher(batch["pixel_values"]).logits
    loss = Distillation(teacher, student).loss(batch["pixel_values"], logits)
    expected = F.kl_div(logits.log_softmax(-1), known[:, [2, 1]].softmax(-1), reduction="batchmean")
    torch.testing.assert_close(loss, expected)


def test_the_teacher_of_the_arguments_is_loaded_at_the_size_of_the_student(tmp_path):
    make_teacher(image_size=32, num_frames=4).save_pretrained(tmp_path / "teacher")
    words = {"distillation_teacher": str(tmp_path / "teacher"), "distillation_temperature": 3.0}
    distillation = make_distillation(make_arguments(tmp_path, **words), make_model())
    config = distillation.teacher.config
    assert (config.image_size, config.num_frames) == (16, 2)
    assert (distillation.weight, distillation.temperature) == (0.5, 3.0)
    assert make_distillation(make_arguments(tmp_path), make_model()) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {0: "left", 1: "right"}}, "does not know 2 of 2 classes, such as 'left'"),
        ({"problem_type": "multi_label_classification"}, "one kind of classes is expected"),
        ({"problem_type": "regression"}, "regression"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(changes, message):
    student = make_model()
    for name, value in changes.items():
        setattr(student.config, name, value)
    with pytest.raises(ValueError, match=message):
        Distillation(make_teacher(hidden_size=32), student)
