import pytest
import torch

from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.loading import load_processor
from hf_video.loading.heads import load_classifier
from hf_video.loading.released import START_FOLDER
from hf_video.training.first_head import begin_head, fit_ridge


def test_the_strength_of_a_regression_is_the_best_for_rows_that_are_left_out():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 30, generator=generator, dtype=torch.float64)
    targets = features[:, :2] + torch.randn(20, 2, generator=generator, dtype=torch.float64)
    weight, bias = fit_ridge(features, targets)
    apart, wanted = features - features.mean(dim=0), targets - targets.mean(dim=0)
    # The normal equations of a ridge regression have one strength for all weights.
    strengths = (apart.T @ (wanted - apart @ weight.T)) / weight.T
    strength = strengths.median()
    torch.testing.assert_close(strengths, strength.expand_as(strengths), rtol=1e-6, atol=0)
    torch.testing.assert_close(bias, targets.mean(dim=0) - weight @ features.mean(dim=0))

    def error(strength):
        missed = []
        for row in range(20):
            known = torch.arange(20) != row
            centre, mean = features[known].mean(dim=0), targets[known].mean(dim=0)
            x, y = features[known] - centre, targets[known] - mean
            fit = torch.linalg.solve(x.T @ x + strength * torch.eye(30, dtype=torch.float64), x.T @ y)
            missed.append(targets[row] - mean - (features[row] - centre) @ fit)
        return torch.stack(missed).square().mean()

    assert error(strength) < 1.001 * min(error(strength * 2), error(strength / 2))


def test_equal_features_tell_no_class():
    weight, bias = fit_ridge(torch.ones(6, 4).double(), torch.eye(2).double().repeat(3, 1))
    assert weight.abs().max() == 0 and bias.tolist() == pytest.approx([0.5, 0.5])


def test_the_head_of_the_start_knows_the_clips_before_the_first_step(digits):
    rows = load_video_dataset(digits)["train"]
    model = load_classifier(START_FOLDER, rows.features["label"].names, dtype="float32")
    dataset = VideoDataset(rows, ClipTask(load_processor(START_FOLDER, model.config)), training=True)
    begin_head(model, dataset, batch_size=5)
    plain = VideoDataset(rows, dataset.task, training=False)
    batch = plain.task.collate([plain[index] for index in range(len(plain))])
    with torch.no_grad():
        found = model(batch["pixel_values"]).logits.argmax(dim=-1)
    # Eight classes of three clips each.
    assert (found == batch["labels"]).float().mean() > 0.3
