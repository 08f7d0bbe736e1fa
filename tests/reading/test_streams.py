"""Streams that come as time passes, sent on this machine. Cameras and RTMP servers are not at hand: a test picture of
FFmpeg stands in for a camera."""

import io
import socket
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import av
import numpy as np
import pytest
from huggingface_hub import constants
from PIL import Image

from hf_video.reading import VideoReadError, frame_streaming, group_samples, read_video, sources, timed_samples
from hf_video.reading.frame_streaming import StreamClock
from tests.testing.videos import encode_video, make_frames

from .rtsp_server import rtsp_camera

RATE = 25
# What a packet of UDP holds: seven packets of MPEG-TS.
PIECE = 7 * 188


def encode_stream(num_frames=50, first_tick=0):
    """MPEG-TS whose first frame has the presentation time `first_tick` / 25 s."""
    file, frames = io.BytesIO(), make_frames(num_frames)
    with av.open(file, "w", format="mpegts", options={"mpegts_copyts": "1"}) as container:
        stream = container.add_stream("libx264", rate=RATE, options={"preset": "ultrafast", "g": "10", "bf": "2"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts, picture.time_base = number + first_tick, Fraction(1, RATE)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return file.getvalue()


@contextmanager
def tcp_server(data, then_wait=False):
    """Sends to whoever connects; gives the address."""
    finished = threading.Event()

    def serve():
        with suppress(OSError), server.accept()[0] as connection:
            connection.sendall(data)
            finished.wait(30 if then_wait else 0)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finished.set()


@contextmanager
def http_server(kind, pieces, length=None, **headers):
    """Answers every request with pieces of a body; without a length the end of the connection is that of the body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            for name, value in (headers | ({} if length is None else {"Content-Length": str(length)})).items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/stream"
        server.shutdown()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)


def test_windows_of_udp_come_while_it_is_sent_and_a_dead_sender_is_named(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    data, windows, sent, stopped = encode_stream(500), [], [], threading.Event()
    pieces = [data[i : i + PIECE] for i in range(0, len(data), PIECE)]

    def send():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.connect(("127.0.0.1", port))
            for piece in pieces:
                # Nobody listens at first.
                with suppress(ConnectionRefusedError):
                    out.send(piece)
                sent.append(piece)
                if stopped.wait(0.005):
                    return

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    with pytest.raises(VideoReadError, match=f"udp://127.0.0.1:{port}.* sent nothing for 3 s"):
        samples = timed_samples(f"udp://127.0.0.1:{port}?fifo_size=1000", fps=RATE)
        for window in group_samples(samples, num_frames=8, stride=4):
            windows.append(window)
            if len(windows) == 3:
                assert sender.is_alive() and 0 < len(sent) < len(pieces)
                stopped.set()
    assert len(windows) >= 3 and windows[0].start == 0 and windows[0].values[7].image.shape == (48, 64, 3)
    assert [window.start for window in windows] == pytest.approx([4 * j / RATE for j in range(len(windows))])


def test_a_tcp_stream_gives_the_frames_of_its_file_and_ends_when_its_sender_closes_it(tmp_path):
    data = encode_stream(first_tick=90_000)
    (tmp_path / "stream.ts").write_bytes(data)
    expected, _ = read_video(tmp_path / "stream.ts")
    with tcp_server(data) as address:
        samples = list(timed_samples(address))
    assert np.array_equal(np.stack([sample.value.image for sample in samples]), expected)
    assert [sample.start for sample in samples] == pytest.approx([number / RATE for number in range(50)], abs=1e-4)
    assert samples[-1].end == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("goes_silent", [False, True])
def test_a_camera_is_read_by_rtsp_over_tcp(impatient, goes_silent):
    frames = make_frames(60)
    samples, ends = [], nullcontext()
    if goes_silent:
        ends = pytest.raises(VideoReadError, match="rtsp://127.0.0.1:.*/live sent nothing for 1 s")
    with rtsp_camera(frames, 100, then_wait=goes_silent) as address, ends:
        for sample in timed_samples(address):
            samples.append(sample)  # noqa: PERF402 (what comes before the error is kept)
    assert [sample.start for sample in samples] == pytest.approx([number / 100 for number in range(60)], abs=1e-3)
    assert np.abs(samples[40].value.image.astype(int) - frames[40]).mean() < 40


def test_a_stream_that_starts_anew_goes_on_where_it_was():
    """Its timestamps fall back by an hour."""
    with tcp_server(encode_stream(50, first_tick=90_000) + encode_stream(50)) as address:
        samples = list(timed_samples(address))
    assert len(samples) >= 95
    assert sorted({sample.value.num_restarts for sample in samples}) == [0, 1]
    # One frame may be half a distance early.
    distances = np.array([sample.end - sample.start for sample in samples])
    assert (distances > 0.01).all() and (np.abs(distances - 1 / RATE) > 2e-3).sum() <= 2


def test_damage_of_a_live_stream_is_left_out():
    data = bytearray(encode_stream(100))
    data[len(data) // 2 : len(data) // 2 + 5 * 188] = bytes(5 * 188)
    with tcp_server(bytes(data)) as address:
        samples = list(timed_samples(address))
    assert 80 <= len(samples) < 100 and samples[-1].end == pytest.approx(4, abs=0.01)


def test_a_silent_server_and_one_that_sends_no_video_are_named(impatient):
    with tcp_server(encode_stream(30), then_wait=True) as address:
        with pytest.raises(VideoReadError, match="sent nothing for 1 s"):
            list(timed_samples(address))
    with tcp_server(b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n" * 40) as address:
        with pytest.raises(VideoReadError, match="cannot be opened as a stream"):
            list(timed_samples(address))


@pytest.mark.parametrize("scheme", ["tcp", "rtsp", "rtmp"])
def test_a_refused_connection_is_named_without_the_password(scheme):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(VideoReadError, match="Connection refused") as error:
        next(timed_samples(f"{scheme}://user:secret@127.0.0.1:{port}/live?key=secret"))
    while error := getattr(error, "value", error):
        assert "secret" not in repr(error) and "secret" not in str(error)
        error = error.__cause__


def test_an_http_stream_is_not_downloaded_and_a_file_is(tmp_path, monkeypatch):
    data = encode_stream(50)
    pieces = [data[i : i + PIECE] for i in range(0, len(data), PIECE)]
    monkeypatch.setenv("HF_VIDEO_MAX_DOWNLOAD_SIZE", "10")
    with http_server("video/mp2t", pieces) as address:
        assert len(list(timed_samples(address))) == 50
    with http_server("video/mp2t", pieces, length=len(data)) as address:
        with pytest.raises(VideoReadError, match="larger than 10 bytes"):
            list(timed_samples(address))
        monkeypatch.delenv("HF_VIDEO_MAX_DOWNLOAD_SIZE")
        assert len(list(timed_samples(address))) == 50
    video = encode_video(tmp_path / "video.mp4")
    half = open(video, "rb").read()[:3000]
    with http_server("video/mp4", [half], length=len(half)) as address:
        with pytest.raises(VideoReadError, match=f"{address} cannot be opened as a video"):
            list(timed_samples(address))
    with http_server("application/vnd.apple.mpegurl", [b"#EXTM3U\n"]) as address:
        with pytest.raises(VideoReadError, match="is a playlist"):
            list(timed_samples(address))


@pytest.mark.parametrize("header", [{"ETag": '"1"'}, {"Last_Modified": "x"}, {"Accept_Ranges": "bytes"}])
@pytest.mark.parametrize("kind", ["video/webm", "video/mp2t"])
def test_a_file_without_a_length_is_no_live_stream_and_its_damage_is_told(header, kind):
    data = bytearray(encode_stream(100))
    data[len(data) // 2 : len(data) // 2 + 5 * 188] = bytes(5 * 188)
    with http_server(kind, [bytes(data)], **header) as address:
        assert not frame_streaming.comes_live(address)
        with pytest.raises(VideoReadError, match="is damaged"):
            list(timed_samples(address))
    with http_server(kind, [bytes(data)]) as address:
        assert frame_streaming.comes_live(address)


def test_the_pictures_of_an_http_camera_have_the_times_at_which_they_come():
    frames = make_frames(12)

    def pictures():
        for frame in frames:
            file = io.BytesIO()
            Image.fromarray(frame).save(file, "JPEG", quality=95)
            yield b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(file.getvalue())
            yield file.getvalue() + b"\r\n"
            time.sleep(0.05)

    with http_server("multipart/x-mixed-replace; boundary=frame", pictures()) as address:
        samples = list(timed_samples(address))
    assert len(samples) == 12 and samples[-1].value.image.shape == frames[0].shape
    assert np.abs(samples[3].value.image.astype(int) - frames[3]).mean() < 40
    assert 0.3 < samples[-1].start < 5


def test_a_camera_is_read_in_its_format(monkeypatch, tmp_path):
    assert sources.kind_of("/dev/shm/missing.mp4") == sources.kind_of("/dev/null") == "path"
    with pytest.raises(VideoReadError, match="There is no camera /dev/video99"):
        next(timed_samples("/dev/video99"))
    monkeypatch.setattr(frame_streaming, "CAMERA_FORMAT", "lavfi")
    monkeypatch.setattr(sources, "_is_camera", lambda path: path == "testsrc=rate=10:size=64x48")
    monkeypatch.setattr(frame_streaming.os.path, "exists", lambda path: True)
    samples = timed_samples("testsrc=rate=10:size=64x48", fps=5)
    found = [next(samples) for _ in range(3)]
    samples.close()
    assert [sample.start for sample in found] == pytest.approx([0, 0.2, 0.4])
    assert found[0].value.image.shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("stamps", "expected", "num_restarts"),
    [
        ([100, 100.1, 100.2, 100.5], [0, 0.1, 0.2, 0.5], 0),
        ([-5, None, -4.8, None, None, -4.5], [0, 0.1, 0.2, 0.3, 0.4, 0.5], 0),
        ([None, None, 7, 7.1], [0, 0.1, 0.2, 0.3], 0),
        # A single frame comes late, or with the time of another.
        ([0, 0.1, 0.2, 0.1, 0.3, 0.4], [0, 0.1, 0.2, 0.25, 0.3, 0.4], 0),
        ([0, 0.1, 0.1, 0.2], [0, 0.1, 0.15, 0.2], 0),
        # The sender starts anew.
        ([9, 9.1, 9.2, 0, 0.1, 0.2, 0.3], [0, 0.1, 0.2, 0.25, 0.35, 0.45, 0.55], 1),
        ([0, 0.1, 90, 90.1, 90.2], [0, 0.1, 0.15, 0.25, 0.35], 1),
    ],
)
def test_the_clock_rises_whatever_the_timestamps_are(stamps, expected, num_restarts):
    clock = StreamClock(Fraction(10), longest_gap=5)
    assert [clock.read(stamp) for stamp in stamps] == pytest.approx(expected)
    assert clock.num_restarts == num_restarts
