"""What the buttons of the page do, without the page."""

import csv
import json
import shutil
import tempfile
from pathlib import Path

import av
import numpy as np
import pytest

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForFrameClassification
from hf_video.app.work import LoadedModel, annotate, classify, draw_heat_map, find_segments
from hf_video.loading.models import load_trained_model
from tests.testing.videos import damage_frame, encode_video

from .colour_models import FPS, colour_frames, save_colour_model

THRESHOLDS = (0.5, 0.8, 0.8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return LoadedModel("colours", *load_trained_model(save_colour_model(tmp_path_factory.mktemp("model"))))


@pytest.fixture(scope="module")
def flicker(tmp_path_factory):
    """Two seconds of red, a flash of blue, two seconds of red and two of blue."""
    clips = [colour_frames(colour, count) for colour, count in (("red", 20), ("blue", 5), ("red", 20), ("blue", 20))]
    return Path(encode_video(tmp_path_factory.mktemp("video") / "flicker.mp4", np.concatenate(clips), fps=FPS))


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder in which work makes its own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def work(model, temporary, tmp_path):
    """Does the work of a button; returns its last message, and the last value of each output. As the page does, it
    keeps copies of files: the work removes them."""

    def keep(value):
        if isinstance(value, list):
            return [keep(each) for each in value]
        return shutil.copy(value, tmp_path) if isinstance(value, str) and value.startswith(str(temporary)) else value

    def do(step, video, *inputs, model=model):
        shown = {}
        for said, *outputs in step(model, video, *inputs):
            shown |= {"said": said, **dict(enumerate(map(keep, outputs)))}
        assert not list(temporary.iterdir())
        return tuple(shown.values())

    return do


def rows_of(files):
    (table,) = (file for file in files if file.endswith("segments.csv"))
    with open(table, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def num_frames(video):
    with av.open(video) as container:
        return len(list(container.decode(video=0)))


def test_short_segments_and_short_gaps_are_not_shown(work, flicker):
    _, shown, _, files, *_ = work(find_segments, flicker, 0.5, 0.0, 0.0)
    assert [row["label"] for row in rows_of(files)] == ["red", "blue", "red", "blue"]
    said, shown, _, files, *_ = work(find_segments, flicker, *THRESHOLDS)
    assert [row["label"] for row in rows_of(files)] == ["red", "blue"]
    assert said.startswith("2 segments") and [row[2] for row in shown["data"]] == ["red", "blue"]
    names = {"scores.parquet", "segments.csv", "segments.json", "segments.vtt", "timeline.png"}
    assert {Path(file).name for file in files} == names
    (table,) = (file for file in files if file.endswith(".json"))
    kept = json.loads(Path(table).read_text())
    assert [entry["label"] for entry in kept["results"]["flicker.mp4"]] == ["red", "blue"]
    assert kept["external_data"] | {"model": "colours", "min_duration_on": 0.8, "onset": 0.5} == kept["external_data"]


def test_the_annotated_video_is_as_long_as_the_video(work, flicker):
    *_, found = work(find_segments, flicker, *THRESHOLDS)
    said, annotated = work(annotate, flicker, found)
    assert said == "flicker_annotated.mp4 is ready." and num_frames(annotated) == 65


def test_of_a_damaged_video_the_part_before_the_damage_is_annotated(work, flicker):
    damaged = Path(damage_frame(str(flicker), 40))
    said, shown, *_, found = work(find_segments, damaged, *THRESHOLDS)
    assert isinstance(said, OSError) and shown["data"][0][2] == "red"
    _, annotated = work(annotate, damaged, found)
    assert 20 < num_frames(annotated) <= 41


def test_only_the_segments_of_this_video_and_model_are_drawn(work, flicker, model):
    *_, found = work(find_segments, flicker, *THRESHOLDS)
    other = LoadedModel("other", model.network, model.processor)
    for words, options in (((flicker, None), {}), ((flicker, found), {"model": other})):
        with pytest.raises(ValueError, match="no segments of this video yet"):
            work(annotate, *words, **options)


def test_a_cancelled_work_leaves_no_file(model, flicker, temporary):
    *_, (*_, found) = find_segments(model, flicker, *THRESHOLDS)
    for step, inputs in ((find_segments, THRESHOLDS), (annotate, (found,))):
        steps = step(model, flicker, *inputs)
        next(steps)
        next(steps)
        assert list(temporary.iterdir())
        steps.close()
        assert not list(temporary.iterdir())
        with model.lock:
            pass


def test_of_classes_with_one_name_the_highest_score_is_shown(work, flicker, model, monkeypatch):
    assert list(work(classify, flicker)[1]) == ["blue", "red"]
    monkeypatch.setattr(model.network.config, "id2label", {0: "red", 1: "red"})
    said, scores = work(classify, flicker)
    assert scores["red"] > 0.5 and said == f"red: {scores['red']:.1%}."


def test_a_classifier_of_frames_has_segments_but_no_class_of_a_clip(work, flicker):
    labels = {"id2label": {0: "red", 1: "blue"}, "label2id": {"red": 0, "blue": 1}}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = VideoViTConfig(num_frames=8, image_size=16, patch_size=8, **sizes, **labels)
    size = {"height": 16, "width": 16}
    processor = VideoClipProcessor(num_frames=8, size=size, crop_size=size, frame_interval=1 / FPS)
    model = LoadedModel("frames", VideoViTForFrameClassification(config).eval(), processor)
    said, shown, _, files, *_ = work(find_segments, flicker, 0.05, 0.0, 0.0, model=model)
    rows = rows_of(files)
    assert "in 0:00:06" in said and len(shown["data"]) == len(rows) >= 1
    # The last token frame has one of 65 frames.
    assert float(rows[-1]["end"]) == pytest.approx(65 / FPS, abs=0.01)
    model.network.config.background_label = background = rows[0]["label"]
    _, _, _, files, *_ = work(find_segments, flicker, 0.05, 0.0, 0.0, model=model)
    assert background not in [row["label"] for row in rows_of(files)]
    for step, inputs in ((classify, ()), (draw_heat_map, ("red", False, 0.0))):
        with pytest.raises(ValueError, match="frames gives a class for every frame, and none for a clip"):
            work(step, flicker, *inputs, model=model)
