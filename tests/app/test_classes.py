"""A file, an address or the camera comes in, and its class comes out."""

import functools
import http.server
import threading
from pathlib import Path

import pytest

from ..video_files import cut_file
from .colour_models import write_colours

pytestmark = pytest.mark.extras


def first_class(visit):
    """The class that is on top, once there is one."""
    return visit.wait_until(lambda: visit.classes())[0]


def test_a_dropped_file_gets_its_class(visit, videos):
    for colour in ("red", "blue"):
        page = visit()
        page.drop(videos[colour])
        page.press("classify")
        assert first_class(page) == colour


def test_two_users_have_each_their_own_results(visit, videos):
    pages = {colour: visit() for colour in ("red", "blue")}
    for colour, page in pages.items():
        page.choose(videos[colour])
    for page in pages.values():
        page.press("classify")
    for colour, page in pages.items():
        assert first_class(page) == colour
    pages["blue"].press("find-segments")
    pages["blue"].wait_until(lambda: [segment.label for segment in pages["blue"].segments()] == ["blue"])
    assert first_class(pages["red"]) == "red"


def test_a_broken_file_is_one_sentence_and_the_page_goes_on(visit, videos, tmp_path):
    whole = write_colours(tmp_path / "holiday.mp4", "red")
    broken, text = Path(cut_file(whole, 0.3)), tmp_path / "letter.mp4"
    text.write_text("Dear all, this is no video." * 100)
    page = visit()
    for file in (broken, text):
        page.choose(file)
        page.press("classify")
        sentence = page.wait_until(lambda name=file.name: name in page.message() and page.message())
        assert "\n" not in sentence and sentence.endswith(".") and "Traceback" not in sentence
        page.clear()
    page.choose(videos["blue"])
    page.press("classify")
    assert first_class(page) == "blue"


# What the recorder of a busy machine does: it gives nothing until it is stopped.
GIVE_LATE = """() => {
  const { start } = MediaRecorder.prototype;
  MediaRecorder.prototype.start = function () { start.call(this); };
}"""


def test_the_camera_is_recorded_and_classified(visit):
    page = visit()
    page.page.evaluate(GIVE_LATE)
    page.record(frames=20)
    page.press("classify")
    assert first_class(page) in ("red", "blue")


@pytest.fixture
def address(tmp_path):
    """Of a server on this machine with red.mp4."""
    write_colours(tmp_path / "red.mp4", "red")
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


def test_an_address_is_read(visit, address):
    page = visit()
    page.open_address(f"{address}/red.mp4")
    page.wait_until(lambda: page.video_width("video"))
    page.press("classify")
    assert first_class(page) == "red"
    page.open_address(f"{address}/green.mp4")
    page.wait_until(lambda: "404" in page.message())


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "/etc/passwd", "ftp://127.0.0.1/red.mp4", "rtsp://127.0.0.1/"]
)
def test_an_address_that_is_no_web_address_is_refused(visit, address):
    page = visit()
    page.open_address(address)
    page.wait_until(lambda: "http://" in page.message())
    assert not page.classes()
