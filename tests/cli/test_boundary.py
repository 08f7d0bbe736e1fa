"""How a command ends: its exit code, and one line on stderr."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file

from conversion import image_vit
from hf_video.cli.main import main
from hf_video.io import naming


@pytest.fixture
def ends(env_runs, capsys):
    """Runs `hf-video env` with another body; returns the exit code and the text on stderr."""

    def run(body):
        env_runs(lambda settings: body())
        return main(["env"]), capsys.readouterr().err

    return run


def raising(error):
    def body():
        raise error

    return body


@pytest.mark.parametrize("kind", [ValueError, OSError, ImportError])
def test_mistakes_of_the_user_are_one_line_and_a_traceback_on_request(kind, ends):
    assert ends(raising(kind("a wrong value"))) == (2, "hf-video: error: a wrong value\n")
    with pytest.raises(kind, match="a wrong value"):
        main(["env", "--debug"])


def test_an_unexpected_error_is_a_line_that_asks_for_a_report(ends):
    code, message = ends(raising(RuntimeError("a bug\nof two lines")))
    assert code == 70 and message.count("\n") == 1
    assert all(part in message for part in ("RuntimeError in ", "a bug of two lines", "--debug", "/issues"))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["env", "--debug"])


def test_ctrl_c_is_a_line_and_code_130(ends):
    assert ends(raising(KeyboardInterrupt("All is kept."))) == (130, "\nhf-video: interrupted. All is kept.\n")


@pytest.mark.parametrize("rewrites", [True, False])
def test_sigterm_is_as_ctrl_c_with_code_143(rewrites, ends):
    def body():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            if rewrites:
                raise KeyboardInterrupt("All is kept.") from None
            raise

    assert ends(body) == (143, f"\nhf-video: terminated.{' All is kept.' if rewrites else ''}\n")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_of_the_processes_of_a_launcher_the_first_one_says_that_a_signal_came(ends, monkeypatch):
    for rank, said in {"0": "\nhf-video: terminated.\n", "1": ""}.items():
        monkeypatch.setenv("RANK", rank)
        assert ends(lambda: signal.raise_signal(signal.SIGTERM)) == (143, said)


def test_sigterm_ends_a_forked_worker_as_ever(ends):
    codes, fork = [], multiprocessing.get_context("fork")

    def work(is_ready):
        is_ready.set()
        time.sleep(60)

    def body():
        worker = fork.Process(target=work, args=(is_ready := fork.Event(),))
        worker.start()
        is_ready.wait()
        worker.terminate()
        worker.join()
        codes.append(worker.exitcode)

    assert ends(body)[0] == 0
    assert codes == [-signal.SIGTERM]


def test_conversion_ends_as_commands_do(tmp_path, monkeypatch, capsys):
    (tmp_path / "cut.safetensors").write_bytes(b"12")
    words = [str(tmp_path / "cut.safetensors"), str(tmp_path / "out")]

    def convert_cut(arguments):
        with naming(arguments.checkpoint):
            load_file(arguments.checkpoint)

    monkeypatch.setattr(image_vit, "convert", convert_cut)
    with pytest.raises(SafetensorError):
        image_vit.main([*words, "--debug"])
    with pytest.raises(SystemExit) as exit_request:
        image_vit.main(words)
    message = capsys.readouterr().err
    assert exit_request.value.code == 2 and message.count("\n") == 1 and "cut.safetensors" in message


def test_closed_streams_are_no_error(env_runs, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    env_runs(lambda settings: 0)
    assert main(["env"]) == 0
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert main(["predict"]) == 2


HF_VIDEO = [sys.executable, "-m", "hf_video.cli"]


def test_a_name_that_is_not_utf8_is_printed(env_runs, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict"))
    env_runs(lambda settings: print(os.fsdecode(b"caf\xe9.mp4")))
    assert main(["env"]) == 0
    assert sys.stdout.buffer.getvalue() == b"caf\\udce9.mp4\n"


def test_a_reader_that_goes_away_is_no_error():
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([*HF_VIDEO, "models"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_to_a_full_disk_is_a_line():
    with open("/dev/full", "w") as full:
        result = subprocess.run([*HF_VIDEO, "models"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2 and result.stderr.startswith("hf-video: error: ") and result.stderr.count("\n") == 1


def test_no_progress_bar_fills_a_log():
    code = (
        "from hf_video.cli.main import main; main(['models']); from tqdm.auto import tqdm; list(tqdm(range(3), 'Bar'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 0 and "Bar" not in result.stderr, result.stderr
