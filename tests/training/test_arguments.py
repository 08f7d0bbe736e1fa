import pytest
from transformers.integrations import integration_utils

from hf_video.training.arguments import VideoTrainingArguments


def test_defaults_keep_the_best_checkpoint_and_follow_the_seed(tmp_path):
    arguments = VideoTrainingArguments(output_dir=str(tmp_path), seed=7)
    assert arguments.load_best_model_at_end and arguments.metric_for_best_model == "top1_accuracy"
    assert arguments.greater_is_better
    assert arguments.data_seed == 7


def test_rates_and_warm_up_follow_the_batch_and_the_epochs(tmp_path):
    batch = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 4, "use_cpu": True}
    assert VideoTrainingArguments(str(tmp_path), base_learning_rate=1e-3, **batch).learning_rate == 5e-4
    assert VideoTrainingArguments(str(tmp_path), warmup_epochs=5, num_train_epochs=50).get_warmup_steps(1000) == 100
    assert VideoTrainingArguments(str(tmp_path), warmup_steps=7).get_warmup_steps(1000) == 7


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"label_smoothing_factor": 1.0},
            "label_smoothing_factor is 1.0; a number of at least 0 and below 1 is expected",
        ),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; a whole number of at least 1"),
        ({"warmup_epochs": -1.0}, "warmup_epochs is -1.0; a number of at least 0"),
        ({"distillation_weight": 0.3}, "distillation_weight is 0.3, which has no effect without distillation_teacher"),
        ({"weight_decay": float("nan")}, "weight_decay is nan; a number of at least 0 is expected"),
        ({"linear_probe": True, "lora_rank": 4}, "linear_probe freezes all but the head already"),
        ({"lora_alpha": 8.0}, "lora_alpha is 8.0, which has no effect without lora_rank"),
        ({"focal_gamma": 1.0}, "focal_gamma is 1.0, which has no effect without loss=focal"),
    ],
)
def test_values_without_a_meaning_are_named(tmp_path, option, message):
    with pytest.raises(ValueError, match=message):
        VideoTrainingArguments(output_dir=str(tmp_path), **option)


def test_the_metric_of_the_best_checkpoint_is_one_that_is_measured(tmp_path):
    def check(metric, problem_type, num_labels, **options):
        arguments = VideoTrainingArguments(output_dir=str(tmp_path), metric_for_best_model=metric, **options)
        arguments.check_metric(problem_type, num_labels)

    check("eval_loss", "multi_label_classification", 2)
    check("top5_accuracy", None, 6)
    check("nope", None, 6, eval_strategy="no", load_best_model_at_end=False)
    known = "top1_accuracy, mean_class_accuracy or loss"
    with pytest.raises(ValueError, match=f"'top5_accuracy', which is not measured: use {known}"):
        check("top5_accuracy", None, 5)
    with pytest.raises(ValueError, match="'nope', which is not measured: use mean_average_precision or loss"):
        check("nope", "multi_label_classification", 6)


def test_several_trackers_are_separated_by_commas(tmp_path, monkeypatch):
    for name in ("tensorboard", "trackio"):
        monkeypatch.setattr(integration_utils, f"is_{name}_available", lambda: True)
    found = VideoTrainingArguments(str(tmp_path), report_to="tensorboard,trackio").report_to
    assert found == ["tensorboard", "trackio"]
    assert VideoTrainingArguments(str(tmp_path)).report_to == []


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(integration_utils, "is_trackio_available", lambda: False)
    with pytest.raises(ImportError, match="report_to=trackio needs a package that is not installed: pip install trac"):
        VideoTrainingArguments(str(tmp_path), report_to="trackio")
