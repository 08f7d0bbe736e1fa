import threading
from contextlib import contextmanager

import pytest
from huggingface_hub import constants

from hf_video.reading import remote
from tests.testing.video_server import LIMIT, Server


@contextmanager
def running():
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", LIMIT)
    monkeypatch.setattr(remote, "WAITS", (0.02, 0.02))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running() as server:
        yield server


@pytest.fixture
def other_server():
    """Another port is another server."""
    with running() as server:
        yield server
