"""Videos that are fetched by their address, and what is left of one that is not whole."""

import http.server
import threading
from contextlib import suppress
from itertools import pairwise

import pytest

from hf_video.app.visitors import Cancelled, Ticket
from hf_video.app.work import MEGABYTE, fetch_video
from hf_video.reading import VideoReadError

CONTENT = bytes(range(256)) * 4 * 3 * 1024  # 3 MB


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ways = {"/here": "clip.mp4", "/file": "file:///etc/hostname"}
        if self.path in ways:
            self.send_response(302)
            self.send_header("Location", ways[self.path])
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        with suppress(ConnectionError):  # a client that has enough goes away
            self.wfile.write(CONTENT)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def fetch(server, tmp_path):
    """Fetches a path of the server into a folder of its own."""

    def fetch_path(path, max_size=4 * MEGABYTE, ticket=None):
        folder = tmp_path / "fetched"
        folder.mkdir()
        url = f"http://127.0.0.1:{server.server_address[1]}{path}"
        return fetch_video(url, folder, max_size, ticket or Ticket(None, "model"))

    return fetch_path


def test_a_video_is_fetched(fetch):
    *sizes, file = fetch("/clip%20one.mp4?key=secret")
    assert file.name == "clip_one.mp4" and file.read_bytes() == CONTENT
    # The last one falls on the end of the video, if the network cuts it into such pieces.
    assert len(sizes) in (2, 3) and all(later - size >= MEGABYTE for size, later in pairwise([0, *sizes]))


@pytest.mark.parametrize("path, name", [("/", "video"), ("/../..", "video"), ("/a/%2e%2e%2fb.mp4", "b.mp4")])
def test_a_file_has_no_name_outside_of_its_folder(fetch, path, name, tmp_path):
    *_, file = fetch(path)
    assert file == tmp_path / "fetched" / name


def test_a_video_that_is_too_large_leaves_nothing(fetch, tmp_path):
    with pytest.raises(VideoReadError, match="clip.mp4 is larger than 2 MB, the most that this page takes"):
        list(fetch("/clip.mp4", max_size=2 * MEGABYTE))
    assert not list(tmp_path.rglob("*.mp4"))


def test_a_cancelled_video_leaves_nothing(fetch, tmp_path):
    ticket = Ticket(None, "model")
    steps = fetch("/clip.mp4", ticket=ticket)
    next(steps)
    ticket.cancel()
    with pytest.raises(Cancelled):
        list(steps)
    assert not list(tmp_path.rglob("*.mp4"))


def test_a_redirect_to_a_file_is_refused(fetch):
    with pytest.raises(VideoReadError, match="is not a valid address"):
        list(fetch("/file"))


def test_a_redirect_is_followed(fetch):
    *_, file = fetch("/here")
    assert file.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "text",
    ["", "clip.mp4", "/etc/passwd", "~/clip.mp4", "C:\\clip.mp4", "file:///etc/passwd", "ftp://server/clip.mp4"]
    + ["rtsp://camera/1", "http://", "https:///clip.mp4", "data:video/mp4;base64,AAAA", "http://[::1/x", "concat:a|b"],
)
def test_only_http_is_an_address(text, tmp_path):
    with pytest.raises(VideoReadError, match="is not a valid address; expected http://HOST/PATH or https://HOST/PATH"):
        list(fetch_video(text, tmp_path, MEGABYTE, Ticket(None, "model")))
