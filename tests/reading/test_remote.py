"""Videos of URLs: from a server that answers as it should, stalls, floods, lies and breaks off, and from fsspec."""

import gzip
import time
import zlib
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile
from huggingface_hub import constants

from hf_video.reading import VideoReadError, probe_video, read_video, remote
from hf_video.reading.frame_streaming import stream_frames
from hf_video.reading.sources import public_url
from tests.testing.video_server import LIMIT
from tests.testing.videos import H264, cut_file, encode_video, make_frames

FRAMES = {"dense": np.arange(130, 160, 2), "uniform": np.linspace(0, 239, 4).astype(int), "first": np.array([0])}
# Groups of pictures lie further apart than what is fetched along, as in long videos.
OPTIONS = H264 | {"g": "12", "qp": "28"}
NO_HOST = "http://127.0.0.1:1/x.mp4"


@pytest.fixture(scope="module")
def frames():
    noise = np.random.default_rng(0).integers(0, 128, (240, 120, 160, 3), dtype=np.uint8)
    return make_frames(240, 120, 160) // 2 + noise


@pytest.fixture(scope="module")
def path(tmp_path_factory, frames):
    return encode_video(tmp_path_factory.mktemp("video") / "video.mp4", frames, codec_options=OPTIONS)


@pytest.fixture(scope="module")
def data(path):
    return Path(path).read_bytes()


@pytest.fixture(autouse=True)
def as_of_a_long_video(monkeypatch):
    monkeypatch.setattr(remote, "FIRST_SIZE", 2**16)
    monkeypatch.setattr(remote, "SMALL_FILE", 0)
    monkeypatch.setattr(remote, "_PIECES", (2**14, 2**20))


def read(video, indices):
    return read_video(video, lambda metadata: np.array(indices) % metadata.total_num_frames)


def check(url, path, indices):
    """Frames and metadata of a URL are those of the file."""
    (frames, metadata), (expected, expected_metadata) = read(url, indices), read(path, indices)
    assert np.array_equal(frames, expected) and metadata == expected_metadata


def refuse(url):
    """The message of the error, which comes within a few time limits, is one line and names the video."""
    start = time.monotonic()
    with pytest.raises(VideoReadError) as error:
        read_video(url, lambda metadata: FRAMES["dense"])
    assert time.monotonic() - start < 25 * LIMIT
    message = str(error.value)
    assert message.startswith(public_url(url)) and "\n" not in message
    return message


def answer_once(server, data, then):
    """The answers of a server that gives one range, and from then on does something else."""

    def answer(handler):
        if len(server.ranges) < 1:
            handler.answer_range(data)
        else:
            then(handler)

    return answer


READERS = [lambda url: read(url, FRAMES["dense"]), lambda url: list(stream_frames(url))]


def drip(server, handler, pieces, every):
    for piece in pieces:
        if server.ended.wait(every):
            return
        handler.wfile.write(piece)
        handler.wfile.flush()


def endless(piece):
    while True:
        yield piece


@pytest.mark.parametrize(("name", "share", "requests"), [("dense", 0.3, 6), ("uniform", 0.4, 9), ("first", 0.15, 4)])
@pytest.mark.parametrize("is_fast_start", [False, True])
def test_only_what_the_frames_need_is_fetched(
    server, path, frames, data, tmp_path, name, share, requests, is_fast_start
):
    if is_fast_start:
        options = {"codec_options": OPTIONS, "container_options": {"movflags": "faststart"}}
        path = encode_video(tmp_path / "fast.mp4", frames, **options)
        data = Path(path).read_bytes()
    check(server.serve("video.mp4", data, ETag='"1"'), path, FRAMES[name])
    assert server.sent < share * len(data) and len(server.ranges) <= requests


def test_probing_fetches_only_the_tables_and_reading_no_byte_twice(server, path, data):
    url = server.serve("video.mp4", data)
    assert probe_video(url) == probe_video(path)
    assert server.sent < 0.15 * len(data) and len(server.ranges) <= 4
    server.sent = 0
    assert np.array_equal(read_video(url)[0], read_video(path)[0])
    assert server.sent == len(data)


def test_a_small_file_comes_at_once(server, path, data, monkeypatch):
    monkeypatch.setattr(remote, "SMALL_FILE", len(data))
    monkeypatch.setattr(remote, "_PIECES", (2**14, len(data)))
    check(server.serve("video.mp4", data), path, FRAMES["dense"])
    assert server.ranges == [(0, 2**16), (2**16, len(data))]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("video.mkv", {}),
        ("video.ts", {}),
        ("video.avi", {"codec": "mpeg4", "codec_options": {"g": "12"}}),
        ("fragmented.mp4", {"container_options": {"movflags": "frag_keyframe+empty_moov"}}),
        ("vp9.mp4", {"codec": "libvpx-vp9", "codec_options": {"deadline": "realtime", "cpu-used": "8"}}),
        ("variable.mp4", {"times": np.cumsum(1 + np.arange(60) % 3).tolist()}),
        ("rotated.mov", {"rotation": 90}),
        ("open.mp4", {"codec_options": H264 | {"x264-params": "open-gop=1:keyint=12:min-keyint=12:b-adapt=0"}}),
    ],
)
def test_every_kind_of_file_gives_the_frames_of_the_file(server, tmp_path, monkeypatch, name, options):
    monkeypatch.setattr(remote, "FIRST_SIZE", 1000)
    monkeypatch.setattr(remote, "_PIECES", (2000, 2**20))
    path = encode_video(tmp_path / name, make_frames(60), **options)
    url = server.serve(name, Path(path).read_bytes())
    check(url, path, [3, 40])
    assert np.array_equal([frame.image for frame in stream_frames(url)], read_video(path)[0])


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_file_that_breaks_off_is_refused_as_a_path_is(server, tmp_path, keep):
    path = cut_file(encode_video(tmp_path / "video.mp4", container_options={"movflags": "faststart"}), keep)
    url = server.serve("video.mp4", Path(path).read_bytes())
    with pytest.raises(VideoReadError) as error:
        read(Path(path).read_bytes(), [1])
    assert refuse(url).endswith(str(error.value).partition("bytes ")[2])


def test_a_server_without_ranges_is_asked_once(server, path, data):
    asked = []

    def answer(handler):
        asked.append(handler.headers["Range"])
        handler.answer(body=gzip.compress(data), Content_Encoding="gzip")

    server.answers["video.mp4"] = answer
    check(server.url("video.mp4"), path, FRAMES["dense"])
    assert len(asked) == 1


def test_redirects_are_followed_once_and_again_when_a_signed_address_expires(server, path, data):
    moved = []

    def move(handler):
        moved.append(handler.path)
        handler.answer(302, Location=f"/signed{len(moved)}.mp4?signature=x")

    server.answers["moved.mp4"] = move
    server.serve("signed1.mp4", data)
    check(server.url("moved.mp4"), path, FRAMES["uniform"])
    assert len(moved) == 1 and len(server.ranges) > 3

    def expire(handler):
        server.answers["signed2.mp4"] = lambda handler: handler.answer(403)
        handler.answer_range(data)

    server.answers["signed2.mp4"] = expire
    server.serve("signed3.mp4", data)
    check(server.url("moved.mp4"), path, FRAMES["first"])
    assert len(moved) == 3


def test_redirects_in_a_circle_and_their_bodies_are_left(server, path, data):
    server.answers["round.mp4"] = lambda handler: handler.answer(302, Location="/round.mp4")
    assert "more than 20 times" in refuse(server.url("round.mp4"))

    def answer(handler):
        handler.answer(302, Location="/video.mp4", Content_Length=None)
        for piece in endless(bytes(2**16)):
            handler.wfile.write(piece)

    server.answers["moved.mp4"] = answer
    server.serve("video.mp4", data)
    check(server.url("moved.mp4"), path, FRAMES["first"])


@pytest.mark.parametrize("location", ["file:///etc/hostname", "ftp://127.0.0.1/x", "http://[::1"])
def test_a_redirect_leads_to_the_web_only(server, location):
    server.answers["away.mp4"] = lambda handler: handler.answer(302, Location=location)
    refuse(server.url("away.mp4"))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("entry", ["{path}", "{url}", "ffconcat '{path}'", "ffconcat 'file:{path}'"])
def test_a_playlist_behind_an_address_opens_nothing(server, tmp_path, read, entry):
    path = encode_video(tmp_path / "private.ts")
    inner = server.serve("inner.ts", Path(path).read_bytes())
    text = f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{entry}\n#EXT-X-ENDLIST\n"
    if entry.startswith("ffconcat"):
        text = f"ffconcat version 1.0\n{entry.replace('ffconcat', 'file')}\n"
    url = server.serve("video.mp4", text.format(path=path, url=inner).encode())
    server.answers["inner.ts"] = lambda handler: pytest.fail("It was asked for.")
    with pytest.raises(VideoReadError, match="cannot be opened as a video"):
        read(url)


@pytest.mark.parametrize("read", READERS)
def test_credentials_stay_with_the_server_that_they_are_for(server, other_server, data, read):
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


def test_credentials_go_with_every_request(server, path, data):
    seen = []

    def answer(handler):
        seen.append(handler.headers["Authorization"])
        handler.answer_range(data)

    server.answers["video.mp4"] = answer
    check(server.url("video.mp4").replace("http://", "http://me:secret@"), path, FRAMES["dense"])
    assert len(seen) > 2 and set(seen) == {"Basic bWU6c2VjcmV0"}


@pytest.mark.parametrize("user", ["me:hunter2@", "me:x/hunter2@", ""])
@pytest.mark.parametrize("url", ["http://{}127.0.0.1:1/x.mp4", "http://{}nosuchhost.invalid/x.mp4?key=hunter2"])
def test_credentials_are_not_repeated(url, user):
    with pytest.raises(VideoReadError) as error:
        read_video(url.format(user))
    assert "hunter2" not in str(error.value) and "@" not in str(error.value)


def test_credentials_are_not_repeated_of_what_is_no_video(server):
    url = server.serve("x.mp4", b"text").replace("http://", "http://me:hunter2@")
    assert "hunter2" not in refuse(f"{url}?token=hunter2")


@pytest.mark.parametrize("status", [401, 404, 503])
@pytest.mark.parametrize("is_midway", [False, True])
def test_a_refusal_is_told_with_its_status(server, data, status, is_midway):
    def deny(handler):
        handler.answer(status)

    server.answers["video.mp4"] = answer_once(server, data, deny) if is_midway else deny
    assert f" {status} " in refuse(server.url("video.mp4"))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", ["video.mp4", "video.avi", "video.ts"])
def test_a_connection_that_stays_broken_is_an_error_whatever_ffmpeg_makes_of_it(server, tmp_path, frames, name, read):
    data = Path(encode_video(tmp_path / name, frames[:60], codec_options=OPTIONS)).read_bytes()

    def answer(handler):
        start, end = (int(place) for place in handler.headers["Range"].removeprefix("bytes=").split("-"))
        end = min(end + 1, len(data))
        sent = data[start:end] if end < len(data) // 2 else data[start : (start + end) // 2]
        stated = {"Content_Range": f"bytes {start}-{end - 1}/{len(data)}", "Content_Length": str(end - start)}
        handler.answer(206, sent, **stated)

    server.answers[name] = answer
    with pytest.raises(VideoReadError, match="cannot be downloaded"):
        read(server.url(name))


def test_a_server_in_trouble_is_asked_again(server, path, data):
    broken = {"Content_Range": f"bytes 65536-65544/{len(data)}", "Content_Length": "9"}
    troubles = [lambda handler: handler.answer(503), lambda handler: handler.answer(206, **broken)]

    def answer(handler):
        if "bytes=65536-" in handler.headers["Range"] and troubles:
            troubles.pop()(handler)
        else:
            handler.answer_range(data)

    server.answers["video.mp4"] = answer
    check(server.url("video.mp4"), path, np.arange(60))
    assert not troubles


def test_a_refused_connection_and_a_host_that_is_not_there_are_named():
    for url in (NO_HOST, "http://nosuchhost.invalid/x.mp4"):
        assert "give the path of a file" in refuse(url)


@pytest.mark.parametrize("host", ["", "[::1", "a b/c.mp4", "h:p/x.mp4", "a\0b/x.mp4"])
def test_what_is_no_address_is_named(host):
    assert len(refuse(f"http://{host}").replace("\0", "")) < 500


def test_a_server_that_says_nothing_is_left(server, data):
    server.answers["silent.mp4"] = lambda handler: server.ended.wait()
    assert f"for {LIMIT} s" in refuse(server.url("silent.mp4"))

    server.answers["midway.mp4"] = answer_once(server, data, lambda handler: server.ended.wait())
    assert f"for {LIMIT} s" in refuse(server.url("midway.mp4"))


def test_a_server_that_lets_bytes_drip_is_left(server):
    def answer(handler):
        handler.answer(Content_Length="2000")
        drip(server, handler, endless(b"x"), LIMIT / 8)

    server.answers["drip.mp4"] = answer
    assert "or next to nothing" in refuse(server.url("drip.mp4"))


def test_a_slow_server_is_waited_for(server, path, data):
    step = -(-len(data) // 8)
    assert step > 2 * remote.SLOWEST_RATE * LIMIT / 4

    def answer(handler):
        handler.answer(Content_Length=str(len(data)))
        drip(server, handler, [data[i : i + step] for i in range(0, len(data), step)], LIMIT / 4)

    server.answers["slow.mp4"] = answer
    start = time.monotonic()
    check(server.url("slow.mp4"), path, FRAMES["first"])
    assert time.monotonic() - start > LIMIT


def test_a_video_larger_than_allowed_is_refused_at_once(server, path, data, monkeypatch):
    def answer(handler):
        handler.answer(Content_Length=str(len(data)))
        server.ended.wait()

    server.answers["whole.mp4"] = answer
    url = server.serve("video.mp4", data)
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", str(len(data)))
    check(url, path, FRAMES["first"])
    server.sent = 0
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", str(len(data) - 1))
    for address in (url, server.url("whole.mp4")):
        assert "HF_VIDEO_MAX_DOWNLOAD_SIZE=BYTES" in refuse(address)
    assert server.sent == 2**16


def bomb():
    """gzip that inflates without end, a thousand times what is sent."""
    packer = zlib.compressobj(wbits=31)
    while True:
        yield packer.compress(bytes(2**20)) + packer.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize(
    ("headers", "pieces"), [({}, lambda: endless(bytes(2**16))), ({"Content_Encoding": "gzip"}, bomb)]
)
def test_a_body_without_end_is_cut_at_the_limit(server, monkeypatch, headers, pieces):
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", str(8 * 2**20))

    def answer(handler):
        handler.answer(Content_Length=None, **headers)
        for piece in pieces():
            handler.wfile.write(piece)

    server.answers["flood.mp4"] = answer
    assert "it is larger than" in refuse(server.url("flood.mp4"))


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_size_limit_that_is_none_is_refused(monkeypatch, value):
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", value)
    with pytest.raises(ValueError, match=f"HF_VIDEO_MAX_DOWNLOAD_SIZE='{value}'"):
        read_video(NO_HOST)


@pytest.mark.parametrize(
    "headers", [{"ETag": '"2"'}, {"Last_Modified": "Mon, 02 Nov 2026 00:00:00 GMT"}, {"Content_Range": "bytes 0-1/9"}]
)
def test_a_file_that_changes_is_not_mixed(server, data, headers):
    server.answers["video.mp4"] = lambda handler: handler.answer_range(data, **(headers if server.ranges else {}))
    refuse(server.url("video.mp4"))
    server.answers["grown.mp4"] = lambda handler: handler.answer_range(data + bytes(len(server.ranges)))
    assert "has changed on the server" in refuse(server.url("grown.mp4"))


def test_other_bytes_than_asked_for_are_an_error(server, data):
    for stated, sent in (("1-65536/99999", data[: 2**16]), ("0-65535/99999", data), ("0-65535/99999", data[:100])):
        server.answers["video.mp4"] = lambda handler, stated=stated, sent=sent: handler.answer(
            206, sent, Content_Range=f"bytes {stated}"
        )
        refuse(server.url("video.mp4"))


def test_offline_mode_is_named(server, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refuse(server.url("video.mp4"))


@pytest.fixture
def memory(data):
    system = fsspec.filesystem("memory")
    system.pipe_file("/videos/video.mp4", data)
    yield system
    system.rm("/videos", recursive=True)


@pytest.mark.parametrize("name", FRAMES)
def test_other_protocols_are_read_by_ranges(memory, path, data, monkeypatch, name):
    found, read_bytes = [], MemoryFile.read
    monkeypatch.setattr(MemoryFile, "read", lambda self, size: found.append(read_bytes(self, size)) or found[-1])
    check("memory://videos/video.mp4", path, FRAMES[name])
    assert 0 < sum(map(len, found)) < 0.4 * len(data)


def test_a_long_video_is_streamed_with_little_memory(memory, path, monkeypatch):
    monkeypatch.setattr(remote, "_KEPT", 2**17)
    monkeypatch.setattr(remote, "_PIECES", (2**14, 2**16))
    url, sizes, at_hand = "memory://videos/video.mp4", [], remote.RemoteFile._at_hand

    def record(self):
        sizes.append(sum(len(data) for _, data in self._pieces))
        return at_hand(self)

    monkeypatch.setattr(remote.RemoteFile, "_at_hand", record)
    assert np.array_equal([frame.image for frame in stream_frames(url)], read_video(path)[0])
    assert max(sizes) <= 2**17
    check(url, path, FRAMES["uniform"])


def test_a_file_url_is_its_path(path, tmp_path):
    check(f"file://{path}", path, FRAMES["dense"])
    with pytest.raises(VideoReadError, match="none.mp4 does not exist"):
        read_video(f"file://{tmp_path}/none.mp4")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://videos/none.mp4", "does not exist"),
        ("nosuch://videos/video.mp4", "nosuch:// is not a protocol of files that fsspec knows"),
        ("rtsp://127.0.0.1/video", "rtsp:// is not a protocol"),
        ("zip://video.mp4::memory://videos/videos.zip", r"fsspec.open\(URL\)"),
    ],
)
def test_what_cannot_be_opened_is_explained(url, words):
    with pytest.raises(VideoReadError, match=words) as error:
        read_video(url)
    assert str(error.value).startswith(url)


def test_errors_of_a_file_system_name_the_video_and_no_key(monkeypatch):
    class System:
        def open(self, path, mode, cache_type):
            raise RuntimeError("403 for https://host/x?signature=hunter2 of me")

    monkeypatch.setattr(remote, "url_to_fs", lambda url: (System(), "x"))
    with pytest.raises(VideoReadError, match=r"^s3://b/v.mp4\?... cannot be read: RuntimeError: 403 for") as error:
        read_video("s3://b/v.mp4?versionId=hunter2")
    assert "hunter2" not in str(error.value)

    def find(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(remote, "url_to_fs", find)
    with pytest.raises(VideoReadError, match="s3://b/v.mp4 cannot be read: Install s3fs to access S3"):
        read_video("s3://b/v.mp4")


def test_an_error_that_ffmpeg_passes_over_is_told(memory, data, monkeypatch):
    read_bytes = MemoryFile.read

    def fail(self, size):
        if self.tell() <= len(data) // 2 < self.tell() + size:
            raise RuntimeError("The net is torn.")
        return read_bytes(self, size)

    monkeypatch.setattr(MemoryFile, "read", fail)
    for read_some in (lambda url: read(url, [115, 125]), lambda url: list(stream_frames(url))):
        with pytest.raises(VideoReadError, match="The net is torn"):
            read_some("memory://videos/video.mp4")
