"""One declaration a setting: what is derived from it."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from transformers import HfArgumentParser, TrainingArguments

from hf_video.processing import SAMPLING_STRATEGIES
from hf_video.settings import check_values, describe_type, find_type, read_value, setting, settings_of, with_defaults
from hf_video.training import TrainAnswersSettings, TrainSettings, VideoTrainingArguments
from hf_video.training.resuming import choose_values, given_values, make, read_saved, save, values_of
from hf_video.training.training_settings import TrainingSettings, VideoTrainingSettings
from tests.cli.flags import flags_of, read

ROOT = Path(__file__).parents[2]
# A line of code, and a program that looks for what it declares.
PLANTED = '    gradient_noise: NotNegative[float] = setting(0.25, "Noise on gradients.")\n'
LOOK = """
import sys
from hf_video.cli.command import parse
from hf_video.cli.main import COMMANDS, main
given = parse(["train", "data", "--output-dir", "out", "--gradient-noise", "0.5"], COMMANDS)[1]
assert given.gradient_noise == 0.5
of_recipe = parse(["train", "--recipe", "recipe.yaml", "d", "--output-dir=o"], COMMANDS)[1]
assert not {"torch", "transformers"} & set(sys.modules)
from hf_video.training import VideoTrainingArguments
from hf_video.training.resuming import choose_values
assert choose_values(of_recipe).gradient_noise == 0.5
assert VideoTrainingArguments("out").gradient_noise == 0.25
main(["train", "--help-all"])
sys.exit(main(["train", "data", "--output-dir", "out", "--gradient-noise=-1"]))
"""


def test_a_planted_line_is_a_setting_everywhere(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    package = Path(shutil.copytree(ROOT / "hf_video", tmp_path / "hf_video", ignore=ignored))
    file = package / "training" / "training_settings.py"
    title = '    """Training\n\n    Fields of `VideoTrainingArguments`.\n    """\n\n'
    file.write_text(file.read_text().replace(title, title + PLANTED))
    (tmp_path / "recipe.yaml").write_text("gradient_noise: 0.5")
    found = subprocess.run([sys.executable, "-c", LOOK], cwd=tmp_path, capture_output=True, text=True)
    assert "--gradient-noise X" in found.stdout and "Noise on gradients. (default: 0.25)" in found.stdout
    expected = "--gradient-noise is -1; a number of at least 0 is expected."
    assert (found.returncode, found.stderr.splitlines()[-1]) == (2, f"hf-video: error: {expected}")


@pytest.mark.parametrize("command", ["train", "train-answers", "probe", "evaluate"])
def test_help_waits_for_neither_torch_nor_transformers(command):
    code = (
        f"import sys; from hf_video.cli.main import main; code = main(['{command}', '--help']);"
        "assert not {'torch', 'transformers'} & set(sys.modules); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"usage: hf-video {command}")


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


def given(*words, command="train"):
    """The values that the words of a command line give."""
    return given_values(read([command, "data", "--output-dir", "out", *words]))


def test_names_of_transformers_and_short_ones_are_the_same_setting():
    for words in (["--epochs", "5"], ["--num-train-epochs", "5"], ["--epochs=5"], ["--num-train-epochs=5"]):
        assert given(*words)["num_train_epochs"] == 5
    assert given("--batch-size=4", "--num-workers=2", "--bf16", "--no-fp16") == {
        "per_device_train_batch_size": 4,
        "dataloader_num_workers": 2,
        "bf16": True,
        "fp16": False,
        "data": "data",
        "output_dir": "out",
    }
    assert given("--num-train-epochs", "5", "--epochs=4")["num_train_epochs"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learning_rate=1e-4"], "learning_rate=1e-4: a setting is a flag. Write --learning-rate 1e-4"),
        (["epochs=3"], "epochs=3: a setting is a flag. Write --epochs 3"),
        (["torch_compile_mode=default"], "a setting is a flag. Write --torch-compile-mode default"),
        (["bf16=true"], "bf16=true: a setting is a flag. Write --bf16"),
        (["load_best_model_at_end=false"], "a setting is a flag. Write --no-load-best-model-at-end"),
        (["learning_rat=1"], "'learning_rat' is not a setting. Did you mean learning_rate"),
        (["--learning-rat", "1"], "hf-video train has no option --learning-rat. Did you mean --learning-rate"),
    ],
)
def test_a_word_and_a_misspelt_flag_are_answered_with_the_flag(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        given(*words)


def test_data_stands_alone_and_a_recipe_behind_its_flag():
    with pytest.raises(ValueError, match="data=videos: DATA needs no name. Write videos$"):
        read(["train", "data=videos", "--output-dir", "out"])
    with pytest.raises(
        ValueError, match="is a recipe, and DATA names videos. Write --recipe videomae_base_kinetics400"
    ):
        choose_values(read(["train", "videomae_base_kinetics400", "--output-dir", "out"]))


def test_help_lists_what_people_use_and_help_all_the_rest(capsys):
    texts = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            read(["train", flag])
        assert end.value.code == 0
        texts[flag] = capsys.readouterr().out
    assert len(texts["--help"].splitlines()) < 100 < len(texts["--help-all"].splitlines())
    assert "--learning-rate" in texts["--help"] and "--neftune-noise-alpha" not in texts["--help"]
    for flag in ("--neftune-noise-alpha", "--torch-compile-mode", "--distillation-teacher"):
        assert flag in texts["--help-all"]


def test_every_other_field_of_transformers_is_read_by_its_type():
    words = (
        "--hub-strategy=end",
        "--dataloader-in-order=false",
        "--include-for-metrics=inputs,loss",
        "--log-on-each-node=no",
    )
    expected = {"hub_strategy": "end", "dataloader_in_order": False, "include_for_metrics": ["inputs", "loss"]}
    assert expected.items() <= given(*words).items()
    for word, message in (
        ("--dataloader-in-order=maybe", "--dataloader-in-order is 'maybe'; true or false is expected"),
        (
            "--hub-strategy=often",
            "--hub-strategy is 'often'; end, every_save, checkpoint or all_checkpoints is expected",
        ),
        ("--parallelism-config=x", "--parallelism-config is 'x'"),
        ("--log-level-replica=loud", "--log-level-replica is 'loud'; detail, debug, info"),
        ("--train-sampling-strategy=any", "--train-sampling-strategy is 'any'; random, sequential"),
        ("--dataloader-multiprocessing-context=", "--dataloader-multiprocessing-context is ''; fork, spawn"),
    ):
        with pytest.raises(ValueError, match=message):
            given(word)


def test_every_other_field_of_transformers_is_a_flag():
    found = given("--torch-compile-mode", "default", "--dataloader-drop-last", "--hub-revision=v1")
    assert {
        "torch_compile_mode": "default",
        "dataloader_drop_last": True,
        "hub_revision": "v1",
    }.items() <= found.items()
    with pytest.raises(ValueError, match="has no option --torch-compile-mod. Did you mean --torch-compile-mode?"):
        given("--torch-compile-mod=default")
    assert given("--no-skip-memory-metrics", "--dataloader-in-order", "false", "--include-num-input-tokens-seen") == {
        "data": "data",
        "output_dir": "out",
        "skip_memory_metrics": False,
        "dataloader_in_order": False,
        "include_num_input_tokens_seen": True,
    }
    assert given("--include-num-input-tokens-seen", "non_padding")["include_num_input_tokens_seen"] == "non_padding"


def test_a_flag_without_its_value_is_named(fails):
    for flag in ("--torch-compile-mode", "--learning-rate"):
        assert f"{flag}: expected one argument" in fails("train", "data", "--output-dir", "out", flag)


def test_a_recipe_is_a_flag_and_other_flags_replace_its_values(tmp_path):
    (tmp_path / "own.yaml").write_text("weight_decay: 0.3\nlayer_decay: 0.5")
    words = ["train", "data", "--output-dir", "out", "--recipe"]
    chosen = choose_values(read([*words, str(tmp_path / "own.yaml"), "--weight-decay", "0.1"]))
    assert (chosen.data, chosen.weight_decay, chosen.layer_decay) == ("data", 0.1, 0.5)
    assert choose_values(read([*words, "videomae_base_kinetics400"])).layer_decay == 0.75


@pytest.mark.parametrize(("word", "value"), [("false", False), ("true", True), ("non_padding", "non_padding")])
def test_a_boolean_is_one_where_transformers_takes_texts_as_well(word, value):
    assert given(f"--include-num-input-tokens-seen={word}")["include_num_input_tokens_seen"] == value


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dataloader_drop_lust": True},
            "'dataloader_drop_lust' is not a setting. Did you mean dataloader_drop_last?",
        ),
        ({"dataloader_drop_last": "maybe"}, "dataloader_drop_last is 'maybe'; true or false is expected"),
        ({"output_dir": "elsewhere"}, "output_dir is given twice, once in training_arguments"),
    ],
)
def test_a_wrong_field_of_a_program_is_named(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        choose_values(TrainSettings(data="data", output_dir="out", training_arguments=fields))


@pytest.mark.parametrize("name", ["optim", "lr_scheduler_type"])
def test_transformers_knows_which_optimizers_and_schedules_there_are(name, tmp_path):
    chosen = choose_values(TrainSettings(data="data", output_dir="out", **{name: "nonsense"}))
    with pytest.raises(ValueError, match="nonsense is not a valid"):
        make(VideoTrainingArguments, chosen, output_dir=str(tmp_path), use_cpu=True)


# Each changes the result; the last ones are declared by Transformers alone.
FIXED = {
    **{"weight_decay": 0.1, "adam_beta1": 0.8, "lr_scheduler_type": "linear", "warmup_steps": 5, "optim": "sgd"},
    **{"label_smoothing_factor": 0.1, "max_grad_norm": 0.5, "data_seed": 3, "mixup_alpha": 0.8, "ema_decay": 0.9},
    **{"gradient_accumulation_steps": 2, "bf16": True, "eval_steps": 10, "erasing_prob": 0.25, "lora_rank": 2},
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


@pytest.mark.parametrize("command", ["train-answers", "probe"])
def test_a_model_that_is_missing_is_named(command, fails):
    assert "is missing: give --model" in fails(command, "data", "--output-dir", "out")


@pytest.mark.parametrize("name", FIXED)
def test_what_changes_the_result_is_fixed_when_a_run_is_resumed(saved, name):
    (word,) = flags_of({name: FIXED[name]})
    spelled = re.escape(word.replace("=", " "))
    with pytest.raises(ValueError, match=rf"{spelled} differs from the run being resumed \(.*Leave it out, or train"):
        resumed(saved, word)


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_change_it_is_free(saved, name):
    assert resumed(saved, *flags_of({name: FREE[name]}))[find_type(TrainSettings, name)[0]] == FREE[name]


def test_a_declared_setting_is_fixed_unless_it_is_marked():
    @dataclasses.dataclass
    class Kind:
        plain: int = setting(1)

    assert not settings_of(Kind)["plain"].changeable
    for kind, fixed in ((TrainSettings, {"learning_rate", "seed", "model"}), (TrainAnswersSettings, {"prompt"})):
        known = settings_of(kind)
        assert known["num_train_epochs"].changeable
        assert not any(known[name].changeable for name in {*fixed, "lora_rank"})


def test_the_files_of_earlier_versions_are_read(tmp_path):
    """Short names, and words that were not read yet."""
    options = {"model": None, "num_frames": 4, "epochs": 2, "batch_size": 16, "learning_rate": 0.001, "num_workers": 1}
    words = ["weight_decay=0.3", "bf16=true", "layer_decay_only=a,b", "torch_compile_mode=default"]
    file = tmp_path / "train_options.json"
    file.write_text(json.dumps({**options, "words": words, "data": {"digest": "abc"}}))
    saved = read_saved(file, TrainSettings)
    values = saved.values
    assert (saved.data, saved.num_processes) == ({"digest": "abc"}, None)
    assert values == {
        **{"model": None, "num_frames": 4, "num_train_epochs": 2, "learning_rate": 0.001},
        **{"per_device_train_batch_size": 16, "per_device_eval_batch_size": 16, "dataloader_num_workers": 1},
        **{"weight_decay": 0.3, "bf16": True, "layer_decay_only": ["a", "b"], "torch_compile_mode": "default"},
    }
    chosen = choose_values(TrainSettings(data="data", output_dir="out", weight_decay=0.3), saved)
    assert (chosen.weight_decay, chosen.seed, chosen.mixup_alpha) == (0.3, 42, 0.0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weight_decay", "much", "weight_decay is 'much'; a number of at least 0 is expected"),
        ("weight_decay", "inf", "weight_decay is inf; a number of at least 0 is expected"),
        ("max_steps", "0", "max_steps is 0; -1 or a whole number of at least 1 is expected"),
        ("eval_strategy", "often", "eval_strategy is 'often'; no, steps or epoch is expected"),
        ("ema_decay", "1", "ema_decay is 1; a number between 0 and 1 is expected"),
        ("distillation_weight", "0", "distillation_weight is 0; a number above 0, up to 1 is expected"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(name, value, message):
    with pytest.raises(ValueError, match=message):
        read_value(settings_of(VideoTrainingSettings)[name].type, value, name)


def test_values_are_read_by_their_types():
    settings = settings_of(VideoTrainingSettings)
    words = {"max_steps": "-1", "no_weight_decay": "", "layer_decay_only": "a,b", "ema_decay": "0.9", "bf16": "true"}
    found = {name: read_value(settings[name].type, word, name) for name, word in words.items()}
    assert found == {
        "max_steps": -1,
        "no_weight_decay": [],
        "layer_decay_only": ["a", "b"],
        "ema_decay": 0.9,
        "bf16": True,
    }


def test_inherited_settings_have_other_defaults_and_the_same_bounds():
    @dataclasses.dataclass
    @with_defaults(weight_decay=0.5)
    class Kind(TrainingSettings):
        pass

    assert Kind().weight_decay == 0.5 and TrainingSettings().weight_decay == 0.0
    with pytest.raises(ValueError, match="weight_decay is -1; a number of at least 0 is expected"):
        check_values(Kind(weight_decay=-1), Kind)
