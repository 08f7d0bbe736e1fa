"""`hf-video suggest`: what to label next, in the file of a tool or a list, and never what is labelled already."""

import csv
import json

import numpy as np
import pytest

from hf_video.cli.main import main
from hf_video.data import load_video_dataset, read_annotations
from hf_video.data.rows import TO_LABEL
from tests.testing.videos import encode_video, make_frames

from ..data.annotations.test_readers import boris
from .test_timeline_command import NAMES, save_model
from .test_timeline_of_frames import model_folder as frame_model  # noqa: F401


@pytest.fixture(scope="module")
def clip_model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), NAMES)


@pytest.fixture
def video(tmp_path):
    """Six seconds."""
    noise = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    return encode_video(tmp_path / "noise.mp4", noise, fps=10)


def run(model, videos, output, *words):
    videos = [videos] if isinstance(videos, str) else videos
    words = ["--model", model, "--output", output, "--seconds", 1, "--count", 2, "--device", "cpu", *words]
    return main(["suggest", *map(str, [*videos, *words])])


def read(output):
    """The stretches of a file, in the order of time."""
    if output.suffix == ".csv":
        rows = [*csv.DictReader(output.open())]
    elif output.name == "next.json":
        rows = json.loads(output.read_text())
    else:
        rows = [each | {"label": TO_LABEL} for each in read_annotations(output).reports if each["kind"] == "to_label"]
    assert all(row["label"] == TO_LABEL for row in rows)
    return sorted((float(row["start"]), float(row["end"])) for row in rows)


@pytest.mark.parametrize("name", ["next.boris", "next.eaf", "next.via.json", "next.csv", "next.json"])
def test_formats(name, clip_model, video, tmp_path, capsys):
    output = tmp_path / name
    assert run(clip_model, video, output) == 0
    _, *lines, last = capsys.readouterr().out.splitlines()
    (first, first_end), (second, second_end) = read(output)
    assert (first_end - first, second_end - second) == (1, 1) and second - first > 1
    assert len(lines) == 2 and str(video) in lines[0] and last == f"{output} has 2 events to label"


def test_frames_and_several_videos(frame_model, video, tmp_path):  # noqa: F811
    other = encode_video(tmp_path / "other.mp4", np.full((30, 32, 32, 3), 99, np.uint8), fps=10)
    output = tmp_path / "next.boris"
    assert run(frame_model, [video, other], output, "--count", 9) == 0
    media = [each["media"] for each in read_annotations(output).reports]
    assert {*media} == {"noise.mp4", "other.mp4"} and len(media) <= 5


def test_what_is_labelled_is_left_out(clip_model, video, tmp_path, capsys):
    """And once all is, there is nothing to suggest."""
    times, output = tmp_path / "times.csv", tmp_path / "next.csv"
    times.write_text("path,label,start,end\nnoise.mp4,dark,0,3\nnoise.mp4,bright,3.5,5\nnoise,to label,0,6\n")
    assert run(clip_model, video, output, "--annotations", times) == 0
    assert read(output) == [(5.0, 6.0)]
    times.write_text("path,label,start,end\nnoise.mp4,dark,2.5,2.5\nnoise.mp4,bright,2.6,6\n")  # with an instant
    assert run(clip_model, video, tmp_path / "rest.csv", "--annotations", times) == 0
    assert read(tmp_path / "rest.csv") in ([(0.0, 1.0)], [(1.0, 2.0)])
    times.write_text("path,label,start,end\nnoise.mp4,dark,0,6\n")
    assert run(clip_model, video, tmp_path / "none.csv", "--annotations", times) == 2
    assert "No stretch" in capsys.readouterr().err and not (tmp_path / "none.csv").exists()


def test_a_background_makes_all_time_that_was_looked_at_labelled(tmp_path):
    """A copy of the project, with what is to label beside the events of the person."""
    model = save_model(tmp_path / "model", NAMES, background_label="dark")
    events = [[0.0, "", "walk", "", ""], [0.5, "", "walk", "", ""]]
    seen = {"type": "MEDIA", "file": {"1": ["a.mp4"]}, "events": events, "observation time interval": [0, 2]}
    project, output = boris(tmp_path, {"day 1": seen}), tmp_path / "next.boris"
    encode_video(tmp_path / "a.mp4", np.full((40, 32, 32, 3), 99, np.uint8), fps=10)
    assert run(model, str(tmp_path / "a.mp4"), output, "--annotations", project, "--count", 9) == 0
    assert read(output) in ([(2.0, 3.0)], [(3.0, 4.0)])
    (row,) = load_video_dataset(output, labels=["walk"])["train"]
    assert (row["start"], row["end"]) == (0.0, 0.5)


def test_what_cannot_be_done_is_refused_before_the_video_is_read(clip_model, frame_model, video, tmp_path, capsys):  # noqa: F811
    (tmp_path / "there.csv").write_text("")
    project = boris(tmp_path, {})
    for model, name, videos, words, message in (
        (clip_model, "next.txt", [], [], ".boris, .eaf, .via.json, .csv, .json is expected"),
        (clip_model, "there.csv", [], [], "exists"),
        (clip_model, "next.eaf", [tmp_path / "a.mp4"], [], "about one video, not 2"),
        (clip_model, "next.boris", ["https://host/a.mp4"], [], "https://host/a.mp4 is none"),
        (clip_model, "next.boris", [], ["--annotations", tmp_path / "no.boris"], "no.boris"),
        (clip_model, "next.boris", [], ["--annotations", project], "no segment of a video"),
        (frame_model, "next.csv", [], ["--window", 8], "--window 8"),
    ):
        assert run(model, [video, *videos], tmp_path / name, *words) == 2
        assert message in capsys.readouterr().err


def test_a_video_without_observation_is_refused_before_the_model_is_loaded(
    clip_model, video, tmp_path, capsys, monkeypatch
):
    monkeypatch.delattr("hf_video.inference.suggestion.load_trained_model")
    encode_video(tmp_path / "seen.mp4", make_frames(20, 16, 16), fps=10)
    events = [[0.0, "fly", "walk", "", "", 0], [1.0, "fly", "walk", "", "", 10]]
    project = boris(tmp_path, {"day 1": {"type": "MEDIA", "file": {"1": ["seen.mp4"]}, "events": events}})
    assert run(clip_model, [video], tmp_path / "next.boris", "--annotations", project) == 2
    assert "has no observation of noise.mp4" in capsys.readouterr().err


def test_a_damaged_video_is_told_and_the_others_go_on(clip_model, video, tmp_path, capsys):
    (tmp_path / "damaged.mp4").write_bytes(b"no video")
    output = tmp_path / "next.csv"
    assert run(clip_model, [video, tmp_path / "damaged.mp4"], output) == 1
    assert len(read(output)) == 2 and "damaged.mp4" in capsys.readouterr().err
