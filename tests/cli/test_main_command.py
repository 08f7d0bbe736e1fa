import multiprocessing
import os
import signal
import subprocess
import sys
import time

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
    for command in (
        "train",
        "probe",
        "evaluate",
        "predict",
        "extract",
        "inspect",
        "publish",
        "demo",
        "convert",
        "env",
    ):
        assert f"\n    {command}" in result.stdout


def test_the_module_runs_as_the_command_does():
    result = subprocess.run([sys.executable, "-m", "hf_video.cli", "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, f"hf-video {hf_video.__version__}")


@pytest.mark.parametrize(
    "command",
    ["train", "probe", "evaluate", "predict", "extract", "inspect", "publish", "demo", "convert", "env"],
)
def test_every_command_explains_itself(command, capsys):
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: hf-video {command}")


def test_env_says_what_decides_about_the_last_bits(capsys):
    assert main(["env"]) == 0
    facts = dict(line.removeprefix("- ").split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert facts["instructions and threads"].endswith(" threads of PyTorch")
    assert facts["compiled kernels"].startswith(("kept in ", "not kept")) and facts["numba"][0].isdigit()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["env", "--fast"], "unrecognized arguments: --fast"),
        (["env", "a=b"], "unrecognized arguments: a=b"),
        (["train", "data"], "The output folder is missing: give --output-dir"),
        (
            ["train", "data", "--output-dir", "out", "--epoch-count", "3"],
            "hf-video train has no option --epoch-count. Did",
        ),
        (["train", "data", "--output-dir", "out", "weight_decay"], "unrecognized arguments: weight_decay"),
    ],
)
def test_unknown_words_are_named(words, message, fails):
    assert message in fails(*words)


@pytest.mark.parametrize(
    "error", [ValueError("a wrong value"), OSError("a wrong value"), ImportError("a wrong value")]
)
def test_mistakes_of_the_user_are_one_line_and_a_traceback_on_request(error, env_runs, fails):
    def run(args):
        raise error

    env_runs(run)
    assert fails("env") == "hf-video: error: a wrong value\n"
    with pytest.raises(type(error), match="a wrong value"):
        main(["env", "--debug"])


def test_an_unexpected_error_is_a_line_that_asks_for_a_report(env_runs, capsys):
    def run(args):
        raise RuntimeError("a bug\nof two lines")

    env_runs(run)
    assert main(["env"]) == 70
    message = capsys.readouterr().err
    assert message.startswith("hf-video: internal error: RuntimeError in ") and message.count("\n") == 1
    for expected in ("a bug of two lines", "This is a bug of hf-video", "`hf-video env`", "--debug", "/issues"):
        assert expected in message
    with pytest.raises(RuntimeError, match="a bug"):
        main(["env", "--debug"])


def test_ctrl_c_is_a_line_and_code_130(env_runs, capsys):
    def run(args):
        raise KeyboardInterrupt("All is kept.")

    env_runs(run)
    assert main(["env"]) == 130
    assert capsys.readouterr().err == "\nhf-video: interrupted. All is kept.\n"


@pytest.mark.parametrize("rewrites", [True, False])
def test_sigterm_is_as_ctrl_c_with_code_143(rewrites, env_runs, capsys):
    def run(args):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            if rewrites:
                raise KeyboardInterrupt("All is kept.") from None
            raise

    env_runs(run)
    assert main(["env"]) == 143
    assert capsys.readouterr().err == f"\nhf-video: terminated.{' All is kept.' if rewrites else ''}\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("rank", ["0", "1"])
def test_of_the_processes_of_a_launcher_the_first_one_says_that_a_signal_came(rank, env_runs, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    env_runs(lambda args: signal.raise_signal(signal.SIGTERM))
    assert main(["env"]) == 143
    assert capsys.readouterr().err == ("\nhf-video: terminated.\n" if rank == "0" else "")


def test_sigterm_ends_a_forked_worker_as_ever(env_runs):
    codes, fork = [], multiprocessing.get_context("fork")

    def work(is_ready):
        is_ready.set()
        time.sleep(60)

    def run(args):
        worker = fork.Process(target=work, args=(is_ready := fork.Event(),))
        worker.start()
        is_ready.wait()
        worker.terminate()
        worker.join()
        codes.append(worker.exitcode)

    env_runs(run)
    assert main(["env"]) == 0
    assert codes == [-signal.SIGTERM]


def test_env_lists_versions(capsys):
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert f"- hf_video: {hf_video.__version__}\n" in out
    for fact in ("Python", "OS", "CPU", "torch", "transformers", "accelerate", "datasets", "av", "accelerator"):
        assert f"\n- {fact}: " in out


def test_env_says_what_is_missing_or_broken(monkeypatch, capsys):
    def broken():
        raise RuntimeError("libavutil.so.56 cannot be opened\nand more lines")

    monkeypatch.setattr(env, "torchcodec_usable", broken)
    monkeypatch.setattr(env, "PACKAGES", ("no-such-package",))
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert "- no-such-package: not installed\n" in out
    assert "- torchcodec usable: no (RuntimeError: libavutil.so.56 cannot be opened)\n" in out


def test_a_file_with_the_name_of_an_option_is_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-lead.mp4").touch()
    for words in (["-lead.mp4"], ["other.mp4", "-lead.mp4"]):
        assert main(["predict", *words, "--model", "model"]) == 2
        assert "write ./-lead.mp4" in capsys.readouterr().err.splitlines()[-1]


def test_no_progress_bar_fills_a_log():
    code = "from hf_video.cli.main import main; main(['env']); from tqdm.auto import tqdm; list(tqdm(range(3), 'Bar'))"
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 0 and "Bar" not in result.stderr, result.stderr
