"""Which addresses are fetched, and what is left of a video that is not whole."""

import http.server
import socket
import threading
from contextlib import suppress
from itertools import pairwise

import pytest

from hf_video.app import addresses
from hf_video.app.addresses import MEGABYTE, check_address, fetch_video, is_public
from hf_video.app.visitors import Cancelled, Ticket
from hf_video.reading import VideoReadError

CONTENT = bytes(range(256)) * 4 * 3 * 1024  # 3 MB


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        port = self.server.server_address[1]
        ways = {"/away": f"http://127.0.0.2:{port}/clip.mp4", "/here": "clip.mp4", "/file": "file:///etc/hostname"}
        if self.path in ways:
            self.send_response(302)
            self.send_header("Location", ways[self.path])
            self.end_headers()
            return
        self.server.hosts.append(self.headers["Host"])
        self.send_response(200)
        self.end_headers()
        with suppress(ConnectionError):  # a client that has enough goes away
            self.wfile.write(CONTENT)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def server():
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    server.hosts = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def fetch(server, tmp_path):
    """Fetches a path of the server into a folder of its own."""

    def fetch_path(path, host="127.0.0.1", max_size=4 * MEGABYTE, only_public=False, ticket=None):
        folder = tmp_path / "fetched"
        folder.mkdir()
        url = f"http://{host}:{server.server_address[1]}{path}"
        return fetch_video(url, folder, max_size, only_public, ticket or Ticket(None, "model"))

    return fetch_path


@pytest.mark.parametrize(
    "text",
    ["", "clip.mp4", "/etc/passwd", "~/clip.mp4", "C:\\clip.mp4", "file:///etc/passwd", "ftp://server/clip.mp4"]
    + ["rtsp://camera/1", "http://", "https:///clip.mp4", "data:video/mp4;base64,AAAA", "http://[::1/x", "concat:a|b"],
)
def test_only_http_is_an_address(text):
    with pytest.raises(ValueError, match="^This is no address of a video: it begins with http://"):
        check_address(text)


def test_http_and_https_are_addresses():
    for url in ("http://server/clip.mp4", "https://server:8443/clip?key=1", "HTTP://SERVER"):
        check_address(url)


@pytest.mark.parametrize(
    "address, expected",
    [("93.184.216.34", True), ("2606:2800:220:1:248:1893:25c8:1946", True)]
    + [(each, False) for each in ("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1")]
    + [
        (each, False)
        for each in ("169.254.169.254", "224.0.0.1", "255.255.255.255", "::1", "::", "fd00::1", "ff02::1")
    ]
    + [(each, False) for each in ("fe80::1%eth0", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "2002:7f00:1::")]
    + [(each, False) for each in ("64:ff9b::10.0.0.1", "64:ff9b:1::a00:1", "::127.0.0.1", "fec0::1")],
)
def test_addresses_of_the_internet(address, expected):
    assert is_public(address) is expected


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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"])
def test_a_private_machine_is_refused(fetch, server, host):
    server.hosts.clear()
    with pytest.raises(VideoReadError, match="is a machine of a private network"):
        list(fetch("/clip.mp4", host, only_public=True))
    assert server.hosts == []


def test_a_redirect_to_a_private_machine_is_refused(fetch, server, monkeypatch):
    """127.0.0.1 stands for a machine of the internet."""
    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.1")
    server.hosts.clear()
    with pytest.raises(VideoReadError, match="127.0.0.2 is a machine of a private network"):
        list(fetch("/away", only_public=True))
    assert server.hosts == []


def test_a_name_is_looked_up_once_and_told_to_the_server(fetch, server, monkeypatch):
    """A name that stands for a public address at the first look, and for another one at the next."""
    looks, look_up = iter(["127.0.0.1", "127.0.0.2"]), socket.getaddrinfo

    def getaddrinfo(host, *arguments, **options):
        return look_up(next(looks) if host == "video.example" else host, *arguments, **options)

    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.1")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    server.hosts.clear()
    *_, file = fetch("/clip.mp4", "video.example", only_public=True)
    assert file.read_bytes() == CONTENT
    assert server.hosts == [f"video.example:{server.server_address[1]}"]


def test_a_redirect_on_a_public_machine_is_followed(fetch, monkeypatch):
    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.1")
    *_, file = fetch("/here", only_public=True)
    assert file.read_bytes() == CONTENT


def test_a_redirect_to_a_file_is_refused(fetch):
    with pytest.raises(VideoReadError, match="is no valid address"):
        list(fetch("/file"))
