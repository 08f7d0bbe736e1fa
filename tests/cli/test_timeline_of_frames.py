"""`hf-video timeline` that sees each frame once, by a classifier of frames: files, folders, live streams, and what has
no meaning for it."""

import itertools
import json
import shutil
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from hf_video import VideoClipProcessor, VideoMambaConfig
from hf_video.inference import find_segments, scores, timeline
from hf_video.loading.models import load_trained_model
from hf_video.models.videomamba import VideoMambaForFrameClassification, VideoMambaFrameClassifierOutput
from hf_video.reading import live_queue
from hf_video.reading.frame_streaming import StreamedFrame
from tests.testing.videos import encode_video

from ..reading.rtsp_server import rtsp_camera
from .test_timeline_command import json_lines, run
from .test_timeline_command import save_model as save_clip_model

NAMES = ["dark", "bright"]
SIZE = {"height": 16, "width": 16}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("frame_model")
    labels = {"id2label": dict(enumerate(NAMES)), "label2id": {name: index for index, name in enumerate(NAMES)}}
    sizes = {"image_size": 16, "patch_size": 8, "num_frames": 8, "hidden_size": 16, "num_hidden_layers": 1}
    causal = {"bidirectional": False, "use_temporal_position_embeddings": False}
    VideoMambaForFrameClassification(VideoMambaConfig(**sizes, **labels, **causal)).save_pretrained(folder)
    VideoClipProcessor(num_frames=8, size=SIZE, crop_size=SIZE, frame_interval=1 / 16).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def sees_light(monkeypatch):
    """The model tells bright frames from dark ones. What happens before a call may be changed."""
    before = [lambda: None]

    def forward(self, pixel_values, state=None, **kwargs):
        before[0]()
        light = pixel_values.mean(dim=(2, 3, 4))
        return VideoMambaFrameClassifierOutput(logits=10 * torch.stack([-light, light], dim=-1), state=state)

    monkeypatch.setattr(VideoMambaForFrameClassification, "forward", forward)
    return before


def flashing_frames(num_frames=96, on=(32, 64)):
    frames = np.full((num_frames, 16, 16, 3), 20, np.uint8)
    frames[slice(*on)] = 235
    return frames


@pytest.fixture
def live(monkeypatch):
    """Gives `rtsp://host/live` frames, 16 a second by a clock that goes on with them. `wait` is called before each."""

    def send(frames, wait=lambda number: None):
        now = [0.0]

        def camera(source, source_fps=None):
            for number, image in enumerate(frames):
                wait(number)
                now[0] = number / 16
                yield StreamedFrame(number, number / 16, image, 1 / 16)

        monkeypatch.setattr(scores, "stream_frames", camera)
        monkeypatch.setattr(live_queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
        return "rtsp://host/live"

    return send


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


def test_the_background_of_the_model_gets_no_segment(model_folder, sees_light, tmp_path, capsys):
    shutil.copytree(model_folder, tmp_path / "model")
    config = VideoMambaConfig.from_pretrained(model_folder, background_label="dark")
    config.save_pretrained(tmp_path / "model")
    (tmp_path / "frames").mkdir()
    for number, image in enumerate(flashing_frames(48, (16, 32))):
        Image.fromarray(image).save(tmp_path / "frames" / f"{number:03}.png")
    video = tmp_path / "frames"
    words = [str(tmp_path / "model"), video, "--source-fps", 16, "--json"]
    assert run(*words, "--output", tmp_path / "out") == 0
    assert [(line["label"], line["segment"]) for line in json_lines(capsys)] == [("bright", [1.0, 2.0])]
    kept = json.loads((tmp_path / "out" / "segments.json").read_text())
    assert kept["external_data"]["background"] == ["dark"]
    assert run(*words, "--background", "bright") == 0
    assert [line["label"] for line in json_lines(capsys)] == ["dark", "dark"]


def test_each_change_of_a_live_stream_is_told_with_its_delay(model_folder, sees_light, live, tmp_path, capsys):
    """A camera that is at most three frames ahead of the model, which is as far as it is read ahead."""
    ahead = threading.Semaphore(4)
    sees_light[0] = ahead.release
    address = live(flashing_frames(12, (4, 8)), lambda number: ahead.acquire(timeout=20))
    assert run(model_folder, address, "--background", "dark", "--json", "--output", tmp_path / "out") == 0
    printed = capsys.readouterr()
    begins, ends = map(json.loads, printed.out.splitlines())
    for change in (begins, ends):
        assert 0 <= change.pop("delay") <= 5 / 16
    # Borders lie between the middles of frames.
    assert begins == {"time": pytest.approx(0.25, abs=0.01), "change": "begins", "label": "bright"}
    assert ends["change"] == "ends" and ends["time"] == ends["segment"][1] == pytest.approx(0.5, abs=0.01)
    assert "Dropped 0 of 12 frames." in printed.err
    kept = json.loads((tmp_path / "out" / "segments.json").read_text())["external_data"]
    assert kept["live"] == {"num_frames": 12, "num_dropped": 0}


def test_a_stream_keeps_its_segments_on_a_full_disk(model_folder, sees_light, live, tmp_path, monkeypatch, capsys):
    """It does not come again."""

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(timeline, "write_segments", fail)
    assert run(model_folder, live(flashing_frames(12, (4, 8))), "--output", tmp_path / "out") == 2
    assert "No space left" in capsys.readouterr().err
    assert "bright" in (tmp_path / "out" / "segments.csv").read_text()
    assert not (tmp_path / "out" / "segments.json").exists()


def test_ctrl_c_leaves_whole_files(model_folder, sees_light, live, tmp_path, capsys):
    calls, ahead = itertools.count(), threading.Semaphore(4)

    def interrupt():
        ahead.release()
        if next(calls) == 8:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    sees_light[0] = interrupt
    address = live(flashing_frames(640, (4, 640)), lambda number: ahead.acquire(timeout=20))
    assert run(model_folder, address, "--json", "--output", tmp_path / "out") == 130
    lines = json_lines(capsys)
    assert [line["change"] for line in lines[:3]] == ["begins", "ends", "begins"]
    assert lines[-1]["change"] == "ends" and lines[-1]["delay"] is None
    kept = json.loads((tmp_path / "out" / "segments.json").read_text())
    assert not kept["external_data"]["is_complete"] and len(list((tmp_path / "out").iterdir())) == 5
    (segments,) = kept["results"].values()
    assert [segment["label"] for segment in segments] == ["dark", "bright"]


def test_changes_of_a_camera_by_rtsp(model_folder, sees_light, capsys):
    with rtsp_camera(flashing_frames(64, (32, 48)), 32) as address:
        assert run(model_folder, address, "--background", "dark", "--json") == 0
    begins, ends = json_lines(capsys)
    assert (begins["change"], ends["change"]) == ("begins", "ends")
    assert ends["segment"] == pytest.approx([1, 1.5], abs=0.1) and 0 < begins["delay"]


def test_what_has_no_meaning_for_frames_is_refused(model_folder, tmp_path, fails):
    video = encode_video(tmp_path / "flash.mp4", flashing_frames(16), fps=32)
    words = ("timeline", video, "--model", model_folder)
    assert "--window 8 is for classifiers of clips" in fails(*words, "--window", 8)
    assert "--last-window drop is for classifiers of clips" in fails(*words, "--last-window", "drop")
    clips = save_clip_model(tmp_path / "clips", NAMES)
    assert "--longest-gap 3 is for classifiers of frames" in fails(*words[:3], clips, "--longest-gap", 3)
    assert "is a classifier of frames" in fails("predict", video, "--model", model_folder)
    assert "has no memory" in fails("watch", video, "--model", model_folder, "--question", "What?")
