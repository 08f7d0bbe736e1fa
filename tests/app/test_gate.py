"""Which requests reach the page, and what they may leave behind."""

import asyncio
import os
import shutil
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import pytest

gate = pytest.importorskip("hf_video.app.gate", reason="gradio is missing: pip install 'hf-video-models[test-extras]'")
httpx = pytest.importorskip("httpx")
pytestmark = pytest.mark.extras
UPLOAD, JOIN = "/gradio_api/upload", "/gradio_api/queue/join"


@pytest.fixture
def send(tmp_path):
    """The status of the answer to a request, at a server that reads the whole of it."""
    pytest.importorskip("gradio")
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def read(request):
        return PlainTextResponse(str(len(await request.body())))

    def send_request(method, path, only_local=True, host="localhost", **request):
        limits = {"folder": tmp_path, "max_size": 2**21, "only_local": only_local}
        app = Starlette(
            routes=[Route("/{path:path}", read, methods=["GET", "POST"])], middleware=[Middleware(gate.Gate, **limits)]
        )

        async def exchange():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}:7860") as client:
                return (await client.request(method, path, **request)).status_code

        # In a thread of its own: the browser of other tests holds a loop in this one.
        with ThreadPoolExecutor() as pool:
            return pool.submit(asyncio.run, exchange()).result()

    return send_request


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.0.0.2", "[::1]"])
def test_a_page_for_this_machine_answers_at_its_names(send, host):
    assert send("GET", "/", host=host) == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "192.168.1.5", "[::2]", "0.0.0.0"])
def test_a_name_that_was_pointed_at_this_machine_is_refused(send, host):
    assert send("GET", "/", host=host) == 403
    assert send("GET", "/", host=host, only_local=False) == 200


@pytest.mark.parametrize(
    "site, expected", [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_another_site_in_the_browser_sends_nothing(send, site, expected):
    for path in (UPLOAD, JOIN):
        assert send("POST", path, content=b"x", headers={"Sec-Fetch-Site": site}) == expected
    assert send("GET", "/", headers={"Sec-Fetch-Site": site}) == 200  # a link to the page


@pytest.mark.parametrize(
    "path",
    ["process_recording", "component_server", "call/_leave", "call/v2/_leave", "vibe-code", "login", "//upload"],
)
def test_what_the_page_does_not_send_is_refused(send, path):
    assert send("POST", f"/gradio_api/{path}") == 404


@pytest.mark.parametrize("path", ["upload", "queue/join", "queue/join/", "cancel", "reset", "run/predict"])
def test_what_the_page_sends_passes(send, path):
    assert send("POST", f"/gradio_api/{path}") == 200


@pytest.mark.parametrize("is_announced", [True, False])
@pytest.mark.parametrize("path, most", [(UPLOAD, 2**21 + gate.LARGEST_MESSAGE), (JOIN, gate.LARGEST_MESSAGE)])
def test_a_request_has_a_largest_size(send, path, most, is_announced):
    """Many files of a request count together."""

    async def pieces(size):
        for begin in range(0, size, 2**18):
            yield bytes(min(2**18, size - begin))

    for size, expected in ((most, 200), (most + 1, 413)):
        assert send("POST", path, content=bytes(size) if is_announced else pieces(size)) == expected


def test_an_upload_that_was_broken_off_is_removed_later(send, tmp_path):
    left, going_on, whole = tmp_path / "tmp_left", tmp_path / "tmp_going_on", tmp_path / "hash" / "clip.mp4"
    whole.parent.mkdir()
    long_ago = time.time() - gate.UNFINISHED_SECONDS - 1
    for file in (left, going_on, whole):
        file.write_bytes(b"video")
    for file in (left, whole):
        os.utime(file, (long_ago, long_ago))
    assert send("POST", UPLOAD) == 200
    assert not left.exists() and going_on.exists() and whole.exists()


def test_uploads_never_fill_the_disk(send, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2 * 2**21 - 1))
    assert send("POST", UPLOAD) == 507
    assert send("POST", JOIN) == 200
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(2 * 2**21))
    assert send("POST", UPLOAD) == 200
