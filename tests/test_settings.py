"""How a setting is declared, read and checked."""

import dataclasses

import pytest
from transformers import HfArgumentParser

from hf_video.cli.main import COMMANDS
from hf_video.processing import SAMPLING_STRATEGIES
from hf_video.settings import (
    Mark,
    Positive,
    check_values,
    describe_type,
    read_value,
    setting,
    settings_of,
    training_argument_fields,
    training_argument_names,
    with_defaults,
)
from hf_video.training import PretrainSettings, TrainAnswersSettings, TrainSettings, VideoTrainingArguments
from hf_video.training.recipes import published_recipes, read_recipe

KINDS = {kind for command in COMMANDS for kind in (command.settings, *command.tasks().values())}
DECLARED = [each for kind in KINDS for each in settings_of(kind).values()]
# Of these a number below zero means something.
SIGNED = {"length_penalty", "layer"}
# What is out of the bounds of a setting beside -2, and what is just inside.
OUTSIDE = {
    **{"num_train_epochs": "0", "max_steps": "0", "logging_steps": "0", "per_device_train_batch_size": "0"},
    **{"dataloader_num_workers": "-1", "seed": str(2**32), "adam_beta2": "1", "label_smoothing_factor": "1"},
    **{"ema_decay": "1", "num_beams": "0", "repetition_penalty": "0", "num_frames": "0", "image_size": "0"},
    **{"validation_fraction": "1", "flip_prob": "1.1", "mixup_alpha": "-0.1"},
}
INSIDE = {
    **{"max_steps": -1, "num_train_epochs": 0.5, "weight_decay": 0.0, "seed": 2**32 - 1, "adam_beta2": 0.0},
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
    words = {"no_weight_decay": "", "layer_decay_only": "a,b", "bf16": "true"}
    found = {name: read_value(settings[name].type, word, name) for name, word in words.items()}
    assert found["no_weight_decay"] == [] and found["layer_decay_only"] == ["a", "b"] and found["bf16"] is True
    for word, value in {"false": False, "true": True, "non_padding": "non_padding"}.items():
        name = "include_num_input_tokens_seen"
        assert read_value(training_argument_fields()[name].type, word, name) == value


def test_what_transformers_declares_is_declared_again_only_with_a_reason():
    """Because `--help` shows it, recipes give it, or its default is another one in some task."""
    theirs = training_argument_fields()
    assert sorted(training_argument_names()) == sorted(theirs)
    in_recipes = {name for recipe in published_recipes() for name in read_recipe(recipe)}
    changed = {each.name for each in DECLARED if each.name in theirs and each.default != theirs[each.name].default}
    declared = [each for kind in (TrainSettings, PretrainSettings) for each in settings_of(kind).values()]
    for each in declared:
        if each.name in theirs and not each.common:
            assert each.name in changed | in_recipes | {"max_steps"}, each.name


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


def test_inherited_settings_have_other_defaults_and_marks_and_the_same_bounds():
    @dataclasses.dataclass
    class Group:
        rate: Positive[float] = setting(1.0, "A rate.")

    @dataclasses.dataclass
    @with_defaults(rate=0.5)
    class Kind(Group):
        pass

    @dataclasses.dataclass
    @with_defaults(rate=Mark(changeable=True))
    class Marked(Kind):
        pass

    assert (Kind().rate, Group().rate, Marked().rate) == (0.5, 1.0, 0.5)
    assert settings_of(Marked)["rate"].changeable and not settings_of(Kind)["rate"].changeable
    for kind in (Kind, Marked):
        with pytest.raises(ValueError, match="rate is -1"):
            check_values(kind(rate=-1), kind)


def test_python_takes_and_suggests_the_names_that_a_command_does():
    settings = TrainSettings(data="d", epochs="3", adam_beta1=0.8, training_arguments={"save_steps": 5})
    assert (settings.num_train_epochs, settings.training_arguments) == (3.0, {"adam_beta1": 0.8, "save_steps": 5.0})
    assert settings.given == ("data", "num_train_epochs", "adam_beta1", "save_steps")
    for given, answer in (
        ({"num_epochs": 1}, "Did you mean num_train_epochs?"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; a number of at least 0 is expected"),
        ({"resume_from_checkpoint": "x"}, "--resume"),
        ({"epochs": 1, "num_train_epochs": 2}, "num_train_epochs is given twice"),
    ):
        with pytest.raises(ValueError, match=answer.replace("?", r"\?")):
            TrainSettings(**given)
    with pytest.raises(ValueError, match="label_smoothing_factor has no effect here"):
        PretrainSettings(label_smoothing_factor=0.1)
