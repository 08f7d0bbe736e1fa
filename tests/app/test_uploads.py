"""Files of users: how large they may be, and that nothing of them is left."""

import signal
import time
from pathlib import Path

import pytest

from .app_server import AppServer

pytestmark = pytest.mark.extras

SEND_TWO_MEGABYTES = """async () => {
  const form = new FormData();
  form.append("files", new File([new Uint8Array(2 ** 21)], "large.mp4"));
  return (await fetch("/gradio_api/upload", { method: "POST", body: form })).status;
}"""


@pytest.fixture
def start(models, tmp_path):
    """Starts an app of its own."""
    servers = []

    def start_app(*options):
        servers.append(AppServer([models["colours"]], tmp_path / str(len(servers)), *options))
        return servers[-1]

    yield start_app
    for server in servers:
        server.stop()


def wait_until_empty(server):
    deadline = time.monotonic() + 20
    while server.files() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert server.files() == []


def test_files_of_a_user_go_with_the_page(visit, videos, server):
    wait_until_empty(server)  # of the pages of other tests
    page = visit()
    page.choose(videos["both"])
    page.press("explain")
    page.wait_until(lambda: page.video_width("heat-map"))
    assert {"both.mp4"} < {Path(file).name for file in server.files()}
    page.close()
    wait_until_empty(server)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left_when_the_server_ends(visit, videos, start, number, code):
    server = start()
    page = visit(server)
    page.choose(videos["red"])
    page.press("classify")
    page.wait_until(page.classes)
    assert server.files()
    page.close()
    assert server.stop(number) == code
    assert server.files() == []


def test_a_file_that_is_too_large_is_refused(visit, videos, start, tmp_path):
    large = tmp_path / "large.mp4"
    large.write_bytes(bytes(2**20 + 1))
    server = start("--max-upload", "1")
    page = visit(server)
    page.choose(large, is_taken=False)
    page.wait_until(lambda: "large.mp4" in page.message() and "1 MB" in page.message())
    page.choose(videos["red"])
    page.press("classify")
    assert page.wait_until(page.classes)[0] == "red"


def test_the_server_refuses_what_a_browser_sends_all_the_same(visit, start):
    server = start("--max-upload", "1")
    page = visit(server)
    page.expected = "413"
    assert page.page.evaluate(SEND_TWO_MEGABYTES) == 413
    assert server.files() == []
