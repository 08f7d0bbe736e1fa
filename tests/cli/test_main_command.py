import subprocess
import sys

import pytest

import hf_video
from hf_video.cli import env
from hf_video.cli.main import main


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from hf_video.cli.main import main; code = main(['--help']);"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for command in ("train", "probe", "evaluate", "predict", "inspect", "publish", "demo", "convert", "env"):
        assert f"\n    {command}" in result.stdout


def test_the_module_runs_as_the_command_does():
    result = subprocess.run([sys.executable, "-m", "hf_video.cli", "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, f"hf-video {hf_video.__version__}")


@pytest.mark.parametrize(
    "command", ["train", "probe", "evaluate", "predict", "inspect", "publish", "demo", "convert", "env"]
)
def test_every_command_explains_itself(command, capsys):
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: hf-video {command}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["env", "--fast"], "unrecognized arguments: --fast"),
        (["env", "a=b"], "unrecognized arguments: a=b"),
        (["train", "data"], "The output folder is missing: give --output-dir"),
        (["train", "data", "--output-dir", "out", "--epoch-count", "3"], "unrecognized arguments: --epoch-count 3"),
        (["train", "data", "--output-dir", "out", "weight_decay"], "unrecognized arguments: weight_decay"),
    ],
)
def test_unknown_words_are_named(words, message, fails):
    assert message in fails(*words)


@pytest.mark.parametrize(
    "error", [ValueError("a wrong value"), OSError("a wrong value"), ImportError("a wrong value")]
)
def test_mistakes_of_the_user_are_one_line_and_a_traceback_on_request(error, monkeypatch, fails):
    def run(args):
        raise error

    monkeypatch.setattr(env, "run", run)
    assert fails("env") == "hf-video: error: a wrong value\n"
    with pytest.raises(type(error), match="a wrong value"):
        main(["env", "--debug"])


def test_mistakes_of_ours_keep_their_traceback(monkeypatch):
    def run(args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(env, "run", run)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["env"])


def test_ctrl_c_is_a_line_and_code_130(monkeypatch, capsys):
    def run(args):
        raise KeyboardInterrupt("All is kept.")

    monkeypatch.setattr(env, "run", run)
    assert main(["env"]) == 130
    assert capsys.readouterr().err == "\nhf-video: interrupted. All is kept.\n"


def test_env_lists_versions(capsys):
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert f"- hf_video: {hf_video.__version__}\n" in out
    for fact in ("Python", "OS", "CPU", "torch", "transformers", "accelerate", "datasets", "av", "accelerator"):
        assert f"\n- {fact}: " in out


def test_env_says_what_is_missing_or_broken(monkeypatch, capsys):
    def broken():
        raise RuntimeError("libavutil.so.56 cannot be opened\nand more lines")

    monkeypatch.setattr(env, "_torchcodec_usable", broken)
    monkeypatch.setattr(env, "PACKAGES", ("no-such-package",))
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert "- no-such-package: not installed\n" in out
    assert "- torchcodec usable: no (RuntimeError: libavutil.so.56 cannot be opened)\n" in out
