"""The command line: which commands there are, and how their mistakes and helps are answered."""

import subprocess
import sys

import pytest

import hf_video
from hf_video.cli import env
from hf_video.cli.main import COMMANDS, refuse_missing
from tests.cli.flags import read


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from hf_video.cli.main import main; main(['train', '--help']); main(['evaluate', '--help']);"
        "code = main(['--help']); assert not {'torch', 'transformers', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all(f"\n  {command.name}" in result.stdout for command in COMMANDS)


def test_the_module_runs_as_the_command_does():
    result = subprocess.run([sys.executable, "-m", "hf_video.cli", "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, f"hf-video {hf_video.__version__}")


@pytest.mark.parametrize("variables", [{"COLUMNS": "1"}, {"COLUMNS": "x"}, {"NO_COLOR": "1"}])
def test_every_command_explains_itself_on_any_terminal(variables, monkeypatch, says):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for command in COMMANDS:
        assert says(command.name, "--help").startswith("usage: hf-video")
    for name in ("evaluate", "inspect"):
        assert "--json" in says(name, "--help")


# What each command needs beside its data and its model.
WITH_BOTH = {
    **{"evaluate": [], "predict": [], "extract": ["--output=out"], "index": ["--output=out"], "timeline": []},
    **{
        "detect": ["--output=out.json"],
        "suggest": ["--output=out.csv"],
        "explain": [],
        "watch": ["--question=why"],
        "train": ["--output-dir=out"],
    },
}
WITH_DATA = {"inspect": [], "pretrain": ["--output-dir=out"]}
WITH_MODEL = {"verify": [], "export": ["out"], "app": []}


def test_what_is_not_there_is_refused_before_pytorch_is_imported(tmp_path):
    none, no_model, there = str(tmp_path / "none"), "no:model", str(tmp_path)
    tried = [[name, none, *words] for name, words in WITH_DATA.items()]
    tried += [[name, no_model, *words] for name, words in WITH_MODEL.items()]
    for name, words in WITH_BOTH.items():
        tried += [[name, none, "--model", there, *words], [name, there, "--model", no_model, *words]]
    code = (
        f"import sys; from hf_video.cli.main import main; codes = [main(words) for words in {tried}];"
        "print({*codes} == {2}, {'torch', 'transformers'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout == "True set()\n", result.stderr
    for words, message in zip(tried, result.stderr.splitlines(), strict=True):
        expected = f"{none} does not exist" if none in words else f"{no_model}: there is no such folder"
        assert expected in message, words
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["start", "videomae-vit-s-kinetics-400-1600-epochs"])
def test_the_start_and_released_models_are_asked_for_nowhere_before(model, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_video.cli.main.require_model", lambda name: pytest.fail("the Hub is asked"))
    refuse_missing(read(["probe", str(tmp_path), "--model", model, "--output-dir", "out"]))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "COMMAND"),
        (["trian"], "'trian'"),
        (["--quick", "env"], "--quick"),
        (["--", "env"], "'--'"),
        (["env", "--fast"], "--fast"),
        (["env", "a=b"], "a=b"),
        (["train", "."], "--output-dir"),
        (["train", "data", "--output-dir", "out", "--epoch-count", "3"], "--epoch-count"),
        (["train", "data", "--output-dir", "out", "weight_decay"], "weight_decay"),
        (["probe", ".", "--output-dir", "out"], "--model"),
        (["train-answers", ".", "--output-dir", "out"], "--model"),
    ],
)
def test_unknown_and_missing_words_are_named(words, name, fails):
    assert name in fails(*words)


def test_env_lists_versions_and_what_decides_about_the_last_bits(says):
    facts = dict(line.removeprefix("- ").split(": ", 1) for line in says("env").splitlines() if line)
    assert facts["hf_video"] == hf_video.__version__
    for fact in ("Python", "OS", "CPU", "torch", "transformers", "av", "accelerator", "instructions and threads"):
        assert facts[fact]


def test_env_says_what_is_missing_or_broken(monkeypatch, says):
    def broken():
        raise RuntimeError("libavutil.so.56 cannot be opened\nand more lines")

    monkeypatch.setattr(env, "torchcodec_usable", broken)
    monkeypatch.setattr(env, "PACKAGES", ("no-such-package",))
    out = says("env")
    assert "- no-such-package: not installed\n" in out
    assert "- torchcodec usable: no (RuntimeError: libavutil.so.56 cannot be opened)\n" in out
