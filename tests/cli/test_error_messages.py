"""What other libraries raise is explained in one line: the file or value, and the way out; a bug is not explained."""

import errno
import http.server
import json
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file

from hf_video.cli.error_messages import explain
from hf_video.io import naming, naming_disk_errors


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
    "no such user": (lambda folder: Path("~nosuchuser/videos").expanduser(), ("no such user",)),
    "offline": (offline, ("nosuch/model", "HF_HUB_OFFLINE")),
    "nobody answers": (from_the_hub("http://127.0.0.1:9"), ("nosuch/model", "HF_ENDPOINT")),
    "bad endpoint": (from_the_hub("http://[::1"), ("HF_ENDPOINT",)),
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
