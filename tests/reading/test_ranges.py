"""Videos of URLs that are read by ranges: from a server that answers as it should or does not, and from fsspec."""

import time
from pathlib import Path

import fsspec
import numpy as np
import pytest

from hf_video.reading import VideoReadError, probe_video, ranges, read_video, video_reading
from hf_video.reading.frame_streaming import stream_frames
from tests.testing.video_server import LIMIT
from tests.testing.videos import H264, cut_file, encode_video, make_frames

FIRST_SIZE = 64 * 2**10
FRAMES = {"dense": np.arange(130, 160, 2), "uniform": np.linspace(0, 239, 4).astype(int), "first": np.array([0])}


# Groups of pictures lie further apart than what is fetched along, as in long videos.
OPTIONS = H264 | {"g": "12", "qp": "28"}


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
    set_first_size(monkeypatch, FIRST_SIZE)
    monkeypatch.setattr(video_reading, "SMALL_FILE", 0)


def set_first_size(monkeypatch, size):
    for module in (ranges, video_reading):
        monkeypatch.setattr(module, "FIRST_SIZE", size)
    monkeypatch.setattr(ranges, "BLOCK_SIZE", min(size, 2**14))


def read(video, indices, **options):
    return read_video(video, lambda metadata: np.array(indices), **options)


def check(url, path, indices):
    """Frames and metadata of a URL are those of the file."""
    frames, metadata = read(url, indices)
    expected, expected_metadata = read(path, indices)
    assert np.array_equal(frames, expected) and metadata == expected_metadata


def refuse(url):
    with pytest.raises(VideoReadError) as error:
        read(url, FRAMES["dense"])
    message = str(error.value)
    assert message.startswith(url) and "\n" not in message
    return message


@pytest.mark.parametrize(("name", "share", "requests"), [("dense", 0.3, 4), ("uniform", 0.4, 8), ("first", 0.15, 3)])
@pytest.mark.parametrize("is_fast_start", [False, True])
def test_only_what_the_frames_need_is_fetched(
    server, path, frames, data, tmp_path, name, share, requests, is_fast_start
):
    if is_fast_start:
        options = {"codec_options": OPTIONS, "container_options": {"movflags": "faststart"}}
        path = encode_video(tmp_path / "fast.mp4", frames, **options)
        data = Path(path).read_bytes()
    check(server.serve("video.mp4", data, ETag='"1"'), path, FRAMES[name])
    assert server.sent < share * len(data)
    assert len(server.ranges) <= requests


def test_probing_fetches_only_the_tables(server, path, data):
    assert probe_video(server.serve("video.mp4", data)) == probe_video(path)
    assert server.sent < 0.15 * len(data) and len(server.ranges) <= 3


def test_what_is_most_of_the_file_comes_in_one_request(server, path, data):
    url = server.serve("video.mp4", data)
    assert np.array_equal(read_video(url)[0], read_video(path)[0])
    assert len(server.ranges) <= 3 and server.sent <= 1.1 * len(data)


def test_a_small_file_comes_at_once(server, path, data, monkeypatch):
    monkeypatch.setattr(video_reading, "SMALL_FILE", len(data))
    check(server.serve("video.mp4", data), path, FRAMES["dense"])
    assert server.ranges == [(0, FIRST_SIZE), (FIRST_SIZE, len(data))]


@pytest.mark.parametrize("name", ["video.mkv", "video.ts", "video.avi"])
def test_a_file_without_tables_is_fetched_once(server, tmp_path, monkeypatch, name):
    set_first_size(monkeypatch, 1000)
    path = encode_video(tmp_path / name, make_frames(60))
    url = server.serve(name, Path(path).read_bytes())
    check(url, path, [3, 40])
    assert len(server.ranges) == 2 and server.ranges[0][1] == server.ranges[1][0]


def test_a_server_without_ranges_is_asked_once(server, path, data):
    asked = []

    def answer(handler):
        asked.append(handler.headers["Range"])
        handler.answer(body=data)

    server.answers["video.mp4"] = answer
    check(server.url("video.mp4"), path, FRAMES["dense"])
    assert len(asked) == 1


def test_redirects_are_followed_once(server, path, data):
    moved = []

    def move(handler):
        moved.append(handler.path)
        handler.answer(302, Location="/video.mp4?signature=x")

    server.answers["moved.mp4"] = move
    server.serve("video.mp4", data)
    check(server.url("moved.mp4"), path, FRAMES["uniform"])
    assert len(moved) == 1 and len(server.ranges) > 3


def test_a_signed_address_that_expires_is_asked_for_again(server, path, data):
    moved = []

    def move(handler):
        moved.append(handler.path)
        handler.answer(302, Location=f"/signed{len(moved)}.mp4")

    def answer_once(handler):
        server.answers["signed1.mp4"] = lambda handler: handler.answer(403)
        handler.answer_range(data)

    server.answers |= {"moved.mp4": move, "signed1.mp4": answer_once}
    server.serve("signed2.mp4", data)
    check(server.url("moved.mp4"), path, FRAMES["first"])
    assert len(moved) >= 2


def test_credentials_go_with_every_request(server, path, data):
    seen = []

    def answer(handler):
        seen.append(handler.headers["Authorization"])
        handler.answer_range(data)

    server.answers["video.mp4"] = answer
    check(server.url("video.mp4").replace("http://", "http://me:secret@"), path, FRAMES["dense"])
    assert len(seen) > 2 and set(seen) == {"Basic bWU6c2VjcmV0"}


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again(server, path, data, status):
    answers = []

    def answer(handler):
        answers.append(None)
        if len(answers) % 2:
            handler.answer(status)
        else:
            handler.answer_range(data)

    server.answers["video.mp4"] = answer
    check(server.url("video.mp4"), path, FRAMES["dense"])


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusal_midway_is_told(server, data, status):
    def answer(handler):
        if len(server.ranges) > 1:
            handler.answer(status)
        else:
            handler.answer_range(data)

    server.answers["video.mp4"] = answer
    assert f"the server answers {status} " in refuse(server.url("video.mp4"))


def test_a_broken_connection_is_taken_up_where_it_broke(server, path, data):
    asked = []

    def answer(handler):
        start, end = (int(place) for place in handler.headers["Range"].removeprefix("bytes=").split("-"))
        end = min(end + 1, len(data))
        asked.append((start, end))
        sent = data[start:end] if len(asked) % 2 else data[start : (start + end) // 2]
        handler.answer(
            206, sent, Content_Range=f"bytes {start}-{end - 1}/{len(data)}", Content_Length=str(end - start)
        )

    server.answers["video.mp4"] = answer
    check(server.url("video.mp4"), path, FRAMES["dense"])
    broken = [i for i in range(1, len(asked) - 1, 2)]
    assert broken and all(asked[i + 1] == (sum(asked[i]) // 2, asked[i][1]) for i in broken)


def test_a_server_that_stalls_midway_is_left(server, data):
    def answer(handler):
        if len(server.ranges) < 2:
            handler.answer_range(data)
        else:
            server.ended.wait()

    server.answers["video.mp4"] = answer
    start = time.monotonic()
    assert f"for {LIMIT} s" in refuse(server.url("video.mp4"))
    assert time.monotonic() - start < 10 * LIMIT


@pytest.mark.parametrize(
    "headers", [{"ETag": '"2"'}, {"ETag": 'W/"2"'}, {"Last_Modified": "Mon, 02 Nov 2026 00:00:00 GMT"}]
)
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_file_that_changes_is_not_mixed(server, data, headers, is_whole):
    key = next(iter(headers))

    def answer(handler):
        if not server.ranges:
            handler.answer_range(data, **{key: headers[key].replace("2", "1", 1)})
        elif is_whole:
            handler.answer(body=data[::-1], **headers)
        else:
            handler.answer_range(data[::-1], **headers)

    server.answers["video.mp4"] = answer
    assert "has changed on the server while it was read; read it again" in refuse(server.url("video.mp4"))


def test_a_file_that_grows_is_not_mixed(server, data):
    server.answers["video.mp4"] = lambda handler: handler.answer_range(data + bytes(len(server.ranges)))
    assert "has changed on the server" in refuse(server.url("video.mp4"))


def test_a_range_is_asked_of_the_same_version(server, path, data):
    seen = []

    def answer(handler):
        seen.append(handler.headers["If-Range"])
        handler.answer_range(data, ETag='"version"')

    server.answers["video.mp4"] = answer
    check(server.url("video.mp4"), path, FRAMES["dense"])
    assert seen[0] is None and len(seen) > 2 and set(seen[1:]) == {'"version"'}


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Content_Range": "bytes 1-65536/99999"}, "It states the range 'bytes 1-65536/99999'"),
        ({"Content_Range": "bytes 0-99/99999"}, "It states the range"),
        ({"Content_Range": "bytes 0-65535/*"}, "It states the range"),
        ({"Content_Range": None}, "It states the range ''"),
        ({"Content_Range": "bytes 0-65535/" + "9" * 30}, "It states the range"),
        ({"Content_Encoding": "gzip"}, "It compresses them as 'gzip'"),
        ({"Content_Length": None, "Connection": "close"}, "It sends 96 bytes fewer"),
    ],
)
def test_a_wrong_answer_is_explained(server, data, headers, words):
    sent = data[: FIRST_SIZE - 96] if "bytes fewer" in words else data[:FIRST_SIZE]
    right = {"Content_Range": f"bytes 0-65535/{len(data)}"}
    server.answers["video.mp4"] = lambda handler: handler.answer(206, sent, **(right | headers))
    message = refuse(server.url("video.mp4"))
    assert "answers wrongly to a request for the bytes 0 to 65535. Download the file yourself" in message
    assert words in message


def test_more_bytes_than_asked_for_are_an_error(server, data):
    server.answers["video.mp4"] = lambda handler: handler.answer(206, data, Content_Range=f"bytes 0-65535/{len(data)}")
    assert "It sends more bytes." in refuse(server.url("video.mp4"))


def test_an_empty_file_and_one_without_a_range_to_give(server, path, data):
    assert "it is empty" in refuse(server.serve("empty.mp4", b""))

    def answer(handler):
        if "Range" in handler.headers:
            handler.answer(416)
        else:
            handler.answer(body=data)

    server.answers["video.mp4"] = answer
    check(server.url("video.mp4"), path, FRAMES["dense"])


def test_a_file_larger_than_allowed_is_refused_at_once(server, data, monkeypatch):
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", str(len(data) - 1))
    assert "it is larger than" in refuse(server.serve("video.mp4", data))
    assert server.sent == FIRST_SIZE


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_file_that_breaks_off_is_refused_as_a_path_is(server, tmp_path, keep):
    path = cut_file(encode_video(tmp_path / "video.mp4", container_options={"movflags": "faststart"}), keep)
    url = server.serve("video.mp4", Path(path).read_bytes())
    with pytest.raises(VideoReadError) as error:
        read(Path(path).read_bytes(), [1])
    assert refuse(url).endswith(str(error.value).partition("bytes ")[2])


def test_requests_wait_beside_each_other(server, path, data):
    server.latency = 0.05
    url = server.serve("video.mp4", data)
    start = time.monotonic()
    check(url, path, np.arange(0, 240, 24) + 5)
    assert len(server.ranges) >= 10
    assert time.monotonic() - start < 0.05 * len(server.ranges)


@pytest.fixture
def memory(data):
    system = fsspec.filesystem("memory")
    system.pipe_file("/videos/video.mp4", data)
    yield system
    system.rm("/videos", recursive=True)


def count_reads(monkeypatch):
    """The ranges that are read of files of a file system."""
    spans = []
    fetch = ranges.FsspecFile.fetch_range

    def record(self, start, end):
        spans.append((start, end))
        return fetch(self, start, end)

    monkeypatch.setattr(ranges.FsspecFile, "fetch_range", record)
    return spans


@pytest.mark.parametrize("name", FRAMES)
def test_other_protocols_are_read_by_ranges(memory, path, data, monkeypatch, name):
    spans = count_reads(monkeypatch)
    check("memory://videos/video.mp4", path, FRAMES[name])
    assert sum(end - start for start, end in spans) < 0.4 * len(data)


def test_a_long_video_is_streamed_with_little_memory(memory, path, data, monkeypatch):
    monkeypatch.setattr(ranges, "BLOCKS_OF_STREAM", (2**17, 2))
    spans = count_reads(monkeypatch)
    streamed = [frame.image for frame in stream_frames("memory://videos/video.mp4")]
    assert np.array_equal(streamed, read_video(path)[0])
    assert len(spans) > 3 and max(end - start for start, end in spans) <= 2**17


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
        ("simplecache::memory://videos/video.mp4", r"fsspec.open\(URL\), and give the open file"),
        ("zip://video.mp4::memory://videos/videos.zip", r"fsspec.open\(URL\)"),
    ],
)
def test_what_cannot_be_opened_is_explained(url, words):
    with pytest.raises(VideoReadError, match=words) as error:
        read_video(url)
    assert str(error.value).startswith(url)
    # A live stream has no frames by number, but can be streamed.
    if not url.startswith("rtsp"):
        with pytest.raises(VideoReadError, match=words):
            list(stream_frames(url))


def test_a_missing_package_is_named(monkeypatch):
    def find(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(ranges, "url_to_fs", find)
    with pytest.raises(VideoReadError, match="s3://b/v.mp4 cannot be read: Install s3fs to access S3"):
        read_video("s3://b/v.mp4")


def test_errors_of_a_file_system_name_the_video_and_no_key(monkeypatch):
    class System:
        def open(self, path, mode, cache_type):
            raise RuntimeError("403 for https://host/x?signature=hunter2 of me")

    monkeypatch.setattr(ranges, "url_to_fs", lambda url: (System(), "x"))
    with pytest.raises(VideoReadError, match=r"^s3://b/v.mp4\?... cannot be read: RuntimeError: 403 for") as error:
        read_video("s3://b/v.mp4?versionId=hunter2")
    assert "hunter2" not in str(error.value)


def test_an_error_that_ffmpeg_passes_over_is_told(memory, data, monkeypatch):
    set_first_size(monkeypatch, 1000)
    fetch = ranges.FsspecFile.fetch_range

    def fail(self, start, end):
        # Where the first frames are looked for.
        if end > 1000 and start < len(data) // 2:
            raise VideoReadError("The net is torn.")
        return fetch(self, start, end)

    monkeypatch.setattr(ranges.FsspecFile, "fetch_range", fail)
    for indices in ([100], [0]):
        with pytest.raises(VideoReadError, match="The net is torn"):
            read("memory://videos/video.mp4", indices)
