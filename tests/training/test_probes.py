import pytest
import torch
from transformers import TrainingArguments

from hf_video.training.adaptation import AttentiveProbe, NormalizedLinear, ProbeModel, knn_scores, train_probe
from hf_video.training.training_settings import PROBE_DEFAULTS

from .tiny import make_model


def arguments(folder, **options):
    return TrainingArguments(str(folder), use_cpu=True, **PROBE_DEFAULTS | {"learning_rate": 0.02} | options)


def test_a_linear_probe_learns_what_the_features_show_and_keeps_the_best_weights(tmp_path):
    torch.manual_seed(0)
    labels = torch.arange(32) % 2
    # On a scale and an offset that only a normalised probe learns from.
    features = 1e-3 * (torch.randn(32, 2, 6) + 4 * labels[:, None, None]) + 100
    probe = NormalizedLinear(6, 2)
    data = [(features[part], labels[part]) for part in (slice(24), slice(24, 32))]
    trainer = train_probe(probe, make_model().config, *data, arguments=arguments(tmp_path, num_train_epochs=20))
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluations) == 20 and trainer.evaluate()["eval_top1_accuracy"] == 1.0
    assert trainer.evaluate()["eval_loss"] == min(entry["eval_loss"] for entry in evaluations)


def test_an_attentive_probe_finds_the_token_that_tells_the_class(tmp_path):
    torch.manual_seed(0)
    labels = torch.arange(64) % 2
    tokens = torch.zeros(64, 1, 5, 8)
    places = torch.randint(5, (64,))
    tokens[..., 0] = 1.0
    tokens[torch.arange(64), 0, places] = torch.nn.functional.one_hot(2 + labels, 8).float() * 3
    data = [(tokens[part], labels[part]) for part in (slice(48), slice(48, 64))]
    probe = AttentiveProbe(8, 2)
    trainer = train_probe(probe, make_model().config, *data, arguments=arguments(tmp_path, num_train_epochs=30))
    assert trainer.evaluate()["eval_top1_accuracy"] == 1.0


def test_views_are_clips_in_training_and_averaged_in_evaluation():
    torch.manual_seed(0)
    model = ProbeModel(torch.nn.Linear(4, 3), make_model(num_labels=3).config)
    features, labels = torch.randn(5, 2, 4), torch.tensor([0, 1, 2, 1, 0])
    views = model.probe(features)
    outputs = model.train()(features, labels)
    expected = torch.nn.functional.cross_entropy(views.flatten(0, 1), labels.repeat_interleave(2))
    torch.testing.assert_close(outputs["loss"], expected)
    outputs = model.eval()(features, labels)
    mean = views.softmax(-1).mean(1)
    torch.testing.assert_close(outputs["logits"].softmax(-1), mean)
    torch.testing.assert_close(outputs["loss"], torch.nn.functional.nll_loss(mean.log(), labels))


def test_the_nearest_neighbours_vote_by_their_similarity():
    known = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])[:, None]
    targets = torch.eye(3)
    query = torch.tensor([[3.0, 4.0]])[:, None]  # cosines 0.6, 0.8 and -0.6
    weights = (torch.tensor([0.6, 0.8]) / 0.5).softmax(0)
    scores = knn_scores(known, targets, query, num_neighbors=2, temperature=0.5)
    torch.testing.assert_close(scores, torch.tensor([[weights[0], weights[1], 0.0]]))
    several = torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    scores = knn_scores(known, several, query, num_neighbors=2, temperature=0.5)
    torch.testing.assert_close(scores, torch.tensor([[weights[0], 1.0]]))
    assert knn_scores(known, targets, query, num_neighbors=99).sum().item() == pytest.approx(1)
    with pytest.raises(ValueError, match="num_neighbors=0 and temperature=0.07 must be above 0"):
        knn_scores(known, targets, query, num_neighbors=0)


def test_heads_of_an_attentive_probe_divide_its_width():
    assert AttentiveProbe(192, 2).attention.num_heads == 3
    assert AttentiveProbe(130, 2).attention.num_heads == 2
    assert AttentiveProbe(24, 2).attention.num_heads == 1
