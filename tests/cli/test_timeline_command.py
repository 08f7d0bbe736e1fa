"""`hf-video timeline`: segments on time, files that say how far they go, and nothing overwritten."""

import csv
import itertools
import json
import os
import shutil

import av
import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForVideoClassification
from hf_video.cli import timeline as cli_timeline
from hf_video.cli.main import main
from hf_video.data import load_video_dataset
from hf_video.inference import scores
from tests.testing.videos import damage_frame, encode_video

NAMES = ["dark", "bright"]
SIZE = {"height": 32, "width": 32}


def save_model(folder, names, size=SIZE, crop_size=SIZE, **config):
    """A tiny model of clips of 8 frames, and its processor."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    model = VideoViTForVideoClassification(
        VideoViTConfig(num_frames=8, image_size=32, patch_size=16, **sizes, **labels, **config)
    )
    processor = VideoClipProcessor(num_frames=8, frame_sampling_rate=1, size=size, crop_size=crop_size)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), NAMES)


def flashing_frames(num_frames=90, on=(30, 60)):
    frames = np.full((num_frames, 64, 96, 3), 20, np.uint8)
    frames[slice(*on)] = 235
    return frames


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """Three seconds of 30 frames, of which the middle one is bright."""
    return encode_video(tmp_path_factory.mktemp("videos") / "flash.mp4", flashing_frames())


@pytest.fixture
def sees_light(monkeypatch):
    """The model's score of its last class is the share of bright frames; the rest is that of the others."""

    def predict(model, pixel_values):
        share = (pixel_values.mean(dim=(2, 3, 4)) > 0).float().mean(dim=1, keepdim=True)
        num_others = model.config.num_labels - 1
        return torch.cat([(1 - share) / num_others] * num_others + [share], dim=1)

    monkeypatch.setattr(scores, "predict_scores", predict)


def run(model_folder, video, *words):
    return main(["timeline", str(video), "--model", model_folder, "--device", "cpu", *map(str, words)])


def json_lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_segments_are_printed_with_their_times(model_folder, video, sees_light, capsys):
    assert run(model_folder, video, "--json") == 0
    lines = json_lines(capsys)
    assert [line["label"] for line in lines] == ["dark", "bright", "dark"]
    borders = [line["segment"] for line in lines]
    # Windows are 4 frames apart, and half of one with a border is bright. Borders are right to a tenth of a frame.
    np.testing.assert_allclose(borders, [[0, 1], [1, 2], [2, 3]], atol=0.1 / 30)
    assert lines[1].keys() == {"label", "score", "segment"} and 0.9 < lines[1]["score"] <= 1
    assert run(model_folder, video, "--background", "dark") == 0
    assert capsys.readouterr().out.split() == ["0:00:01.00", "0:00:02.00", "90.6%", "bright"]


def test_the_files_agree(model_folder, video, sees_light, tmp_path, capsys, says):
    folder = tmp_path / "new" / "timeline"
    assert run(model_folder, video, "--json", "--output", folder) == 0
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    names = ["scores.parquet", "segments.csv", "segments.json", "segments.vtt", "timeline.png"]
    assert sorted(path.name for path in folder.iterdir()) == names and ", ".join(names) in printed.err
    kept = json.loads((folder / "segments.json").read_text())
    assert kept["results"] == {"flash": lines}
    details = kept["external_data"]
    assert details["is_complete"] and details["duration"] == pytest.approx(3, abs=1e-3) and "ended_by" not in details
    assert (details["onset"], details["num_frames"], details["stride"]) == (0.5, 8, 4)
    rows = list(csv.DictReader((folder / "segments.csv").open(newline="")))
    assert [[float(row["start"]), float(row["end"])] for row in rows] == [line["segment"] for line in lines]
    # So do trainings.
    (found,) = load_video_dataset(folder / "segments.csv").values()
    assert [{**row} for row in found.select_columns(["video", "start"])] == [
        {"video": os.path.abspath(video), "start": line["segment"][0]} for line in lines
    ]
    cues = (folder / "segments.vtt").read_text().split("\n\n")
    assert cues[:2] == ["WEBVTT", f"00:00:00.000 --> 00:00:01.000\ndark ({lines[0]['score']:.0%})"] and len(cues) == 4
    table = parquet.read_table(folder / "scores.parquet")
    assert table.column_names == ["start", "end", "score: dark", "score: bright"]
    assert table["start"].to_pylist() == pytest.approx([i * 4 / 30 for i in range(len(table))], abs=1e-4)
    assert json.loads(parquet.read_metadata(folder / "scores.parquet").metadata[b"hf_video"])["is_complete"]
    assert Image.open(folder / "timeline.png").width > 1000
    # The measure of segments takes the file.
    truth = {"label": "bright", "segment": [1.0, 2.0]}
    database = {"flash": {"subset": "test", "duration": 3.0, "annotations": [truth]}}
    (tmp_path / "truth.json").write_text(json.dumps({"database": database}))
    words = [str(folder / "segments.json"), "--ground-truth", str(tmp_path / "truth.json"), "--json"]
    assert json.loads(says("evaluate", "--task", "segments", *words))["mean_average_precision"] == [1.0] * 5


def test_the_picture_shows_whole_frames(tmp_path, sees_light):
    """The model sees the middle of a frame."""
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    model = save_model(tmp_path / "model", NAMES, **size)
    frames = flashing_frames()
    frames[:, :, :20] = (0, 255, 0)
    video = encode_video(tmp_path / "edge.mp4", frames)
    assert run(model, video, "--output", tmp_path / "out") == 0
    red, green, blue = np.moveaxis(np.asarray(Image.open(tmp_path / "out" / "timeline.png").convert("RGB")), -1, 0)
    assert ((green > 180) & (red < 90) & (blue < 90)).sum() > 10_000


def test_the_annotated_video_keeps_times_and_is_upright_and_legible(model_folder, sees_light, tmp_path):
    frames = np.full((40, 90, 161, 3), 20, np.uint8)
    frames[20:] = 235
    frames[:, -30:, -40:] = (250, 0, 0)
    # Variable rate: every fifth time is left out. The video is stored on its side, and has an odd height when shown.
    times = [number for number in range(50) if number % 5]
    stored = np.rot90(frames[:, :, :160], axes=(1, 2))
    video = encode_video(tmp_path / "turned.mp4", stored, times=times, rotation=-90)
    with av.open(video) as container:
        expected = [frame.time for frame in container.decode(video=0)]
    folder = tmp_path / "out"
    assert run(model_folder, video, "--output", folder, "--annotate") == 0
    with av.open(str(folder / "annotated.mp4")) as container:
        decoded = list(container.decode(video=0))
    assert [frame.time for frame in decoded] == pytest.approx(np.subtract(expected, expected[0]), abs=1e-4)
    pictures = [frame.to_ndarray(format="rgb24") for frame in decoded]
    # Letters would be too small on 90 rows.
    assert pictures[0].shape == (270, 480, 3)
    for picture in (pictures[10], pictures[30]):
        red = picture[190:230, -100:-20].mean(axis=(0, 1))
        assert red[0] > 200 and red[1] < 60
        # The box behind the letters is dark and the letters are bright, on a dark video and on a bright one.
        box = picture[:16, :60].mean(axis=2)
        assert box.max() > 200 and np.median(box) < 90
    assert pictures[30][120:180, 180:300].mean() > 200


def test_a_damaged_video_gives_the_segments_before_the_damage(model_folder, video, sees_light, tmp_path, capsys):
    broken = damage_frame(video, 75)
    folder = tmp_path / "out"
    assert run(model_folder, broken, "--json", "--output", folder, "--annotate") == 2
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [line["label"] for line in lines] == ["dark", "bright", "dark"] and 2 < lines[-1]["segment"][1] < 2.6
    assert f"error: {broken}" in printed.err and "Traceback" not in printed.err
    kept = json.loads((folder / "segments.json").read_text())
    details = kept["external_data"]
    assert kept["results"] == {"damaged_flash": lines} and not details["is_complete"]
    assert details["duration"] == lines[-1]["segment"][1] and broken in details["ended_by"]
    assert "NOTE The timeline ends at 0:00:02, before the video does: " in (folder / "segments.vtt").read_text()
    with av.open(str(folder / "annotated.mp4")) as container:
        assert 60 < len(list(container.decode(video=0))) <= 76


def test_samples_that_nobody_looks_at_are_said(model_folder, video, caplog):
    assert run(model_folder, video, "--stride", 20) == 0
    assert "12 of every 20 samples" in caplog.text


def test_a_video_without_segments_or_shorter_than_a_window(model_folder, tmp_path, sees_light, capsys):
    short = encode_video(tmp_path / "short.mp4", flashing_frames(5, (0, 1)))
    assert run(model_folder, short, "--onset", 0.9, "--output", tmp_path / "none") == 0
    printed = capsys.readouterr()
    assert (
        printed.out == "" and "The highest score was 87.5%, of dark; a segment begins with --onset 0.9" in printed.err
    )
    assert json.loads((tmp_path / "none" / "segments.json").read_text())["results"] == {"short": []}
    assert (tmp_path / "none" / "timeline.png").exists()
    # No window at all.
    assert run(model_folder, short, "--last-window", "drop", "--annotate", "--output", tmp_path / "empty") == 0
    printed = capsys.readouterr()
    assert printed.out == "" and "The video has no window" in printed.err
    names = ["scores.parquet", "segments.csv", "segments.json", "segments.vtt"]
    assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == names


def test_a_video_without_a_frame_leaves_nothing_that_refuses_the_retry(model_folder, video, tmp_path, sees_light):
    broken, out = tmp_path / "flash.mp4", tmp_path / "out"
    broken.write_bytes(b"")
    assert run(model_folder, broken, "--output", out) == 2 and not out.exists()
    shutil.copy(video, broken)
    assert run(model_folder, broken, "--output", out) == 0
    assert len(list(out.iterdir())) == 5


def test_a_reader_that_goes_away_costs_no_segment(model_folder, video, sees_light, tmp_path, monkeypatch):
    counts, write = itertools.count(), cli_timeline.print_found

    def fail(*args):
        if next(counts):
            raise BrokenPipeError(32, "Broken pipe")
        write(*args)

    monkeypatch.setattr(cli_timeline, "print_found", fail)
    assert run(model_folder, video, "--output", tmp_path / "out", "--batch-size", 1) == 141
    kept = json.loads((tmp_path / "out" / "segments.json").read_text())
    (segments,) = kept["results"].values()
    # The segment that was not printed, and the one that was open.
    assert len(segments) == 3 and not kept["external_data"]["is_complete"]
    assert segments[-1]["segment"][1] == kept["external_data"]["duration"]
    assert len(list(csv.DictReader((tmp_path / "out" / "segments.csv").open()))) == len(segments)


def test_wrong_options_are_a_sentence(model_folder, video, tmp_path, fails):
    words = ("timeline", video, "--model", model_folder)
    assert "offset=0.6" in fails(*words, "--offset", 0.6)
    assert "Did you mean dark?" in fails(*words, "--background", "darc")
    assert "--output" in fails(*words, "--annotate")
    live = ("timeline", "rtsp://host/live", "--model", model_folder, "--annotate", "--output", tmp_path / "out")
    assert "rtsp://host/live is not a file" in fails(*live)
    (tmp_path / "notes.txt").write_text("mine")
    assert f"--output {tmp_path} is not empty (notes.txt). Choose another folder" in fails(
        *words, "--output", tmp_path
    )
    regression = save_model(tmp_path / "regression", ["height", "weight"], problem_type="regression")
    assert "is a regression model" in fails("timeline", video, "--model", regression)
