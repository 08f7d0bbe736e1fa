import torch
from transformers import TrainingArguments

from hf_video.training.adaptation import NormalizedLinear
from hf_video.training.probing import ProbeModel, train_probe
from hf_video.training.task_settings import PROBE_DEFAULTS

SINGLE = "single_label_classification"


def arguments(folder, **options):
    return TrainingArguments(str(folder), use_cpu=True, **PROBE_DEFAULTS | {"learning_rate": 0.02} | options)


def test_a_linear_probe_learns_what_the_features_show_and_keeps_the_best_weights(tmp_path):
    torch.manual_seed(0)
    labels = torch.arange(32) % 2
    # On a scale and an offset that only a normalised probe learns from.
    features = 1e-3 * (torch.randn(32, 2, 6) + 4 * labels[:, None, None]) + 100
    probe = NormalizedLinear(6, 2)
    data = [(features[part], labels[part]) for part in (slice(24), slice(24, 32))]
    trainer = train_probe(probe, SINGLE, *data, arguments=arguments(tmp_path, num_train_epochs=20))
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluations) == 20 and trainer.evaluate()["eval_top1_accuracy"] == 1.0
    assert trainer.evaluate()["eval_loss"] == min(entry["eval_loss"] for entry in evaluations)


def test_views_are_clips_in_training_and_averaged_in_evaluation():
    torch.manual_seed(0)
    model = ProbeModel(torch.nn.Linear(4, 3), SINGLE)
    features, labels = torch.randn(5, 2, 4), torch.tensor([0, 1, 2, 1, 0])
    views = model.probe(features)
    outputs = model.train()(features, labels)
    expected = torch.nn.functional.cross_entropy(views.flatten(0, 1), labels.repeat_interleave(2))
    torch.testing.assert_close(outputs["loss"], expected)
    outputs = model.eval()(features, labels)
    mean = views.softmax(-1).mean(1)
    torch.testing.assert_close(outputs["logits"].softmax(-1), mean)
    torch.testing.assert_close(outputs["loss"], torch.nn.functional.nll_loss(mean.log(), labels))
