"""`hf-video timeline` that sees each frame once, by a classifier of frames or in chunks: files, folders, live streams,
and what has no meaning for it."""

import io
import itertools
import json
import math
import shutil
import signal
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import av
import numpy as np
import pytest
import torch
from PIL import Image

from hf_video import VideoClipProcessor, VideoMambaConfig
from hf_video.cli.main import main
from hf_video.inference import find_segments
from hf_video.loading.models import load_trained_model
from hf_video.models.videomamba import (
    VideoMambaClassifierOutput,
    VideoMambaForFrameClassification,
    VideoMambaForVideoClassification,
    VideoMambaFrameClassifierOutput,
)

from ..reading.rtsp_server import rtsp_camera
from ..video_files import encode_video

NAMES = ["dark", "bright"]
SIZE = {"height": 16, "width": 16}


def save_model(folder, model_class, **fields):
    torch.manual_seed(0)
    labels = {"id2label": dict(enumerate(NAMES)), "label2id": {name: index for index, name in enumerate(NAMES)}}
    sizes = {"image_size": 16, "patch_size": 8, "num_frames": 8, "hidden_size": 16, "num_hidden_layers": 1}
    model_class(VideoMambaConfig(**sizes, **labels, **fields)).save_pretrained(folder)
    VideoClipProcessor(num_frames=8, size=SIZE, crop_size=SIZE, frame_interval=1 / 16).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    causal = {"bidirectional": False, "use_temporal_position_embeddings": False}
    return save_model(tmp_path_factory.mktemp("frame_model"), VideoMambaForFrameClassification, **causal)


@pytest.fixture(scope="module")
def clip_model_folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("clip_model"), VideoMambaForVideoClassification)


@pytest.fixture
def sees_light(monkeypatch):
    """The models tell bright frames from dark ones. What happens before a call may be changed."""
    before = [lambda pixel_values: None]

    def forward(self, pixel_values, state=None, **kwargs):
        before[0](pixel_values)
        light = pixel_values.mean(dim=(2, 3, 4))
        logits = 10 * torch.stack([-light, light], dim=-1)
        if isinstance(self, VideoMambaForVideoClassification):
            assert state is not None
            return VideoMambaClassifierOutput(logits=logits.mean(dim=1), state=state)
        return VideoMambaFrameClassifierOutput(logits=logits, state=state)

    for model_class in (VideoMambaForFrameClassification, VideoMambaForVideoClassification):
        monkeypatch.setattr(model_class, "forward", forward)
    return before


def flashing_frames(num_frames=96, on=(32, 64)):
    frames = np.full((num_frames, 16, 16, 3), 20, np.uint8)
    frames[slice(*on)] = 235
    return frames


def run(model_folder, video, *words):
    return main(["timeline", str(video), "--model", model_folder, "--device", "cpu", *map(str, words)])


class ClockedLines(io.StringIO):
    """What is printed, and the times of this machine at which it was."""

    def __init__(self):
        super().__init__()
        self.times = []

    def write(self, text):
        self.times += [time.monotonic()] if text.strip() else []
        return super().write(text)


def json_lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def encode_pieces(frames, fps):
    """MPEG-TS, one piece a frame and one for the rest."""
    pieces, output = [], io.BytesIO()
    with av.open(output, "w", format="mpegts") as container:
        stream = container.add_stream("mpeg2video", rate=fps, width=64, height=64, pix_fmt="yuv420p")
        stream.codec_context.max_b_frames = 0
        for image in frames:
            picture = np.kron(image, np.ones((4, 4, 1), np.uint8))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            pieces.append(output.getvalue())
            output.seek(0)
            output.truncate()
        container.mux(stream.encode())
    return [*pieces, output.getvalue()]


def send_at_times(send, pieces, fps, begins):
    """Sends each piece at the time of its frame, until the reader goes away. Keeps when it began."""
    begins.append(begin := time.monotonic())
    for number, piece in enumerate(pieces):
        time.sleep(max(begin + number / fps - time.monotonic(), 0))
        try:
            send(piece)
        except OSError:
            return


@contextmanager
def camera(frames, fps, begins):
    """Sends the frames to whoever connects, each at its time; gives the address, and keeps when it began."""
    pieces = encode_pieces(frames, fps)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                send_at_times(connection.sendall, pieces, fps, begins)

        threading.Thread(target=serve, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def http_camera(frames, fps, begins):
    """Sends the frames to each request, each at its time, in a body of unknown length; gives the address, and keeps
    when it began."""
    pieces = encode_pieces(frames, fps)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "video/mp2t")
            self.end_headers()
            send_at_times(self.wfile.write, pieces, fps, begins)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/live.ts"
        server.shutdown()


def test_a_file_gives_segments_with_borders_of_a_frame(model_folder, sees_light, tmp_path, capsys):
    video = encode_video(tmp_path / "flash.mp4", flashing_frames(), fps=32)
    assert run(model_folder, video, "--json", "--output", tmp_path / "out") == 0
    lines = json_lines(capsys)
    assert [line["label"] for line in lines] == ["dark", "bright", "dark"]
    # Frames are taken 16 times a second.
    np.testing.assert_allclose([line["segment"] for line in lines], [[0, 1], [1, 2], [2, 3]], atol=1e-3)
    kept = json.loads((tmp_path / "out" / "segments.json").read_text())
    assert kept["results"] == {"flash": lines} and kept["external_data"]["fps"] == 16
    assert "live" not in kept["external_data"] and len(list((tmp_path / "out").iterdir())) == 5
    model, processor = load_trained_model(model_folder, device="cpu", part="any classifier")
    found = [(segment.label, segment.start) for segment in find_segments(model, processor, str(video), batch_size=5)]
    assert found == [(line["label"], pytest.approx(line["segment"][0], abs=1e-3)) for line in lines]


def test_a_classifier_of_clips_in_chunks(clip_model_folder, sees_light, tmp_path, capsys):
    sizes = []
    sees_light[0] = lambda pixel_values: sizes.append(pixel_values.shape[:2])
    video = encode_video(tmp_path / "flash.mp4", flashing_frames(), fps=32)
    words = ("--chunk-size", 4, "--json", "--output", tmp_path / "out")
    assert run(clip_model_folder, video, *words) == 0
    assert sizes == [(1, 4)] * 12
    lines = json_lines(capsys)
    assert [line["label"] for line in lines] == ["dark", "bright", "dark"]
    np.testing.assert_allclose([line["segment"] for line in lines], [[0, 1], [1, 2], [2, 3]], atol=1e-3)
    kept = json.loads((tmp_path / "out" / "segments.json").read_text())
    assert kept["external_data"]["chunk_size"] == 4 and kept["external_data"]["fps"] == 16


def test_a_folder_of_pictures(model_folder, sees_light, tmp_path, capsys):
    for number, image in enumerate(flashing_frames(48, (16, 32))):
        Image.fromarray(image).save(tmp_path / f"{number:03}.png")
    assert run(model_folder, tmp_path, "--source-fps", 16, "--background", "dark", "--json") == 0
    (line,) = json_lines(capsys)
    assert (line["label"], line["segment"]) == ("bright", [1.0, 2.0])


def test_the_background_of_the_model_gets_no_segment(model_folder, sees_light, tmp_path, capsys):
    shutil.copytree(model_folder, tmp_path / "model")
    config = VideoMambaConfig.from_pretrained(model_folder, background_label="dark")
    config.save_pretrained(tmp_path / "model")
    video = encode_video(tmp_path / "flash.mp4", flashing_frames(), fps=32)
    assert run(str(tmp_path / "model"), video, "--json", "--output", tmp_path / "out") == 0
    assert [line["label"] for line in json_lines(capsys)] == ["bright"]
    kept = json.loads((tmp_path / "out" / "segments.json").read_text())
    assert kept["external_data"]["background"] == ["dark"]
    assert run(str(tmp_path / "model"), video, "--json", "--background", "bright") == 0
    assert [line["label"] for line in json_lines(capsys)] == ["dark", "dark"]


@pytest.mark.parametrize(("folder", "source"), [("model_folder", camera), ("clip_model_folder", http_camera)])
def test_each_change_of_a_live_stream_is_told_with_its_delay(
    folder, source, request, sees_light, tmp_path, monkeypatch, capsys
):
    """However busy the machine is: all frames that the model sees have room in the queue."""
    words = ["--fps", 2, "--background", "dark", "--json", "--output", tmp_path / "out"]
    if folder == "clip_model_folder":
        words += ["--chunk-size", 2]
    calls, origins, printed = [], [], ClockedLines()
    sees_light[0] = lambda pixel_values: calls.append(
        (time.monotonic(), pixel_values.mean().item() > 0, pixel_values.shape[1])
    )
    monkeypatch.setattr("sys.stdout", printed)
    with source(flashing_frames(64, (14, 30)), 16, origins) as address:
        assert run(request.getfixturevalue(folder), address, *words) == 0
    begins, ends = map(json.loads, printed.getvalue().splitlines())
    delays = begins.pop("delay"), ends.pop("delay")
    assert begins == {"time": pytest.approx(1, abs=0.07), "change": "begins", "label": "bright"}
    assert ends["change"] == "ends" and ends["time"] == ends["segment"][1] == pytest.approx(2, abs=0.07)
    assert ends["segment"][0] == begins["time"]
    turns = [number for number in range(1, len(calls)) if calls[number][1] != calls[number - 1][1]]
    for change, delay, told, turn in zip((begins, ends), delays, printed.times, turns, strict=True):
        # It is told before the model sees the next frame or chunk.
        (seen, _, num_frames), (later, *_) = [*calls, (math.inf,)][turn : turn + 2]
        assert seen < told < later
        # A frame comes at its time or later, and before the model sees it. The first of a chunk shows the change.
        assert (num_frames - 1) / 2 - 0.08 <= delay <= told - min(origins) - change["time"] + 1e-3
    said = capsys.readouterr().err
    assert "0 of 8 frames were dropped" in said and f"s (median), {max(delays):.2f} s at most" in said
    live = json.loads((tmp_path / "out" / "segments.json").read_text())["external_data"]["live"]
    assert live["num_changes"] == 2 and live["longest_delay"] == max(delays)
    assert live["median_delay"] == pytest.approx(sum(delays) / 2, abs=2e-3)


def test_changes_of_a_camera_by_rtsp(model_folder, sees_light, monkeypatch):
    printed, start = ClockedLines(), time.monotonic()
    monkeypatch.setattr("sys.stdout", printed)
    with rtsp_camera(flashing_frames(64, (32, 48)), 32) as address:
        assert run(model_folder, address, "--background", "dark", "--json") == 0
    begins, ends = map(json.loads, printed.getvalue().splitlines())
    assert (begins["change"], ends["change"]) == ("begins", "ends")
    assert ends["segment"] == pytest.approx([1, 1.5], abs=0.1)
    for change, told in zip((begins, ends), printed.times, strict=True):
        assert 0 < change["delay"] < told - start - change["time"]


def test_a_camera_that_is_faster_than_the_model(model_folder, sees_light, capsys):
    sees_light[0] = lambda pixel_values: time.sleep(0.2)
    with camera(flashing_frames(96, (32, 96)), 32, []) as address:
        assert run(model_folder, address, "--background", "dark") == 0
    printed = capsys.readouterr()
    dropped = int(printed.err.rpartition(" of 48 frames were dropped")[0].split()[-1])
    assert 15 < dropped < 40
    # Times stay right to the distance of the frames that are left.
    begins, ends = printed.out.splitlines()
    assert begins.endswith("bright begins") and 0.8 <= float(begins.split()[0].rpartition(":")[2]) <= 1.4
    assert "bright ends" in ends and 2.9 <= float(ends.split()[0].rpartition(":")[2]) <= 3.1


@pytest.mark.parametrize("with_folder", [False, True])
def test_ctrl_c_leaves_whole_files(model_folder, sees_light, tmp_path, capsys, with_folder):
    words = ["--json", *(["--output", tmp_path / "out"] if with_folder else [])]
    calls = itertools.count()

    def interrupt(pixel_values):
        if next(calls) == 20:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    sees_light[0] = interrupt
    with camera(flashing_frames(640, (10, 640)), 32, []) as address:
        assert run(model_folder, address, *words) == 130
    lines = json_lines(capsys)
    assert [line["change"] for line in lines[:3]] == ["begins", "ends", "begins"]
    assert lines[-1]["change"] == "ends" and lines[-1]["delay"] is None
    if with_folder:
        kept = json.loads((tmp_path / "out" / "segments.json").read_text())
        assert not kept["external_data"]["is_complete"] and len(list((tmp_path / "out").iterdir())) == 5
        (segments,) = kept["results"].values()
        assert [segment["label"] for segment in segments] == ["dark", "bright"]


def test_what_has_no_meaning_for_frames_is_refused(model_folder, clip_model_folder, tmp_path, fails):
    video = encode_video(tmp_path / "flash.mp4", flashing_frames(16), fps=32)
    words = ("timeline", video, "--model", model_folder)
    assert "--window 8 is for classifiers of clips" in fails(*words, "--window", 8)
    assert "--stride 4 is for classifiers of clips" in fails(*words, "--stride", 4)
    assert "--last-window drop is for classifiers of clips" in fails(*words, "--last-window", "drop")
    assert "is a classifier of frames" in fails(*words, "--chunk-size", 4)
    in_chunks = ("timeline", video, "--model", clip_model_folder, "--chunk-size", 4)
    assert "--stride 4 is for windows that slide; with --chunk-size 4" in fails(*in_chunks, "--stride", 4)
    assert "batch_size=2 (--batch-size)" in fails(*in_chunks, "--batch-size", 2)
    assert "at most 8 frames" in fails(*in_chunks[:-1], 9)
    assert "needs --chunk-size" in fails(*in_chunks[:4], "--longest-gap", 3)
    assert "is a classifier of frames" in fails("predict", video, "--model", model_folder)
    watch = ("watch", video, "--model", model_folder, "--question", "What?")
    assert "is a videomamba, which has no memory" in fails(*watch)
