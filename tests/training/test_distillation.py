import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForVideoClassification

from hf_video.data import collate_clips
from hf_video.training.losses import Distillation, make_distillation
from tests.testing import trainers
from tests.testing.trainers import LAST_WEIGHTS, RandomClips, make_arguments, make_model, weights_of


def make_teacher(**options):
    teacher = make_model(**options)
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return teacher


def make_trainer(folder, model=None, teacher=None, weight=0.3, temperature=2.0, **options):
    model = model or make_model()
    distillation = Distillation(teacher or make_teacher(), model, weight=weight, temperature=temperature)
    return trainers.make_trainer(folder, model=model, distillation=distillation, **options)


@pytest.fixture
def batch():
    return collate_clips([RandomClips()[index] for index in range(8)])


def test_the_loss_is_the_one_computed_by_hand(tmp_path, batch):
    trainer = make_trainer(tmp_path)
    student, teacher = trainer.model.train(), trainer.distillation.teacher
    pixels, labels = batch["pixel_values"], batch["labels"]
    with torch.no_grad():
        logits, known = student(pixels).logits, teacher(pixels).logits
    p, q = (known / 2).softmax(-1), (logits / 2).softmax(-1)
    taught = 4 * (p * (p / q).log()).sum(-1).mean()
    by_hand = 0.7 * F.cross_entropy(logits, labels) + 0.3 * taught
    loss = trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(8))
    torch.testing.assert_close(loss, by_hand, rtol=1e-5, atol=1e-6)
    # Half of a step's clips are half of its loss.
    half = trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(16))
    torch.testing.assert_close(half, by_hand / 2, rtol=1e-5, atol=1e-6)
    # Evaluation losses are of the labels alone, so that they compare.
    trainer.model.eval()
    torch.testing.assert_close(trainer.compute_loss(student, dict(batch)), F.cross_entropy(logits, labels))


def test_soft_targets_count_as_one_clip_each(tmp_path, batch):
    trainer = make_trainer(tmp_path, weight=1.0)
    student = trainer.model.train()
    hard = trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(8))
    soft = batch | {"labels": F.one_hot(batch["labels"], 2).float()}
    torch.testing.assert_close(trainer.compute_loss(student, soft, num_items_in_batch=torch.tensor(16)), hard)


def test_the_teacher_stays_as_it_is_and_no_part_of_the_student(tmp_path):
    teacher = make_teacher(hidden_dropout_prob=0.5).train()
    before = weights_of(teacher)
    trainer = make_trainer(tmp_path, teacher=teacher, ema_decay=0.9)
    trainer.train()
    torch.testing.assert_close(weights_of(teacher), before, rtol=0, atol=0)
    assert not any(module.training for module in teacher.modules())
    assert not any(weight.requires_grad or weight.grad is not None for weight in teacher.parameters())
    optimised = {id(weight) for group in trainer.optimizer.param_groups for weight in group["params"]}
    assert optimised == {id(weight) for weight in trainer.model.parameters()}
    assert set(weights_of(trainer.model)) == set(weights_of(make_model()))
    trainer.save_model()
    AutoModelForVideoClassification.from_pretrained(tmp_path)


def test_a_student_that_only_listens_comes_to_say_what_the_teacher_says(tmp_path, batch):
    trainer = make_trainer(tmp_path, weight=1.0, temperature=1.0, num_train_epochs=30, **LAST_WEIGHTS)
    student, teacher = trainer.model, trainer.distillation.teacher

    def distance():
        with torch.no_grad():
            known, found = (model(batch["pixel_values"]).logits.log_softmax(-1) for model in (teacher, student.eval()))
        return F.kl_div(found, known, log_target=True, reduction="batchmean").item()

    before = distance()
    trainer.train()
    assert distance() < before / 5


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
        ({"problem_type": "multi_label_classification"}, "one kind is expected"),
        ({"problem_type": "regression"}, "regression"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(changes, message):
    student = make_model()
    for name, value in changes.items():
        setattr(student.config, name, value)
    with pytest.raises(ValueError, match=message):
        Distillation(make_teacher(hidden_size=32), student)
