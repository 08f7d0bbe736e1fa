"""How a command ends: its exit code, and one line on stderr that names the file or value, and the way out."""

import errno
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor

import huggingface_hub
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from conversion import image_vit
from hf_video.cli.errors import explain
from hf_video.cli.main import main
from hf_video.io import naming, naming_disk_errors


@pytest.mark.parametrize("kind", [ValueError, OSError, ImportError])
def test_mistakes_of_the_user_are_one_line_and_a_traceback_on_request(kind, ends):
    assert ends(kind("a wrong value")) == (2, "hf-video: error: a wrong value\n")
    with pytest.raises(kind, match="a wrong value"):
        main(["env", "--debug"])


def test_an_unexpected_error_is_a_line_that_asks_for_a_report(ends):
    code, message = ends(RuntimeError("a bug\nof two lines"))
    assert code == 70 and message.count("\n") == 1
    assert all(part in message for part in ("RuntimeError in ", "a bug of two lines", "--debug", "/issues"))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["env", "--debug"])


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


def explained(body, *arguments):
    """What is said about the error of a function."""
    with pytest.raises(BaseException) as caught:
        body(*arguments)
    said = explain(caught.value)
    assert said is None or "\n" not in said
    return said


def damaged(name, content, read):
    """Reads a file with other content than expected."""

    def body(folder):
        (folder / name).write_bytes(content)
        with naming(folder / name):
            read(folder / name)

    return body


def read_pickle(path):
    torch.load(path, weights_only=True)


def cut_torch_file(folder):
    torch.save({"a": torch.ones(100)}, folder / "optimizer.pt")
    damaged("optimizer.pt", (folder / "optimizer.pt").read_bytes()[:300], read_pickle)(folder)


def full_disk(folder):
    with naming_disk_errors(folder / "report.txt"):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def denied(folder):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder / "secret"))


def too_much_accelerator_memory(folder):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...\nmore lines")


class Deadly(torch.utils.data.Dataset):
    """Its items end their process, or raise the error."""

    def __init__(self, error=None):
        self.error = error

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if self.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise self.error


def of_worker(error=None):
    return lambda folder: next(iter(torch.utils.data.DataLoader(Deadly(error), num_workers=1)))


def killed_pool(folder):
    with ProcessPoolExecutor(1) as pool:
        pool.submit(os._exit, 1).result()


def offline(folder):
    with pytest.MonkeyPatch.context() as patch, naming("nosuch/model"):
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        huggingface_hub.hf_hub_download("nosuch/model", "config.json", cache_dir=folder)


def from_the_hub(endpoint):
    def body(folder):
        with naming("nosuch/model"):
            huggingface_hub.HfApi(endpoint=endpoint).model_info("nosuch/model")

    return body


def lost_process(text):
    def body(folder):
        raise RuntimeError(text)

    return body


ERRORS = {
    "cut optimizer": (cut_torch_file, ("optimizer.pt", "cut off")),
    "no file of torch": (damaged("rng_state.pth", b"no pickle", read_pickle), ("rng_state.pth", "cut off")),
    "empty file of torch": (damaged("scheduler.pt", b"", read_pickle), ("scheduler.pt", "cut off")),
    "cut safetensors": (damaged("a.safetensors", b"12", load_file), ("a.safetensors", "cut off")),
    "deep JSON": (damaged("a.json", b"[" * 100_000, lambda path: json.loads(path.read_text())), ("a.json", "recurs")),
    "other encoding": (damaged("a.txt", b"Gr\xfc", lambda path: path.read_text("utf-8")), ("a.txt", "utf-8")),
    "full disk": (full_disk, ("report.txt", os.strerror(errno.EDQUOT), "make room")),
    "missing file": (lambda folder: open(folder / "missing.txt"), ("missing.txt: No such file",)),
    "permission": (denied, ("secret: Permission denied",)),
    "memory": (lambda folder: torch.empty(2**55), ("--batch-size",)),
    "memory of Python": (lambda folder: bytearray(2**62), ("--batch-size",)),
    "memory of an accelerator": (too_much_accelerator_memory, ("accelerator", "2.00 GiB", "--batch-size")),
    "killed worker": (of_worker(), ("pid ", "killed by signal: Killed", "--num-workers")),
    "memory of a worker": (of_worker(MemoryError("no more")), ("--num-workers",)),
    "mistake in a worker": (of_worker(ValueError("clip 3 is bad")), ("clip 3 is bad",)),
    "killed pool": (killed_pool, ("--num-workers",)),
    "offline": (offline, ("nosuch/model", "HF_HUB_OFFLINE")),
    "nobody answers": (from_the_hub("http://127.0.0.1:9"), ("nosuch/model", "HF_ENDPOINT")),
    "lost process of gloo": (lost_process("[gloo/transport/tcp/pair.cc:561] Connection closed by peer"), ("process",)),
    "lost process of NCCL": (lost_process("NCCL error: remote process exited or there was"), ("process",)),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_a_user_can_cause_is_a_line(case, tmp_path):
    body, expected = ERRORS[case]
    said = explained(body, tmp_path)
    assert all(part in said for part in expected), said


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "GatedRepo", "hf auth login"),
        (404, "RepoNotFound", "nor a repository on the Hub"),
        (404, "RevisionNotFound", "revision"),
        (400, "", "refused"),
    ],
)
def test_what_the_hub_refuses_is_a_line(status, code, expected):
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = explained(from_the_hub(f"http://127.0.0.1:{server.server_port}"), None)
        server.shutdown()
    assert "nosuch/model" in said and expected in said


def bug_while_handling_a_mistake():
    try:
        raise ValueError("a mistake of the user")
    except ValueError:
        {}["x"]


def test_what_no_file_explains_is_a_bug():
    for error in (RuntimeError("a bug"), RecursionError("too deep"), KeyError("x")):
        assert explain(error) is None
    assert explained(bug_while_handling_a_mistake) is None
