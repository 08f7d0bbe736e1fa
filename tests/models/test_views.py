"""Videos in several views: one row of logits, whose probabilities are the mean of those of the views."""

import pytest
import torch
from transformers import set_seed

import hf_video
from hf_video.models.shared_video import average_views
from tests.hub.conftest import TINY_CLASSIFIERS

FAMILIES = ["VideoViT", "VideoMamba", "MemoryBankQFormer"]
LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 1.0], [1.0, 1.0, 1.0], [5.0, -5.0, 0.0]])


def config(problem_type=None, num_labels=3):
    return hf_video.VideoViTConfig(problem_type=problem_type, num_labels=num_labels)


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def two_videos():
    """Stands for the pixels of two videos in two views."""
    return torch.zeros(2, 2, 1, 1, 1, 1)


def make_classifier(family, **options):
    set_seed(0)
    configuration = getattr(hf_video, f"{family}Config")(**TINY_CLASSIFIERS[family], **options)
    return getattr(hf_video, f"{family}ForVideoClassification")(configuration).eval()


def test_the_softmax_is_the_mean_of_the_views(two_videos):
    expected = LOGITS.softmax(-1).view(2, 2, 3).mean(1)
    logits = average_views(LOGITS, two_videos, config())
    torch.testing.assert_close(logits.softmax(-1), expected)
    torch.testing.assert_close(logits, expected.log())


def test_the_sigmoid_is_the_mean_of_the_views_in_multi_label_classification(two_videos):
    expected = LOGITS.sigmoid().view(2, 2, 3).mean(1)
    logits = average_views(LOGITS, two_videos, config("multi_label_classification"))
    torch.testing.assert_close(logits.sigmoid(), expected)


def test_views_that_are_sure_give_finite_logits(two_videos):
    sure = torch.tensor([[200.0, -200.0, 200.0]] * 3 + [[100.0, -100.0, -200.0]])
    logits = average_views(sure, two_videos, config("multi_label_classification"))
    torch.testing.assert_close(logits[0], sure[0])
    torch.testing.assert_close(logits[1, 2], torch.tensor(0.0))
    assert average_views(sure, two_videos, config()).isfinite().all()


@pytest.mark.parametrize(("problem_type", "num_labels"), [("regression", 3), (None, 0), (None, 1)])
def test_values_and_features_are_averaged_as_they_are(two_videos, problem_type, num_labels):
    averaged = average_views(LOGITS, two_videos, config(problem_type, num_labels))
    torch.testing.assert_close(averaged, LOGITS.view(2, 2, 3).mean(1))


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_a_classifier_merges_the_views_of_a_video(family, problem_type):
    model = make_classifier(family, num_labels=3, problem_type=problem_type)
    labels = torch.tensor([0, 2]) if problem_type.startswith("single") else torch.tensor([[1.0, 0, 0], [0, 1, 1]])
    pixel_values = torch.randn(2, 6, 4, 3, 32, 32)
    outputs = model(pixel_values, labels=labels)
    views = torch.stack([model(pixel_values[:, view]).logits for view in range(6)])
    function = {"s": lambda x: x.softmax(-1), "m": torch.sigmoid, "r": lambda x: x}[problem_type[0]]
    torch.testing.assert_close(function(outputs.logits), function(views).mean(0))
    scores = function(views).mean(0)
    expected = {
        "s": lambda: torch.nn.functional.nll_loss(scores.log(), labels),
        "m": lambda: torch.nn.functional.binary_cross_entropy(scores, labels),
        "r": lambda: torch.nn.functional.mse_loss(scores, labels),
    }[problem_type[0]]()
    torch.testing.assert_close(outputs.loss, expected)
