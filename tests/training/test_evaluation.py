import pytest
import torch
from transformers.modeling_outputs import ImageClassifierOutput

from hf_video.training import average_views, evaluate_dataset, predict_scores

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 1.0], [1.0, 1.0, 1.0], [5.0, -5.0, 0.0]])


class MeanPixelClassifier(torch.nn.Module):
    """Logits are the mean of the first three frames; stands for a `PreTrainedModel`."""

    def __init__(self, problem_type=None, dtype=torch.float32):
        super().__init__()
        self.config = type("Config", (), {"problem_type": problem_type})
        self.device, self.dtype = torch.device("cpu"), dtype

    def forward(self, pixel_values):
        assert pixel_values.dtype == self.dtype
        return ImageClassifierOutput(logits=pixel_values[:, :3].mean((2, 3, 4)))


def test_softmax_of_averaged_views_is_the_mean_probability():
    expected = LOGITS.softmax(-1).view(2, 2, 3).mean(1)
    torch.testing.assert_close(average_views(LOGITS, 2).softmax(-1), expected)


def test_sigmoid_of_averaged_views_is_the_mean_probability_of_a_multi_label_model():
    expected = LOGITS.sigmoid().view(2, 2, 3).mean(1)
    torch.testing.assert_close(average_views(LOGITS, 2, "multi_label_classification").sigmoid(), expected)


def test_regression_outputs_are_averaged_as_they_are():
    torch.testing.assert_close(average_views(LOGITS, 4, "regression"), LOGITS.mean(0, keepdim=True))


@pytest.mark.parametrize("num_views", [0, 3])
def test_views_must_divide_the_rows(num_views):
    with pytest.raises(ValueError, match=f"4 rows of logits cannot be grouped into videos of {num_views} views"):
        average_views(LOGITS, num_views)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_float32_probabilities_whatever_the_dtype_of_the_model(dtype):
    pixel_values = torch.randn(6, 4, 3, 2, 2)
    scores = predict_scores(MeanPixelClassifier(dtype=dtype), pixel_values, num_views=3)
    assert scores.shape == (2, 3) and scores.dtype == torch.float32
    torch.testing.assert_close(scores.sum(-1), torch.ones(2))


def test_a_data_set_is_evaluated_in_order_with_views_averaged():
    items = [{"pixel_values": torch.randn(2, 3, 3, 2, 2), "labels": index % 3} for index in range(5)]
    scores, labels = evaluate_dataset(MeanPixelClassifier(), items, batch_size=2, progress=False)
    assert labels.tolist() == [0, 1, 2, 0, 1]
    views = torch.stack([item["pixel_values"] for item in items]).mean((3, 4, 5))
    torch.testing.assert_close(torch.from_numpy(scores), views.softmax(-1).mean(1))


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match="the data set is empty"):
        evaluate_dataset(MeanPixelClassifier(), [], progress=False)
