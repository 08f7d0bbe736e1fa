import pytest
import torch
import torch.nn.functional as F

from hf_video.training import classification_loss

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 1.0]])


def test_class_ids_with_smoothing():
    labels = torch.tensor([0, 2])
    torch.testing.assert_close(classification_loss(LOGITS, labels), F.cross_entropy(LOGITS, labels))
    smoothed = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    expected = -(smoothed * LOGITS.log_softmax(-1)).sum(1).mean()
    torch.testing.assert_close(classification_loss(LOGITS, labels, label_smoothing=0.3), expected)


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


@pytest.mark.parametrize("kind", ["class ids", "soft", "multi_label_classification"])
def test_parts_of_a_batch_add_up(kind):
    labels = torch.tensor([0, 2]) if kind == "class ids" else torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5]])
    problem = kind if kind.startswith("multi") else "single_label_classification"
    parts = [
        classification_loss(LOGITS[row : row + 1], labels[row : row + 1], problem, num_label_values=labels.numel())
        for row in range(2)
    ]
    torch.testing.assert_close(sum(parts), classification_loss(LOGITS, labels, problem))


def test_half_precision_logits_are_summed_in_float32():
    assert classification_loss(LOGITS.bfloat16(), torch.tensor([0, 1])).dtype == torch.float32


def test_errors():
    with pytest.raises(ValueError, match="problem_type is 'ranking'"):
        classification_loss(LOGITS, torch.tensor([0, 1]), "ranking")
    with pytest.raises(ValueError, match=r"Labels of shape \(2,\) do not fit logits of shape \(2, 3\)"):
        classification_loss(LOGITS, torch.tensor([0.0, 1.0]), "regression")
