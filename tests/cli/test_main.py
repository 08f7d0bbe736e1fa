"""The command line: which commands there are, and how their mistakes and helps are answered."""

import subprocess
import sys

import pytest

import hf_video
from hf_video.cli import env
from hf_video.cli.main import COMMANDS, main


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from hf_video.cli.main import main; code = main(['--help']);"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all(f"\n    {command.name}" in result.stdout for command in COMMANDS)


def test_the_module_runs_as_the_command_does():
    result = subprocess.run([sys.executable, "-m", "hf_video.cli", "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, f"hf-video {hf_video.__version__}")


@pytest.mark.parametrize("variables", [{"COLUMNS": "1"}, {"COLUMNS": "x"}, {"NO_COLOR": "1"}])
def test_every_command_explains_itself_on_any_terminal(variables, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for command in COMMANDS:
        assert main([command.name, "--help"]) == 0
        assert capsys.readouterr().out.startswith("usage: hf-video")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "COMMAND"),
        (["trian"], "'trian'"),
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


def test_a_file_with_the_name_of_an_option_is_explained(tmp_path, monkeypatch, fails):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-lead.mp4").touch()
    for words in (["-lead.mp4"], ["other.mp4", "-lead.mp4"]):
        assert "write ./-lead.mp4" in fails("predict", *words, "--model", "model")


def test_env_lists_versions_and_what_decides_about_the_last_bits(capsys):
    assert main(["env"]) == 0
    facts = dict(line.removeprefix("- ").split(": ", 1) for line in capsys.readouterr().out.splitlines() if line)
    assert facts["hf_video"] == hf_video.__version__
    for fact in ("Python", "OS", "CPU", "torch", "transformers", "av", "accelerator", "instructions and threads"):
        assert facts[fact]


def test_env_says_what_is_missing_or_broken(monkeypatch, capsys):
    def broken():
        raise RuntimeError("libavutil.so.56 cannot be opened\nand more lines")

    monkeypatch.setattr(env, "torchcodec_usable", broken)
    monkeypatch.setattr(env, "PACKAGES", ("no-such-package",))
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert "- no-such-package: not installed\n" in out
    assert "- torchcodec usable: no (RuntimeError: libavutil.so.56 cannot be opened)\n" in out
