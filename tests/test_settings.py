"""How a setting is declared, read and checked."""

import dataclasses
import typing

import pytest
from transformers import HfArgumentParser, TrainingArguments

from hf_video.cli.main import COMMANDS
from hf_video.processing import SAMPLING_STRATEGIES
from hf_video.settings import check_values, describe_type, read_value, setting, settings_of, with_defaults
from hf_video.training import TrainAnswersSettings, TrainSettings, VideoTrainingArguments
from hf_video.training.training_settings import TrainingSettings

DECLARED = [each for command in COMMANDS for each in settings_of(command.settings).values()]
# Of these a number below zero means something.
SIGNED = {"length_penalty", "layer"}
# What is out of the bounds of a setting beside -2, and what is just inside.
OUTSIDE = {
    **{"num_train_epochs": "0", "max_steps": "0", "save_steps": "0", "per_device_train_batch_size": "0"},
    **{"dataloader_num_workers": "-1", "seed": str(2**32), "adam_beta1": "1", "label_smoothing_factor": "1"},
    **{"ema_decay": "1", "num_beams": "0", "repetition_penalty": "0", "num_frames": "0", "image_size": "0"},
    **{"validation_fraction": "1", "flip_prob": "1.1", "mixup_alpha": "-0.1"},
}
INSIDE = {
    **{"max_steps": -1, "num_train_epochs": 0.5, "weight_decay": 0.0, "seed": 2**32 - 1, "adam_beta1": 0.0},
    **{"flip_prob": 1.0, "ema_decay": 0.999, "dataloader_num_workers": 0, "num_beams": 1},
}


def refuses(each, word):
    with pytest.raises(ValueError, match="^the name is ") as refusal:
        read_value(each.type, word, "the name")
    assert word in str(refusal.value) and str(refusal.value).endswith(f"{describe_type(each.type)} is expected.")


def test_values_without_meaning_are_refused_for_every_setting():
    seen = set()
    for each in DECLARED:
        expected = describe_type(each.type)
        if "number" in expected:
            seen.add(each.name)
            for word in ("many", "nan", "inf", *([] if each.name in SIGNED else ["-2"])):
                refuses(each, word)
            if "whole" in expected:
                refuses(each, "1.5")
            if each.name in OUTSIDE:
                refuses(each, OUTSIDE[each.name])
        elif each.choices or expected == "true or false":
            refuses(each, "nonsense")
    assert OUTSIDE.keys() <= seen


def test_defaults_choices_and_values_at_the_bounds_are_read():
    for each in DECLARED:
        if isinstance(each.default, bool | int | float | str):
            assert read_value(each.type, each.default, each.name) == each.default, each.name
        for choice in each.choices:
            assert str(read_value(each.type, choice, each.name)) == choice
        if each.name in INSIDE:
            assert read_value(each.type, str(INSIDE[each.name]), each.name) == INSIDE[each.name]


def test_words_are_read_by_the_type_of_their_setting():
    settings = settings_of(TrainSettings)
    words = {"no_weight_decay": "", "layer_decay_only": "a,b", "bf16": "true", "lr_scheduler_kwargs": '{"a": 1}'}
    found = {name: read_value(settings[name].type, word, name) for name, word in words.items()}
    assert found["no_weight_decay"] == [] and found["layer_decay_only"] == ["a", "b"] and found["bf16"] is True
    for word, value in {"false": False, "true": True, "non_padding": "non_padding"}.items():
        assert read_value(str | bool, word, "include_num_input_tokens_seen") == value


def test_what_transformers_declares_has_its_names_and_defaults():
    theirs = {field.name: field for field in dataclasses.fields(TrainingArguments)}
    hints = typing.get_type_hints(TrainingArguments)
    for name, each in settings_of(TrainingSettings).items():
        default = theirs[name].default
        assert each.default == getattr(default, "value", default), name
        if each.default is not None and describe_type(each.type) != "a text":
            read_value(hints[name], each.default, name)


def test_transformers_reads_the_same_class(tmp_path):
    words = ["--output_dir", str(tmp_path), "--layer_decay", "0.5", "--no_weight_decay", "a", "b", "--bf16", "false"]
    (arguments,) = HfArgumentParser(VideoTrainingArguments).parse_args_into_dataclasses(words)
    assert (arguments.layer_decay, arguments.no_weight_decay, arguments.weight_decay) == (0.5, ["a", "b"], 0.05)


def test_the_clips_that_can_be_chosen_are_all_there_are():
    assert settings_of(TrainSettings)["sampling_strategy"].choices == list(SAMPLING_STRATEGIES)


def test_a_declared_setting_is_fixed_unless_it_is_marked():
    @dataclasses.dataclass
    class Kind:
        plain: int = setting(1)

    assert not settings_of(Kind)["plain"].changeable
    for kind, fixed in ((TrainSettings, {"learning_rate", "seed", "model"}), (TrainAnswersSettings, {"prompt"})):
        known = settings_of(kind)
        assert known["num_train_epochs"].changeable
        assert not any(known[name].changeable for name in {*fixed, "lora_rank"})


def test_inherited_settings_have_other_defaults_and_the_same_bounds():
    @dataclasses.dataclass
    @with_defaults(weight_decay=0.5)
    class Kind(TrainingSettings):
        pass

    assert Kind().weight_decay == 0.5 and TrainingSettings().weight_decay == 0.0
    with pytest.raises(ValueError, match="weight_decay is -1"):
        check_values(Kind(weight_decay=-1), Kind)
