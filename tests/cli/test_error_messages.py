"""Whatever other libraries raise ends a command in one line: the file or value, and the way out."""

import errno
import http.server
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from conversion import image_vit
from hf_video import VideoViTConfig, VideoViTForVideoClassification
from hf_video.cli.main import main
from hf_video.io import naming, naming_disk_errors
from hf_video.processing import VideoClipProcessor

from ..video_files import encode_video

SIDES = {"height": 32, "width": 32}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    sizes = {"num_frames": 4, "image_size": 32, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    VideoViTForVideoClassification(VideoViTConfig(**sizes, num_labels=3)).save_pretrained(folder)
    VideoClipProcessor(num_frames=4, size={"shortest_edge": 32}, crop_size=SIDES).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return encode_video(tmp_path_factory.mktemp("videos") / "video.mp4")


@pytest.fixture
def ends(env_runs, capsys):
    """Runs a command whose body is a function; returns its exit code and the line on stderr."""

    def run(body):
        env_runs(lambda settings: body())
        code = main(["env"])
        message = capsys.readouterr().err
        assert message.count("\n") == 1 and "Traceback" not in message
        return code, message

    return run


def with_fields(name, **values):
    def change(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | values))

    return change


def with_content(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def with_folder(name):
    def change(folder):
        (folder / name).unlink()
        (folder / name).mkdir()

    return change


CONFIG, PROCESSOR, WEIGHTS = "config.json", "video_preprocessor_config.json", "model.safetensors"
DAMAGES = {
    "cut weights": (cut(WEIGHTS, 1000), (WEIGHTS,)),
    "empty weights": (cut(WEIGHTS, 0), (WEIGHTS,)),
    "weights without their end": (cut(WEIGHTS, -8), (WEIGHTS,)),
    "weights of noise": (with_content(WEIGHTS, b"\xff" * 4000), (WEIGHTS,)),
    "a folder for weights": (with_folder(WEIGHTS), (WEIGHTS,)),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), (WEIGHTS,)),
    "empty configuration": (with_content(CONFIG, b""), (CONFIG,)),
    "half a configuration": (cut(CONFIG, 200), (CONFIG,)),
    "configuration not in UTF-8": (with_content(CONFIG, b'{"a": "\xff"}'), (CONFIG,)),
    "deep configuration": (with_content(CONFIG, b"[" * 100_000), (CONFIG,)),
    "a list for a configuration": (with_content(CONFIG, b"[]"), (CONFIG, "list")),
    "a number for a configuration": (with_content(CONFIG, b"3"), (CONFIG, "int")),
    "a folder for a configuration": (with_folder(CONFIG), (CONFIG,)),
    "text for a number": (with_fields(CONFIG, hidden_size="24"), (CONFIG, "hidden_size", "'24'")),
    "null for a number": (with_fields(CONFIG, num_hidden_layers=None), (CONFIG, "num_hidden_layers", "None")),
    "object for a number": (with_fields(CONFIG, tubelet_size={}), (CONFIG, "tubelet_size", "{}")),
    "text for a rate": (with_fields(CONFIG, drop_path_rate="no"), (CONFIG, "drop_path_rate", "'no'")),
    "0 heads": (with_fields(CONFIG, num_attention_heads=0), (CONFIG, "num_attention_heads")),
    "three sides": (with_fields(CONFIG, image_size=[1, 2, 3]), (CONFIG, "image_size", "[1, 2, 3]")),
    "unknown activation": (with_fields(CONFIG, hidden_act="nope"), (CONFIG, "hidden_act", "nope")),
    "list of labels": (with_fields(CONFIG, id2label=["a"]), (CONFIG,)),
    "labels of text": (with_fields(CONFIG, id2label={"a": "b"}), (CONFIG, "'a'")),
    "unknown model type": (with_fields(CONFIG, model_type="nope"), (CONFIG, "nope")),
    "number for a map": (with_fields(CONFIG, auto_map=3), (CONFIG,)),
    "crop of text": (with_fields(PROCESSOR, crop_size="x"), (PROCESSOR, "x")),
    "frames of text": (with_fields(PROCESSOR, num_frames="x"), ("num_frames", "'x'")),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_model_folder_is_a_line_that_names_the_file(case, model_folder, video, tmp_path, fails):
    change, expected = DAMAGES[case]
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    change(folder)
    message = fails("predict", video, "--model", folder, "--device", "cpu").splitlines()[-1]
    assert message.startswith("hf-video: error: ")
    for part in expected:
        assert part in message


def test_a_sound_model_folder_loads(model_folder, video, capsys):
    assert main(["predict", video, "--model", str(model_folder), "--device", "cpu"]) == 0


def cut_torch_file(folder):
    torch.save({"a": torch.ones(100)}, folder / "optimizer.pt")
    cut("optimizer.pt", 300)(folder)
    with naming(folder / "optimizer.pt"):
        torch.load(folder / "optimizer.pt", weights_only=True)


def other_torch_file(folder):
    (folder / "rng_state.pth").write_bytes(b"no pickle at all")
    with naming(folder / "rng_state.pth"):
        torch.load(folder / "rng_state.pth", weights_only=True)


def empty_torch_file(folder):
    (folder / "scheduler.pt").write_bytes(b"")
    with naming(folder / "scheduler.pt"):
        torch.load(folder / "scheduler.pt", weights_only=True)


def cut_tensors(folder):
    (folder / "a.safetensors").write_bytes(b"12")
    with naming(folder / "a.safetensors"):
        load_file(folder / "a.safetensors")


def deep_json(folder):
    (folder / "deep.json").write_text("[" * 100_000)
    with naming(folder / "deep.json"):
        json.loads((folder / "deep.json").read_text())


def other_encoding(folder):
    (folder / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    with naming(folder / "latin.txt"):
        (folder / "latin.txt").read_text(encoding="utf-8")


def full_disk(number):
    def write(folder):
        with naming_disk_errors(folder / "report.txt"):
            raise OSError(number, os.strerror(number))

    return write


def missing_file(folder):
    open(folder / "missing.txt")


def denied(folder):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder / "secret"))


def too_much_memory(folder):
    torch.empty(2**55)


def too_much_python_memory(folder):
    bytearray(2**62)


def too_much_accelerator_memory(folder):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...\nmore lines")


class Deadly(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


class Failing(Deadly):
    def __getitem__(self, index):
        raise self.error


def killed_worker(folder):
    next(iter(torch.utils.data.DataLoader(Deadly(), num_workers=1)))


def failing_worker(error):
    def read(folder):
        dataset = Failing()
        dataset.error = error
        next(iter(torch.utils.data.DataLoader(dataset, num_workers=1)))

    return read


def killed_pool(folder):
    with ProcessPoolExecutor(1) as pool:
        pool.submit(os.kill, 0, 0)
        pool.submit(os._exit, 1).result()


def no_such_user(folder):
    Path("~nosuchuser/videos").expanduser()


def offline(folder):
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        with naming("nosuch/model"):
            huggingface_hub.hf_hub_download("nosuch/model", "config.json", cache_dir=folder)
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = False


def nobody_answers(folder):
    with naming("nosuch/model"):
        huggingface_hub.HfApi(endpoint="http://127.0.0.1:9").model_info("nosuch/model")


def bad_endpoint(folder):
    huggingface_hub.HfApi(endpoint="http://[::1").model_info("nosuch/model")


ERRORS = {
    "cut optimizer": (cut_torch_file, ("optimizer.pt", "cut off")),
    "other file of torch": (other_torch_file, ("rng_state.pth", "cut off")),
    "empty file of torch": (empty_torch_file, ("scheduler.pt", "cut off")),
    "cut safetensors": (cut_tensors, ("a.safetensors", "cut off")),
    "deep JSON": (deep_json, ("deep.json", "recursion")),
    "other encoding": (other_encoding, ("latin.txt", "utf-8")),
    "ENOSPC": (full_disk(errno.ENOSPC), ("report.txt", "No space left", "make room", "are unchanged")),
    "EDQUOT": (full_disk(errno.EDQUOT), ("report.txt", "make room")),
    "EFBIG": (full_disk(errno.EFBIG), ("report.txt", "make room")),
    "missing file": (missing_file, ("missing.txt: No such file",)),
    "permission": (denied, ("secret: Permission denied",)),
    "memory": (too_much_memory, ("Memory was not enough", "--batch-size")),
    "memory of Python": (too_much_python_memory, ("Memory was not enough", "--batch-size")),
    "memory of an accelerator": (too_much_accelerator_memory, ("accelerator", "2.00 GiB", "--batch-size")),
    "killed worker": (killed_worker, ("pid ", "killed by signal: Killed", "memory", "--num-workers")),
    "memory of a worker": (failing_worker(MemoryError("no more")), ("Memory was not enough", "--num-workers")),
    "mistake in a worker": (failing_worker(ValueError("clip 3 is bad")), ("error: clip 3 is bad",)),
    "killed pool": (killed_pool, ("A process that reads videos died", "--num-workers")),
    "no such user": (no_such_user, ("no such user",)),
    "offline": (offline, ("nosuch/model", "HF_HUB_OFFLINE")),
    "nobody answers": (nobody_answers, ("nosuch/model", "does not answer", "HF_ENDPOINT")),
    "bad endpoint": (bad_endpoint, ("address is not valid", "HF_ENDPOINT")),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_a_user_can_cause_is_a_line(case, tmp_path, ends):
    body, expected = ERRORS[case]
    code, message = ends(lambda: body(tmp_path))
    assert code == 2 and message.startswith("hf-video: error: ")
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "GatedRepo", "is gated on the Hub"),
        (404, "RepoNotFound", "nor a repository on the Hub that you can see"),
        (404, "RevisionNotFound", "has no such revision"),
        (400, "", "The Hub refused a request"),
    ],
)
def test_what_the_hub_refuses_is_a_line(status, code, expected, ends):
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
        api = huggingface_hub.HfApi(endpoint=f"http://127.0.0.1:{server.server_port}")

        def body():
            with naming("someone/private"):
                api.model_info("someone/private")

        exit_code, message = ends(body)
        server.shutdown()
    assert exit_code == 2 and "someone/private" in message and expected in message


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a bug"), RecursionError("too deep"), KeyError("x")])
def test_what_no_file_explains_is_a_bug_but_for_memory(error, ends):
    def body():
        raise error

    code, message = ends(body)
    assert code == (2 if isinstance(error, MemoryError) else 70)
    assert ("This is a bug of hf-video" in message) == (code == 70)


@pytest.mark.parametrize("with_debug", [False, True])
def test_conversion_ends_as_commands_do(with_debug, tmp_path, monkeypatch, capsys):
    (tmp_path / "cut.safetensors").write_bytes(b"12")
    words = [str(tmp_path / "cut.safetensors"), str(tmp_path / "out")]

    def convert_cut(arguments):
        with naming(arguments.checkpoint):
            load_file(arguments.checkpoint)

    for module in (image_vit, importlib.import_module("hf_video.conversion.image_vit")):
        monkeypatch.setattr(module, "convert", convert_cut)
    if with_debug:
        with pytest.raises(SafetensorError):
            image_vit.main([*words, "--debug"])
        with pytest.raises(SafetensorError):
            main(["convert", "--debug", "image_vit", *words])
        return
    for convert in (image_vit.main, lambda words: sys.exit(main(["convert", "image_vit", *words]))):
        with pytest.raises(SystemExit) as exit_request:
            convert(words)
        message = capsys.readouterr().err
        assert exit_request.value.code == 2
        assert message.count("\n") == 1 and "cut.safetensors cannot be read" in message


def test_a_name_that_is_not_utf8_is_printed(model_folder, video, tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.mp4"
    shutil.copy(video, name)
    command = [sys.executable, "-m", "hf_video.cli", "predict", name, "--model", model_folder, "--device", "cpu"]
    result = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"})
    assert result.returncode == 0, result.stderr
    assert b"caf\\udce9.mp4" in result.stdout


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ("env", {"PYTHONUNBUFFERED": "1"}),
        pytest.param("env", {}, marks=pytest.mark.slow),
        pytest.param("predict", {}, marks=pytest.mark.slow),
        pytest.param("predict", {"PYTHONUNBUFFERED": "1"}, marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_goes_away_is_no_error(command, environment, model_folder, video):
    read, write = os.pipe()
    os.close(read)
    words = {"env": [], "predict": [video, "--model", str(model_folder), "--device", "cpu"]}[command]
    result = subprocess.run(
        [sys.executable, "-m", "hf_video.cli", command, *words],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    os.close(write)
    assert result.returncode == 141
    assert not {"Traceback", "Broken", "Exception", "hf-video"} & set(result.stderr.replace(":", " ").split())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_to_a_full_disk_is_a_line():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "hf_video.cli", "env"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 2
    assert (
        result.stderr.startswith("hf-video: error: The output could not be written") and "\n" not in result.stderr[:-1]
    )


@pytest.mark.parametrize("variables", [{"COLUMNS": "1"}, {"COLUMNS": "-3"}, {"COLUMNS": "x"}, {"NO_COLOR": "1"}])
@pytest.mark.parametrize("command", [[], ["train"], ["watch"], ["convert"]])
def test_help_fits_any_terminal(command, variables, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main([*command, "--help"]) == 0
    assert "usage: hf-video" in capsys.readouterr().out


def test_closed_streams_are_no_error(env_runs, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    env_runs(lambda settings: 0)
    assert main(["env"]) == 0
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert main(["predict"]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:7601. This is typically caused by",
        "Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting",
        "NCCL error: remote process exited or there was a network error",
    ],
)
def test_a_process_that_lost_another_one_does_not_report_a_bug(ends, text):
    def body():
        raise RuntimeError(text)

    code, message = ends(body)
    assert code == 2 and "Another process of this training has ended or cannot be reached" in message


def test_a_bug_in_the_handling_of_an_error_is_a_bug(ends):
    def body():
        try:
            raise ValueError("a mistake of the user")
        except ValueError:
            {}["x"]

    assert ends(body)[0] == 70
