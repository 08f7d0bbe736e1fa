"""What the words of a command line make of a command's settings."""

import dataclasses
import re

import pytest

from hf_video.cli.command import Command, parse
from hf_video.settings import NotNegative, setting
from hf_video.training import TrainSettings, VideoTrainingArguments
from hf_video.training.run import check_places
from hf_video.training.values import choose_values, make, read_named
from tests.cli.flags import read


@dataclasses.dataclass(kw_only=True)
class Noisy(TrainSettings):
    """One more setting."""

    gradient_noise: NotNegative[float] = setting(0.25, "Noise on gradients.")


@dataclasses.dataclass
class NoisyArguments(VideoTrainingArguments):
    gradient_noise: NotNegative[float] = setting(0.25, "Noise on gradients.")


def test_one_declared_line_is_a_flag_a_value_of_recipes_and_an_argument(tmp_path, capsys):
    command = Command(name="train", help="train", settings=Noisy, run=lambda settings: 0)

    def parsed(*words):
        return parse(["train", "data", "--output-dir", str(tmp_path), *words], [command])[1]

    (tmp_path / "recipe.yaml").write_text("gradient_noise: 0.5")
    assert parsed("--gradient-noise", "0.75").gradient_noise == 0.75
    of_recipe = choose_values(parsed("--recipe", str(tmp_path / "recipe.yaml")))
    assert make(NoisyArguments, of_recipe, use_cpu=True).gradient_noise == 0.5
    with pytest.raises(ValueError, match="--gradient-noise is -1"):
        parsed("--gradient-noise=-1")
    with pytest.raises(SystemExit):
        parsed("--help-all")
    assert re.search(r"--gradient-noise X\s+Noise on gradients. \(default: 0.25\)", capsys.readouterr().out)


def given(*words, command="train"):
    """The values that the words of a command line give."""
    values = read_named(read([command, "data", "--output-dir", "out", *words])).given
    return {name: value for name, value in values.items() if name not in ("data", "output_dir")}


def test_names_of_transformers_and_short_ones_are_the_same_setting():
    for words in (["--epochs", "5"], ["--num-train-epochs", "5"], ["--epochs=5"], ["--num-train-epochs=5"]):
        assert given(*words) == {"num_train_epochs": 5}
    assert given("--num-train-epochs", "5", "--epochs=4") == {"num_train_epochs": 4}
    expected = {"per_device_train_batch_size": 4, "dataloader_num_workers": 2, "bf16": True, "fp16": False}
    assert given("--batch-size=4", "--num-workers=2", "--bf16", "--no-fp16") == expected


def test_underscores_are_hyphens_in_flags_alone():
    assert given("--learning_rate", "1e-4", "--weight_decay=0.5", "--model", "a_b") == {
        "learning_rate": 1e-4,
        "weight_decay": 0.5,
        "model": "a_b",
    }


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["train", "data", "--out", "x"], "--output-dir"),
        (["train", "data", "--learning-rat", "1"], "--learning-rate"),
        (["train", "data", "--torch-compile-mod=default"], "--torch-compile-mode"),
        (["finetune", "data"], "train"),
        (["evalute"], "evaluate"),
    ],
)
def test_what_was_meant_is_named(words, meant):
    with pytest.raises(ValueError, match=rf"^(hf-video train|there is) .*Did you mean {meant}\?"):
        read(words)


def test_a_recipe_stands_behind_its_flag():
    with pytest.raises(ValueError, match="Write --recipe videomae_base_kinetics400"):
        check_places(vars(read(["train", "videomae_base_kinetics400", "--output-dir", "out"])))


def test_help_lists_what_people_use_and_help_all_the_rest(capsys):
    texts = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            read(["train", flag])
        texts[flag] = capsys.readouterr().out
    assert len(texts["--help"].splitlines()) <= 100 < len(texts["--help-all"].splitlines())
    assert "--learning-rate" in texts["--help"] and "--neftune-noise-alpha" not in texts["--help"]
    assert "--neftune-noise-alpha" in texts["--help-all"] and "--torch-compile-mode" in texts["--help-all"]


def test_help_lists_what_acts_with_the_named_task(capsys):
    listed = {}
    for words in ("", "--task retrieval", "--task=segments", "--help-all"):
        with pytest.raises(SystemExit):
            read(["evaluate", *words.split(), "--help"])
        listed[words] = set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, flags=re.MULTILINE))
    own = {"": {"--predictions"}, "--task retrieval": {"--k-test", "--paragraph"}, "--task=segments": {"--tiou"}}
    for words, flags in own.items():
        others = set.union(*(own[each] for each in own if each != words))
        assert flags <= listed[words] and not others & listed[words]
    assert set.union(*listed.values()) == listed["--help-all"]


def test_every_other_field_of_transformers_is_a_flag_that_is_read_by_its_type():
    words = ["--torch-compile-mode", "default", "--dataloader-drop-last", "--hub-revision=v1", "--hub-strategy=end"]
    words += ["--no-skip-memory-metrics", "--dataloader-in-order=false", "--include-for-metrics=inputs,loss"]
    assert given(*words, "--include-num-input-tokens-seen") == {
        **{"torch_compile_mode": "default", "dataloader_drop_last": True, "hub_revision": "v1", "hub_strategy": "end"},
        **{"skip_memory_metrics": False, "dataloader_in_order": False, "include_for_metrics": ["inputs", "loss"]},
        "include_num_input_tokens_seen": True,
    }
    for name, value in {
        **{"--dataloader-in-order": "maybe", "--hub-strategy": "often"},
        **{"--log-level-replica": "loud", "--train-sampling-strategy": "any"},
        "--dataloader-multiprocessing-context": "",
    }.items():
        with pytest.raises(ValueError, match=f"{name}.* '{value}'"):
            given(f"{name}={value}")


def test_a_flag_without_its_value_is_named(fails):
    for flag in ("--torch-compile-mode", "--learning-rate"):
        assert flag in fails("train", "data", "--output-dir", "out", flag)
