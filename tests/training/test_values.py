"""Settings are chosen from what was given, a recipe, or a run to resume, which holds fixed what changes its result."""

import re

import pytest

from hf_video.settings import find_setting
from hf_video.training import TrainSettings, VideoTrainingArguments
from hf_video.training.values import choose_values, make, read_saved, save, values_of
from tests.cli.flags import flags_of, read

# Each changes the result; the last ones are declared by Transformers alone.
FIXED = {
    **{"weight_decay": 0.1, "adam_beta1": 0.8, "lr_scheduler_type": "linear", "warmup_steps": 5, "optim": "sgd"},
    **{"label_smoothing_factor": 0.1, "max_grad_norm": 0.5, "data_seed": 3, "mixup_alpha": 0.8, "ema_decay": 0.9},
    **{"gradient_accumulation_steps": 2, "bf16": True, "eval_steps": 10, "erasing_prob": 0.25, "lora_rank": 2},
    **{"num_frames": 8, "per_device_train_batch_size": 16, "base_learning_rate": 0.5},
    **{"loss": "focal", "focal_gamma": 1.5, "class_weights": "balanced", "sampler": "sqrt"},
    **{"dataloader_drop_last": True, "full_determinism": True, "train_sampling_strategy": "group_by_length"},
}
FREE = {
    **{"epochs": 9, "num_workers": 2, "device": "cpu", "report_to": "tensorboard", "logging_steps": 5},
    **{"save_total_limit": 9, "push_to_hub": True, "hub_token": "hf_x", "per_device_eval_batch_size": 2},
}


@pytest.fixture
def saved(tmp_path):
    """The file of a run with a few settings of its own."""
    words = ["train", "data", "--output-dir", "out", "--label-smoothing-factor=0.2", "--torch-compile-mode=default"]
    save(tmp_path / "saved.json", choose_values(read(words)), {})
    return tmp_path / "saved.json"


def resumed(file, *words):
    """The values of the run that goes on."""
    settings = read(["train", "data", "--output-dir", "out", *words])
    return values_of(choose_values(settings, read_saved(file, TrainSettings)))


def test_a_resumed_run_goes_on_with_what_it_had(saved):
    values = resumed(saved)
    assert (values["label_smoothing_factor"], values["torch_compile_mode"]) == (0.2, "default")
    assert resumed(saved, "--weight-decay=0.05", "--torch-compile-mode=default") == values


def test_what_changes_the_result_is_fixed_and_the_rest_is_free(saved):
    for name, value in FIXED.items():
        (word,) = flags_of({name: value})
        with pytest.raises(ValueError, match=f"^{re.escape(word.replace('=', ' '))} differs"):
            resumed(saved, word)
    for name, value in FREE.items():
        assert resumed(saved, *flags_of({name: value}))[find_setting(TrainSettings, name).name] == value


@pytest.mark.parametrize("name", ["optim", "lr_scheduler_type"])
def test_transformers_knows_which_optimizers_and_schedules_there_are(name, tmp_path):
    with pytest.raises(ValueError, match="nonsense"):
        chosen = choose_values(TrainSettings(data="data", output_dir="out", **{name: "nonsense"}))
        make(VideoTrainingArguments, chosen, output_dir=str(tmp_path), use_cpu=True)
