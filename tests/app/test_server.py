"""Who is answered, and what is left of a page."""

import signal
import urllib.error
import urllib.request

import pytest

from hf_video.app.server import is_loopback

from .app_server import AppServer


def test_which_hosts_are_this_machine():
    hosts = {"localhost": True, "127.0.0.2": True, "::1": True, "0.0.0.0": False, "evil.example": False}
    assert {host: is_loopback(host) for host in hosts} == hosts


SEND_TWO_MEGABYTES = """async () => {
  const form = new FormData();
  form.append("files", new File([new Uint8Array(2 ** 21)], "large.mp4"));
  return (await fetch("/gradio_api/upload", { method: "POST", body: form })).status;
}"""


@pytest.mark.extras
def test_a_name_that_was_pointed_at_this_machine_is_refused(server):
    for host, status in (("localhost", 200), ("127.0.0.1", 200), ("evil.example", 400), ("192.168.1.5", 400)):
        request = urllib.request.Request(server.address, headers={"Host": host})
        try:
            with urllib.request.urlopen(request) as answer:
                found = answer.status
        except urllib.error.HTTPError as error:
            found = error.code
        assert found == status, host


@pytest.mark.extras
def test_a_file_that_is_too_large_is_refused(visit, videos, tmp_path):
    large = tmp_path / "large.mp4"
    large.write_bytes(bytes(2**20 + 1))
    page = visit()
    page.expected = "413"
    page.choose(large, is_taken=False)
    page.page.get_by_test_id("toast-body").wait_for()
    assert page.page.evaluate(SEND_TWO_MEGABYTES) == 413
    page.choose(videos["red"])
    page.press("classify")
    assert page.wait_until(page.classes)[0] == "red"


@pytest.mark.extras
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
