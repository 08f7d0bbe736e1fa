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


def wait_until_empty(server):
    deadline = time.monotonic() + 60
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
def test_nothing_is_left_when_the_server_ends(visit, videos, models, tmp_path, number, code):
    server = AppServer([models["colours"]], tmp_path)
    try:
        page = visit(server)
        assert not page["model"].is_visible()  # there is no choice
        page.choose(videos["red"])
        page.press("classify")
        assert page.wait_until(page.classes)[0] == "red"
        assert server.files()
        page.close()
    finally:
        ended = server.stop(number)
    assert ended == code
    assert server.files() == []


def test_a_file_that_is_too_large_is_refused(visit, videos, tmp_path):
    large = tmp_path / "large.mp4"
    large.write_bytes(bytes(2**20 + 1))
    page = visit()
    page.choose(large, is_taken=False)
    page.wait_until(lambda: "large.mp4" in page.message() and "1 MB" in page.message())
    page.choose(videos["red"])
    page.press("classify")
    assert page.wait_until(page.classes)[0] == "red"


def test_the_server_refuses_what_a_browser_sends_all_the_same(visit, server):
    wait_until_empty(server)
    page = visit()
    page.expected = "413"
    assert page.page.evaluate(SEND_TWO_MEGABYTES) == 413
    assert server.files() == []
