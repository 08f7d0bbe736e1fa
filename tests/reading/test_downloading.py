"""Videos of URLs, from a server in this process that answers as it should or stalls, floods, lies and breaks off."""

import gzip
import io
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import enable_progress_bars

from hf_video.reading import VideoReadError, downloading, probe_video, read_video
from hf_video.reading.sources import public_url
from tests.testing.video_server import LIMIT
from tests.testing.videos import encode_video


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return Path(encode_video(tmp_path_factory.mktemp("video") / "video.mp4"))


@pytest.fixture
def refused(server):
    """Reads a URL, which must fail within a few time limits; returns the message, which is one line and names it."""

    def run(name, answer=None):
        if answer is not None:
            server.answers[name] = answer
        start = time.monotonic()
        with pytest.raises(VideoReadError) as error:
            read_video(server.url(name))
        assert time.monotonic() - start < 10 * LIMIT
        message = str(error.value)
        assert message.startswith(f"{server.url(name)} cannot be downloaded") and "\n" not in message
        return message

    return run


def drip(server, handler, pieces, every):
    for piece in pieces:
        if server.ended.wait(every):
            return
        handler.wfile.write(piece)
        handler.wfile.flush()


def endless(piece):
    while True:
        yield piece


def test_urls_are_read_as_files_are(server, video):
    server.answers["video.mp4"] = lambda handler: handler.answer(body=video.read_bytes())
    server.answers["moved.mp4"] = lambda handler: handler.answer(302, Location="/video.mp4?signature=x")
    server.answers["packed.mp4"] = lambda handler: handler.answer(
        body=gzip.compress(video.read_bytes()), Content_Encoding="gzip"
    )
    expected, _ = read_video(video)
    for name in ("video.mp4", "moved.mp4", "packed.mp4"):
        assert np.array_equal(read_video(server.url(name))[0], expected)
    assert probe_video(server.url("video.mp4")).total_num_frames == len(expected)


def test_a_server_that_says_nothing_is_left(server, refused):
    message = refused("silent.mp4", lambda handler: server.ended.wait())
    assert f"for {LIMIT} s" in message and "HF_HUB_DOWNLOAD_TIMEOUT=SECONDS" in message


def test_a_server_that_stops_midway_is_left(server, refused):
    def answer(handler):
        handler.answer(body=b"x" * 1000, Content_Length="2000")
        server.ended.wait()

    assert "the server sent nothing" in refused("stalled.mp4", answer)


def test_a_server_that_lets_bytes_drip_is_left(server, refused):
    def answer(handler):
        handler.answer(Content_Length="2000")
        drip(server, handler, endless(b"x"), LIMIT / 8)

    assert "or next to nothing" in refused("drip.mp4", answer)


def test_a_slow_server_is_waited_for(server, video):
    data = video.read_bytes()
    step = -(-len(data) // 8)
    assert step > 2 * downloading.SLOWEST_RATE * LIMIT / 4

    def answer(handler):
        handler.answer(Content_Length=str(len(data)))
        drip(server, handler, [data[i : i + step] for i in range(0, len(data), step)], LIMIT / 4)

    server.answers["slow.mp4"] = answer
    start = time.monotonic()
    assert np.array_equal(read_video(server.url("slow.mp4"))[0], read_video(video)[0])
    assert time.monotonic() - start > LIMIT


def test_a_stated_size_beyond_the_limit_is_refused_at_once(server, refused, monkeypatch):
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", "1000")

    def answer(handler):
        handler.answer(Content_Length="1001")
        server.ended.wait()

    message = refused("large.mp4", answer)
    assert "it is larger than 1,000 bytes. Allow more with HF_VIDEO_MAX_DOWNLOAD_SIZE=BYTES" in message


def test_a_video_of_just_the_allowed_size_is_read(server, video, monkeypatch):
    server.answers["video.mp4"] = lambda handler: handler.answer(body=video.read_bytes())
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", str(video.stat().st_size))
    read_video(server.url("video.mp4"))
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", str(video.stat().st_size - 1))
    with pytest.raises(VideoReadError, match="it is larger than"):
        read_video(server.url("video.mp4"))


def bomb():
    """gzip that inflates without end, a thousand times what is sent."""
    packer = zlib.compressobj(wbits=31)
    while True:
        yield packer.compress(bytes(2**20)) + packer.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize(
    ("headers", "pieces"), [({}, lambda: endless(bytes(2**16))), ({"Content_Encoding": "gzip"}, bomb)]
)
def test_a_body_without_end_is_cut_at_the_limit(server, refused, monkeypatch, headers, pieces):
    limit = 8 * 2**20
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", str(limit))
    written = []

    class Recording(io.BytesIO):
        def write(self, piece):
            written.append(len(piece))
            return super().write(piece)

    monkeypatch.setattr(downloading.io, "BytesIO", Recording)

    def answer(handler):
        handler.answer(Content_Length=None, **headers)
        for piece in pieces():
            handler.wfile.write(piece)

    assert "it is larger than" in refused("flood.mp4", answer)
    assert 0 < sum(written) <= limit


def test_the_body_of_a_redirect_is_not_read(server, video):
    def answer(handler):
        handler.answer(302, Location="/video.mp4", Content_Length=None)
        for piece in endless(bytes(2**16)):
            handler.wfile.write(piece)

    server.answers["redirect.mp4"] = answer
    server.answers["video.mp4"] = lambda handler: handler.answer(body=video.read_bytes())
    assert len(read_video(server.url("redirect.mp4"))[0]) == 60


def test_redirects_in_a_circle_are_left(refused):
    message = refused("round.mp4", lambda handler: handler.answer(302, Location="/round.mp4"))
    assert "redirects more than 20 times" in message


@pytest.mark.parametrize("location", ["file:///etc/hostname", "ftp://127.0.0.1/x", "http://[::1"])
def test_a_redirect_leads_to_the_web_only(server, location):
    server.answers["away.mp4"] = lambda handler: handler.answer(302, Location=location)
    address = server.url("away.mp4")
    with pytest.raises(VideoReadError, match=f"{address} (is not a valid address|cannot be downloaded)"):
        read_video(address)


@pytest.mark.parametrize("status", [401, 403, 404, 410, 500, 503])
def test_a_refusal_is_told_with_its_status(refused, status):
    message = refused("none.mp4", lambda handler: handler.answer(status))
    assert f"the server answers {status} " in message and "give its path" in message


@pytest.mark.parametrize(
    "headers", [{"Content_Length": "2000"}, {"Transfer_Encoding": "chunked", "Content_Length": None}]
)
def test_a_body_that_breaks_off_is_no_video(refused, headers):
    assert "give the path of a file" in refused("cut.mp4", lambda handler: handler.answer(body=b"3e8\r\nx", **headers))


def test_a_body_that_is_no_gzip_is_explained(refused):
    refused("odd.mp4", lambda handler: handler.answer(body=b"no gzip", Content_Encoding="gzip"))


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "https://",
        "http://[::1",
        "http://a b/c.mp4",
        "http://..",
        "http://h:p/x.mp4",
        "http://127.0.0.1:99999/x.mp4",
        f"http://{'a' * 300}.org/x.mp4",
        "http://a\0b/x.mp4",
        "http://nosuchhost.invalid/x.mp4",
        "http://127.0.0.1:1/x.mp4",
    ],
)
def test_addresses_that_lead_nowhere_are_named(url):
    with pytest.raises(VideoReadError) as error:
        read_video(url)
    message = str(error.value)
    assert message.startswith(public_url(url)) and len(message) < 500
    assert "is not a valid address; expected http://HOST/PATH" in message or "give the path of a file" in message


@pytest.mark.parametrize(
    "url",
    [
        "http://{}127.0.0.1:1/x.mp4",
        "http://{}[::1/x.mp4",
        "http://{}nosuchhost.invalid/x.mp4?key=hunter2&v=1",
    ],
)
@pytest.mark.parametrize("user", ["hunter2@", "me:hunter2@", "me:x/hunter2@", ""])
def test_credentials_are_not_repeated(url, user):
    with pytest.raises(VideoReadError) as error:
        read_video(url.format(user))
    assert "hunter2" not in str(error.value) and "@" not in str(error.value)


def test_credentials_are_not_repeated_of_what_is_no_video(server):
    server.answers["x.mp4"] = lambda handler: handler.answer(body=b"text")
    url = server.url("x.mp4").replace("http://", "http://me:hunter2@")
    with pytest.raises(VideoReadError) as error:
        read_video(f"{url}?token=hunter2")
    assert str(error.value).startswith(f"{server.url('x.mp4')}?...") and "hunter2" not in str(error.value)


def test_a_signed_in_request_sends_its_credentials(server, video):
    seen = []

    def answer(handler):
        seen.append(handler.headers["Authorization"])
        handler.answer(body=video.read_bytes())

    server.answers["video.mp4"] = answer
    read_video(server.url("video.mp4").replace("http://", "http://me:secret@"))
    assert seen == ["Basic bWU6c2VjcmV0"]


def test_offline_mode_is_named(server, refused, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "in offline mode. Unset HF_HUB_OFFLINE" in refused("video.mp4")


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_size_limit_that_is_none_is_refused(monkeypatch, value):
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", value)
    with pytest.raises(ValueError, match=f"HF_VIDEO_MAX_DOWNLOAD_SIZE='{value}' must be a positive number of bytes"):
        read_video("http://127.0.0.1:1/x.mp4")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "moment", "shown"), [(Terminal, 0, True), (Terminal, 60, False), (io.StringIO, 0, False)]
)
def test_progress_is_shown_on_a_terminal_of_what_takes_time(server, video, monkeypatch, stream, moment, shown):
    # A training in this process switches the progress bars of huggingface_hub off.
    enable_progress_bars()
    monkeypatch.setattr("sys.stderr", stream())
    monkeypatch.setattr(downloading, "UNSHOWN_SECONDS", moment)
    server.answers["video.mp4"] = lambda handler: handler.answer(body=video.read_bytes())
    read_video(server.url("video.mp4"))
    assert ("video.mp4: 100%" in sys.stderr.getvalue()) == shown
    assert bool(sys.stderr.getvalue()) == shown
