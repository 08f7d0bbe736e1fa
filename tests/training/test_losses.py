import pytest
import torch
import torch.nn.functional as F
from torchvision.ops import sigmoid_focal_loss

from hf_video.training import LOSSES, CrossEntropy, FocalLoss, VideoTrainer
from hf_video.training.losses import make_loss
from tests.testing.trainers import LAST_WEIGHTS, RandomClips, make_arguments, make_model, weights_of

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


def test_soft_targets_are_no_multi_label_targets():
    targets = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5]])
    expected = -(targets * LOGITS.log_softmax(-1)).sum(1).mean()
    torch.testing.assert_close(classification_loss(LOGITS, targets), expected)
    hard = F.one_hot(torch.tensor([0, 2]), 3).float()
    torch.testing.assert_close(classification_loss(LOGITS, hard), F.cross_entropy(LOGITS, torch.tensor([0, 2])))


def test_multi_label_and_regression():
    targets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    loss = classification_loss(LOGITS, targets, "multi_label_classification")
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(LOGITS, targets))
    loss = classification_loss(LOGITS[:, :1], torch.tensor([1.0, 2.0]), "regression")
    torch.testing.assert_close(loss, torch.tensor(((2 - 1) ** 2 + (0 - 2) ** 2) / 2))


@pytest.mark.parametrize("kind", TARGETS)
def test_parts_of_a_batch_add_up(kind):
    options = {"class_weights": WEIGHTS, "focal_gamma": 2.0}
    labels, problem = TARGETS[kind], MULTI if kind == "several" else SINGLE
    parts = [
        classification_loss(
            LOGITS[row : row + 1], labels[row : row + 1], problem, num_label_values=labels.numel(), **options
        )
        for row in range(2)
    ]
    torch.testing.assert_close(sum(parts), classification_loss(LOGITS, labels, problem, **options))


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


def test_weights_and_focal_loss_are_those_of_torch():
    labels, several = TARGETS["class ids"], TARGETS["several"]
    mean = F.cross_entropy(LOGITS, labels, weight=WEIGHTS, label_smoothing=0.1)
    loss = classification_loss(LOGITS, labels, class_weights=WEIGHTS, label_smoothing_factor=0.1)
    torch.testing.assert_close(loss * 2 / WEIGHTS[labels].sum(), mean)
    loss = classification_loss(LOGITS, several, MULTI, class_weights=WEIGHTS)
    torch.testing.assert_close(loss, torch.nn.BCEWithLogitsLoss(pos_weight=WEIGHTS)(LOGITS, several))
    # Its alpha is for the presence of a class, 1 - alpha for its absence.
    loss = classification_loss(LOGITS, several, MULTI, class_weights=torch.full((3,), 0.25 / 0.75), focal_gamma=1.5)
    torch.testing.assert_close(loss * 0.75, sigmoid_focal_loss(LOGITS, several, 0.25, 1.5, reduction="mean"))


@pytest.mark.parametrize(("kind", "problem"), [("class ids", SINGLE), ("soft", SINGLE), ("several", MULTI)])
def test_sure_logits_have_finite_focal_gradients(kind, problem):
    logits = torch.tensor([[300.0, -300.0, 0.0], [300.0, 0.0, -300.0]]).requires_grad_()
    classification_loss(logits, TARGETS[kind], problem, focal_gamma=0.5).backward()
    assert torch.isfinite(logits.grad).all()


def test_half_precision_logits_are_summed_in_float32():
    assert classification_loss(LOGITS.bfloat16(), torch.tensor([0, 1])).dtype == torch.float32


class DoubleLoss(CrossEntropy):
    def sum_of_classes(self, *terms):
        return 2 * super().sum_of_classes(*terms)


@pytest.mark.parametrize("is_row", [True, False])
def test_a_loss_of_ones_own_is_a_row_or_is_given_to_the_trainer(is_row, tmp_path, monkeypatch):
    """Of twice the loss, SGD takes the steps that it takes at twice the rate."""
    monkeypatch.setitem(LOSSES, "double", DoubleLoss)
    options = {"num_train_epochs": 1, "optim": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0, **LAST_WEIGHTS}

    def train(loss, **given):
        arguments = make_arguments(tmp_path, **options, **loss)
        trainer = VideoTrainer(
            model=make_model(),
            args=arguments,
            train_dataset=RandomClips(training=True),
            eval_dataset=RandomClips(),
            **given,
        )
        trainer.train()
        return trainer

    expected = train({"learning_rate": 0.02})
    own = {"learning_rate": 0.01} | ({"loss": "double"} if is_row else {})
    found = train(own, **({} if is_row else {"compute_loss_func": DoubleLoss()}))
    torch.testing.assert_close(weights_of(found.model), weights_of(expected.model))
    # A callable is the loss of evaluations, too; a row is for training alone, so that evaluation losses compare.
    factor = found.evaluate()["eval_loss"] / expected.evaluate()["eval_loss"]
    assert factor == pytest.approx(1 if is_row else 2, rel=1e-4)


def test_the_settings_of_a_loss_are_those_of_its_name(tmp_path):
    arguments = make_arguments(tmp_path, loss="focal", focal_gamma=1.5, label_smoothing_factor=0.1)
    assert make_loss(arguments, MULTI, WEIGHTS) == FocalLoss(MULTI, 0.1, WEIGHTS, 1.5)


def test_errors():
    with pytest.raises(ValueError, match="problem_type is 'ranking'"):
        CrossEntropy("ranking")
    with pytest.raises(ValueError, match="class_weights are for classes"):
        CrossEntropy("regression", class_weights=WEIGHTS)
    with pytest.raises(ValueError, match=r"Labels of shape \(2,\) do not fit logits of shape \(2, 3\)"):
        classification_loss(LOGITS, torch.tensor([0.0, 1.0]), "regression")
