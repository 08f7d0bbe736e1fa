"""`hf-video app` before it serves anything; `tests/app/` tests the page."""

import importlib.util
import socket

import pytest

from hf_video.app.work import name_models
from hf_video.cli import app
from hf_video.cli.signals import Terminated
from tests.app.app_server import free_port


def test_without_gradio_the_way_to_install_it_is_told(fails, tmp_path, monkeypatch):
    (tmp_path / "config.json").touch()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gradio" else find(name))
    assert "pip install 'hf-video-models[app]'" in fails("app", tmp_path)


def test_a_port_that_is_in_use_is_told_before_models_are_loaded(fails, tmp_path, monkeypatch):
    (tmp_path / "config.json").touch()
    pretend_gradio(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        message = fails("app", tmp_path, "--port", port)
    assert f"--port {port} cannot be used (address already in use). Choose another" in message


@pytest.mark.parametrize("host, is_warned", [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_other_machines_are_let_in_only_with_a_warning(trained, monkeypatch, capsys, host, is_warned):
    from hf_video.cli.main import main

    pretend_gradio(monkeypatch)
    served = []
    monkeypatch.setattr("hf_video.app.server.serve", lambda *words, **options: served.append(words))
    assert main(["app", str(trained), "--host", host, "--port", str(free_port()), "--device", "cpu"]) == 0
    ((models, settings),) = served
    assert [model.name for model in models] == ["model"] and len(models[0].class_names) == 8
    assert settings.host == host
    assert ("anybody who reaches port" in capsys.readouterr().err) is is_warned


def test_examples_are_the_videos_in_a_folder(trained, fails, monkeypatch, tmp_path):
    from hf_video.cli.main import main

    pretend_gradio(monkeypatch)
    words = ["app", str(trained), "--port", str(free_port()), "--device", "cpu", "--examples", str(tmp_path)]
    assert f"--examples {tmp_path} is not a folder with videos directly in it." in fails(*words)
    for name in ("b.mp4", "a.avi", "notes.txt"):
        (tmp_path / name).touch()
    served = []
    monkeypatch.setattr("hf_video.app.server.serve", lambda *words, **options: served.append(options["examples"]))
    assert main(words) == 0
    assert served == [[tmp_path / "a.avi", tmp_path / "b.mp4"]]


@pytest.mark.parametrize(("sent", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_ctrl_c_closes_the_page_and_is_no_interruption(trained, monkeypatch, capsys, sent, code):
    from hf_video.cli.main import main

    def serve(*words, **options):
        raise sent

    pretend_gradio(monkeypatch)
    monkeypatch.setattr("hf_video.app.server.serve", serve)
    assert main(["app", str(trained), "--port", str(free_port()), "--device", "cpu"]) == code
    error = capsys.readouterr().err
    assert str(trained) in error and "interrupted" not in error
    assert ("The page is closed" in error) is (sent is KeyboardInterrupt)


def test_models_of_one_name_get_numbers(tmp_path):
    folders = [tmp_path / run / "model" for run in ("first", "second")]
    for folder in folders:
        folder.mkdir(parents=True)
    names = name_models([*map(str, folders), "user/model", str(tmp_path)])
    assert names == ["model (1)", "model (2)", "user/model", tmp_path.name]


def pretend_gradio(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(app.importlib.util, "find_spec", lambda name: name == "gradio" or find(name))
