"""What the buttons of the page do, without the page."""

import csv
import json
from pathlib import Path

import av
import numpy as np
import pytest

from hf_video import VideoClipProcessor, VideoViTConfig, VideoViTForFrameClassification
from hf_video.app.visitors import Cancelled, Ticket, Visitors
from hf_video.app.work import LoadedModel, annotate, classify, draw_heat_map, find_segments
from hf_video.drawing.texts import class_color
from hf_video.loading.models import load_trained_model

from ..video_files import damage_frame, encode_video
from .colour_models import FPS, colour_frames, save_colour_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return LoadedModel("colours", *load_trained_model(save_colour_model(tmp_path_factory.mktemp("model"))))


@pytest.fixture(scope="module")
def flicker(tmp_path_factory):
    """Two seconds of red, a flash of blue, two seconds of red and two of blue."""
    clips = [colour_frames(colour, count) for colour, count in (("red", 20), ("blue", 5), ("red", 20), ("blue", 20))]
    return Path(encode_video(tmp_path_factory.mktemp("video") / "flicker.mp4", np.concatenate(clips), fps=FPS))


@pytest.fixture
def visitor(tmp_path):
    return Visitors(tmp_path / "uploads")["ann"]


@pytest.fixture
def work(model, visitor):
    """Does the work of a button; returns its last message, and the last value of each output."""

    def do(step, video, *inputs, model=model):
        shown = {}
        for said, *outputs in step(model, visitor, Ticket(video, model.name), *inputs):
            shown |= {"said": said, **dict(enumerate(outputs))}
        return tuple(shown.values())

    return do


def rows_of(files):
    (table,) = (file for file in files if file.endswith("segments.csv"))
    with open(table, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_short_segments_and_short_gaps_are_not_shown(work, flicker):
    _, shown, _, files, _ = work(find_segments, flicker, 0.5, 0.0, 0.0)
    assert [row["label"] for row in rows_of(files)] == ["red", "blue", "red", "blue"]
    said, shown, _, files, _ = work(find_segments, flicker, 0.5, 0.8, 0.8)
    assert [row["label"] for row in rows_of(files)] == ["red", "blue"]
    assert said.startswith("2 segments") and shown.count("<button") == 2


def test_the_files_of_a_timeline_can_be_downloaded(work, flicker, visitor):
    *_, files, annotated = work(find_segments, flicker, 0.5, 0.8, 0.8)
    assert {Path(file).name for file in files} == {
        "scores.parquet", "segments.csv", "segments.json", "segments.vtt", "timeline.png"
    }  # fmt: skip
    assert annotated is None and all(visitor.folder in Path(file).parents for file in files)
    (table,) = (file for file in files if file.endswith(".json"))
    kept = json.loads(Path(table).read_text())
    assert [entry["label"] for entry in kept["results"]["flicker.mp4"]] == ["red", "blue"]
    assert kept["external_data"] | {"model": "colours", "min_duration_on": 0.8, "onset": 0.5} == kept["external_data"]


def test_the_annotated_video_is_as_long_as_the_video(work, flicker):
    work(find_segments, flicker, 0.5, 0.8, 0.8)
    said, annotated = work(annotate, flicker)
    assert said == "flicker_annotated.mp4 is ready."
    with av.open(annotated) as container:
        assert len(list(container.decode(video=0))) == 65


def test_of_a_damaged_video_the_part_before_the_damage_is_annotated(work, flicker):
    damaged = Path(damage_frame(str(flicker), 40))
    said, shown, *_ = work(find_segments, damaged, 0.5, 0.8, 0.8)
    assert isinstance(said, OSError) and "red" in shown
    _, annotated = work(annotate, damaged)
    with av.open(annotated) as container:
        assert 20 < len(list(container.decode(video=0))) <= 41


def test_only_the_segments_of_this_video_and_model_are_drawn(work, flicker, model):
    with pytest.raises(ValueError, match="There are no segments of this video yet: find them first"):
        work(annotate, flicker)
    work(find_segments, flicker, 0.5, 0.8, 0.8)
    with pytest.raises(ValueError, match="no segments"):
        work(annotate, flicker, model=LoadedModel("other", model.network, model.processor))


def test_a_cancelled_work_leaves_no_file(model, visitor, flicker):
    for step, inputs in ((find_segments, (0.5, 0.8, 0.8)), (annotate, ())):
        ticket = Ticket(flicker, model.name)
        steps = step(model, visitor, ticket, *inputs)
        next(steps)
        next(steps)
        ticket.cancel()
        before = set(visitor.folder.iterdir())
        with pytest.raises(Cancelled):
            list(steps)
        assert len(before - set(visitor.folder.iterdir())) == 1
        list(find_segments(model, visitor, Ticket(flicker, model.name), 0.5, 0.8, 0.8))


def test_a_class_has_its_colour_in_the_bars_and_in_the_list(work, flicker):
    said, bars = work(classify, flicker)
    _, shown, *_ = work(find_segments, flicker, 0.5, 0.8, 0.8)
    assert said.startswith("red: ") and bars.index(class_color(0)) < bars.index("red") < bars.index(class_color(1))
    assert shown.index(class_color(0)) < shown.index("red") < shown.index(class_color(1)) < shown.index("blue")


def test_durations_are_a_clip_of_the_model(model):
    assert model.window_seconds == 1.0
    processor = type(model.processor)(num_frames=8, frame_interval=0.26)
    assert LoadedModel("known", model.network, processor).window_seconds == 2.0


def test_a_classifier_of_frames_has_segments_but_no_class_of_a_clip(work, flicker):
    labels = {"id2label": {0: "red", 1: "blue"}, "label2id": {"red": 0, "blue": 1}}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = VideoViTConfig(num_frames=8, image_size=16, patch_size=8, **sizes, **labels)
    size = {"height": 16, "width": 16}
    processor = VideoClipProcessor(num_frames=8, size=size, crop_size=size, frame_interval=1 / FPS)
    model = LoadedModel("frames", VideoViTForFrameClassification(config).eval(), processor)
    said, shown, *_, files, _ = work(find_segments, flicker, 0.05, 0.0, 0.0, model=model)
    rows = rows_of(files)
    assert "in 0:00:06" in said and shown.count("<button") == len(rows) >= 1
    # A token frame is two of 65 frames; the last one fills none.
    assert float(rows[-1]["end"]) == pytest.approx(64 / FPS, abs=0.01)
    model.network.config.background_label = background = rows[0]["label"]
    *_, files, _ = work(find_segments, flicker, 0.05, 0.0, 0.0, model=model)
    assert background not in [row["label"] for row in rows_of(files)]
    for step, inputs in ((classify, ()), (draw_heat_map, ("red", False, 0.0))):
        with pytest.raises(ValueError, match="frames gives a class for every frame, and none for a clip"):
            work(step, flicker, *inputs, model=model)
