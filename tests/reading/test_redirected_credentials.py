"""A redirect to another server does not take the credentials of a URL along."""

import threading

import pytest

from hf_video.reading import read_video
from hf_video.reading.frame_streaming import stream_frames
from tests.testing.video_server import Server
from tests.testing.videos import encode_video


@pytest.fixture
def other_server():
    """Another port is another server."""
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("read", [read_video, lambda url: list(stream_frames(url))])
def test_credentials_stay_with_the_server_that_they_are_for(server, other_server, tmp_path, read):
    encode_video(tmp_path / "video.mp4")
    data = (tmp_path / "video.mp4").read_bytes()
    seen = {"first": [], "other": []}

    def move(handler):
        seen["first"].append(handler.headers["Authorization"])
        handler.answer(302, Location=other_server.url("video.mp4"))

    def answer(handler):
        seen["other"].append(handler.headers["Authorization"])
        handler.answer_range(data)

    server.answers["moved.mp4"] = move
    other_server.answers["video.mp4"] = answer
    read(server.url("moved.mp4").replace("http://", "http://me:secret@"))
    assert set(seen["first"]) == {"Basic bWU6c2VjcmV0"}
    assert seen["other"] and set(seen["other"]) == {None}
